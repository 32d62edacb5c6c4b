"""Splits of the samples into parts that share none: training and test, or any fractions.

Letters: n samples. A test part has round(n * test_size) samples, but at least one and at most
n - 1. Equal seeds give equal splits.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from everyo.data.dataset import Subset, same_length
from everyo.exceptions import EveryOShapeError

__all__ = ["random_split", "stratified_split", "train_test_split"]


def train_test_split(
    *arrays: Any, test_size: float = 0.2, seed: int | None = None, shuffle: bool = True
) -> tuple[np.ndarray, ...]:
    """Each array in two parts: train and test of the first, train and test of the second, …

    Without `shuffle` the test part is the end of the arrays.

    >>> train, test = train_test_split([1, 2, 3, 4, 5], shuffle=False)
    >>> train.tolist(), test.tolist()
    ([1, 2, 3, 4], [5])
    """
    _check_test_size(test_size)
    parts = [np.asarray(array) for array in arrays]
    if not parts:
        raise EveryOShapeError("train_test_split: no arrays given")
    n = same_length("train_test_split", *parts)
    if n < 2:
        raise EveryOShapeError(f"train_test_split: {n} samples cannot make two parts")
    order = np.random.default_rng(seed).permutation(n) if shuffle else np.arange(n)
    cut = n - _test_count(n, test_size)
    return tuple(part[side] for part in parts for side in (order[:cut], order[cut:]))


def stratified_split(
    features: Any, labels: Any, *, test_size: float = 0.2, seed: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`(train_x, test_x, train_y, test_y)`, each class divided in the same proportion.

    Labels are (n,) or (n, 1). A class with a single sample goes to the training part.
    """
    _check_test_size(test_size)
    x, y = np.asarray(features), np.asarray(labels)
    n = same_length("stratified_split", x, y)
    if y.size != n:
        raise EveryOShapeError(
            f"stratified_split: labels must have shape (n,) or (n, 1); got {y.shape}"
        )
    rng = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y.reshape(-1) == label))
        cut = len(members) - _test_count(len(members), test_size)
        train.append(members[:cut])
        test.append(members[cut:])
    if sum(len(part) for part in test) == 0:
        raise EveryOShapeError(
            f"stratified_split: {n} samples with no class that has two cannot make two parts"
        )
    kept, held_out = (rng.permutation(np.concatenate(part)) for part in (train, test))
    return x[kept], x[held_out], y[kept], y[held_out]


def random_split(
    dataset: Any, fractions: Iterable[float], *, seed: int | None = None
) -> list[Subset]:
    """Disjoint random subsets that together are the whole data set, in the given proportions."""
    shares = np.array(list(fractions), dtype=np.float64)
    if shares.size == 0 or not np.all(shares > 0) or abs(shares.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"random_split: fractions must be positive and add up to 1; got {shares.tolist()}"
        )
    n = len(dataset)
    order = np.random.default_rng(seed).permutation(n)
    cuts = np.rint(np.cumsum(shares)[:-1] * n).astype(np.intp)
    return [Subset(dataset, part.tolist()) for part in np.split(order, cuts)]


def _test_count(n: int, test_size: float) -> int:
    return min(max(round(n * test_size), 1), n - 1)


def _check_test_size(test_size: float) -> None:
    if not 0.0 < test_size < 1.0:
        raise ValueError(f"test_size must lie strictly between 0 and 1; got {test_size!r}")
