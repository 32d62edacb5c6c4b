"""Scaling, one-hot rows and shuffling.

Floating input keeps its precision, everything else becomes float32. Statistics are taken in
float64, per column, over the population (ddof=0); a spread below 1e-8 counts as 1e-8, so that a
constant column stays finite.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from everyo.data.dataset import same_length
from everyo.exceptions import EveryOShapeError

__all__ = [
    "MinMaxScaler",
    "StandardScaler",
    "min_max_scale",
    "normalize",
    "one_hot_encode",
    "shuffle_arrays",
    "standardize",
]

_FLOOR = 1e-8


class _Scaler(ABC):
    """A per-column map  y = (x - shift) / scale  that `fit` learns from data."""

    def __init__(self) -> None:
        self._shift: np.ndarray | None = None
        self._scale: np.ndarray | None = None

    def fit(self, features: Any) -> Self:
        """Learn the statistics of features (n, ...)."""
        array = floating(features)
        if same_length(type(self).__name__, array) == 0:
            raise EveryOShapeError(f"{type(self).__name__}.fit: no samples in shape {array.shape}")
        self._learn(array)
        return self

    def transform(self, features: Any) -> np.ndarray:
        """Scaled features, in the shape and precision of the input."""
        array = floating(features)
        shift, scale = self._fitted("transform", array)
        return ((array - shift) / scale).astype(array.dtype)

    def fit_transform(self, features: Any) -> np.ndarray:
        """`fit`, then `transform`, on the same features."""
        return self.fit(features).transform(features)

    def inverse_transform(self, features: Any) -> np.ndarray:
        """What `transform` was given, up to rounding."""
        array = floating(features)
        shift, scale = self._fitted("inverse_transform", array)
        return (array * scale + shift).astype(array.dtype)

    @abstractmethod
    def _learn(self, array: np.ndarray) -> None:
        """Set `_shift` and `_scale` from features (n, ...), n >= 1."""

    def _fitted(self, method: str, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        name = type(self).__name__
        if self._shift is None or self._scale is None:
            raise EveryOShapeError(f"{name}.{method} called before fit; fit it on training data")
        if array.shape[1:] != self._shift.shape:
            raise EveryOShapeError(
                f"{name}.{method}: features have shape {array.shape}, but the scaler was fitted "
                f"to columns of shape {self._shift.shape}"
            )
        return self._shift, self._scale


class StandardScaler(_Scaler):
    """Columns of mean 0 and standard deviation 1.

    >>> StandardScaler().fit_transform([[1.0], [3.0]]).tolist()
    [[-1.0], [1.0]]
    """

    @property
    def mean(self) -> np.ndarray | None:
        """The mean of each column, once fitted."""
        return self._shift

    @property
    def std(self) -> np.ndarray | None:
        """The standard deviation of each column, at least 1e-8, once fitted."""
        return self._scale

    def _learn(self, array: np.ndarray) -> None:
        self._shift, self._scale = _mean_and_std(array, axis=0)


class MinMaxScaler(_Scaler):
    """Columns that span `feature_range`.

    >>> MinMaxScaler().fit_transform([[1.0], [2.0], [5.0]]).tolist()
    [[0.0], [0.25], [1.0]]
    """

    def __init__(self, feature_range: tuple[float, float] = (0.0, 1.0)) -> None:
        super().__init__()
        low, high = feature_range
        _check_increasing("feature_range", low, high)
        self.feature_range = (low, high)

    def _learn(self, array: np.ndarray) -> None:
        low, high = self.feature_range
        minimum = array.min(axis=0).astype(np.float64)
        spread = np.maximum(array.max(axis=0).astype(np.float64) - minimum, _FLOOR)
        self._scale = spread / (high - low)
        self._shift = minimum - low * self._scale


def standardize(features: Any, axis: int = 0) -> np.ndarray:
    """Features with mean 0 and standard deviation 1 along `axis`."""
    array = floating(features)
    mean, std = _mean_and_std(array, axis, keepdims=True)
    return ((array - mean) / std).astype(array.dtype)


def min_max_scale(features: Any, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Features (n, ...) whose columns span `low` to `high`."""
    return MinMaxScaler((low, high)).fit_transform(features)


def normalize(features: Any, axis: int = 1, order: float = 2) -> np.ndarray:
    """Features divided by their norm of `order` along `axis`: by default, rows of length 1.

    >>> normalize([[3.0, 4.0], [0.0, 0.0]]).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    array = floating(features)
    _check_axis("normalize", array, axis)
    norms = np.linalg.norm(array.astype(np.float64), ord=order, axis=axis, keepdims=True)
    return (array / np.maximum(norms, _FLOOR)).astype(array.dtype)


def one_hot_encode(labels: Any, num_classes: int | None = None) -> np.ndarray:
    """Labels (n,) or (n, 1) as float32 rows (n, num_classes) with a single 1 each.

    `num_classes` defaults to the largest label plus one.

    >>> one_hot_encode([2, 0]).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    given = np.asarray(labels)
    if given.dtype.kind not in "biuf" or not np.all(
        np.isfinite(given) & (np.floor(given) == given)
    ):
        raise EveryOShapeError(
            f"one_hot_encode: labels must be whole numbers; got dtype {given.dtype}, "
            f"beginning {given.reshape(-1)[:5].tolist()}"
        )
    flat = given.reshape(-1).astype(np.int64)
    if num_classes is None:
        if flat.size == 0:
            raise EveryOShapeError("one_hot_encode: no labels to count; give num_classes")
        num_classes = int(flat.max()) + 1
    outside = flat[(flat < 0) | (flat >= num_classes)]
    if outside.size:
        raise EveryOShapeError(
            f"one_hot_encode: label {outside[0]} is out of range for {num_classes} classes"
        )
    rows = np.zeros((len(flat), num_classes), np.float32)
    rows[np.arange(len(flat)), flat] = 1.0
    return rows


def shuffle_arrays(*arrays: Any, seed: int | None = None) -> tuple[np.ndarray, ...]:
    """The arrays with their samples in one common random order."""
    parts = [np.asarray(array) for array in arrays]
    if not parts:
        raise EveryOShapeError("shuffle_arrays: no arrays given")
    order = np.random.default_rng(seed).permutation(same_length("shuffle_arrays", *parts))
    return tuple(part[order] for part in parts)


def floating(values: Any) -> np.ndarray:
    """`values` as an array: floating arrays keep their precision, all else becomes float32."""
    array = np.asarray(values)
    python_data = isinstance(values, (list, tuple, int, float))
    if array.dtype.kind == "f" and not python_data:
        return array
    return array.astype(np.float32)


def _mean_and_std(
    array: np.ndarray, axis: int, keepdims: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    _check_axis("standardize", array, axis)
    wide = array.astype(np.float64)
    mean = np.asarray(wide.mean(axis=axis, keepdims=keepdims))
    return mean, np.maximum(wide.std(axis=axis, keepdims=keepdims), _FLOOR)


def _check_axis(caller: str, array: np.ndarray, axis: int) -> None:
    if not -array.ndim <= axis < array.ndim:
        raise EveryOShapeError(f"{caller}: axis {axis} is out of range for shape {array.shape}")


def _check_increasing(name: str, low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"{name} must be increasing; got ({low}, {high})")
