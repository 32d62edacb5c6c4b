"""Which arrays lie in the same memory.

A trace asks this of every array that enters it and of every one that is written. The intervals of
all addresses are compared at once: pair by pair, a step over a thousand parameters would ask for
seconds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from everyo.core.device_array import DeviceArray


class Memory:
    """Arrays, each with something that belongs to it."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, Any]] = []
        self._bounds = np.empty((2, 16), np.int64)  # the first address of each, and the one after

    def add(self, array: Any, what: Any) -> None:
        """Add an array."""
        count = len(self._entries)
        if count == self._bounds.shape[1]:
            self._bounds = np.concatenate((self._bounds, np.empty_like(self._bounds)), axis=1)
        self._bounds[:, count] = _bounds(array)
        self._entries.append((array, what))

    def near(self, array: Any) -> Iterator[tuple[Any, Any]]:
        """The other arrays that may share memory with one."""
        low, high = _bounds(array)
        lows, highs = self._bounds[:, : len(self._entries)]
        for i in np.flatnonzero((lows < high) & (highs > low)):
            other, what = self._entries[i]
            if other is not array and np.may_share_memory(array, other):
                yield other, what

    def clear(self) -> None:
        """Forget the arrays."""
        self._entries.clear()


def _bounds(array: Any) -> tuple[int, int]:
    """The interval of addresses of an array."""
    if type(array) is DeviceArray:
        start = array.address
    else:
        start = array.__array_interface__["data"][0]
    low = high = start
    for n, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high + array.itemsize if array.size else low
