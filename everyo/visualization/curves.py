"""Charts of a history: what was measured, over the epochs."""

from collections.abc import Mapping, Sequence
from typing import Any

from everyo.exceptions import EveryOError
from everyo.training.history import History, PathLike
from everyo.visualization.style import COLOURS, FigSize, finish, new_axes, tidy

__all__ = ["plot_accuracy", "plot_history", "plot_loss", "plot_metric"]

Columns = Mapping[str, Sequence[float]]
MARKED = 30  # epochs up to which every point has a mark


def plot_loss(
    history: History | Columns,
    *,
    title: str = "Loss",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """The loss in training and validation; the figure."""
    return plot_metric(
        history, ("loss", "val_loss"), title=title, save_path=save_path, show=show, figsize=figsize
    )


def plot_accuracy(
    history: History | Columns,
    *,
    title: str = "Accuracy",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """The accuracy in training and validation; the figure."""
    columns = _columns(history)
    keys = _accuracies(columns) or ["accuracy", "val_accuracy"]
    return plot_metric(columns, keys, title=title, save_path=save_path, show=show, figsize=figsize)


def plot_metric(
    history: History | Columns,
    keys: str | Sequence[str],
    *,
    title: str | None = None,
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """Any columns of a history, those that it has; `EveryOError` if it has none of them."""
    columns = _columns(history)
    wanted = [keys] if isinstance(keys, str) else list(keys)
    _found(columns, wanted)
    figure, (axes,) = new_axes(1, figsize, (6.4, 4.0))
    _draw(axes, columns, wanted, ", ".join(wanted) if title is None else title)
    return finish(figure, save_path, show)


def plot_history(
    history: History | Columns,
    *,
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """The loss and, where the history has one, the accuracy beside it; the figure."""
    columns = _columns(history)
    charts = [("Loss", ["loss", "val_loss"])]
    if _accuracies(columns):
        charts.append(("Accuracy", _accuracies(columns)))
    _found(columns, charts[0][1])
    figure, axes = new_axes(len(charts), figsize, (5.6 * len(charts), 4.0))
    for place, (title, keys) in zip(axes, charts, strict=True):
        _draw(place, columns, keys, title)
    return finish(figure, save_path, show)


def _columns(history: Any) -> dict[str, list[float]]:
    """The columns of a history or dict."""
    if isinstance(history, History):
        columns = history.to_dict()
    elif isinstance(history, Mapping):
        columns = {str(name): list(values) for name, values in history.items()}
    else:
        raise TypeError(
            f"expected a History or a dict of columns, got {type(history).__name__}; "
            "fit returns a History"
        )
    if not any(columns.values()):
        raise EveryOError("the history is empty: there is nothing to draw before the first epoch")
    return columns


def _found(columns: Columns, wanted: Sequence[str]) -> list[str]:
    found = [name for name in wanted if columns.get(name)]
    if not found:
        raise EveryOError(
            f"None of the requested metrics {', '.join(wanted)} is in the history; it has "
            f"{', '.join(columns)}"
        )
    return found


def _accuracies(columns: Columns) -> list[str]:
    names = ("accuracy", "val_accuracy", "binary_accuracy", "val_binary_accuracy")
    return [name for name in names if columns.get(name)]


def _draw(axes: Any, columns: Columns, wanted: Sequence[str], title: str) -> None:
    """The curves of one chart: a colour per metric, validation dashed (of a single metric also in
    another colour)."""
    found = _found(columns, wanted)
    bases = list(dict.fromkeys(name.removeprefix("val_") for name in found))
    for name in found:
        base = name.removeprefix("val_")
        validation = name != base
        place = 1 if validation and len(bases) == 1 else bases.index(base)
        values = columns[name]
        axes.plot(
            _epochs(columns, len(values)),
            values,
            label=_label(name, found),
            color=COLOURS[place % len(COLOURS)],
            linestyle="--" if validation else "-",
            linewidth=1.8,
            marker="o" if len(values) <= MARKED else None,
            markersize=3.5,
        )
    tidy(axes, title=title, x="Epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _label(name: str, found: Sequence[str]) -> str:
    bases = {n.removeprefix("val_") for n in found}
    if len(bases) > 1:
        return name
    return "validation" if name.startswith("val_") else "training"


def _epochs(columns: Columns, count: int) -> Sequence[float]:
    epochs = columns.get("epoch", ())
    return epochs if len(epochs) == count else range(1, count + 1)
