"""Schedule -> the rows of a program: pointer tables, addresses, and the arena.

A row is (function, pointer table, chunks, parallel). Addresses of the call's arrays are patched
into the tables at each call; all other values lie in one arena at addresses known from here on.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from everyo.compile import (
    fuse,
    ir,
    launches,
    memory,
    native,
    parts,
    products,
    program,
    scan_rows,
    tape,
    tiled,
    tiles,
)
from everyo.compile.blas import BLAS
from everyo.compile.code import NATIVE, PLAIN, Function
from everyo.compile.emit import emit
from everyo.compile.fuse import Group
from everyo.compile.ir import Graph, IRError, Node, require
from everyo.compile.legalize import Legal
from everyo.compile.loops import lower
from everyo.compile.program import KINDS, Kernel
from everyo.compile.space import (
    Axis,
    Layout,
    Pairs,
    axes_of,
    chain,
    leaves,
    single,
    spread,
    strided,
    unify,
)
from everyo.compile.tiles import Tile

COPY_CHUNK = 1 << 16  # elements of a copy or cumsum per chunk
DRAW_CHUNK = 1 << 13  # of a random draw
PARALLEL_NS = 5_000  # a row worth less than this is not worth a launch
BYTE_NS, FLOP_NS = 0.1, 0.005  # estimates for opaque rows


@dataclass(frozen=True)
class Row:
    """One step of a program, as `explain` shows it."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int  # read and written, whole arrays
    flops: int  # one per op on floats and element
    chunks: int
    parallel: bool  # worth handing to several threads
    inner: tuple["Row", ...] = ()  # the rows of each iteration of a scan


class Plan:
    """Rows, tables and the arena of a program."""

    def __init__(self, graph: Graph, jit: bool, keep: bool = True) -> None:
        self.jit, self.keep = jit, keep
        self.shared_ns = 0.0  # what the rows worth several threads take on one
        self.checked = os.environ.get("EVERYO_CHECK") == "1"
        self.code = NATIVE if jit else PLAIN
        self.functions: set[Function] = set()  # what the rows and tables have addresses of
        self.blas = BLAS if jit else None
        self.schedule = fuse.fuse(graph)
        self.legal = self.schedule.legal
        if self.checked:
            ir.check(graph)
            fuse.check(self.schedule)
        self.homes = memory.homes(self.schedule)
        self.runs = launches.runs(self.schedule, self.homes)
        self.launches: list[tuple[int, int, int, int]] = []  # rows, independent ones as one
        self.combines: list[Callable[[], None]] = []  # of the groups of the run so far
        self.works: list[float] = []
        self.launch_guard = self.launched = 0  # `launched`: rows that have their launch
        self.rows: list[tuple[int, int, int, int]] = []
        self.kernels: list[Row] = []
        self.patches: list[tuple[int, int, int]] = []
        self.tables: list[np.ndarray] = []
        self.literals: list[np.ndarray] = []
        self.nested: list[Plan] = []  # of scans, and theirs
        self.controls: list[Any] = []  # that need to know the pool
        self.flags: list[int] = []
        self.guard = 0
        self.outside = memory.arrays(self.schedule.graph, self.homes)
        self.layout = memory.layout_in(self.legal, self.homes)
        self._lower()
        self._arena()
        for step, g in enumerate(self.schedule.groups):
            if g.kind == "loop":
                self._loop(step, g)
            elif g.kind == "matmul":
                plan = self.products[step]
                if isinstance(plan, products.Product):
                    self._matmul(g.nodes[0], plan)
                else:
                    self._tiled(step, g.nodes[0], *plan)
            elif g.kind == "assemble":
                self._assemble(g.nodes[0])
            elif g.kind == "tape":
                self._tape(step, g)
            elif g.kind == "scan":
                scan_rows.scan(self, g.nodes[0])
            else:
                self._opaque(step, g.nodes[0])
            if step == self.runs.last[step]:
                self._close_run(step)
            if step == self.homes.guard:
                self.guard, self.launch_guard = len(self.rows), len(self.launches)
        for target, value in self.homes.late:
            self._late(target, value)
        self._launch_each(self.launched)
        checks = self.schedule.graph.checks
        self.flags = [self.base + self.offsets[chain(c.bad)[0]] for c in checks]

    def _close_run(self, step: int) -> None:
        """Launch the groups of a run together, then what combines their partial results."""
        if self.runs.first[step] == step:
            for combine in self.combines:
                combine()
            self._launch_each(self.launched)
        else:
            self._launch_together(self.launched)
            middle = len(self.rows)
            for combine in self.combines:
                combine()
            self._launch_together(middle)
        self.combines = []

    def _launch_each(self, first: int) -> None:
        """The rows from `first` on, one after the other."""
        self.launches += self.rows[first:]
        works = zip(self.rows[first:], self.works[first:], strict=True)
        self.shared_ns += sum(work for row, work in works if row[3])
        self.launched = len(self.rows)

    def _launch_together(self, first: int) -> None:
        """The rows from `first` on, which are independent, as one launch if that is worth it."""
        rows, works = self.rows[first:], self.works[first:]
        chunks = sum(row[2] for row in rows)
        if len(rows) < 2 or sum(works) < PARALLEL_NS:
            self._launch_each(first)
            return
        table = np.array(rows, np.int64)
        entry = np.array([table.ctypes.data], np.int64)
        self.tables += [table, entry]
        function = self.locate(launches.PAIRS)
        self.launches.append((function, entry.ctypes.data, chunks, 1))
        self.shared_ns += sum(works)
        self.launched = len(self.rows)

    def _lower(self) -> None:
        direct = self.homes.direct
        self.lowered: dict[int, Kernel] = {}
        self.written: dict[int, tape.Tape] = {}
        self.products: dict[int, products.Product | tuple[products.Tiled, Tile]] = {}
        for step, g in enumerate(self.schedule.groups):
            if g.kind == "matmul":
                self.products[step] = self._product(g.nodes[0])
            if g.kind == "loop":
                self.lowered[step] = kernel = lower(g, self.layout, direct)
                if self.checked:
                    program.check(kernel)
            elif g.kind == "tape":
                self.written[step] = tape.write(g.nodes, g.stores, self.layout)

    def _arena(self) -> None:
        requests = memory.stored_values(self.schedule, self.homes, self.outside)
        for step, g in enumerate(self.schedule.groups):
            slots = self.lowered[step].slots if step in self.lowered else ()
            for i, s in enumerate(slots):
                if s.per_chunk:
                    size = self.lowered[step].chunks * s.elements * s.dtype.itemsize
                    requests.append(memory.Request((step, i), size, step, step))
            if g.kind == "tape":
                size = tape.SLOT * self.written[step].slots
                requests.append(memory.Request((step, 0), size, step, step))
            plan = self.products.get(step)
            if isinstance(plan, tuple) and plan[0].lead is None:
                size = plan[0].chunks(plan[1]) * tiles.packed(plan[1], g.nodes[0].dtype.itemsize)
                requests.append(memory.Request((step, 0), size, step, step))
            if g.kind == "argsort":
                n = g.nodes[0]
                requests.append(memory.Request((step, 0), 8 * n.shape[-1], step, step))
        self.offsets, self.arena_bytes = memory.place(memory.in_runs(requests, self.runs))
        self.arena = np.empty(self.arena_bytes + memory.ALIGN, np.uint8)
        start = self.arena.ctypes.data
        self.base = start + -start % memory.ALIGN

    def locate(self, text: str) -> int:
        """The address of the function of a text, which stays as long as the plan."""
        function = self.code.function(text, self.keep)
        self.functions.add(function)
        return function.address

    def address(self, table: np.ndarray, at: int, n: Node, shift: int = 0) -> None:
        """Put the address of a value into a table, now or at each call."""
        root, start = self.legal.home(n)
        shift += start * n.dtype.itemsize
        if root in self.outside:
            word = table.ctypes.data + at * table.itemsize
            self.patches.append((word, self.outside[root], shift))
        else:
            table[at] = self.base + self.offsets[root] + shift

    def row(
        self,
        name: str,
        text: str,
        table: np.ndarray,
        chunks: int,
        work: float,
        nodes: Sequence[Node],
        flops: int,
        inner: tuple[Row, ...] = (),
    ) -> None:
        parallel = chunks > 1 and work > PARALLEL_NS
        self.works.append(work)
        function = self.locate(text)
        self.tables.append(table)
        self.rows.append((function, table.ctypes.data, chunks, int(parallel)))
        shapes = tuple(dict.fromkeys(n.shape for n in nodes))
        moved = sum(n.nbytes for n in nodes)
        self.kernels.append(Row(name, text, shapes, moved, flops, chunks, parallel, inner))

    def _loop(self, step: int, g: Group) -> None:
        kernel = self.lowered[step]
        table = np.zeros(max(1, len(kernel.slots)), np.int64)
        for i, s in enumerate(kernel.slots):
            if s.node is not None and s.what == "array":
                self.address(table, i, s.node)
            elif s.what == "count":
                table[i] = s.elements
            else:
                table[i] = self.base + self.offsets[step, i]
        flops = sum(max(n.size, n.inputs[0].size) for n in g.nodes if n.dtype.kind == "f")
        moved = [
            s.node for k in program.accesses(kernel) if (s := kernel.slots[k]).node is not None
        ]
        self.row(str(g), emit(kernel), table, kernel.chunks, kernel.work, moved, flops)
        if kernel.combines:
            self.combines.append(partial(self._combine, step, kernel))

    def _combine(self, step: int, kernel: Kernel) -> None:
        """What the chunks of a kernel have summed apart meets."""
        for c in kernel.combines:
            n = c.node
            table = np.array(
                [self.base + self.offsets[step, c.partial], 0, n.size, kernel.chunks], np.int64
            )
            self.address(table, 1, n)
            count = n.size * kernel.chunks
            text = native.combine_text(n, kernel.slots[c.partial].dtype)
            self.row(f"combine {n.op}", text, table, 1, 0, [n], count)

    def _tape(self, step: int, g: Group) -> None:
        t = self.written[step]
        words = np.array(t.words, np.int64)
        for at, n, shift in t.addresses:
            self.address(words, at, n, shift)
        for at, text in t.functions:
            words[at] = self.locate(text)
        self.tables.append(words)
        start = self.base + self.offsets[step, 0]
        table = np.array([words.ctypes.data, len(words), start], np.int64)
        self.row(str(g), tape.WALKER, table, 1, 2.0 * t.slots, list(g.stores), len(g.nodes))

    def _product(self, n: Node) -> products.Product | tuple[products.Tiled, Tile]:
        """A matmul by BLAS, or by our own kernel: where there is no BLAS, where BLAS cannot read
        the operands, and where it takes longer to call it."""
        t = products.tiled(n, self.layout)
        p = products.joint(n, self.layout) if self.blas is not None else None
        if p is not None and (t is None or not t.quick):
            return p
        if t is None:
            raise IRError(f"matmul without a plan: {n}")
        return t, tiles.tile(t.m, t.n, t.k, n.dtype.itemsize)

    def _tiled(self, step: int, n: Node, p: products.Tiled, shape: Tile) -> None:
        item = n.dtype.itemsize
        t = np.zeros(tiled.SIZE, np.int64)
        t[[tiled.M, tiled.N, tiled.K]] = p.m, p.n, p.k
        for at, x in ((tiled.A, p.a), (tiled.B, p.b), (tiled.C, p.c)):
            self.address(t, at, x.base, item * x.offset)
        for at, pairs, unit in (
            (tiled.ROWS_A, p.a.rows, shape.rows), (tiled.COLUMNS_A, p.a.columns, 1),
            (tiled.ROWS_B, p.b.rows, 1), (tiled.COLUMNS_B, p.b.columns, 1),
            (tiled.ROWS_C, p.c.rows, shape.rows),
        ):  # fmt: skip
            t[at] = self._places(pairs, item, unit)
        for i, (size, strides) in enumerate(p.loops):
            t[tiled.OUTER + i] = size
            batch = (tiled.BATCH_A, tiled.BATCH_B, tiled.BATCH_C)
            for at, stride in zip(batch, strides, strict=True):
                t[at + i] = item * stride
        if p.lead is None:
            t[tiled.PACK] = self.base + self.offsets[step, 0]
            t[tiled.PACK_STEP] = tiles.packed(shape, item)
            t[tiled.TURN_B] = single(p.b.rows) == 1
        else:
            t[tiled.LEAD_B] = item * p.lead
        t[tiled.BY_COLUMNS] = p.by_columns
        nodes = [p.a.base, p.b.base, n]
        name = f"matmul {p.batches} x ({p.m}, {p.k}) @ ({p.k}, {p.n})"
        t[tiled.PANEL] = self.locate(tiled.panel(n, shape))
        t[[tiled.HEIGHT, tiled.WIDTH, tiled.LANES]] = shape.rows, shape.width, shape.lanes
        t[[tiled.SHARED, tiled.DEEP]] = tiles.BLOCK * shape.rows, tiles.DEPTH
        work = p.flops * FLOP_NS
        self.row(name, tiled.text(n), t, p.chunks(shape), work, nodes, p.flops)

    def _places(self, pairs: Pairs, item: int, unit: int) -> int:
        """The address of a table of places in bytes, filled up to a multiple of `unit`."""
        places = products.places(pairs) * item
        table = np.pad(places, (0, -len(places) % unit), mode="edge")
        self.tables.append(table)
        return table.ctypes.data

    def _matmul(self, n: Node, p: products.Product) -> None:
        if self.blas is None:
            raise IRError(f"no BLAS for {n}")
        item = n.dtype.itemsize
        t = np.zeros(native.PRODUCT_SIZE, np.int64)
        t[[native.M, native.N, native.K]] = p.m, p.n, p.k
        for at, x in ((native.A, p.a), (native.B, p.b), (native.C, p.c)):
            self.address(t, at, x.base, item * x.offset)
            t[at + 1] = x.lead
        for at, x in ((native.TURN_A, p.a), (native.TURN_B, p.b)):
            t[at] = native.TURN if x.turned else native.NO_TURN
        for i, (size, strides) in enumerate(p.loops):
            t[native.OUTER + i] = size
            batch = (native.BATCH_A, native.BATCH_B, native.BATCH_C)
            for at, stride in zip(batch, strides, strict=True):
                t[at + i] = item * stride
        t[[native.ROW_A, native.COLUMN_B]] = item * p.a.steps[0], item * p.b.steps[1]
        t[[native.ROW_C, native.COLUMN_C]] = item * p.c.lead, item
        t[[native.BY_COLUMNS, native.UNIT]] = p.n > p.m, products.SLICE_UNIT
        t[native.BLAS] = self.blas.addresses[n.dtype]
        text = native.BLAS_PRODUCT
        name = f"matmul {p.batches} x ({p.m}, {p.k}) @ ({p.k}, {p.n})"
        work = p.flops * FLOP_NS
        nodes = [p.a.base, p.b.base, n]
        self.row(name, text.substitute(kind=KINDS[n.dtype]), t, p.chunks, work, nodes, p.flops)

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
                counts, chunks = (n.size,), max(1, min(16, n.size // DRAW_CHUNK))
        table = np.array([0] * (len(operands) + 1) + list(counts), np.int64)
        for i, o in enumerate([*operands, n]):
            self.address(table, i, o)
        work = n.nbytes * BYTE_NS
        self.row(n.op, native.opaque_text(n), table, chunks, work, [*operands, n], n.size)

    def _assemble(self, n: Node) -> None:
        """The base, then each piece over it."""
        for o, strides, offset in pieces(n, self.legal):
            self.copy(o, n, strides, offset)

    def _late(self, target: Node, value: Node) -> None:
        self.copy(value, target, self.legal.layout(target), 0)

    def copy(self, o: Node, target: Node, strides: Sequence[int], offset: int) -> None:
        """A row that stores operand o at these strides of the target."""
        base, start, axes = paths(o, strides, self.layout)
        inner = axes.pop() if axes else (1, 0, 0)
        rows = math.prod(size for size, _, _ in axes)
        words = [0, 0, len(axes), rows, *inner, *(w for axis in reversed(axes) for w in axis)]
        table = np.array(words, np.int64)
        item = o.dtype.itemsize
        if base.op == "const":
            self.literals.append(np.array([base.param("value")], o.dtype))
            table[0] = self.literals[-1].ctypes.data
        else:
            self.address(table, 0, base, item * start)
        self.address(table, 1, target, item * offset)
        chunks = max(1, min(16, o.size // COPY_CHUNK, rows))
        moved = [n for n in (base, target) if n.op != "const"]
        self.row(
            f"copy {o!r}", native.copy_text(o.dtype), table, chunks, o.nbytes * BYTE_NS, moved, 0
        )


def every(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, each before those of its iterations."""
    for row in rows:
        yield row
        yield from every(row.inner)


def sources(rows: Iterable[Any]) -> str:
    """The text of every distinct kernel, under the name of the first row that runs it."""
    texts: dict[str, list[str]] = {}
    for row in every(rows):
        texts.setdefault(row.text, []).append(row.name)
    return "\n".join(f"# {names[0]}  ({len(names)}x)\n{text}" for text, names in texts.items())


def paths(
    o: Node, strides: Sequence[int], layout: Layout
) -> tuple[Node, int, list[tuple[int, int, int]]]:
    """The base of operand o, its offset there, and the axes of a copy of it, outermost first:
    size, stride in the base, stride in the target, whose strides are given."""
    got = strided(o, layout)
    if got is None:
        raise IRError(f"no strided form: {o}")
    base, dims, start = got
    places = [[(Axis(k), s)] for k, s in zip(o.shape, strides, strict=True)]
    for mine, theirs in zip(dims, places, strict=True):
        require(unify(axes_of(mine), axes_of(theirs)), "copy of", o)
    source, goal = ({x: s for d in side for x, s in spread(d)} for side in (dims, places))
    axes: list[tuple[int, int, int]] = []
    for leaf in (x for d in places for a, _ in d for x in leaves(a)):
        size, a, b = leaf.size, source[leaf], goal[leaf]
        if axes and axes[-1][1] == a * size and axes[-1][2] == b * size:
            axes[-1] = (axes[-1][0] * size, a, b)
        else:
            axes.append((size, a, b))
    return base, start, axes


def pieces(n: Node, legal: Legal) -> Iterator[tuple[Node, Sequence[int], int]]:
    """What an assemble copies, in order: operand, strides and offset in the result. What lies in
    its place is left out."""
    strides = legal.layout(n)
    for begin, sizes in _seen(n):
        ones = (1,) * n.ndim
        base = ir.Table().make("slice", n.inputs[0], starts=begin, steps=ones, sizes=sizes)
        yield base, strides, sum(a * s for a, s in zip(begin, strides, strict=True))
    root, start = legal.home(n)
    for o, steps, offset in parts.boxes(n, legal.layout):
        if legal.home(chain(o)[0]) != (root, start + offset):
            yield o, steps, offset


Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, its sizes


def _seen(n: Node) -> Iterator[Box]:
    """Boxes of the base of an assemble that have all of what its pieces leave of it: nothing if
    they fill it, what is around a single piece without gaps, else the whole."""
    if parts.covered(n):
        return
    begin, end = [0] * n.ndim, list(n.shape)
    if len(n.inputs) == 2 and all(s == 1 for s in n.param("steps")[0]):
        start, sizes = n.param("starts")[0], n.inputs[1].shape
        for axis in range(n.ndim):  # before and behind it; what is beside it is left to later axes
            low, high = start[axis], start[axis] + sizes[axis]
            for a, b in ((0, low), (high, n.shape[axis])):
                if a < b:
                    first, last = [*begin], [*end]
                    first[axis], last[axis] = a, b
                    yield tuple(first), tuple(q - p for p, q in zip(first, last, strict=True))
            begin[axis], end[axis] = low, high
    else:
        yield tuple(begin), n.shape
