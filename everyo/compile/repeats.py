"""Where a graph repeats itself: stretches of its nodes that are iterations of one loop.

The nodes are written as a line in the order of tracing. Where the line repeats itself with a period
(equal operations, and operands that move on by equal distances from one repetition to the next)
that is an unrolled loop. An operand may move with the loop (a value some iterations ago), stand
still (a value from before), or walk along an array or another loop, in any direction: the gradient
of a loop runs through it from its end. Iterations at both ends that do not fit stay as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from everyo.compile.ir import BOOL, F16, I64, OPAQUE, VIEWS, Node
from everyo.compile.space import chain, contiguous, strided

LENGTH = 64  # a loop of numbers replaces at least so many nodes ...
ITERATIONS = 6  # ... in at least so many iterations
LONG = 96  # a loop of arrays replaces so many ...
MANY = 12  # ... in so many iterations: shorter ones run a little faster unrolled
PERIOD = 1024  # nodes of an iteration, at most
GRAMS = (3, 24, 96)  # lengths of the stretches whose distances are counted
TRIES = 6  # distances that are looked at, for each of these lengths
SHARE = 4  # of a distance that is at least one in so many, multiples are tried as well ...
MULTIPLES = 24  # ... up to this one
BACK = 16  # a value is read from at most so many iterations ago
NONE, CONSTANT = -(1 << 40), -(1 << 41)  # places of what is not on the line: far from all others


class Line:
    """Nodes in the order of tracing, and where their operands are, as arrays [operand, node].

    `place` is the place of an operand on the line. That of a constant is CONSTANT, whatever its
    value. That of any other is NONE, and `shift` is its number: elements of one array have numbers
    that follow each other. Where a node is a slice that begins at some element of its operand, that
    is added to the shift.
    """

    operands: int  # of a node, at most

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.at = {n: i for i, n in enumerate(nodes)}
        self.bases: list[Node] = []  # what lies outside, and from which number on
        self.firsts: list[int] = []
        self._first: dict[Node, int] = {}
        self._numbers = 0
        kinds: dict[tuple, int] = {}
        self.kind = np.array([kinds.setdefault(self.key(n), len(kinds)) for n in nodes])
        self.place = np.full((self.operands, len(nodes)), NONE)
        self.shift = np.zeros((self.operands, len(nodes)), np.int64)
        reads = [n.inputs[: self.operands] for n in nodes]
        counts = np.array([len(r) for r in reads], int)
        of = np.repeat(np.arange(len(nodes)), counts)  # of each operand: its node, and which it is
        which = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        operands = [o for r in reads for o in r]
        places = np.array([self.at.get(o, NONE) for o in operands], int)
        self.place[which, of] = places
        away = np.flatnonzero(places == NONE)
        found = [self.outside(operands[i]) for i in away]
        self.place[which[away], of[away]] = [place for place, _ in found]
        self.shift[which[away], of[away]] = [shift for _, shift in found]

    def key(self, n: Node) -> tuple:
        """What nodes have in common that may be the same node of two iterations."""
        raise NotImplementedError

    def outside(self, o: Node) -> tuple[int, int]:
        """Place and number of an operand that is not on the line itself."""
        raise NotImplementedError

    def pays(self, s: "Stretch") -> bool:
        """Whether a loop is worth it."""
        raise NotImplementedError

    def number(self, base: Node) -> int:
        """The number of the first element of an array."""
        if base not in self._first:
            self._first[base] = self._numbers
            self.bases.append(base)
            self.firsts.append(self._numbers)
            self._numbers += base.size + 1  # elements of two arrays never follow each other
        return self._first[base]

    def element(self, number: int) -> tuple[Node, int]:
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
        found[2 * p :] = like[p:] & like[:-p]
        for where in (*self.place, *self.shift):
            step = where[p:] - where[:-p]
            found[2 * p :] &= step[p:] == step[:-p]
        return found


class Scalars(Line):
    """Operations on single numbers; what views of them are is the numbers themselves."""

    operands = 3

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._known: dict[Node, tuple[int, int]] = {}
        super().__init__(nodes)

    def key(self, n: Node) -> tuple:
        of, dtype = n.inputs[0].dtype.num, n.dtype.num
        if of == F16.num or dtype == F16.num:  # is computed in another precision, see widen.py
            return (n,)
        return (n.op, of, dtype)

    def outside(self, o: Node) -> tuple[int, int]:
        if o not in self._known:
            base = chain(o)[0]
            if base in self.at:
                self._known[o] = self.at[base], 0
            elif base.op == "const":
                self._known[o] = CONSTANT, 0
            else:
                element = 0
                if base.size > 1:
                    flat = None if base.op == "iota" else strided(o, _flat)
                    base, element = (o, 0) if flat is None else (base, flat[2])
                self._known[o] = NONE, self.number(base) + element
        return self._known[o]

    def pays(self, s: "Stretch") -> bool:
        return s.count >= ITERATIONS and s.count * s.period >= LENGTH


class Arrays(Line):
    """Operations of all kinds, views among them."""

    operands = 6

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        for i, n in enumerate(nodes):
            if n.op == "slice":
                self.shift[0, i] += _begin(n)

    def key(self, n: Node) -> tuple:
        if not n.size or len(n.inputs) > self.operands or n.op == "exchange":
            return (n,)
        params = n.params
        if n.op == "slice":
            params = tuple((k, v) for k, v in params if k != "starts")
        return (n.op, n.shape, n.dtype, params, *((o.shape, o.dtype) for o in n.inputs))

    def outside(self, o: Node) -> tuple[int, int]:
        return (CONSTANT, 0) if constant(o) else (NONE, self.number(o))

    def pays(self, s: "Stretch") -> bool:
        nodes = self.nodes[s.start : s.start + s.period]
        numbers = all(n.size == 1 for n in nodes)  # these are found later, as such
        return s.count >= MANY and s.count * s.period >= LONG and not numbers


def constant(n: Node) -> bool:
    """Whether a node is one number everywhere by construction."""
    return chain(n)[0].op == "const"


def _flat(n: Node) -> list[int]:
    return contiguous(n.shape)


def _begin(n: Node) -> int:
    """The element of its operand that a slice begins with."""
    starts = zip(n.param("starts"), _flat(n.inputs[0]), strict=True)
    return sum(a * step for a, step in starts)


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
    room: int = 0  # nodes behind it that go on in the same way
    moves: dict[tuple[int, int], "Move"] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    past: dict[int, int] = field(default_factory=dict)
    last: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    def cut(self, first: int, last: int) -> None:
        """Keep the iterations from `first` to `last`, inclusive."""
        if last < self.count - 1:
            self.room = 0
        self.start += self.period * first
        self.count = max(0, last + 1 - first)

    @property
    def pays(self) -> bool:
        return self.count > 2 and self.line.pays(self)

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

    def turn(self) -> bool:
        """Begin iterations where they hand fewest bytes over to later ones, and of several such
        places where fewest are read by what could be computed with them; whether that is
        elsewhere."""
        costs = np.zeros(self.period, np.int64)  # by where iterations begin
        reads = np.zeros(self.period, np.int64)
        crossing = {j: np.zeros(self.period, bool) for j in range(self.period)}
        for (reader, _), move in self.moves.items():
            move = below(move)
            if isinstance(move, Own):
                apart = np.full(self.period, move.distance)
                apart[reader + 1 :] -= 1  # the reader then belongs to the iteration before ...
                apart[move.j + 1 :] += 1  # ... and so does what it reads
                crossing[move.j] |= apart > 0
                if self.node(reader).op not in OPAQUE | VIEWS:
                    reads += (apart > 0) * self.node(move.j).nbytes
        for j, crosses in crossing.items():
            costs += self.node(j).nbytes * (crosses | (j in self.kept))
        first = int(np.lexsort((reads, costs))[0])
        stays = (costs[first], reads[first]) == (costs[0], reads[0])
        count = self.count - (first > self.room)
        turned = Stretch(self.line, self.start + first, self.period, count)
        if stays or not turned.pays:
            return False
        self.start, self.count = turned.start, count
        self.room -= min(self.room, first)
        return True

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


@dataclass(frozen=True)
class Listed:
    """A constant that is another one in each iteration."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Seen:
    """What a view shows of something: views are made where they are wanted, never kept."""

    view: Node
    of: "Move"


Move = Fixed | Own | Along | Through | Listed | Seen


def below(move: Move) -> Fixed | Own | Along | Through | Listed:
    """What a move is below views."""
    while isinstance(move, Seen):
        move = move.of
    return move


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
        found = Stretch(line, start, period, *divmod(high - start, period))
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
            for j, k in product(range(s.period), range(s.line.operands)):
                if k < len(s.node(j).inputs):
                    readers = s.start + j + s.period * np.arange(s.count)
                    s.moves[j, k], low, high = _move(s, readers, k, out)
                    first, last = max(first, low), min(last, high)
            if (first, last) == (0, s.count - 1):
                out.append(s)
                break
            s.cut(first, last)
    return out


def _move(
    s: Stretch, readers: np.ndarray, k: int, earlier: Sequence[Stretch]
) -> tuple[Move, int, int]:
    """How operand k of the nodes at these places, one per iteration, moves, and in which
    iterations it does so."""
    line, last = s.line, s.count - 1
    nodes = line.nodes
    node = nodes[readers[0]]
    fixed = Fixed(node.inputs[k])
    places, shifts = _evenly(line.place[k, readers]), _evenly(line.shift[k, readers])
    if places is None or shifts is None:
        return fixed, 1, 0
    (place, step), (shift, slide) = places, shifts
    if place == CONSTANT:
        bases = [chain(nodes[i].inputs[k])[0] for i in readers]
        return (fixed if len(set(bases)) == 1 else Listed(tuple(bases))), 0, last
    if place == NONE:
        if not slide:
            return fixed, 0, last
        base, element = line.element(shift)
        room = base.size - (_reach(node) if node.op == "slice" else 0)
        return Along(base, element, slide), *_within(element, slide, 0, room, last)
    iteration, own = s.where(place)
    if not step:
        still = Along(node.inputs[k], shift, slide) if slide else fixed
        return still, max(0, iteration + 1), last
    if slide:
        return fixed, 1, 0
    if step == s.period and not iteration:
        return Own(own, 0), 0, last
    if nodes[place].op in VIEWS:
        seen = place + step * np.arange(s.count)
        if not np.ptp(line.kind[seen]):
            move, low, high = _move(s, seen, 0, earlier)
            if low <= high:
                return Seen(nodes[place], move), low, high
    if step == s.period and -iteration <= min(BACK, last):
        return Own(own, -iteration), 0, last
    middle = place + last // 2 * step
    other = next((r for r in earlier if r.start <= middle < r.end), None)
    if other is None or step % other.period:
        return fixed, 1, 0
    begin, index = other.where(place)
    stride = step // other.period
    return Through(other, index, begin, stride), *_within(begin, stride, 0, other.count, last)


def _evenly(values: np.ndarray) -> tuple[int, int] | None:
    """The first value and the step of values that follow each other evenly."""
    steps = np.diff(values)
    return (int(values[0]), int(steps[0])) if not np.ptp(steps) else None


def _reach(n: Node) -> int:
    """How far the last element of a slice lies behind its first, in its operand."""
    steps = zip(n.shape, n.param("steps"), _flat(n.inputs[0]), strict=True)
    return sum((size - 1) * step * stride for size, step, stride in steps)


def _within(start: int, step: int, low: int, high: int, last: int) -> tuple[int, int]:
    """The first and last i up to `last` for which low <= start + i * step < high; there is one."""
    if step < 0:
        start, step, low, high = -start, -step, 1 - high, 1 - low
    return max(0, -((start - low) // step)), min(last, (high - 1 - start) // step)
