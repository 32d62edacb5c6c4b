"""Memory of the outputs of calls: used again only where nobody can see it."""

from sys import getrefcount

import numpy as np

SPARE = 3  # buffers kept per output


class Pool:
    """Buffers for one output. One is reused only when nobody else refers to it: its reference count
    also sees every view, memoryview and DLPack export."""

    __slots__ = ("buffers", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.buffers: list[np.ndarray | None] = [np.empty(shape, dtype), None]

    def take(self) -> np.ndarray:
        """A buffer that only the pool and the caller hold: any that is free, or a new one."""
        for i in range(len(self.buffers)):
            if getrefcount(self.buffers[i]) == FREE:
                return self.buffers[i]  # type: ignore[return-value]
        b = np.empty(self.shape, self.dtype)
        if self.buffers[1] is None:
            self.buffers[1] = b
        else:
            self.buffers[:] = [*self.buffers[1 - SPARE :], b]
        return b


def _calibrate() -> int:
    """The reference count of a buffer that only its pool holds, asked through the list."""
    buffers = [np.empty(1)]
    return getrefcount(buffers[0])


FREE = _calibrate()
