"""Group -> loop program for a GPU: the same nest, values and statements, other loops around them.

The threads of a kernel form teams. A team does what a chunk does on the CPU: it takes every so
many-th row, its lanes share the loop over a row, and what a row reduction folds is folded across
the lanes. Sums keep a second word of precision, so nothing needs float64. Results that several
teams contribute to are stored per team and folded by a second kernel, always in the same order:
there are no atomics, and equal calls give equal bits.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from everyo.compile.cuda.statements import (
    Across,
    DeviceKernel,
    DeviceStatement,
    First,
    Leave,
    Once,
    Rows,
    Spread,
    Sync,
)
from everyo.compile.fuse import COST, Group
from everyo.compile.ir import I64, Node, require
from everyo.compile.loops import ELEMENT_NS, SLOT_NS, _Lowering
from everyo.compile.nest import moving
from everyo.compile.program import (
    FOLDS,
    Combine,
    Digit,
    Extent,
    Fold,
    Index,
    Load,
    Start,
    Store,
    Value,
    first,
)
from everyo.compile.space import Layout

WARP = 32
THREADS = 256  # per block, at most
TEAMS = 1024  # at most so many teams leave partial results ...
SHARE = 8  # ... and each has at least so many elements per lane
SHARED = 40 << 10  # bytes of a block's scratch rows that fit into shared memory
SCRATCH_TEAMS = 2048  # teams with scratch rows in global memory
LIMIT = 1 << 31  # elements of a kernel, whose loops count in 32 bits
BYTES = 16  # of the widest load or store


def lower(
    group: Group, layout: Layout, direct: Mapping[Node, Node] | None = None, vector: bool = True
) -> DeviceKernel:
    """The kernel of a loop group; `vector=False` leaves out accesses that need alignment."""
    return _DeviceLowering(group, layout, direct or {}, vector).device_kernel()


def paired(op: str, dtype: np.dtype) -> bool:
    """Whether a fold keeps a second word: the sums of floats."""
    return op in ("sum", "add") and dtype.kind == "f"


def power_of_two(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, n - 1).bit_length()


class _DeviceLowering(_Lowering):
    before: list[Any]  # of statements that only devices have, too
    after: list[Any]
    init: list[Any]
    tail: list[Any]

    def __init__(
        self, group: Group, layout: Layout, direct: Mapping[Node, Node], vector: bool
    ) -> None:
        super().__init__(group, layout, direct)
        self.may_vector = vector

    def device_kernel(self) -> DeviceKernel:
        self.swapped = self._columns_alone()
        self.serial = self._read_by_other_rows()  # then one thread does everything
        # Where lanes would meet in one element, a team is one thread.
        self.alone = self.serial or self._shared_elements()
        self.opening: list = []  # in swapped loops: before and after the rows of a column
        self.closing: list = []
        body: list = []
        for p in range(self.nest.phases):
            body += self._phase(p)
        results = self._once(self._once_per_outer(self._row_results()))
        rows = [
            *(self.values.digits[i] for i in sorted(self.values.digits)),
            *body,
            *results,
        ]
        main = self._wrapped(rows)
        clear = [Sync()] if any(isinstance(s, Spread) for s in self.init) else []
        tail = self._once(self.tail, alone=True)
        partial = any(s.what == "partial" for s in self.values.slots)
        leave = [] if self.nest.flat or partial else [Leave(self.nest.rows)]
        text = (*leave, *self.values.chunk_lines, *self.init, *clear, *main, *tail)
        return self._placed(text)

    # -- what kind of kernel this is -------------------------------------------------------------

    def _columns_alone(self) -> bool:
        """Whether all that is folded are whole columns: then a lane keeps a column in registers."""
        s, nest = self.space, self.nest
        if not nest.outer or nest.flat or nest.phases > 1 or s.rows or not s.reduced:
            return False
        maps = [set(moving(nest.value[n])) for n in s.reduced]
        whole = [n for n in self.group.stores if n not in s.reduced and nest.level[n] < 2]
        return not whole and all(m == nest.inner_leaves or not m for m in maps) and any(maps)

    def _shared_elements(self) -> bool:
        """Whether two iterations of a row's loop store or accumulate in one element."""
        s, nest = self.space, self.nest
        made = [n for n in s.reduced if n not in s.rows and self._in_columns(n)]
        made += [n for n in self.group.stores if n not in s.reduced and nest.level[n] == 2]
        return any(not nest.inner_leaves <= set(moving(nest.value[n])) for n in made)

    def _read_by_other_rows(self) -> bool:
        """Whether a row reads again what another row stored, as it does not depend on the row."""
        kept = self.nest.kept & set(self.group.stores)
        outer = {r.leaf for r in self.nest.outer}
        return any(not outer <= set(moving(self.nest.value[n])) for n in kept)

    def _in_columns(self, n: Node) -> bool:
        return any(a in self.nest.inner_leaves for a in self.nest.value[n])

    def _chunks(self) -> int:
        """The number of teams is known when everything else is, see `_placed`."""
        return 0

    # -- loops -----------------------------------------------------------------------------------

    def _inner_loops(self) -> list:
        """The loop over a row, shared by the lanes."""
        ranges = [(f"c{i}", r.size) for i, r in enumerate(self.nest.inner)]
        body = tuple(self._once_per_outer(self.values.loop_lines))
        if not ranges:
            return list(body)
        if self.swapped:
            return list(body)
        over = "grid" if self.nest.flat else "lanes"
        stop: int | str = self.nest.width
        if self.nest.flat and not self.space.reduced:  # one text for all sizes
            if "count" not in self.values.chunk_known:
                k = self.values.slot("count", None, I64, self.nest.width)
                self.values.chunk_known["count"] = "n"
                self.values.chunk_lines.append(Extent("n", k))
            stop = "n"
        lines = (*self._digit_lines(ranges), *body)
        return [Spread(self._inner_name(ranges), stop, lines, over, 1, ranges[-1][0])]

    def _inner_name(self, ranges: list[tuple[str, int]]) -> str:
        return ranges[0][0] if len(ranges) == 1 else "q"

    def _digit_lines(self, ranges: list[tuple[str, int]]) -> list[Digit]:
        """The inner indices from the one loop variable."""
        if len(ranges) == 1:
            return []
        sizes = [size for _, size in ranges]
        return [
            Digit(var, "q", math.prod(sizes[i + 1 :]), size if i else 0)
            for i, (var, size) in enumerate(ranges)
        ]

    def _wrapped(self, body: list) -> list:
        """The body within the loop over this team's rows."""
        if self.nest.flat:
            return body
        rows = Rows("r", self.nest.rows, tuple(body))
        if not self.swapped:
            return [rows]
        ranges = [(f"c{i}", r.size) for i, r in enumerate(self.nest.inner)]
        inner = (*self._digit_lines(ranges), *self.opening, rows, *self.closing)
        return [Spread(self._inner_name(ranges), self.nest.width, inner, "lanes", 1, ranges[-1][0])]

    def _once(self, lines: list, alone: bool = False) -> list:
        """The lines, stores by one lane only; a barrier where others may still have to read."""
        out: list = []
        waited = self.team_of() == 1
        for s in lines:
            if not isinstance(s, Store | First):
                out.append(s)
                continue
            if not waited:
                out.append(Sync())
                waited = True
            per_team = isinstance(s, Store) and self.values.slots[s.slot].per_chunk
            out.append(Once((s,), alone and not per_team))
        return out

    # -- folds -----------------------------------------------------------------------------------

    def _reduce(self, n: Node, v: Value) -> None:
        """Fold operand v of reduction n: in the row, into a total of the team, or into columns."""
        m, op, dtype = self.nest.value[n], FOLDS[n.op], n.dtype
        pair = paired(n.op, dtype)
        if n not in self.space.rows and self._in_columns(n):
            self._column(n, v)
            return
        once = self.nest.inner and not self.nest.flat and not self.nest.cut[n] & self.nest.inner_all
        if n not in self.space.rows and not m:
            self._total(n, v, bool(once))
            return
        result = v
        if not once:
            a = self.values.name("a")
            self.before.append(Start(a, first(n.op, dtype), pair))
            self.values.loop_lines.append(_fold(a, op, v, dtype, pair))
            self.after.append(Across(a, op, dtype, pair))
            result = self._closed(a, pair, self.after)
        if n in self.space.rows:
            self.values.row_known[n] = result
        else:
            k = self._cleared(n, pair)
            lines: list = []
            self._accumulate_at(k, op, self.values.index(m, 0, 1), result, n, lines)
            self.after += [Once(tuple(lines))]
            self.combines.append(Combine(k, n))

    def _total(self, n: Node, v: Value, once: bool) -> None:
        """Everything folds into one value per team."""
        op, dtype, pair = FOLDS[n.op], n.dtype, paired(n.op, n.dtype)
        t = self.values.name("t")
        self.init.append(Start(t, first(n.op, dtype), pair))
        (self.after if once else self.values.loop_lines).append(_fold(t, op, v, dtype, pair))
        if not once:
            self.tail.append(Across(t, op, dtype, pair))
        k = self.values.slot("partial", n, dtype, 2 if pair else 1)
        self.tail.append(Store(k, Index(), t))
        if pair:
            self.tail.append(Store(k, Index((), 1), f"{t}e"))
        self.combines.append(Combine(k, n))

    def _column(self, n: Node, v: Value) -> None:
        """One accumulator per kept inner index: a register of its lane, or an element in memory."""
        op, dtype, pair = FOLDS[n.op], n.dtype, paired(n.op, n.dtype)
        if not self.swapped:
            k = self._cleared(n, pair)
            at = self.values.index(self.nest.value[n], 0, 2)
            self._accumulate_at(k, op, at, v, n, self.values.loop_lines)
        else:
            a = self.values.name("a")
            self.opening.append(Start(a, first(n.op, dtype), pair))
            self.values.loop_lines.append(_fold(a, op, v, dtype, pair))
            k = self.values.slot("partial", n, dtype, n.size * (2 if pair else 1))
            terms = tuple(
                (f"c{i}", self.nest.value[n][r.leaf]) for i, r in enumerate(self.nest.inner)
            )
            self.closing.append(Store(k, Index(terms), a))
            if pair:
                self.closing.append(Store(k, Index(terms, n.size), f"{a}e"))
        self.combines.append(Combine(k, n))

    def _cleared(self, n: Node, pair: bool) -> int:
        """A cleared accumulator array per team, for both words of a pair."""
        size = n.size * (2 if pair else 1)
        k = self.values.slot("partial", n, n.dtype, size)
        clear = Store(k, Index((("z", 1),)), first(n.op, n.dtype))
        self.init.append(Spread("z", size, (clear,)))
        return k

    def _accumulate_at(self, k: int, op: str, at: Index, v: Value, n: Node, lines: list) -> None:
        """slot k [at] = op(itself, v), both words of it if it has two."""
        pair = paired(n.op, n.dtype)
        x = self.values.name("x")
        lines.append(Load(x, k, at))
        if pair:
            low = Index(at.terms, int(at.offset) + n.size)
            lines.append(Load(f"{x}e", k, low))
        lines.append(_fold(x, op, v, n.dtype, pair))
        lines.append(Store(k, at, x))
        if pair:
            lines.append(Store(k, low, f"{x}e"))

    # -- threads, blocks, vectors ----------------------------------------------------------------

    def team_of(self, vector: int = 1) -> int:
        """How many threads share a row."""
        if self.alone:
            return 1
        if self.nest.flat:
            return THREADS
        return min(THREADS, power_of_two(-(-self.nest.width // vector)))

    def _placed(self, text: tuple) -> DeviceKernel:
        require(self.nest.elements < LIMIT, "too many elements for 32-bit indices in", self.group)
        vector, vectors = self._vector(text)
        team = self.team_of(vector)
        partials = sum(s.elements for s in self.values.slots if s.what == "partial")
        scratch = sum(
            s.elements * s.dtype.itemsize for s in self.values.slots if s.what == "scratch"
        )
        lanes = -(-self.nest.width // vector)
        if self.nest.flat:
            wanted, threads = -(-lanes // team), THREADS
        else:
            wanted = self.nest.rows
            # Teams of several warps meet at the block's barrier, so each is a block of its own.
            most = team if team > WARP else THREADS
            threads = min(most, max(WARP, power_of_two(team * self.nest.rows)))
        if self.alone and self.nest.flat:
            wanted, threads = 1, WARP
        if partials:
            per_team = max(self.nest.elements // (SHARE * team), 1)
            few = max(1, self.nest.elements // (4 * partials))
            wanted = min(wanted, TEAMS, per_team, few)
        if self.serial:
            wanted = threads = 1
        per_block = max(1, threads // team)
        in_shared = bool(scratch) and scratch * per_block <= SHARED
        if scratch and not in_shared:
            wanted = min(wanted, SCRATCH_TEAMS)
        blocks = max(1, -(-wanted // per_block))
        shared = frozenset(
            i for i, s in enumerate(self.values.slots) if s.what == "scratch" and in_shared
        )
        if vector > 1:
            text = tuple(_vectorised(s, vector, self.nest.flat) for s in text)
        ops = sum(COST.get(n.op, 1) for n in self.group.nodes)
        work = self.nest.elements * (ELEMENT_NS * ops + SLOT_NS * len(self.values.slots))
        return DeviceKernel(
            tuple(self.values.slots), text, team, threads, blocks, vector, vectors,
            self._loose(vector), shared,
            tuple(self.combines), work,
        )  # fmt: skip

    def _vector(self, text: tuple) -> tuple[int, frozenset[int]]:
        """How many neighbours a lane takes at a time, and in which slots they lie side by side."""
        nest = self.nest
        if not self.may_vector or self.alone or not nest.inner:
            return 1, frozenset()
        last = f"c{len(nest.inner) - 1}"
        accesses = [s for s in _inside(text, last)]
        sizes = [self.values.slots[s.slot].dtype.itemsize for s in accesses if _runs(s, last)]
        wide = [size for size in sizes if size > 1]
        if not wide:
            return 1, frozenset()
        vector = max(2, BYTES // min(wide)) if min(wide) < BYTES else 1
        if not nest.flat and nest.inner[-1].size % vector:
            return 1, frozenset()
        slots = frozenset(
            s.slot
            for s in accesses
            if side_by_side(s, last, vector, self._loose(vector)) and self._whole(s.slot, vector)
        )
        return (vector, slots) if slots else (1, frozenset())

    def _loose(self, vector: int) -> frozenset[str]:
        """The heads of addresses that are no multiples of the vector."""
        return frozenset(
            name
            for index, name in self.values.heads.items()
            if index.offset % vector or any(stride % vector for _, stride in index.terms)
        )

    def _whole(self, slot: int, vector: int) -> bool:
        """Whether the part of every team begins at a multiple of the vector."""
        s = self.values.slots[slot]
        return not s.per_chunk or s.elements % vector == 0

    def _once_per_outer(self, lines: list) -> list:
        """The lines; a store that does not depend on some outer index only where that is 0."""
        heads = {name: index for index, name in self.values.heads.items()}
        out: list = []
        for s in lines:
            if not isinstance(s, Store) or self.values.slots[s.slot].what != "array":
                out.append(s)
                continue
            terms = {v for v, _ in s.index.terms}
            for head in terms & set(heads):
                terms |= {v for v, _ in heads[head].terms}
            missing = self._missing(terms)
            out.append(First(missing, (s,)) if missing else s)
        return out

    def _missing(self, terms: set[str]) -> tuple[str, ...]:
        """The outer indices that an address does not depend on."""
        outer = self.nest.outer
        if not outer or "r" in terms:
            return ()
        if len(outer) == 1:
            return ("r",)
        names = [f"o{i}" for i in range(len(outer))]
        return tuple(self.values._digit(i) for i, n in enumerate(names) if n not in terms)


def _fold(name: str, op: str, v: Value, dtype: np.dtype, pair: bool) -> Fold:
    return Fold(name, op, v, dtype, "pair" if pair else "strict")


def _inside(text: tuple, last: str) -> list[Load | Store]:
    """The accesses within the loops over `last`."""
    out: list[Load | Store] = []
    stack: list = [(s, False) for s in text]
    while stack:
        s, within = stack.pop()
        if isinstance(s, Spread):
            stack += [(x, s.last == last) for x in s.body]
        elif isinstance(s, Rows | Once | First):
            stack += [(x, within) for x in s.body]
        elif within and isinstance(s, Load | Store):
            out.append(s)
    return out


def _runs(s: Load | Store, last: str) -> bool:
    return (last, 1) in s.index.terms


def side_by_side(s: Load | Store, last: str, vector: int, loose: frozenset[str]) -> bool:
    """Whether neighbours along `last` lie side by side, from a multiple of `vector` on."""
    rest = [(var, stride) for var, stride in s.index.terms if var != last]
    steady = all(
        var not in loose if var.startswith("h") else stride % vector == 0 for var, stride in rest
    )
    return steady and _runs(s, last) and s.index.offset % vector == 0


def _vectorised(s: DeviceStatement, vector: int, tail: bool) -> DeviceStatement:
    match s:
        case Spread() if s.last:
            return Spread(s.var, s.stop, s.body, s.over, vector, s.last, tail)
        case Rows():
            return Rows(s.var, s.stop, tuple(_vectorised(x, vector, tail) for x in s.body))
    return s
