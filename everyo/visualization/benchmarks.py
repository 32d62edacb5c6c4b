"""Charts of benchmarks: a line or a bar per contender, from rows of results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everyo.exceptions import EveryOError
from everyo.training.history import PathLike
from everyo.visualization.style import COLOURS, INK, FigSize, finish, new_axes, tidy

__all__ = ["plot_benchmark", "plot_benchmark_bars"]

Row = Mapping[str, Any]
UNITS = {"seconds": "Seconds", "gflops": "GFLOP/s", "size": "Size"}


def plot_benchmark(
    results: Iterable[Row],
    *,
    x_key: str = "size",
    y_key: str = "seconds",
    title: str = "Benchmark",
    log_scale: bool = True,
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """`y_key` over `x_key`, a line for each `backend` of the rows; the figure."""
    rows = _rows(results, (x_key, y_key))
    figure, (axes,) = new_axes(1, figsize, (6.4, 4.2))
    for number, name in enumerate(_names(rows, "backend")):
        line = sorted((r[x_key], r[y_key]) for r in rows if r.get("backend", "") == name)
        x, y = zip(*line, strict=True)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(x, y, marker="o", markersize=5, linewidth=1.8, color=colour, label=name)
    tidy(axes, title=title, x=_label(x_key), y=_label(y_key))
    if log_scale:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sorted({r[x_key] for r in rows})
        if len(sizes) <= 12:
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.minorticks_off()
    if any("backend" in r for r in rows):
        axes.legend(frameon=False)
    return finish(figure, save_path, show)


def plot_benchmark_bars(
    results: Iterable[Row],
    *,
    value_key: str = "seconds",
    label_key: str = "backend",
    title: str = "Benchmark",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """A bar of length `value_key` for each row, named by its `label_key`; the figure."""
    rows = _rows(results, (value_key, label_key))
    figure, (axes,) = new_axes(1, figsize, (6.4, 1.4 + 0.45 * len(rows)))
    places = range(len(rows), 0, -1)  # the first row at the top
    values = [float(r[value_key]) for r in rows]
    names = _names(rows, label_key)
    colours = [COLOURS[names.index(str(r[label_key])) % len(COLOURS)] for r in rows]
    bars = axes.barh(places, values, height=0.62, color=colours)
    axes.bar_label(bars, [f"{value:.4g}" for value in values], padding=4, color=INK, fontsize=9)
    tidy(axes, title=title, x=_label(value_key))
    axes.set_yticks(places, [str(r[label_key]) for r in rows])
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    return finish(figure, save_path, show)


def _rows(results: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    rows = list(results)
    if not rows:
        raise EveryOError("the results are empty: there is nothing to draw")
    for row in rows:
        for key in keys:
            if key not in row:
                raise EveryOError(f"a row of the results has no {key!r}; it has {', '.join(row)}")
    return rows


def _names(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(str(row.get(key, "")) for row in rows))


def _label(key: str) -> str:
    return UNITS.get(key, key.replace("_", " ").capitalize())
