"""The table that the native executor works from, see `native.EXECUTOR`."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everyo.compile import native
from everyo.compile.ir import require
from everyo.compile.scan import extent

if TYPE_CHECKING:
    from everyo.compile.rows import Plan

Arrays = Sequence[np.ndarray]
ROW = 4  # words per row: function, table, chunks, parallel
_POINTER_AT = 16  # where an array object holds the address of its data


class Control:
    """The executor's table: what to run, what to patch, which ranges must not overlap."""

    def __init__(self, plan: "Plan") -> None:
        graph = plan.schedule.graph
        inputs = graph.inputs
        self.rows = np.array(plan.rows, np.int64).reshape(-1, ROW)
        self.launches = np.array(plan.launches, np.int64).reshape(-1, ROW)
        self.patches = np.array(plan.patches, np.int64).reshape(-1, 3)
        self.flags = np.array(plan.flags, np.int64)
        self.arrays = np.zeros(max(1, len(inputs) + len(graph.outputs)), np.int64)
        self.objects = np.zeros_like(self.arrays)  # where the array objects are
        self.bound: list[Any] = [None]  # who wrote them last
        words = struct.Struct(f"{len(inputs) + len(graph.outputs)}q")
        self.pack: Callable[..., None] = words.pack_into
        written = {t for t, _ in graph.writes}
        spans = np.zeros((len(inputs), 3), np.int64)
        for i, n in enumerate(inputs):
            if n.size:
                low, high = extent(n.shape, plan.legal.layout(n))
                item = n.dtype.itemsize
                spans[i] = low * item, (high + 1) * item, n in written
        self.spans, self.order = spans, np.arange(len(inputs), dtype=np.int64)
        self.words = np.zeros(native.CONTROL_SIZE, np.int64)
        w = self.words
        self.everything = (self.launches.ctypes.data, 0, plan.launch_guard, len(plan.launches))
        w[native.PATCHES], w[native.PATCH_COUNT] = self.patches.ctypes.data, len(self.patches)
        w[native.ARRAYS], w[native.OBJECTS] = self.arrays.ctypes.data, self.objects.ctypes.data
        w[native.ARRAY_COUNT] = len(inputs) + len(graph.outputs)
        w[native.FLAGS], w[native.FLAG_COUNT] = self.flags.ctypes.data, len(self.flags)
        w[native.SPANS], w[native.ORDER] = self.spans.ctypes.data, self.order.ctypes.data
        w[native.SPAN_COUNT] = len(inputs) if written else 0
        w[native.DATA_AT] = _POINTER_AT if _ids_give_addresses() else -1
        w[native.PROGRAM : native.LAST + 1] = self.everything
        self.address = w.ctypes.data
        self.status = w.data[native.STATUS : native.STATUS + 1]
        self.pool = w.data[native.POOL : native.POOL + 1]
        self.partial = False

    def bind(self, arrays: Arrays, rows: tuple[int, int] | None) -> None:
        self.bound[0] = None
        if not set(map(type, arrays)) <= {np.ndarray}:
            require(all(isinstance(a, np.ndarray) for a in arrays), "not all arrays:", arrays)
        if self.words[native.DATA_AT] >= 0:
            self.pack(self.objects, 0, *map(id, arrays))
        else:
            self.arrays[: len(arrays)] = [a.ctypes.data for a in arrays]
        if rows is not None:
            some = self.rows.ctypes.data, rows[0], rows[1], rows[1]
            self.words[native.PROGRAM : native.LAST + 1] = some
            self.partial = True

    def all(self) -> None:
        """Back to running every row."""
        if self.partial:
            self.words[native.PROGRAM : native.LAST + 1] = self.everything
            self.partial = False


def _ids_give_addresses() -> bool:
    """Whether an array's data pointer can be read from the object itself: twice as fast."""
    probe = np.empty(3)[1:]
    return ctypes.c_int64.from_address(id(probe) + _POINTER_AT).value == probe.ctypes.data
