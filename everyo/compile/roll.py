"""Iterations of an unrolled loop, found in a graph of scalars and rolled back into a loop.

The scalars of a graph are written as a line in the order of tracing. Where the line repeats itself
with a period (equal operations, and operands that move on by equal distances from one repetition to
the next) that stretch becomes one `scan` node, whose body is one period. An operand may move with
the loop (a value some iterations ago), stand still (a value from before), or walk along an array
or another loop, in any direction: the gradient of a loop runs through it from its end. Iterations
at both ends that do not fit stay as they are.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from everyo.compile import passes, tape
from everyo.compile.ir import BOOL, F16, I64, LEAVES, VIEWS, Graph, Node, Table, walk
from everyo.compile.scan import Body, Past, Read, Scan, Series
from everyo.compile.space import chain, contiguous, strided

LENGTH = 64  # a loop replaces at least so many nodes ...
ITERATIONS = 6  # ... in at least so many iterations
PERIOD = 1024  # nodes of an iteration, at most
GRAMS = (3, 24, 96)  # lengths of the stretches whose distances are counted
TRIES = 6  # distances that are looked at, for each of these lengths
SHARE = 4  # of a distance that is at least one in so many, multiples are tried as well ...
MULTIPLES = 24  # ... up to this one
OPERANDS = 3  # of a node, at most
NONE = -1  # the place of an operand that is not on the line; `shift` says which one it is


def roll(graph: Graph) -> Graph:
    """The graph with its loops of scalars as `scan` nodes; the graph itself if it has none."""
    compute = [n for n in graph.order if n.size and n.op not in VIEWS and n.op not in LEAVES]
    tapes = tape.partition(compute, set(walk(c.bad for c in graph.checks)))
    parts: dict[tuple[int, bool], list[Node]] = {}
    for n, name in tapes.items():
        parts.setdefault(name, []).append(n)
    found = [stretches(Line(nodes)) for nodes in parts.values()]
    while any(found):
        found = [settled(line) for line in found]
        rolled = _Rolled(graph, [s for line in found for s in line])
        mixed = rolled.mixed
        if not mixed:
            return rolled.graph() if any(found) else graph
        found = [[s for s in line if s not in mixed] for line in found]
    return graph


class Line:
    """Scalars in the order of tracing, and where their operands are, as arrays [operand, node].

    `place` is the place of an operand on the line. That of any other is NONE, and `shift` is its
    number: elements of one array have numbers that follow each other.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.at = {n: i for i, n in enumerate(nodes)}
        self.bases: list[Node] = []  # what lies outside, and from which number on
        self.firsts: list[int] = []
        self._first: dict[Node, int] = {}
        self._known: dict[Node, tuple[int, int]] = {}
        self._numbers = 0
        kinds: dict[tuple, int] = {}
        kind, place, shift = [], [], []
        for n in nodes:
            of = n.inputs[0].dtype
            half = F16 in (of, n.dtype)  # is computed in another precision, see widen.py
            key = (n,) if half else (n.op, of, n.dtype)
            kind.append(kinds.setdefault(key, len(kinds)))
            for o in n.inputs:
                j = self.at.get(o)
                found = (j, 0) if j is not None else self._known.get(o) or self._find(o)
                place.append(found[0])
                shift.append(found[1])
            for _ in range(OPERANDS - len(n.inputs)):
                place.append(NONE)
                shift.append(0)
        self.kind = np.array(kind)
        self.place = np.array(place).reshape(-1, OPERANDS).T.copy()
        self.shift = np.array(shift).reshape(-1, OPERANDS).T.copy()

    def _find(self, o: Node) -> tuple[int, int]:
        base = chain(o)[0]
        if base in self.at:
            found = self.at[base], 0
        else:
            element = 0
            if base.size > 1:
                flat = strided(o, lambda n: contiguous(n.shape)) if base.op != "iota" else None
                base, element = (o, 0) if flat is None else (base, flat[2])
            if base not in self._first:
                self._first[base] = self._numbers
                self.bases.append(base)
                self.firsts.append(self._numbers)
                self._numbers += base.size + 1  # elements of two arrays never follow each other
            found = NONE, self._first[base] + element
        self._known[o] = found
        return found

    def outside(self, number: int) -> tuple[Node, int]:
        """The array of a number, and which element of it that is."""
        i = int(np.searchsorted(self.firsts, number, "right")) - 1
        return self.bases[i], number - self.firsts[i]

    def steady(self, period: int) -> np.ndarray:
        """Which nodes go on as the two before did that are one and two periods back."""
        p, n = period, len(self.nodes)
        found = np.zeros(n, bool)
        if n <= 2 * p:
            return found
        like = self.kind[p:] == self.kind[:-p]
        for place in self.place:
            like &= (place[p:] == NONE) == (place[:-p] == NONE)
        found[2 * p :] = like[p:] & like[:-p]
        for where in (*self.place, *self.shift):
            step = where[p:] - where[:-p]
            found[2 * p :] &= step[p:] == step[:-p]
        return found


@dataclass(eq=False)
class Stretch:
    """A part of a line that repeats itself: `count` iterations of `period` nodes.

    `moves` says of operand k of node j of an iteration where it is, once that is settled. `kept`
    are the nodes of which all values are wanted, `past` those that are read in later iterations
    and from how far back, `last` those of which the last value is wanted.
    """

    line: Line
    start: int
    period: int
    count: int
    moves: dict[tuple[int, int], "Move"] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    past: dict[int, int] = field(default_factory=dict)
    last: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    def cut(self, first: int, last: int) -> None:
        """Keep the iterations from `first` to `last`, inclusive."""
        self.start += self.period * first
        self.count = max(0, last + 1 - first)

    @property
    def pays(self) -> bool:
        return self.count >= ITERATIONS and self.count * self.period >= LENGTH

    @property
    def exported(self) -> list[int]:
        """The nodes of an iteration that are outputs of the body."""
        return sorted({*self.kept, *self.past, *self.last})

    @property
    def dtype(self) -> np.dtype | None:
        """The dtype that holds the exported values exactly, None if there is none."""
        dtypes = {self.line.nodes[self.start + j].dtype for j in self.exported} - {BOOL}
        kinds = {d.kind for d in dtypes}
        if len(kinds) > 1:
            return None
        return max(dtypes, key=lambda d: d.itemsize, default=I64)

    def node(self, j: int, iteration: int = 0) -> Node:
        return self.line.nodes[self.start + j + iteration * self.period]

    def where(self, place: int) -> tuple[int, int]:
        """The iteration that a place on the line belongs to, below 0 if it comes before, and
        which node of an iteration it is."""
        return divmod(place - self.start, self.period)


@dataclass(frozen=True)
class Fixed:
    """The same value in all iterations."""

    node: Node


@dataclass(frozen=True)
class Own:
    """Node j of an iteration, `distance` iterations ago."""

    j: int
    distance: int


@dataclass(frozen=True)
class Along:
    """Element start + i * step of an array."""

    base: Node
    start: int
    step: int


@dataclass(frozen=True)
class Through:
    """Node j of iteration start + i * step of another stretch."""

    stretch: Stretch
    j: int
    start: int
    step: int


Move = Fixed | Own | Along | Through


def stretches(line: Line) -> list[Stretch]:
    """Stretches that repeat themselves and do not overlap, those that save most nodes first."""
    free = np.ones(len(line.nodes), bool)
    found: list[Stretch] = []
    steady = {p: line.steady(p) for p in _periods(line.kind)}
    while True:
        runs = [s for p in steady for s in _runs(line, p, steady[p] & free, free)]
        if not runs:
            return sorted(found, key=lambda s: s.start)
        for s in sorted(runs, key=lambda s: (s.period * (1 - s.count), s.period)):
            if free[s.start : s.end].all():
                found.append(s)
                free[s.start : s.end] = False


def _periods(kind: np.ndarray) -> list[int]:
    """Distances at which stretches of equal operations often come again, smallest last."""
    periods: set[int] = set()
    mixed, length = kind.astype(np.uint64), 1
    with np.errstate(over="ignore"):
        for gram in GRAMS:
            while length < gram:  # a hash of the `length` operations from each place on
                n = min(length, gram - length)
                if len(mixed) <= n:
                    return sorted(periods, reverse=True)
                mixed = mixed[:-n] * np.uint64(0x9E3779B97F4A7C15) + mixed[n:]
                mixed ^= mixed >> np.uint64(29)
                length += n
            order = np.argsort(mixed, kind="stable")
            apart = np.diff(order)[np.diff(mixed[order]) == 0]
            counts = np.bincount(apart[apart <= PERIOD], minlength=1)
            often = np.argsort(-counts, kind="stable")[:TRIES]
            periods.update(int(p) for p in often if counts[p] >= ITERATIONS)
            for p in often[counts[often] * SHARE >= len(kind)].tolist():
                periods.update(range(p, MULTIPLES + 1, p))  # only the operands tell them apart
    return sorted(periods, reverse=True)


def _runs(line: Line, period: int, steady: np.ndarray, free: np.ndarray) -> Iterator[Stretch]:
    """The stretches of one period, where the line is free."""
    blocked = np.flatnonzero(~free)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], steady, [False]))))
    taken = 0
    for low, high in edges.reshape(-1, 2).tolist():
        before = blocked[: np.searchsorted(blocked, low)]  # what is taken ends before the stretch
        start = max(low - 2 * period, taken, int(before[-1]) + 1 if len(before) else 0)
        found = Stretch(line, start, period, (high - start) // period)
        if found.pays:
            taken = found.end
            yield found


def settled(found: Sequence[Stretch]) -> list[Stretch]:
    """The stretches of a line, without the iterations whose operands do not move with the others,
    and without those of which too little is left."""
    out: list[Stretch] = []
    for s in found:
        while s.pays:
            first, last = 0, s.count - 1
            for j, k in product(range(s.period), range(OPERANDS)):
                if k < len(s.node(j).inputs):
                    s.moves[j, k], low, high = _move(s, j, k, out)
                    first, last = max(first, low), min(last, high)
            if (first, last) == (0, s.count - 1):
                out.append(s)
                break
            s.cut(first, last)
    return out


def _move(s: Stretch, j: int, k: int, earlier: Sequence[Stretch]) -> tuple[Move, int, int]:
    """How an operand moves, and in which iterations it does so."""
    line, p, at, last = s.line, s.period, s.start + j, s.count - 1
    place, operand = int(line.place[k, at]), line.nodes[at].inputs[k]
    fixed = Fixed(operand)
    if place == NONE:
        number = int(line.shift[k, at])
        step = int(line.shift[k, at + p]) - number
        base, element = line.outside(number)
        if not step:
            return fixed, 0, last
        return Along(base, element, step), *_within(element, step, 0, base.size, last)
    step = int(line.place[k, at + p]) - place
    iteration, own = s.where(place)
    if step == p:
        return Own(own, -iteration), 0, last
    if not step:
        return fixed, max(0, iteration + 1), last
    middle = place + last // 2 * step
    other = next((r for r in earlier if r.start <= middle < r.end), None)
    if other is None or step % other.period:
        return fixed, 1, 0
    begin, node = other.where(place)
    stride = step // other.period
    return Through(other, node, begin, stride), *_within(begin, stride, 0, other.count, last)


def _within(start: int, step: int, low: int, high: int, last: int) -> tuple[int, int]:
    """The first and last i up to `last` for which low <= start + i * step < high; there is one."""
    if step < 0:
        start, step, low, high = -start, -step, 1 - high, 1 - low
    return max(0, -((start - low) // step)), min(last, (high - 1 - start) // step)


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
        waits = {unit: len(below) for unit, below in needs.items()}
        for unit, below in needs.items():
            for b in below:
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
        for move in unit.moves.values():
            match move:
                case Fixed():
                    self._want_single(move.node)
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
        s = self.owner.get(n)
        if s is not None:
            iteration, j = s.where(s.line.at[n])
            (s.last if iteration == s.count - 1 else s.kept).add(j)

    # ------------------------------------------------------------------ making it

    def _read(self, n: Node) -> Node:
        """What node n of the old graph is in the new one."""
        if n not in self.new:
            s = self.owner[n]
            made, scan = self.scans[s]
            iteration, j = s.where(s.line.at[n])
            at = scan.place(s.exported.index(j), iteration)
            x = self.table.make("slice", made, starts=(at,), steps=(1,), sizes=(1,))
            x = self.table.make("reshape", x, shape=n.shape) if n.shape != x.shape else x
            self.new[n] = _cast(self.table, x, n.dtype)
        return self.new[n]

    def _scan(self, s: Stretch) -> Node:
        """The node of a stretch."""
        dtype = s.dtype
        assert dtype is not None
        exported = s.exported
        table = Table()
        reads: dict[Node, tuple[Node, int, int] | Past] = {}  # inputs of the body
        values: list[Node] = []

        def read(of: np.dtype, stored: np.dtype, what: tuple[Node, int, int] | Past) -> Node:
            known = next((x for x, w in reads.items() if w == what), None)
            if known is None:
                known = table.input((), stored)
                reads[known] = what
            return _cast(table, known, of)

        def operand(j: int, k: int) -> Node:
            move, old = s.moves[j, k], s.node(j).inputs[k]
            match move:
                case Own(j=other, distance=0):
                    return values[other]
                case Own():
                    return read(old.dtype, dtype, Past(exported.index(move.j), move.distance))
                case Along():
                    base = self._read(move.base)
                    if base.ndim != 1:
                        base = self.table.make("reshape", base, shape=(base.size,))
                    return read(old.dtype, old.dtype, (base, move.start, move.step))
                case Through():
                    made, scan = self.scans[move.stretch]
                    at = scan.place(move.stretch.exported.index(move.j), move.start)
                    return read(old.dtype, made.dtype, (made, at, move.step))
            base = chain(move.node)[0]
            if base.op == "const":
                return table.const(base.param("value"), base.dtype)
            return read(old.dtype, old.dtype, (self._read(move.node), 0, 0))

        for j in range(s.period):
            n = s.node(j)
            args = [operand(j, k) for k in range(len(n.inputs))]
            values.append(table.make(n.op, *args, **dict(n.params)))
        outputs = tuple(_cast(table, values[j], dtype) for j in exported)
        body = passes.simplify(Graph("body", tuple(reads), outputs))
        used = set(walk(body.roots))
        operands: dict[Node, int] = {}
        kept: list[Read | Past] = []
        for new, what in zip(body.inputs, reads.values(), strict=True):
            if new in used and isinstance(what, Past):
                kept.append(what)
            elif new in used and not isinstance(what, Past):
                kept.append(Read(operands.setdefault(what[0], len(operands)), *what[1:]))
        series = []
        for j in exported:
            lead = [
                _cast(self.table, self._read(n), dtype) for n in _before(s, j, s.past.get(j, 0))
            ]
            places = tuple(operands.setdefault(n, len(operands)) for n in lead)
            series.append(Series(places, j in s.kept))
        left = Graph("body", tuple(n for n in body.inputs if n in used), body.outputs)
        scan = Scan(Body(left), s.count, tuple(kept), tuple(series))
        made = self.table.make(
            "scan", *operands, body=scan.body, count=scan.count, reads=scan.reads,
            series=scan.series, dtype=dtype,
        )  # fmt: skip
        self.scans[s] = made, scan
        return made


def _operands(unit: Unit) -> Iterable[Node]:
    """The nodes that a unit reads; of a stretch any one that belongs to it."""
    if isinstance(unit, Node):
        yield from unit.inputs
        return
    for move in unit.moves.values():
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
