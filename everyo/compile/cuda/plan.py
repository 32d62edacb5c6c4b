"""Schedule -> the launches of a program on a device: kernels, products, and where values live.

Addresses are (place, shift): place 0 is the arena, 1 the flags of the checks, 2 the table of
arguments, the others are the arrays of the call. They become numbers when the arrays are known;
everything else is known from here on. Kernels of one text that do not need each other become rows
of that table and run as one launch: the updates of all parameters are one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everyo.compile import fuse, launches, memory, products
from everyo.compile.cuda import gemm, heads, texts
from everyo.compile.cuda.heads import Text
from everyo.compile.cuda.lower import BYTES, lower, paired
from everyo.compile.cuda.printer import emit
from everyo.compile.cuda.runtime import Gemm
from everyo.compile.fuse import COST, Group
from everyo.compile.ir import I64, Graph, IRError, Node
from everyo.compile.rows import paths, pieces
from everyo.compile.space import chain

ARENA, FLAGS, TABLE, ARRAYS = range(4)  # places; NUMBER is an argument that is no address
NUMBER = -1
FEW = 1024  # blocks; a kernel with more fills any device and is launched alone
WORD = 8  # bytes of an argument in the table
SHORT = 1024  # rows up to this length are sorted by counting

Argument = tuple[int, int]  # place, shift in bytes; or NUMBER, value


@dataclass(frozen=True)
class Step:
    """One launch. `product` is set for a matmul: the library is asked first, the text is our own.
    `rows` counts the rows of a launch that runs a table."""

    name: str
    text: str
    params: tuple[str, ...]
    blocks: int
    threads: int
    arguments: tuple[Argument, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    flops: int
    product: Gemm | None = None
    rows: int = 1
    inner: tuple["Step", ...] = ()  # none: loops are not rolled for a GPU

    @property
    def chunks(self) -> int:
        return self.blocks

    @property
    def parallel(self) -> bool:
        return True


@dataclass(frozen=True)
class Call:
    """A kernel and its arguments, before launches are made of such."""

    name: str
    text: Text
    arguments: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    flops: int
    product: Gemm | None = None


class Plan:
    """The steps of a program and its arena. `vector=False` needs no alignment of the call's
    arrays."""

    def __init__(self, graph: Graph, vector: bool = True) -> None:
        self.schedule = fuse.fuse(graph, tapes=False, anywhere=False)
        self.legal = self.schedule.legal
        self.homes = memory.homes(self.schedule)
        self.runs = launches.runs(self.schedule, self.homes)
        self.vector = vector
        self.steps: list[Step] = []
        self.table: list[Argument] = []
        self.calls: list[Call] = []  # of the groups of the run so far
        self.combines: list[Call] = []  # and what follows them
        self.aligned: set[Argument] = (
            set()
        )  # addresses in arrays of the call that must be multiples
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
            if step == self.runs.last[step]:
                self._close_run(together=g.kind in launches.TOGETHER)
            if step == self.homes.guard:
                self.guard = len(self.steps)
        for target, value in self.homes.late:
            self._copy(value, target, self.legal.layout(target), 0)
        self._close_run(together=False)

    # -- where values live -----------------------------------------------------------------------

    def _places(self) -> None:
        """Which values live in arrays of the call or among the flags, and which flags to read."""
        graph = self.schedule.graph
        positions = memory.arrays(graph, self.homes)
        self.outside = {n: (ARRAYS + i, 0) for n, i in positions.items()}
        bad = [chain(c.bad)[0] for c in graph.checks]
        own = [n for n in dict.fromkeys(bad) if n not in self.outside]
        self.outside |= {n: (FLAGS, i) for i, n in enumerate(own)}
        self.flag_bytes = len(own)
        self.flags = [self.outside[n] for n in bad]
        self.layout = memory.layout_in(self.legal, self.homes)

    def _lower(self) -> None:
        self.lowered = {
            step: lower(g, self.layout, self.homes.direct, self.vector)
            for step, g in enumerate(self.schedule.groups)
            if g.kind == "loop"
        }

    def _arena(self) -> None:
        """Offsets of everything that lives in the arena."""
        requests = memory.stored_values(self.schedule, self.homes, self.outside)
        for step, g in enumerate(self.schedule.groups):
            kernel = self.lowered.get(step)
            for i, s in enumerate(kernel.slots if kernel else ()):
                if kernel and s.per_chunk and i not in kernel.shared:
                    size = kernel.chunks * s.elements * s.dtype.itemsize
                    requests.append(memory.Request((step, i), size, step, step))
            for i, size in enumerate(self._scratch(g)):
                requests.append(memory.Request((step, i), size, step, step))
        self.offsets, self.arena_bytes = memory.place(memory.in_runs(requests, self.runs))

    def _scratch(self, g: Group) -> list[int]:
        """Bytes of the temporary arrays of an opaque group."""
        n = g.nodes[0]
        if g.kind == "argsort":
            long = n.shape[-1] > SHORT
            return [8 * n.size, 8 * n.size] if long else []
        if g.kind == "scatter_add":
            count = n.inputs[0].size
            return [8 * count] * (4 if count > SHORT else 2)
        return []

    def _at(self, n: Node, shift: int = 0) -> Argument:
        root, start = self.legal.home(n)
        shift += start * n.dtype.itemsize
        place, at = self.outside[root] if root in self.outside else (ARENA, self.offsets[root])
        return place, at + shift

    # -- launches --------------------------------------------------------------------------------

    def _add(
        self, name: str, text: Text, arguments: Sequence[Argument], nodes: Sequence[Node],
        flops: int, product: Gemm | None = None,
    ) -> None:  # fmt: skip
        self.calls.append(Call(name, text, tuple(arguments), tuple(nodes), flops, product))

    def _close_run(self, together: bool) -> None:
        """Make launches of the calls so far, then of what combines their partial results."""
        for calls in (self.calls, self.combines):
            same: dict[object, list[Call]] = {}
            for i, c in enumerate(calls):
                alone = not together or c.product is not None or c.text.blocks > FEW
                key = i if alone else (c.text.body, c.text.names, c.text.params, c.text.threads)
                same.setdefault(key, []).append(c)
            for rows in same.values():
                self._launch(rows)
            calls.clear()

    def _launch(self, calls: Sequence[Call]) -> None:
        """One step for calls of one text."""
        first = calls[0]
        text, params, arguments, name = (
            first.text.text, first.text.params, first.arguments, first.name,
        )  # fmt: skip
        starts = heads.table([c.text for c in calls])
        if len(calls) > 1:
            text, params = first.text.in_table, heads.TABLE_PARAMS
            arguments = (TABLE, WORD * len(self.table)), (NUMBER, len(calls))
            name = f"{len(calls)} x {name}"
            for start, c in zip(starts, calls, strict=False):
                self.table += [(NUMBER, start), *c.arguments]
            self.table.append((NUMBER, starts[-1]))
        nodes = [n for c in calls for n in c.nodes]
        shapes = tuple(dict.fromkeys(n.shape for n in nodes))
        moved = sum(n.nbytes for n in dict.fromkeys(nodes))
        flops = sum(c.flops for c in calls)
        self.steps.append(
            Step(
                name, text, params, starts[-1], first.text.threads, arguments, shapes, moved, flops,
                first.product, len(calls),
            )
        )  # fmt: skip

    # -- groups ----------------------------------------------------------------------------------

    def _loop(self, step: int, g: Group) -> None:
        kernel = self.lowered[step]
        arguments, arrays = list[Argument](), list[Node]()
        for i, s in enumerate(kernel.slots):
            if i in kernel.shared:
                continue
            if s.node is not None and s.what == "array":
                place, shift = self._at(s.node)
                arguments.append((place, shift))
                arrays.append(s.node)
                if i in kernel.vectors and place >= ARRAYS:
                    self.aligned.add((place, min(BYTES, kernel.vector * s.dtype.itemsize)))
            elif s.what == "count":
                arguments.append((NUMBER, s.elements))
            else:
                arguments.append((ARENA, self.offsets[step, i]))
        points = math.prod(a.size for a in g.loop.domain)
        flops = points * sum(COST.get(n.op, 1) for n in g.nodes)
        self._add(str(g), emit(kernel), arguments, arrays, flops)
        for c in kernel.combines:
            n, pair = c.node, paired(c.node.op, c.node.dtype)
            meeting = texts.combine(n.op, n.dtype, n.size, kernel.chunks, pair)
            places = ((ARENA, self.offsets[step, c.partial]), self._at(n))
            count = n.size * kernel.chunks
            self.combines.append(Call(f"combine {n.op}", meeting, places, (n,), count))

    def _matmul(self, n: Node) -> None:
        p = products.product(n, self.layout)
        item = n.dtype.itemsize
        outer, inner = p.loops
        product = Gemm(
            n.dtype, p.m, p.n, p.k, p.a.turned, p.a.lead, p.b.turned, p.b.lead, p.c.lead,
            (outer, inner),
        )  # fmt: skip
        arguments = [self._at(x.base, item * x.offset) for x in (p.a, p.b, p.c)]
        name = f"matmul {p.batches} x ({p.m}, {p.k}) @ ({p.k}, {p.n})"
        nodes = [p.a.base, p.b.base, n]
        self._add(name, gemm.kernel(product), arguments, nodes, p.flops, product)

    def _opaque(self, step: int, n: Node) -> None:
        operands = [chain(o)[0] for o in n.inputs]
        places = [self._at(o) for o in operands]
        match n.op:
            case "argsort":
                self._argsort(
                    step, n.inputs[0].dtype, n.shape, places[0], self._at(n), [operands[0], n]
                )
            case "scatter_add":
                self._scatter(step, n, places)
            case "cumsum":
                last = n.shape[-1]
                text = texts.cumsum(n.dtype, n.size // last, last)
                self._add("cumsum", text, [*places, self._at(n)], [*operands, n], n.size)
            case "random":
                text = texts.random(n.dtype, n.size)
                self._add("random", text, [*places, self._at(n)], [*operands, n], n.size)
            case _:
                raise IRError(f"no kernel for {n}")

    def _argsort(
        self, step: int, dtype: np.dtype, shape: Sequence[int], keys: Argument, result: Argument,
        nodes: Sequence[Node], scratch: int = 0,
    ) -> None:  # fmt: skip
        n = shape[-1]
        rows = math.prod(shape) // n
        if n <= SHORT:
            self._add("argsort", texts.ranks(dtype, rows, n), [keys, result], nodes, rows * n * n)
            return
        places = [(ARENA, self.offsets[step, scratch + i]) for i in range(2)]
        rounds = (n - 1).bit_length()
        self._add("argsort: runs", texts.runs(rows, n), [places[0]], nodes, 0)
        for r in range(rounds):
            target = result if r == rounds - 1 else places[(r + 1) % 2]
            text = texts.merge(dtype, rows, n, 1 << r)
            self._add(
                f"argsort: runs of {1 << r}", text, [keys, places[r % 2], target], nodes, rows * n
            )

    def _scatter(self, step: int, n: Node, places: list[Argument]) -> None:
        """Zeros, then the sums of the updates that go to one row, found by sorting the indices."""
        count, width = n.inputs[0].size, math.prod(n.shape[1:])
        zero = texts.copy(n.dtype, [(n.size, 0, 1)], n.dtype.type(0).item())
        self._add("scatter_add: zeros", zero, [self._at(n), self._at(n)], [n], 0)
        rows, order = ((ARENA, self.offsets[step, i]) for i in range(2))
        index = chain(n.inputs[0])[0]
        clamped = texts.clamped(count, n.shape[0])
        self._add("scatter_add: rows", clamped, [places[0], rows], [index], 0)
        self._argsort(step, I64, (count,), rows, order, [index], 2)
        sums = texts.scatter(n.dtype, count, width)
        nodes = [chain(o)[0] for o in n.inputs]
        self._add(
            "scatter_add", sums, [rows, order, places[1], self._at(n)], [*nodes, n], count * width
        )

    def _assemble(self, n: Node) -> None:
        """The base, then each piece over it."""
        for o, strides, offset in pieces(n, self.legal):
            self._copy(o, n, strides, offset)

    def _copy(self, o: Node, target: Node, strides: Sequence[int], offset: int) -> None:
        """A step that stores operand o at these strides of the target."""
        base, start, axes = paths(o, strides, self.layout)
        item = o.dtype.itemsize
        value = base.param("value") if base.op == "const" else None
        goal = self._at(target, item * offset)
        source = goal if value is not None else self._at(base, item * start)
        moved = [n for n in (base, target) if n.op != "const"]
        self._add(f"copy {o!r}", texts.copy(o.dtype, axes, value), [source, goal], moved, 0)
