"""Charts of what a model predicts: confusion matrices, curves through points, decision regions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.exceptions import EveryOError, EveryOShapeError
from everyo.training.history import PathLike
from everyo.training.metrics import confusion_matrix
from everyo.visualization.style import (
    COLOURS,
    INK,
    MUTED,
    FigSize,
    caption,
    finish,
    new_axes,
    tidy,
)

LETTER = 0.09  # inches, about

__all__ = ["plot_confusion_matrix", "plot_decision_boundary", "plot_predictions"]


def plot_confusion_matrix(
    predictions: Any,
    targets: Any,
    *,
    class_names: Sequence[str] | None = None,
    normalize: bool = False,
    title: str = "Confusion matrix",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """How often each true class (row) was predicted as each class (column); the figure.

    With `normalize`, as fractions of the row.
    """
    counts = confusion_matrix(
        predictions, targets, None if class_names is None else len(class_names)
    )
    n = len(counts)
    names = [caption(name) for name in (range(n) if class_names is None else class_names)]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(2.2 + 0.5 * n, 4.2, 14.0))
    longest = max(map(len, names)) * LETTER
    turned = longest > 0.6 * side / n  # more than the width of a cell
    size = (side + 0.8 + longest, side + 0.7 * longest * turned)
    figure, (axes,) = new_axes(1, figsize, size)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for row in range(n):
        for column in range(n):
            text = f"{shares[row, column]:.2f}" if normalize else str(counts[row, column])
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=9 if n <= 12 else 6,
                color=_on_blue(shares[row, column], counts[row, column]),
            )
    tidy(axes, title=title, x="Predicted", y="True")
    axes.grid(False)
    axes.set_xticks(
        range(n), names, rotation=45 if turned else 0, ha="right" if turned else "center"
    )
    axes.set_yticks(range(n), names)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label("fraction of the true class", color=INK)
    bar.outline.set_visible(False)
    return finish(figure, save_path, show)


def _on_blue(share: float, count: int) -> str:
    """A colour that can be read on the cell; zeros step back."""
    if count == 0:
        return "#b8c2cc"
    return "white" if share > 0.5 else INK


def plot_predictions(
    features: Any,
    targets: Any,
    predictions: Any,
    *,
    title: str = "Predictions",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """Targets and predictions over a single feature, or with several features against each other.

    features (n,) or (n, f), targets and predictions (n,) or (n, 1).
    """
    x = np.atleast_1d(np.asarray(features))
    x = x.reshape(len(x), math.prod(x.shape[1:]))
    true, predicted = np.asarray(targets).reshape(-1), np.asarray(predictions).reshape(-1)
    if not len(x) == len(true) == len(predicted):
        raise EveryOShapeError(
            f"plot_predictions: features, targets and predictions must have the same number of "
            f"samples, got {len(x)}, {len(true)} and {len(predicted)}"
        )
    if len(x) == 0:
        raise EveryOError("plot_predictions: there is nothing to draw, the arrays are empty")
    figure, (axes,) = new_axes(1, figsize, (6.4, 4.4))
    if x.shape[1] == 1:
        order = np.argsort(x[:, 0], kind="stable")
        axes.scatter(x[:, 0], true, s=16, color=MUTED, alpha=0.6, linewidths=0, label="target")
        axes.plot(
            x[order, 0], predicted[order], color=COLOURS[1], linewidth=2.2, label="prediction"
        )
        tidy(axes, title=title, x="Feature", y="Target")
    else:
        low, high = min(true.min(), predicted.min()), max(true.max(), predicted.max())
        axes.plot([low, high], [low, high], color=COLOURS[1], linewidth=1.5, label="perfect")
        axes.scatter(
            true, predicted, s=16, color=COLOURS[0], alpha=0.5, linewidths=0, label="samples"
        )
        tidy(axes, title=title, x="Target", y="Prediction")
    axes.legend(frameon=False)
    return finish(figure, save_path, show)


def plot_decision_boundary(
    predict_fn: Callable[[np.ndarray], Any],
    features: Any,
    labels: Any,
    *,
    resolution: int = 200,
    title: str = "Decision boundary",
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """The regions of the plane that a model assigns to each class, and the samples (n, 2) on them.

    `predict_fn` takes points (m, 2), float32, and returns labels (m,), a score (m, 1) that means
    class 1 from 0.5 on, or a score per class (m, classes).
    """
    points = np.asarray(features)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(
            f"plot_decision_boundary draws in the plane: features must have shape (n, 2), got "
            f"{points.shape}"
        )
    true = np.asarray(labels).reshape(-1).astype(np.int64)
    if len(true) != len(points):
        raise EveryOShapeError(
            f"plot_decision_boundary: features and labels must have the same number of samples, "
            f"got {len(points)} and {len(true)}"
        )
    if len(points) == 0:
        raise EveryOError("plot_decision_boundary: there is nothing to draw, no samples are given")
    x, y = (_span(points[:, axis], resolution) for axis in (0, 1))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2).astype(np.float32)
    regions = _classes(predict_fn(grid), len(grid)).reshape(resolution, resolution)
    figure, (axes,) = new_axes(1, figsize, (6.4, 5.2))
    highest = int(max(regions.max(), true.max()))
    edges = np.arange(highest + 2) - 0.5
    colours = [COLOURS[i % len(COLOURS)] for i in range(highest + 1)]
    axes.contourf(x, y, regions, levels=edges, colors=colours, alpha=0.22)
    if regions.min() != regions.max():
        axes.contour(x, y, regions, levels=edges[1:-1], colors=INK, linewidths=0.9)
    for label in np.unique(true):
        chosen = points[true == label]
        axes.scatter(
            chosen[:, 0],
            chosen[:, 1],
            s=22,
            color=colours[label],
            edgecolors="white",
            linewidths=0.6,
            label=f"class {label}",
        )
    tidy(axes, title=title)
    axes.grid(False)
    axes.legend(frameon=True, framealpha=0.85, edgecolor="none", loc="best")
    return finish(figure, save_path, show)


def _span(values: np.ndarray, count: int) -> np.ndarray:
    """Evenly spaced coordinates a little beyond the values."""
    low, high = float(values.min()), float(values.max())
    margin = 0.12 * (high - low) or 0.5
    return np.linspace(low - margin, high + margin, count)


def _classes(result: Any, count: int) -> np.ndarray:
    found = np.asarray(result)
    if found.ndim == 2 and found.shape[1] > 1:
        found = found.argmax(axis=1)
    if found.size != count:
        raise EveryOShapeError(
            f"plot_decision_boundary: predict_fn must return a label or scores for each of "
            f"{count} points, got shape {np.shape(result)}"
        )
    flat = found.reshape(-1)
    return (flat >= 0.5 if flat.dtype.kind == "f" and not _whole(flat) else flat).astype(np.int64)


def _whole(values: np.ndarray) -> bool:
    return bool(np.all(values == np.floor(values)))
