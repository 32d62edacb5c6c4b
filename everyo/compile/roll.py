"""Unrolled loops are rolled back: stretches that repeat themselves become `scan` nodes.

Numbers are done first, then arrays, since the numbers of a loop are one kernel where its arrays are
a program. See `repeats` for how loops are found.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everyo.compile import passes, tape
from everyo.compile.ir import LEAVES, VIEWS, Graph, Node, Table, walk
from everyo.compile.repeats import (
    Along,
    Arrays,
    Fixed,
    Line,
    Listed,
    Move,
    Own,
    Scalars,
    Seen,
    Stretch,
    Through,
    below,
    constant,
    settled,
    stretches,
)
from everyo.compile.scan import Body, Past, Read, Scan, Series
from everyo.compile.space import chain, contiguous


def roll(graph: Graph) -> Graph:
    """The graph with its loops of scalars as `scan` nodes; the graph itself if it has none."""
    compute = [n for n in graph.order if n.size and n.op not in VIEWS and n.op not in LEAVES]
    tapes = tape.partition(compute, set(walk(c.bad for c in graph.checks)))
    parts: dict[tuple[int, bool], list[Node]] = {}
    for n, name in tapes.items():
        parts.setdefault(name, []).append(n)
    return _rolled(graph, [Scalars(nodes) for nodes in parts.values()])


def roll_arrays(graph: Graph) -> Graph:
    """The graph with its loops of arrays as `scan` nodes; the graph itself if it has none."""
    nodes = [n for n in graph.order if n.op not in LEAVES and not constant(n)]
    return _rolled(graph, [Arrays(nodes)])


def _rolled(graph: Graph, lines: Sequence[Line]) -> Graph:
    found = [stretches(line) for line in lines]
    turned = False
    while any(found):
        found = [settled(line) for line in found]
        every = [s for line in found for s in line]
        rolled = _Rolled(graph, every)
        mixed = rolled.mixed
        if mixed:
            found = [[s for s in line if s not in mixed] for line in found]
        elif turned or not any([s.turn() for s in every]):
            return passes.simplify(rolled.graph()) if every else graph
        else:
            turned = True
    return graph


Unit = Node | Stretch


class _Rolled:
    """A graph, rebuilt with stretches as `scan` nodes."""

    def __init__(self, graph: Graph, found: Sequence[Stretch]) -> None:
        self.old = graph
        self.owner = {n: s for s in found for n in s.line.nodes[s.start : s.end]}
        self.order = self._order()
        for s in found:
            s.kept, s.past, s.last = set(), {}, set()
        for unit in self.order:
            self._want(unit)
        for root in graph.roots:
            self._want_single(root)
        self.table = Table()
        self.new: dict[Node, Node] = {}
        self.scans: dict[Stretch, tuple[Node, Scan]] = {}

    @property
    def mixed(self) -> list[Stretch]:
        """Stretches whose values no single dtype holds."""
        return [s for s in self.order if isinstance(s, Stretch) and s.dtype is None]

    def graph(self) -> Graph:
        lines: dict[Node, str] = {}
        for unit in self.order:
            if isinstance(unit, Stretch):
                first, made = unit.node(0), self._scan(unit)
            else:
                operands = tuple(self._read(o) for o in unit.inputs)
                first, made = unit, self.table.again(unit, operands)
                self.new[unit] = made
            if first in self.old.lines:
                lines.setdefault(made, self.old.lines[first])
        new = {n: self._read(n) for n in (*self.old.inputs, *self.old.roots)}
        return passes.rebuilt(self.old, new, lines)

    # ------------------------------------------------------------------ what is there, and wanted

    def _unit(self, n: Node) -> Unit:
        return self.owner.get(n, n)

    def _order(self) -> list[Unit]:
        """Everything that the roots need, in the order of tracing as far as operands allow."""
        needs: dict[Unit, set[Unit]] = {}
        stack = [self._unit(n) for n in (*self.old.inputs, *self.old.roots)]
        while stack:
            unit = stack.pop()
            if unit not in needs:
                needs[unit] = {self._unit(n) for n in _operands(unit)}
                stack += needs[unit]
        readers: dict[Unit, list[Unit]] = {unit: [] for unit in needs}
        waits = {unit: len(sources) for unit, sources in needs.items()}
        for unit, sources in needs.items():
            for b in sources:
                readers[b].append(unit)
        index = {u: (u if isinstance(u, Node) else u.node(-1, u.count)).index for u in needs}
        ready = [(index[u], u) for u in needs if not waits[u]]
        heapq.heapify(ready)
        order: list[Unit] = []
        while ready:
            _, unit = heapq.heappop(ready)
            order.append(unit)
            for reader in readers[unit]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, (index[reader], reader))
        return order

    def _want(self, unit: Unit) -> None:
        """Note what a unit reads of stretches."""
        if isinstance(unit, Node):
            for o in unit.inputs:
                self._want_single(o)
            return
        for move in map(below, unit.moves.values()):
            match move:
                case Fixed():
                    self._want_single(move.node)
                case Along():
                    self._want_single(move.base)
                case Through():
                    move.stretch.kept.add(move.j)
                case Own() if move.distance:
                    unit.past[move.j] = max(unit.past.get(move.j, 0), move.distance)
                    if move.distance > 1:
                        unit.kept.add(move.j)
        for j, distance in unit.past.items():
            for n in _before(unit, j, distance):
                self._want_single(n)

    def _want_single(self, n: Node) -> None:
        while n in self.owner and n.op in VIEWS:
            n = n.inputs[0]
        s = self.owner.get(n)
        if s is not None:
            iteration, j = s.where(s.line.at[n])
            (s.last if iteration == s.count - 1 else s.kept).add(j)

    # ------------------------------------------------------------------ making it

    def _read(self, n: Node) -> Node:
        """What node n of the old graph is in the new one."""
        views = []
        while n not in self.new and n.op in VIEWS:
            views.append(n)
            n = n.inputs[0]
        if n not in self.new:
            s = self.owner[n]
            result, scan = self.scans[s]
            iteration, j = s.where(s.line.at[n])
            at = scan.place(s.exported.index(j), iteration)
            x = self.table.make("slice", result, starts=(at,), steps=(1,), sizes=(n.size,))
            x = self.table.make("reshape", x, shape=n.shape) if n.shape != x.shape else x
            self.new[n] = _cast(self.table, x, n.dtype)
        made = self.new[n]
        for view in reversed(views):
            self.new[view] = made = self.table.again(view, (made,))
        return made

    def _flat(self, n: Node) -> Node:
        """A node in one dim."""
        x = self._read(n)
        return x if x.ndim == 1 else self.table.make("reshape", x, shape=(x.size,))

    def _scan(self, s: Stretch) -> Node:
        """The node of a stretch."""
        scalar = isinstance(s.line, Scalars)
        dtype = s.dtype
        assert dtype is not None
        exported = s.exported
        table = Table()
        reads: dict[Node, tuple[Node, int, int] | Past | Listed] = {}  # inputs of the body
        values: list[Node] = []

        def read(
            old: Node,
            stored: np.dtype,
            what: tuple[Node, int, int] | Past | Listed,
            strides: tuple[int, ...] | None = None,
        ) -> Node:
            """What an operand is in the body; it lies in memory in dtype `stored`."""
            shape = () if scalar or isinstance(what, Listed) else old.shape
            form = (shape, strides)
            alike = (
                x for x, w in reads.items() if w == what and (x.shape, x.param("strides")) == form
            )
            known = next(alike, None)
            if known is None:
                known = table.input(shape, stored, strides)
                reads[known] = what
            return _cast(table, known, old.dtype)

        def operand(move: Move, old: Node) -> Node:
            match move:
                case Own(j=other, distance=0):
                    return values[other]
                case Own():
                    return read(old, dtype, Past(exported.index(move.j), move.distance))
                case Through():
                    made, scan = self.scans[move.stretch]
                    at = scan.place(move.stretch.exported.index(move.j), move.start)
                    return read(old, made.dtype, (made, at, move.step * old.size))
                case Listed():
                    return full(read(old, old.dtype, move, ()), old.shape)
                case Along():  # an element
                    return read(old, old.dtype, (self._flat(move.base), move.start, move.step))
                case Seen():
                    return seen(move.view, move.of)
            return fixed(move.node)

        def seen(view: Node, move: Move) -> Node:
            """A view; of an array along which it moves, the part that it shows."""
            if not isinstance(move, Along):
                return table.again(view, (operand(move, view.inputs[0]),))
            steps = zip(view.param("steps"), contiguous(view.inputs[0].shape), strict=True)
            strides = tuple(a * b for a, b in steps)
            part = (self._flat(move.base), move.start, move.step)
            return read(view, view.dtype, part, strides)

        def full(x: Node, shape: tuple[int, ...]) -> Node:
            """A number in every element of a shape."""
            if scalar or not shape:
                return x
            x = table.make("reshape", x, shape=(1,) * len(shape))
            return table.make("broadcast", x, shape=shape)

        def fixed(n: Node) -> Node:
            """A value from outside, seen through views of its own."""
            base = chain(n)[0] if scalar else n
            if base.op == "const":
                return table.const(base.param("value"), n.dtype)
            if n.op == "iota":
                return table.again(n, ())
            if n.op in VIEWS and n not in self.owner and not scalar:
                return table.again(n, (fixed(n.inputs[0]),))
            return read(n, n.dtype, (self._read(n), 0, 0))

        def value(j: int) -> Node:
            n = s.node(j)
            if n.op in VIEWS:
                return seen(n, s.moves[j, 0])
            args = [operand(s.moves[j, k], o) for k, o in enumerate(n.inputs)]
            return table.make(n.op, *args, **dict(n.params))

        for j in range(s.period):
            values.append(value(j))
        outputs = tuple(_cast(table, values[j], dtype) for j in exported)
        body = passes.run(Graph("body", tuple(reads), outputs))
        used = set(walk(body.roots))
        operands: dict[Node, int] = {}
        kept: list[Read | Past] = []
        lists: dict[str, tuple[Any, ...]] = {}  # by their text: 0.0 is not -0.0
        for new, what in zip(body.inputs, reads.values(), strict=True):
            if new not in used:
                continue
            if isinstance(what, Past):
                kept.append(what)
            elif isinstance(what, Listed):
                numbers = tuple(n.param("value") for n in what.nodes)
                lists.setdefault(repr(numbers), numbers)
                kept.append(Read(-1 - list(lists).index(repr(numbers)), 0, 1))
            else:
                kept.append(Read(operands.setdefault(what[0], len(operands)), *what[1:]))
        series = []
        for j in exported:
            lead = [
                _cast(self.table, self._read(n), dtype) for n in _before(s, j, s.past.get(j, 0))
            ]
            places = tuple(operands.setdefault(n, len(operands)) for n in lead)
            series.append(Series(places, j in s.kept))
        left = Graph("body", tuple(n for n in body.inputs if n in used), body.outputs)
        scan = Scan(Body(left), s.count, tuple(kept), tuple(series), tuple(lists.values()))
        made = self.table.make("scan", *operands, **scan.params, dtype=dtype)
        self.scans[s] = made, scan
        return made


def _operands(unit: Unit) -> Iterable[Node]:
    """The nodes that a unit reads; of a stretch any one that belongs to it."""
    if isinstance(unit, Node):
        yield from unit.inputs
        return
    for move in map(below, unit.moves.values()):
        match move:
            case Fixed():
                yield move.node
            case Along():
                yield move.base
            case Through():
                yield move.stretch.node(0)
            case Own():
                yield from _before(unit, move.j, move.distance)


def _before(s: Stretch, j: int, distance: int) -> list[Node]:
    """Node j of the iterations before the first, as far back as `distance`, the oldest first."""
    return [s.node(j, -i) for i in range(distance, 0, -1)]


def _cast(table: Table, n: Node, dtype: np.dtype) -> Node:
    return n if n.dtype == dtype else table.make("cast", n, dtype=dtype)


# The passes of a graph for the CPU. Loops of numbers are rolled back first, since fewer nodes are
# simplified sooner. Those of arrays follow once they are simple, but before slices are moved from
# what loops read into them; sums of gradients are loops of numbers that are left at the end.
LOOPS: tuple[passes.Pass, ...] = (
    roll, passes.simplify, roll_arrays, passes.lift_slices, roll, passes.join_parts,
)  # fmt: skip
