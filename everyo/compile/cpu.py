"""Graph -> machine code that runs on the CPU: tables of pointers, rows of kernels, one executor.

A `Program` is a table of rows (function, pointer table, chunks, parallel) that a native executor
walks: no Python between kernels, the GIL released. Programs share functions of one text and hold
those that they run. Addresses of inputs and outputs are patched into the tables at each call;
everything else lies in one arena.
"""

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from everyo.compile import native
from everyo.compile.blas import ONE_THREAD
from everyo.compile.code import NATIVE, PLAIN, Call
from everyo.compile.ir import Graph, Node, require
from everyo.compile.pool import THREADS, WAKE_NS
from everyo.compile.rows import ROW, Plan, sources
from everyo.core.forks import renewed
from everyo.core.watch import Watcher

Arrays = Sequence[np.ndarray]
ALONE = 1 << 18  # OpenBLAS keeps to one thread below so many multiplications
_POINTER_AT = 16  # where an array object holds the address of its data


class Program:
    """A graph, compiled: `program(arrays)` returns its outputs and stores its writes.

    `arrays` are one per input of the graph, with its shape, dtype and strides. Safe to call from
    several threads. With `jit=False` the same kernel texts run in plain Python; with `keep=False`
    machine code is not kept on the disk.
    """

    def __init__(self, graph: Graph, *, jit: bool = True, keep: bool = True) -> None:
        self.graph = graph
        self.jit = jit
        self.lock = renewed(threading.Lock())
        plan = Plan(graph, jit, keep)
        self.schedule, self.kernels = plan.schedule, tuple(plan.kernels)
        self.arena_bytes = plan.arena_bytes
        self._legal = plan.schedule.graph
        self.fresh = [(o.shape, o.dtype) for o in self._legal.outputs]
        self.settled = plan.homes.settled
        self._plan = plan
        large = (g for g in plan.schedule.groups if g.kind == "matmul" and work(g.nodes[0]) > ALONE)
        self._blas: Any = ONE_THREAD if jit and any(large) else nullcontext()
        self._shared = jit and plan.shared_ns > 0
        self._code = NATIVE if jit else PLAIN
        self._control = _Control(plan, self._legal)
        self._execute = self._executor()
        self.data_at = int(self._control.words[native.DATA_AT])
        self.objects = self._control.objects.data  # ids of inputs and outputs, see `execute`
        self.bound = self._control.bound

    def __call__(self, arrays: Arrays) -> list[np.ndarray]:
        outputs = [np.empty(shape, dtype) for shape, dtype in self.fresh]
        with self.lock:
            watcher = Watcher.active
            status = self._run(arrays, outputs) if watcher is None else self._timed(
                arrays, outputs, watcher)  # fmt: skip
        if status == native.OVERLAP:
            return self._on_copies(arrays)
        if status >= native.FAILED:
            check = self._legal.checks[status - native.FAILED]
            raise check.error(check.message)
        return outputs

    def _timed(self, arrays: Arrays, outputs: Arrays, watcher: Any) -> int:
        """`_run` with a span around each row. The checks are looked at where they always are."""
        guard, count = self._plan.guard, len(self.kernels)
        if self._run(arrays, outputs, (0, 0)) == native.OVERLAP:
            return native.OVERLAP
        for i in range(count + 1):
            status = self._run(arrays, outputs, (i, i)) if i == guard else native.FINE
            if status >= native.FAILED:
                return status
            if i < count:
                row = self.kernels[i]
                with watcher.span(row.name, kernel=True, bytes=row.bytes, flops=row.flops):
                    self._run(arrays, outputs, (i, i + 1))
        return native.FINE

    def execute(self) -> int:
        """Run with the array objects whose ids are in `objects`; the status. `lock` is held."""
        pool = THREADS.get() if self._shared else None
        self._control.pool[0] = 0 if pool is None else pool.address
        woken = pool if self._plan.shared_ns > WAKE_NS else None
        if woken is not None:
            woken.begin()
        try:
            with self._blas:
                self._execute(self._control.address, 0, 1)
        finally:
            if woken is not None:
                woken.end()
        return self._control.status[0]

    def alone(self) -> tuple[Call, int, Any] | None:
        """For programs that need neither workers nor the BLAS on one thread: the native executor,
        the address to call it with (and 0, 1), and where the status is then."""
        if self._shared or self._blas is ONE_THREAD:
            return None
        return self._execute, self._control.address, self._control.status

    def source(self) -> str:
        """The text of every distinct kernel."""
        return sources(self.kernels)

    def profile(self, arrays: Arrays, repeats: int = 20) -> list[float]:
        """Median seconds of each row, without the launch itself. The arrays that are written are
        replaced by copies."""
        arrays = self._with_copies(arrays)
        outputs = [np.empty(shape, dtype) for shape, dtype in self.fresh]

        def median(first: int, last: int) -> float:
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                self._run(arrays, outputs, (first, last))
                times.append(time.perf_counter() - start)
            return sorted(times)[len(times) // 2]

        with self.lock:
            self._run(arrays, outputs)
            launch = median(0, 0)
            return [max(median(i, i + 1) - launch, 0.0) for i in range(len(self.kernels))]

    def _run(self, arrays: Arrays, outputs: Arrays, rows: tuple[int, int] | None = None) -> int:
        control = self._control
        if self._plan.checked:
            self._check_arrays(arrays)
        control.bind([*arrays, *outputs], rows)
        if not self.jit:
            self._allow([*arrays, *outputs])
        try:
            return self.execute()
        finally:
            control.all()

    def _executor(self) -> Call:
        function = self._code.function(native.EXECUTOR)
        if self.jit:
            return function.native()
        from everyo.compile import plain

        def execute(control: int, chunk: int, chunks: int) -> None:
            with np.errstate(all="ignore"):
                plain.call(function.address, control, chunk, chunks)

        return execute

    def _allow(self, arrays: Arrays) -> None:
        """Let plain kernels touch the memory of this call and nothing else."""
        from everyo.compile import plain

        owned = [self._plan.arena, *self._plan.literals]
        plain.MEMORY.allow(np.lib.array_utils.byte_bounds(a) for a in [*arrays, *owned] if a.size)

    def _with_copies(self, arrays: Arrays) -> list[np.ndarray]:
        """The arrays, those that are written replaced by copies with the same strides."""
        written = {t for t, _ in self.graph.writes}
        return [
            like(a) if n in written else a for n, a in zip(self.graph.inputs, arrays, strict=True)
        ]

    def _on_copies(self, arrays: Arrays) -> list[np.ndarray]:
        """Written arrays overlap with others: work on copies, store them at the end, in order."""
        copies = self._with_copies(arrays)
        outputs = self(copies)
        for target, _ in self.graph.writes:
            i = self.graph.inputs.index(target)
            arrays[i][...] = copies[i]
        return outputs

    def _check_arrays(self, arrays: Arrays) -> None:
        for n, a in zip(self._legal.inputs, arrays, strict=True):
            require((a.shape, a.dtype) == (n.shape, n.dtype), "input", n, "got", a.shape, a.dtype)
            strides = self._plan.legal.layout(n)
            moves = zip(a.strides, strides, n.shape, strict=True)
            same = all(have == want * n.dtype.itemsize for have, want, k in moves if k > 1)
            require(same or not n.size, "strides", a.strides, "of", n, "are not", strides)


def work(product: Node) -> int:
    """The multiplications of one matrix product of a batch."""
    return product.shape[-2] * product.shape[-1] * product.inputs[0].shape[-1]


def like(a: np.ndarray) -> np.ndarray:
    """A copy of an array with the same strides, gaps included."""
    if not a.size:
        return a.copy()
    low, high = extent(a.shape, a.strides)
    buffer = np.zeros(high - low + a.itemsize, np.uint8)
    copy = np.ndarray(a.shape, a.dtype, buffer, -low, a.strides)
    copy[...] = a
    return copy


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest distance of an element from the first one."""
    ends = [(k - 1) * s for k, s in zip(shape, strides, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)


class _Control:
    """The executor's table: what to run, what to patch, which ranges must not overlap."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
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
