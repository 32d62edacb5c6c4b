"""Graph -> machine code that runs on the CPU: tables of pointers, rows of kernels, one executor.

A `Program` is a table of rows (function, pointer table, chunks, parallel) that a native executor
walks: no Python between kernels, the GIL released. Functions are compiled once per process and
text. Addresses of inputs and outputs are patched into the tables at each call; everything else
lies in one arena.
"""

import ctypes
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everyo.compile import fuse, memory, native, program
from everyo.compile.blas import BLAS, one_thread
from everyo.compile.emit import emit
from everyo.compile.fuse import COST, Group
from everyo.compile.ir import I64, Graph, Node, require
from everyo.compile.loops import lower
from everyo.compile.products import product
from everyo.compile.program import KINDS, Kernel
from everyo.compile.space import Axis, axes_of, chain, contiguous, leaves, spread, strided, unify

Arrays = Sequence[np.ndarray]
ROW = 4  # words per row: function, table, chunks, parallel
COPY_CHUNK = 1 << 16  # elements of a copy, cumsum or random draw per chunk
PARALLEL_NS = 5_000  # a row worth less than this is not worth a launch
BYTE_NS, FLOP_NS = 0.1, 0.005  # estimates for opaque rows
_POINTER_AT = 16  # where an array object holds the address of its data


@dataclass(frozen=True)
class Row:
    """One step of a program, as `explain` shows it."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int  # read and written
    flops: int
    chunks: int
    parallel: bool  # worth handing to several threads


@dataclass
class _Code:
    """Compiled functions by text, one per process: equal kernels of all programs are one."""

    make: Callable[[str], tuple[int, Any]]
    known: dict[str, tuple[int, Any]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def address(self, text: str) -> int:
        if text not in self.known:
            with self.lock:
                if text not in self.known:
                    self.known[text] = self.make(text)
        return self.known[text][0]


def _compile(text: str) -> tuple[int, Any]:
    """(address, what keeps it alive) of the C function of a kernel's text."""
    from numba import cfunc

    from everyo.compile import prelude

    names = prelude.scope(text)
    exec(text, names)
    compiled = cfunc(prelude.KERNEL, nopython=True, error_model="numpy")(names["kernel"])
    return compiled.address, compiled


def _load_plain(text: str) -> tuple[int, Any]:
    from everyo.compile import plain

    names = plain.scope(text)
    exec(text, names)
    plain.FUNCTIONS.append(names["kernel"])
    return len(plain.FUNCTIONS) - 1, names["kernel"]


NATIVE = _Code(_compile)
PLAIN = _Code(_load_plain)


class Program:
    """A graph, compiled: `program(arrays)` returns its outputs and stores its writes.

    `arrays` are one per input of the graph, with its shape, dtype and strides. Safe to call from
    several threads. With `jit=False` the same kernel texts run in plain Python.
    """

    def __init__(self, graph: Graph, *, jit: bool = True) -> None:
        self.graph = graph
        self.jit = jit
        self._lock = threading.Lock()
        plan = _Plan(graph, jit)
        self.schedule, self.kernels = plan.schedule, tuple(plan.kernels)
        self.arena_bytes = plan.arena_bytes
        self._legal = plan.schedule.graph
        self._fresh = [(o.shape, o.dtype) for o in self._legal.outputs]
        self._plan = plan
        self._single = any(n.kind == "matmul" for n in plan.schedule.groups) and jit
        self._code = NATIVE if jit else PLAIN
        self._control = _Control(plan, self._legal)
        self._execute = self._executor()

    def __call__(self, arrays: Arrays) -> list[np.ndarray]:
        outputs = [np.empty(shape, dtype) for shape, dtype in self._fresh]
        with self._lock:
            status = self._run(arrays, outputs)
        if status == native.OVERLAP:
            return self._on_copies(arrays)
        if status >= native.FAILED:
            check = self._legal.checks[status - native.FAILED]
            raise check.error(check.message)
        return outputs

    def source(self) -> str:
        """The text of every distinct kernel."""
        texts: dict[str, list[str]] = {}
        for row in self.kernels:
            texts.setdefault(row.text, []).append(row.name)
        return "\n".join(f"# {names[0]}  ({len(names)}x)\n{text}" for text, names in texts.items())

    def profile(self, arrays: Arrays, repeats: int = 20) -> list[float]:
        """Median seconds of each row. The arrays that are written are replaced by copies."""
        arrays = self._with_copies(arrays)
        outputs = [np.empty(shape, dtype) for shape, dtype in self._fresh]
        medians = []
        with self._lock:
            self._run(arrays, outputs)
            for i in range(len(self.kernels)):
                times = []
                for _ in range(repeats):
                    start = time.perf_counter()
                    self._run(arrays, outputs, (i, i + 1))
                    times.append(time.perf_counter() - start)
                medians.append(sorted(times)[len(times) // 2])
        return medians

    def _run(self, arrays: Arrays, outputs: Arrays, rows: tuple[int, int] | None = None) -> int:
        control = self._control
        if os.environ.get("EVERYO_CHECK") == "1":
            self._check_arrays(arrays)
        control.bind([*arrays, *outputs], rows)
        if not self.jit:
            self._allow([*arrays, *outputs])
        with one_thread() if self._single else nullcontext():
            self._execute(control.address)
        return int(control.words[native.STATUS])

    def _executor(self) -> Callable[[int], None]:
        address = self._code.address(native.EXECUTOR)
        if self.jit:
            kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
            function = kind(address)  # ctypes releases the GIL
            return lambda control: function(control, 0, 1)
        from everyo.compile import plain

        def execute(control: int) -> None:
            with np.errstate(all="ignore"):
                plain.call(address, control, 0, 1)

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

    def __init__(self, plan: "_Plan", graph: Graph) -> None:
        inputs = graph.inputs
        self.rows = np.array(plan.rows, np.int64).reshape(-1, ROW)
        self.patches = np.array(plan.patches, np.int64).reshape(-1, 3)
        self.flags = np.array(plan.flags, np.int64)
        self.arrays = np.zeros(max(1, len(inputs) + len(graph.outputs)), np.int64)
        self.pack = struct.Struct(f"{len(inputs) + len(graph.outputs)}q").pack_into
        written = {t for t, _ in graph.writes}
        spans = np.zeros((len(inputs), 3), np.int64)
        for i, n in enumerate(inputs):
            if n.size:
                low, high = extent(n.shape, plan.legal.layout(n))
                item = n.dtype.itemsize
                spans[i] = low * item, (high + 1) * item, n in written
        self.spans, self.order = spans, np.arange(len(inputs), dtype=np.int64)
        self.words = np.zeros(native.CONTROL_SIZE, np.int64)
        self.all_rows = (0, plan.guard, len(plan.rows))
        w = self.words
        w[native.PROGRAM] = self.rows.ctypes.data
        w[native.PATCHES], w[native.PATCH_COUNT] = self.patches.ctypes.data, len(self.patches)
        w[native.ARRAYS] = self.arrays.ctypes.data
        w[native.ARRAY_COUNT] = len(inputs) + len(graph.outputs)
        w[native.FLAGS], w[native.FLAG_COUNT] = self.flags.ctypes.data, len(self.flags)
        w[native.SPANS], w[native.ORDER] = self.spans.ctypes.data, self.order.ctypes.data
        w[native.SPAN_COUNT] = len(inputs) if written else 0
        w[native.DATA_AT] = _POINTER_AT if _ids_give_addresses() else -1
        w[native.FIRST : native.LAST + 1] = self.all_rows
        self.address = w.ctypes.data

    def bind(self, arrays: Arrays, rows: tuple[int, int] | None) -> None:
        if self.words[native.DATA_AT] >= 0:
            self.pack(self.arrays, 0, *map(id, arrays))
        else:
            self.arrays[: len(arrays)] = [a.ctypes.data for a in arrays]
        if rows is not None:
            self.words[native.FIRST : native.LAST + 1] = rows[0], rows[1], rows[1]
        elif self.words[native.LAST] != self.all_rows[2] or self.words[native.FIRST]:
            self.words[native.FIRST : native.LAST + 1] = self.all_rows


def _ids_give_addresses() -> bool:
    """Whether an array's data pointer can be read from the object itself: twice as fast."""
    probe = np.empty(3)[1:]
    return ctypes.c_int64.from_address(id(probe) + _POINTER_AT).value == probe.ctypes.data


class _Plan:
    """Rows, tables and the arena of a program."""

    def __init__(self, graph: Graph, jit: bool) -> None:
        self.checked = os.environ.get("EVERYO_CHECK") == "1"
        self.code = NATIVE if jit else PLAIN
        self.blas = BLAS if jit else None
        self.schedule = fuse.fuse(graph)
        self.legal = self.schedule.legal
        if self.checked:
            fuse.check(self.schedule)
        self.homes = memory.homes(self.schedule)
        self.rows: list[tuple[int, int, int, int]] = []
        self.kernels: list[Row] = []
        self.patches: list[tuple[int, int, int]] = []
        self.tables: list[np.ndarray] = []
        self.literals: list[np.ndarray] = []
        self.flags: list[int] = []
        self.guard = 0
        self._places()
        self._lower()
        self._arena()
        for step, g in enumerate(self.schedule.groups):
            if g.kind == "loop":
                self._loop(step, g)
            elif g.kind == "matmul":
                self._matmul(g.nodes[0])
            elif g.kind == "assemble":
                self._assemble(g.nodes[0])
            else:
                self._opaque(step, g.nodes[0])
            if step == self.homes.guard:
                self.guard = len(self.rows)
        for target, value in self.homes.late:
            self._late(target, value)
        checks = self.schedule.graph.checks
        self.flags = [self.base + self.offsets[chain(c.bad)[0]] for c in checks]

    def _places(self) -> None:
        """Which values live in arrays of the call: position among inputs and outputs."""
        graph = self.schedule.graph
        inputs = {n: i for i, n in enumerate(graph.inputs)}
        self.outside = dict(inputs)
        for i, o in enumerate(graph.outputs):
            if o.size:
                self.outside[chain(o)[0]] = len(inputs) + i
        for value, target in self.homes.direct.items():
            self.outside[value] = inputs[target]

    def _lower(self) -> None:
        direct = self.homes.direct

        def layout(n: Node) -> list[int]:
            return memory.strides_in(self.legal, n, direct[n]) if n in direct else self.legal.layout(n)

        self.layout = layout
        self.lowered: dict[int, Kernel] = {}
        for step, g in enumerate(self.schedule.groups):
            if g.kind == "loop":
                self.lowered[step] = kernel = lower(g, layout, direct)
                if self.checked:
                    program.check(kernel)

    def _arena(self) -> None:
        end = len(self.schedule.groups)
        kept = {chain(v)[0] for _, v in self.homes.late}
        flags = {chain(c.bad)[0] for c in self.schedule.graph.checks}
        requests = []
        for step, g in enumerate(self.schedule.groups):
            for n in g.stores:
                if n not in self.outside:
                    last = end if n in kept else max(step, self.homes.reads.get(n, step))
                    last = max(last, self.homes.guard) if n in flags else last
                    requests.append(memory.Request(n, n.nbytes, step, last))
            slots = self.lowered[step].slots if step in self.lowered else ()
            for i, s in enumerate(slots):
                if s.per_chunk:
                    size = self.lowered[step].chunks * s.elements * s.dtype.itemsize
                    requests.append(memory.Request((step, i), size, step, step))
            if g.kind == "argsort":
                n = g.nodes[0]
                requests.append(memory.Request((step, 0), 8 * n.shape[-1], step, step))
        self.offsets, self.arena_bytes = memory.place(requests)
        self.arena = np.empty(self.arena_bytes + memory.ALIGN, np.uint8)
        start = self.arena.ctypes.data
        self.base = start + -start % memory.ALIGN

    def _address(self, table: np.ndarray, at: int, n: Node, shift: int = 0) -> None:
        """Put the address of a value into a table, now or at each call."""
        if n in self.outside:
            word = table.ctypes.data + at * table.itemsize
            self.patches.append((word, self.outside[n], shift))
        else:
            table[at] = self.base + self.offsets[n] + shift

    def _row(
        self, name: str, text: str, table: np.ndarray, chunks: int, work: float, nodes: Sequence[Node], flops: int
    ) -> None:
        parallel = chunks > 1 and work > PARALLEL_NS
        function = self.code.address(text)
        self.tables.append(table)
        self.rows.append((function, table.ctypes.data, chunks, int(parallel)))
        shapes = tuple(dict.fromkeys(n.shape for n in nodes))
        moved = sum(n.nbytes for n in dict.fromkeys(nodes))
        self.kernels.append(Row(name, text, shapes, moved, flops, chunks, parallel))

    def _loop(self, step: int, g: Group) -> None:
        kernel = self.lowered[step]
        table = np.zeros(max(1, len(kernel.slots)), np.int64)
        arrays = []
        for i, s in enumerate(kernel.slots):
            if s.what == "array":
                self._address(table, i, s.node)
                arrays.append(s.node)
            elif s.what == "count":
                table[i] = s.elements
            else:
                table[i] = self.base + self.offsets[step, i]
        points = math.prod(a.size for a in g.space.domain)
        flops = points * sum(COST.get(n.op, 1) for n in g.nodes)
        self._row(str(g), emit(kernel), table, kernel.chunks, kernel.work, arrays, flops)
        for c in kernel.combines:
            n = c.node
            table = np.array([self.base + self.offsets[step, c.partial], 0, n.size, kernel.chunks], np.int64)
            self._address(table, 1, n)
            count = n.size * kernel.chunks
            text = native.combine_text(n, kernel.slots[c.partial].dtype)
            self._row(f"combine {n.op}", text, table, 1, 0, [n], count)

    def _matmul(self, n: Node) -> None:
        p = product(n, self.layout)
        require(p is not None, "matmul without a plan", n)
        item = n.dtype.itemsize
        t = np.zeros(native.PRODUCT_SIZE, np.int64)
        t[[native.M, native.N, native.K]] = p.m, p.n, p.k
        for at, x in ((native.A, p.a), (native.B, p.b), (native.C, p.c)):
            self._address(t, at, x.base, item * x.offset)
            t[at + 1] = x.lead
        for at, x in ((native.TURN_A, p.a), (native.TURN_B, p.b)):
            t[at] = native.TURN if x.turned else native.NO_TURN
        for i, (size, strides) in enumerate(p.loops):
            t[native.OUTER + i] = size
            for at, stride in zip((native.BATCH_A, native.BATCH_B, native.BATCH_C), strides, strict=True):
                t[at + i] = item * stride
        t[[native.ROW_A, native.COLUMN_B]] = item * p.a.steps[0], item * p.b.steps[1]
        t[[native.ROW_C, native.COLUMN_C]] = item * p.c.lead, item
        t[native.BY_COLUMNS] = p.n > p.m
        text = native.OWN_PRODUCT
        if self.blas is not None:
            text, t[native.BLAS] = native.BLAS_PRODUCT, self.blas.addresses[n.dtype]
        name = f"matmul {p.batches} x ({p.m}, {p.k}) @ ({p.k}, {p.n})"
        work = p.flops * FLOP_NS
        nodes = [p.a.base, p.b.base, n]
        self._row(name, text.substitute(kind=KINDS[n.dtype]), t, p.chunks, work, nodes, p.flops)

    def _opaque(self, step: int, n: Node) -> None:
        operands = [chain(o)[0] for o in n.inputs]
        last = n.shape[-1] if n.shape else 1
        chunks = max(1, min(16, n.size // COPY_CHUNK))
        counts: tuple[int, ...]
        match n.op:
            case "scatter_add":
                width = math.prod(n.shape[1:])
                counts, chunks = (n.shape[0], n.inputs[0].size, width), 1
            case "argsort":
                counts, chunks = (self.base + self.offsets[step, 0], n.size // last, last), 1
            case "cumsum":
                counts, chunks = (n.size // last, last), min(chunks, n.size // last)
            case _:
                counts = (n.size,)
        table = np.array([0] * (len(operands) + 1) + list(counts), np.int64)
        for i, o in enumerate([*operands, n]):
            self._address(table, i, o)
        work = n.nbytes * BYTE_NS
        self._row(n.op, native.opaque_text(n), table, chunks, work, [*operands, n], n.size)

    def _assemble(self, n: Node) -> None:
        """The base, then each piece over it."""
        strides = contiguous(n.shape)
        boxes = [((0,) * n.ndim, (1,) * n.ndim), *zip(n.param("starts"), n.param("steps"), strict=True)]
        for o, (starts, steps) in zip(n.inputs, boxes, strict=True):
            offset = sum(a * s for a, s in zip(starts, strides, strict=True))
            self._copy(o, n, [k * s for k, s in zip(steps, strides, strict=True)], offset)

    def _late(self, target: Node, value: Node) -> None:
        self._copy(value, target, self.legal.layout(target), 0)

    def _copy(self, o: Node, target: Node, strides: Sequence[int], offset: int) -> None:
        """A row that stores operand o at these strides of the target."""
        got = strided(o, self.layout)
        require(got is not None, "no strided form:", o)
        base, dims, start = got
        places = [[(Axis(k), s)] for k, s in zip(o.shape, strides, strict=True)]
        for mine, theirs in zip(dims, places, strict=True):
            require(unify(axes_of(mine), axes_of(theirs)), "copy", o, target)
        source, goal = ({x: s for d in side for x, s in spread(d)} for side in (dims, places))
        axes: list[tuple[int, int, int]] = []
        for leaf in (x for d in places for a, _ in d for x in leaves(a)):
            size, a, b = leaf.size, source[leaf], goal[leaf]
            if axes and axes[-1][1] == a * size and axes[-1][2] == b * size:
                axes[-1] = (axes[-1][0] * size, a, b)
            else:
                axes.append((size, a, b))
        inner = axes.pop() if axes else (1, 0, 0)
        rows = math.prod(size for size, _, _ in axes)
        words = [0, 0, len(axes), rows, *inner, *(w for axis in reversed(axes) for w in axis)]
        table = np.array(words, np.int64)
        item = o.dtype.itemsize
        if base.op == "const":
            self.literals.append(np.array([base.param("value")], o.dtype))
            table[0] = self.literals[-1].ctypes.data
        else:
            self._address(table, 0, base, item * start)
        self._address(table, 1, target, item * offset)
        chunks = max(1, min(16, o.size // COPY_CHUNK, rows))
        moved = [n for n in (base, target) if n.op != "const"]
        self._row(f"copy {o!r}", native.copy_text(o.dtype), table, chunks, o.nbytes * BYTE_NS, moved, 0)



