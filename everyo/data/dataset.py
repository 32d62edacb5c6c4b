"""Data sets: something with a length whose items are `(features, target)` or features alone.

Any object with `__len__` and `__getitem__` is a data set to the loader. Those that derive from
`Dataset` also have `take`, which fetches a whole batch at once; where the items lie in arrays
that is one indexing operation instead of a loop.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from everyo.exceptions import EveryOError, EveryOIndexError, EveryOShapeError

__all__ = ["ArrayDataset", "Dataset", "Subset", "TransformDataset", "collate", "same_length"]


class Dataset(ABC):
    """Base of data sets: define `__len__` and `__getitem__`."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def take(self, indices: Iterable[int]) -> Any:
        """The items at `indices` as one batch of stacked arrays."""
        return collate([self[int(i)] for i in indices])


class ArrayDataset(Dataset):
    """Arrays (or tensors) side by side: features (n, ...) and, if given, targets (n, ...).

    >>> features, target = ArrayDataset([[1.0, 2.0], [3.0, 4.0]], [0, 1])[1]
    >>> features.tolist(), int(target)
    ([3.0, 4.0], 1)
    """

    def __init__(self, features: Any, targets: Any = None) -> None:
        self.features = np.asarray(features)
        self.targets = None if targets is None else np.asarray(targets)
        same_length("ArrayDataset", *self._arrays())

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one sample's features."""
        return self.features.shape[1:]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: Any) -> Any:
        try:
            found = tuple(array[index] for array in self._arrays())
        except IndexError:
            raise EveryOIndexError(
                f"ArrayDataset: index {index!r} is out of range for {len(self)} samples"
            ) from None
        return found if self.targets is not None else found[0]

    def take(self, indices: Iterable[int]) -> Any:
        # a subclass with items of its own (augmentation, say) wants them one by one
        if type(self).__getitem__ is not ArrayDataset.__getitem__:
            return super().take(indices)
        return self[np.asarray(indices, dtype=np.intp)]

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (self.features,) if self.targets is None else (self.features, self.targets)


class Subset(Dataset):
    """The items of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Any, indices: Iterable[int]) -> None:
        self.dataset = dataset
        self.indices = []
        size = len(dataset)
        for index in map(operator.index, indices):
            if not -size <= index < size:
                raise EveryOIndexError(
                    f"Subset: index {index} is out of range for a data set of {size} samples"
                )
            self.indices.append(index % size)  # not every data set counts from the end

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        try:
            position = self.indices[index]
        except IndexError:
            raise EveryOIndexError(
                f"Subset: index {index} is out of range for {len(self)} samples"
            ) from None
        return self.dataset[position]

    def take(self, indices: Iterable[int]) -> Any:
        if type(self).__getitem__ is not Subset.__getitem__ or not isinstance(
            self.dataset, Dataset
        ):
            return super().take(indices)
        return self.dataset.take([self.indices[i] for i in indices])


class TransformDataset(Dataset):
    """`dataset` with a function applied to each sample's features, and one to its target."""

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if not isinstance(item, tuple):
            if self.target_transform is not None:
                raise EveryOError(
                    "TransformDataset: target_transform is given, but the data set has no "
                    "targets; leave it out or use a data set of (features, target) pairs"
                )
            return _applied(self.transform, item)
        if len(item) != 2:
            raise EveryOError(
                f"TransformDataset: expected (features, target) pairs; got {len(item)} values"
            )
        return _applied(self.transform, item[0]), _applied(self.target_transform, item[1])


def collate(items: Sequence[Any]) -> Any:
    """Stack samples into a batch: tuples part by part, anything else as it is."""
    first = items[0]
    if not isinstance(first, tuple):
        return _stacked(items)
    if any(not isinstance(item, tuple) or len(item) != len(first) for item in items):
        raise EveryOShapeError(
            f"A batch mixes samples of {len(first)} parts with samples of another form; "
            f"every item of a data set must be a tuple of the same length"
        )
    return tuple(_stacked(part) for part in zip(*items, strict=True))


def same_length(caller: str, *arrays: np.ndarray) -> int:
    """How many samples the arrays have; an error when they differ or have no axis of samples."""
    for array in arrays:
        if array.ndim == 0:
            raise EveryOShapeError(
                f"{caller}: needs arrays with an axis of samples; got a single value"
            )
    sizes = [len(array) for array in arrays]
    if len(set(sizes)) > 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise EveryOShapeError(
            f"{caller}: arrays must have the same number of samples along axis 0; "
            f"got shapes {shapes}"
        )
    return sizes[0]


def _applied(function: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if function is None else function(value)


def _stacked(values: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise EveryOShapeError(
            f"A batch needs samples of one shape; got {sorted(shapes)}. Pad or resize them first"
        )
    return np.stack(arrays)
