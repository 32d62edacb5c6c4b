"""The look that all charts share, and how they end: saved, shown, returned.

Nothing here changes matplotlib's own settings: everything is set on the figure at hand.
"""

from pathlib import Path
from typing import Any

from everyo.training.history import PathLike
from everyo.visualization import _backend

__all__ = ["COLOURS", "GRID", "INK", "MUTED", "FigSize", "caption", "finish", "new_axes", "tidy"]

FigSize = tuple[float, float] | None

COLOURS = ("#3366cc", "#dc6b19", "#2a9d6e", "#8e5bb5", "#c23b52", "#6b7785", "#b8960b", "#1792a8")
INK, MUTED, GRID = "#1f2933", "#6b7785", "#e4e7eb"
LONGEST = 28  # characters of a label that comes from data


def new_axes(columns: int, figsize: FigSize, default: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure and its axes, side by side."""
    size = default if figsize is None else figsize

    def build(plt: Any) -> Any:
        return plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)

    figure, axes = _backend.create_figure(build)
    return figure, list(axes[0])


def tidy(axes: Any, *, title: str | None = None, x: str = "", y: str = "") -> None:
    """Quiet frames and grids, a title at the left, labels."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)


def caption(name: Any) -> str:
    """A name that comes from data as a label: short, and without a meaning of its `$`."""
    text = str(name)
    return (text if len(text) <= LONGEST else text[: LONGEST - 1] + "…").replace("$", r"\$")


def finish(figure: Any, save_path: PathLike | None, show: bool) -> Any:
    """Save the figure (directories are made), show it where there is a display, and return it."""
    if save_path is not None:
        path = Path(save_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    if show and not _backend.using_headless_backend():
        _backend.get_pyplot().show()
    return figure
