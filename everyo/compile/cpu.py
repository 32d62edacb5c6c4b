"""Graph -> machine code that runs on the CPU: tables of pointers, rows of kernels, one executor.

A `Program` is a table of rows (function, pointer table, chunks, parallel) that a native executor
walks: no Python between kernels, the GIL released. Programs share functions of one text and hold
those that they run. Addresses of inputs and outputs are patched into the tables at each call;
everything else lies in one arena.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from everyo.compile import native
from everyo.compile.blas import ONE_THREAD
from everyo.compile.code import NATIVE, PLAIN, Call
from everyo.compile.control import Control
from everyo.compile.ir import Graph, Node, require
from everyo.compile.pool import THREADS, WAKE_NS
from everyo.compile.rows import Plan, sources
from everyo.compile.scan import extent
from everyo.core.forks import renewed
from everyo.core.watch import Watcher

Arrays = Sequence[np.ndarray]
ALONE = 1 << 18  # OpenBLAS keeps to one thread below so many multiplications


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
        self.arena_bytes = sum(p.arena_bytes for p in (plan, *plan.nested))
        self._legal = plan.schedule.graph
        self.fresh = [(o.shape, o.dtype) for o in self._legal.outputs]
        self.settled = plan.homes.settled
        self._plan = plan
        plans = [plan, *plan.nested]
        groups = (g for p in plans for g in p.schedule.groups)
        large = (g for g in groups if g.kind == "matmul" and work(g.nodes[0]) > ALONE)
        self._blas: Any = ONE_THREAD if jit and any(large) else nullcontext()
        self._shared = jit and plan.shared_ns > 0
        self._code = NATIVE if jit else PLAIN
        self._control = Control(plan)
        self._pools = [c.pool for c in (self._control, *plan.controls)]
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
        for pool_word in self._pools:
            pool_word[0] = 0 if pool is None else pool.address
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

        owned = [x for p in (self._plan, *self._plan.nested) for x in (p.arena, *p.literals)]
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
