"""Many tensors looked at by machine code: types, shapes, dtypes, layouts and flags.

In Python the checks of one argument cost 0.3 µs, here a hundred of them cost not even one. What is
read lies at known places of the objects: those of tensors and tuples are found by asking, those of
arrays are the struct that NumPy publishes, and `PLACES` is None where a probe differs. The GIL is
held meanwhile.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from everyo.compile.code import NATIVE
from everyo.compile.emit import HEAD
from everyo.core.tensor import Tensor

SAME, OTHERS, MISFIT = range(3)  # P[0]: the tensors of the call before, others, or none that fit
_KIND_AT = 8  # of any object
_DATA_AT, _RANK_AT, _SHAPE_AT, _STRIDES_AT, _DTYPE_AT, _FLAGS_AT = 16, 24, 32, 40, 56, 64
_CONTIGUOUS, _WRITEABLE = 1, 0x400
_WORDS = 10


@dataclass(frozen=True)
class Expected:
    """What a tensor and its array have to be; `strides` in bytes, None for C order. The array's
    address goes to place `at` of the program's objects, if that is not negative."""

    kind: type
    requires_grad: bool
    is_leaf: bool
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None
    writeable: bool
    at: int


def _word(x: Any, at: int) -> int:
    return ctypes.c_int64.from_address(id(x) + at).value


def _places() -> tuple[int, int, int] | None:
    """Where a tuple has its items and a tensor its flag and its node."""
    probe = Tensor._wrap(np.zeros((2, 3), np.float32)[:, 1:])
    probe._requires_grad, probe.grad_node = object(), object()  # type: ignore[assignment]
    words = {_word(probe, at): at for at in range(16, Tensor.__basicsize__, 8)}
    array = probe._data
    known = {
        _KIND_AT: id(np.ndarray), _DATA_AT: array.ctypes.data, _DTYPE_AT: id(array.dtype),
    }  # fmt: skip
    layout = [
        ctypes.c_int64.from_address(_word(array, at) + 8 * i).value
        for at in (_SHAPE_AT, _STRIDES_AT)
        for i in range(2)
    ]
    items = tuple.__basicsize__
    fits = (
        all(_word(array, at) == value for at, value in known.items())
        and layout == [*array.shape, *array.strides]
        and _word(array, _RANK_AT) & 0xFFFFFFFF == 2
        and _word(array, _FLAGS_AT) & (_CONTIGUOUS | _WRITEABLE) == _WRITEABLE
        and _word((None, array), items + 8) == id(array)
        and {id(probe._requires_grad), id(probe.grad_node)} <= set(words)
    )
    return (items, words[id(probe._requires_grad)], words[id(probe.grad_node)]) if fits else None


PLACES = _places()


@cache
def text() -> str:
    """The kernel. P: what is found, tensors, address of their rows, of the objects, of the ids of
    the call before, of None; `chunk` and `chunks` are the addresses of a tuple of tensors and of a
    tuple of their arrays."""
    assert PLACES is not None
    items, flag, node = PLACES
    return f"""{HEAD}
    P[0] = {SAME}
    for i in range(P[1]):
        row = P[2] + i * {8 * _WORDS}
        tensor = peek(chunk + {items} + i * 8)
        array = peek(chunks + {items} + i * 8)
        if peek(tensor + {_KIND_AT}) != peek(row) or peek(array + {_KIND_AT}) != peek(row + 8):
            P[0] = {MISFIT}
            return
        leaf = i64(peek(tensor + {node}) == P[5])
        rank = peek(row + 40)
        if (
            peek(tensor + {flag}) != peek(row + 16)
            or leaf != peek(row + 24)
            or peek(array + {_DTYPE_AT}) != peek(row + 32)
            or (peek(array + {_RANK_AT}) & {0xFFFFFFFF}) != rank
            or (peek(array + {_FLAGS_AT}) & peek(row + 48)) != peek(row + 48)
        ):
            P[0] = {MISFIT}
            return
        layout = peek(row + 56)
        shape, strides = peek(array + {_SHAPE_AT}), peek(array + {_STRIDES_AT})
        for j in range(rank):
            if peek(shape + j * 8) != peek(layout + j * 8):
                P[0] = {MISFIT}
                return
            if peek(row + 64) != 0 and peek(strides + j * 8) != peek(layout + (rank + j) * 8):
                P[0] = {MISFIT}
                return
        if peek(row + 72) >= 0:
            poke(P[3] + peek(row + 72) * 8, array)
        if peek(P[4] + i * 8) != tensor:
            P[0] = {OTHERS}
            poke(P[4] + i * 8, tensor)
"""


class Look:
    """The checks of some tensors: after `call(address, id(tensors), id(arrays))`, `found[0]` is
    SAME, MISFIT or OTHERS, and others are what is known from then on."""

    def __init__(self, expected: Sequence[Expected], objects: int) -> None:
        sizes = [n for e in expected for n in (*e.shape, *(e.strides or ()))]
        self.layouts = np.array([*sizes, 0], np.int64)
        self.rows = np.zeros((len(expected), _WORDS), np.int64)
        at = self.layouts.ctypes.data
        for row, e in zip(self.rows, expected, strict=True):
            flags = _CONTIGUOUS * (e.strides is None) | _WRITEABLE * e.writeable
            row[:] = (
                id(e.kind), id(np.ndarray), id(e.requires_grad), e.is_leaf, id(e.dtype),
                len(e.shape), flags, at, e.strides is not None, e.at,
            )  # fmt: skip
            at += 8 * len(e.shape) * (1 + (e.strides is not None))
        self.last = np.zeros(len(expected), np.int64)
        self.words = np.array(
            [SAME, len(expected), self.rows.ctypes.data, objects, self.last.ctypes.data, id(None)],
            np.int64,
        )
        self.expected = tuple(expected)  # keeps the ids in `rows` valid
        self.call = NATIVE.function(text()).native(locked=True)
        self.address: int = self.words.ctypes.data
        self.found = self.words.data

    def forget(self) -> None:
        """The tensors that were looked at last are not known as good ones."""
        self.last[:] = 0
