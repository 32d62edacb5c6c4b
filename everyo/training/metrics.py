"""Metrics: functions of (prediction, target) that return a plain number.

Both sides are arrays, tensors or lists. Scores are turned into labels where labels are compared:
rows by their largest entry, on either side. `get_metric` finds a metric by the name under which
the history keeps it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from everyo.exceptions import EveryOShapeError

__all__ = [
    "METRICS", "accuracy", "binary_accuracy", "confusion_matrix", "get_metric",
    "mean_absolute_error", "mean_squared_error", "r2_score",
]  # fmt: skip

Metric = Callable[[Any, Any], float]


def accuracy(prediction: Any, target: Any) -> float:
    """The fraction of samples (n,) whose class is right; rows of scores count as their argmax.

    >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1])
    0.5
    """
    predicted, true = _labels(prediction), _labels(target)
    _check_same("accuracy", predicted, true)
    return float(np.mean(predicted == true))


def binary_accuracy(prediction: Any, target: Any, threshold: float = 0.5) -> float:
    """The fraction of values that lie on the target's side of `threshold`.

    >>> binary_accuracy([0.2, 0.7], [0, 0])
    0.5
    """
    predicted, true = np.asarray(prediction).reshape(-1), np.asarray(target).reshape(-1)
    _check_same("binary_accuracy", predicted, true)
    return float(np.mean((predicted >= threshold) == (true >= 0.5)))


def mean_absolute_error(prediction: Any, target: Any) -> float:
    """The mean of |prediction - target|."""
    predicted, true = _numbers("mean_absolute_error", prediction, target)
    return float(np.mean(np.abs(predicted - true)))


def mean_squared_error(prediction: Any, target: Any) -> float:
    """The mean of (prediction - target)**2."""
    predicted, true = _numbers("mean_squared_error", prediction, target)
    return float(np.mean((predicted - true) ** 2))


def r2_score(prediction: Any, target: Any) -> float:
    """The fraction of the target's variance that is explained: 1 for a perfect fit, 0 for the mean.

    A constant target has no variance; then a perfect fit gives 1 and any other 0.
    """
    predicted, true = _numbers("r2_score", prediction, target)
    residual = float(np.sum((true - predicted) ** 2))
    total = float(np.sum((true - true.mean(axis=0)) ** 2))
    if total == 0:
        return 1.0 if residual == 0 else 0.0
    return 1.0 - residual / total


def confusion_matrix(prediction: Any, target: Any, num_classes: int | None = None) -> np.ndarray:
    """How often class i (row) was taken for class j (column): int64 (classes, classes).

    >>> confusion_matrix([0, 1, 1], [0, 0, 1]).tolist()
    [[1, 1], [0, 1]]
    """
    predicted, true = _labels(prediction).astype(np.int64), _labels(target).astype(np.int64)
    _check_same("confusion_matrix", predicted, true)
    lowest = int(min(predicted.min(), true.min()))
    highest = int(max(predicted.max(), true.max()))
    count = highest + 1 if num_classes is None else int(num_classes)
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise EveryOShapeError(
            f"confusion_matrix: label {wrong} is out of range for {count} classes"
        )
    cells = np.bincount(true * count + predicted, minlength=count * count)
    return cells.reshape(count, count)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    "mae": mean_absolute_error,
    "mse": mean_squared_error,
    "r2": r2_score,
}


def get_metric(name: str | Metric) -> Metric:
    """The metric of a name; a function is returned as it is. `ValueError` for an unknown name."""
    if callable(name):
        return name
    try:
        return METRICS[name]
    except (KeyError, TypeError):
        raise ValueError(f"Unknown metric {name!r}; known are {', '.join(METRICS)}") from None


def _labels(values: Any) -> np.ndarray:
    """Class labels (n,): those given, as (n,) or (n, 1), or the largest entry of every row."""
    array = np.asarray(values)
    if array.ndim < 2:
        return array.reshape(-1)
    return array.reshape(-1) if array.shape[-1] == 1 else array.argmax(axis=-1).reshape(-1)


def _numbers(name: str, prediction: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both sides in float64; a column (n, 1) is compared with (n,)."""
    predicted, true = (np.asarray(x).astype(np.float64) for x in (prediction, target))
    if predicted.shape != true.shape and predicted.size == true.size:
        predicted, true = predicted.reshape(-1), true.reshape(-1)
    _check_same(name, predicted, true)
    return predicted, true


def _check_same(name: str, predicted: np.ndarray, true: np.ndarray) -> None:
    if predicted.shape != true.shape:
        raise EveryOShapeError(
            f"{name}: prediction and target must have the same number of samples, got "
            f"{predicted.shape} and {true.shape}"
        )
    if predicted.size == 0:
        raise EveryOShapeError(f"{name}: there are no samples; the arrays are empty")
