"""Group -> loop program. One shape of kernel serves all groups:

    for the rows of this chunk:                        outer axes, as one loop
        for each phase: for the inner axes:            a phase needs the row reductions before it
            loads, values, folds, stores
        results that are known once per row

Every value has a level (0 once per chunk, 1 once per row, 2 per element) and a phase. Values of
earlier phases are reloaded, kept in a scratch row, or computed again, whichever is cheaper. Sums
run in blocks that meet in float64, so that their error does not grow with their length.
"""

import math
from collections.abc import Mapping

import numpy as np

from everyo.compile.fuse import COST, Group
from everyo.compile.ir import F32, F64, I32, I64, Node
from everyo.compile.nest import Map, Nest, moving
from everyo.compile.program import (
    FOLDS,
    Address,
    Clamp,
    Combine,
    Counter,
    Digit,
    Extent,
    Finish,
    Fold,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Share,
    Slot,
    Start,
    Statement,
    Store,
    Value,
    first,
    paired,
    wide,
)
from everyo.compile.space import Layout, chain

CHUNK = 8192  # a chunk has at least so many elements
CHUNKS = 16  # and there are at most so many of them
BLOCK = 1024  # a sum runs over at most so many elements before it goes to float64
FEW = 4  # so many elements of a sum may be added one by one
LANES = 64  # elements that a vectorised sum takes at once; what remains is added one by one
DEEP = 256  # a float32 column sum takes at most so many rows before it goes to float64
RUNTIME = 16  # known trip counts from here on make LLVM unroll first and then not vectorise
NESTED = 3  # inner loops; more axes than that share one loop (Python allows 20 nested blocks)
FLAT_UNIT = 16  # chunks of flat kernels are cut at multiples of this
WIDE_PARTIALS = 64  # accumulators of more elements than this limit the number of chunks
ELEMENT_NS, SLOT_NS = 0.006, 0.03  # estimated time per op and per buffer, per element

COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def lower(group: Group, layout: Layout, direct: Mapping[Node, Node] | None = None) -> Kernel:
    """The kernel of a loop group; `direct` maps values to the inputs they are written into."""
    return _Lowering(group, layout, direct or {}).kernel()


class _Lowering:
    def __init__(self, group: Group, layout: Layout, direct: Mapping[Node, Node]) -> None:
        self.group, self.space, self.direct = group, group.loop, direct
        self.nest = Nest(group, layout)
        self.slots: list[Slot] = []
        self.positions: dict[tuple, int] = {}
        self.names = 0

    # -- names, slots, addresses -----------------------------------------------------------------

    def _name(self, letter: str = "v") -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def _slot(
        self, what: str, node: Node | None, dtype: np.dtype, elements: int = 0, key: object = None
    ) -> int:
        if node is not None and what == "array":
            node = self.direct.get(node, node)
        where = (what, key or node)
        if where not in self.positions:
            self.positions[where] = len(self.slots)
            self.slots.append(Slot(what, node, dtype, elements))
        return self.positions[where]

    def _index(self, m: Map, offset: int, level: int) -> Index:
        """Where a value lies; an address that is known once per row gets a name of its own."""
        terms = [(i, m[r.leaf]) for i, r in enumerate(self.nest.outer) if m.get(r.leaf)]
        runs = all(
            m.get(a.leaf, 0) == m.get(b.leaf, 0) * b.size
            for a, b in zip(self.nest.outer, self.nest.outer[1:], strict=False)
        )
        if len(self.nest.outer) == 1 or (terms and runs):
            row = tuple(("r", stride) for _, stride in terms[-1:])
        else:
            row = tuple((self._digit(i), stride) for i, stride in terms)
        if level < 2:
            return Index(row, offset)
        if row and (len(row) > 1 or offset or row[0][1] != 1):
            head = Index(row, offset)
            if head not in self.heads:
                self.heads[head] = self._name("h")
                self.row_lines.append(Address(self.heads[head], head))
            row, offset = ((self.heads[head], 1),), 0
        inner = tuple((f"c{i}", m[r.leaf]) for i, r in enumerate(self.nest.inner) if m.get(r.leaf))
        return Index(row + inner, offset)

    def _digit(self, i: int) -> str:
        """The i-th outer index."""
        below = math.prod(r.size for r in self.nest.outer[i + 1 :])
        self.digits[i] = Digit(f"o{i}", "r", below, self.nest.outer[i].size if i else 0)
        return f"o{i}"

    def _scratch_map(self) -> Map:
        m, step = {}, 1
        for r in reversed(self.nest.inner):
            m[r.leaf] = step
            step *= r.size
        return m

    # -- values ----------------------------------------------------------------------------------

    def _known(self, level: int) -> dict:
        return (self.chunk_known, self.row_known, self.loop_known)[level]

    def _lines(self, level: int) -> list[Statement]:
        return (self.chunk_lines, self.row_lines, self.loop_lines)[level]

    def _load(self, o: Node, level: int) -> str:
        known = self._known(level)
        if o not in known:
            a = self.space.loads[o]
            index = self._index(moving(self.nest.access[o]), a.offset, level)
            known[o] = name = self._name()
            if a.base.op == "iota":
                self._lines(level).append(Counter(name, index, I64))
            else:
                k = self._slot("array", a.base, a.base.dtype)
                self._lines(level).append(Load(name, k, index))
        return known[o]

    def _get(self, o: Node, phase: int) -> Value:
        """The value of an operand (of the group or loaded) within loop `phase`."""
        base = chain(o)[0]
        if base.op == "const":
            return Literal(base.param("value"), base.dtype)
        if base not in self.nest.inside:
            return self._load(o, self.nest.operand_level(o))
        level = self.nest.level[base]
        known = self._known(level)
        if base not in known:
            known[base] = self._value(base, level, phase)
        return known[base]

    def _value(self, n: Node, level: int, phase: int) -> Value:
        lines = self._lines(level)
        if level == 2 and self.nest.phase[n] < phase and n in self.nest.kept:
            name = self._name()
            if n in self.group.stores:
                k, m = self._slot("array", n, n.dtype), self.nest.value[n]
            else:
                k, m = self._slot("scratch", n, n.dtype, self.nest.width), self._scratch_map()
            lines.append(Load(name, k, self._index(m, 0, 2)))
            return name
        if n.op == "copy":
            return self._get(n.inputs[0], phase)
        if n.op == "take":
            return self._take(n, level, phase)
        args = tuple(self._get(i, phase) for i in n.inputs)
        of = n.inputs[-1].dtype
        if n.op in COMPARISONS and of == I64 and level == 2:
            args, of = self._short(n, args)
        name = self._name()
        lines.append(Let(name, n.op, args, of, n.dtype))
        return name

    def _take(self, n: Node, level: int, phase: int) -> str:
        table, index = n.inputs
        a = self.space.loads[n]
        i, low = self._get(index, phase), self.nest.operand_level(index)
        known = self._known(low)
        if ("row", i, table.shape[0]) not in known:
            known["row", i, table.shape[0]] = row = self._name("k")
            self._lines(low).append(Clamp(row, i, table.shape[0]))
        row = known["row", i, table.shape[0]]
        at = self._index(moving(self.nest.access[n]), a.offset, level)
        name, k = self._name(), self._slot("array", a.base, n.dtype)
        self._lines(level).append(Load(name, k, Index(((row, a.row), *at.terms), at.offset)))
        return name

    def _short(self, n: Node, args: tuple[Value, ...]) -> tuple[tuple[Value, ...], np.dtype]:
        """An index compared with what is known per row: in 32 bits, so that it fills a vector."""
        counts = [chain(o)[0].op == "iota" and self.nest.operand_level(o) == 2 for o in n.inputs]
        if counts[0] == counts[1]:
            return args, I64
        o, other = n.inputs if counts[0] else n.inputs[::-1]
        if self.nest.operand_level(other) == 2 or chain(o)[0].size >= 2**31 - 1:
            return args, I64
        index = self._index(moving(self.nest.access[o]), self.space.loads[o].offset, 2)
        key, v = ("count", o), args[counts.index(False)]
        if key not in self.loop_known:
            self.loop_known[key] = name = self._name()
            self.loop_lines.append(Counter(name, index, I32))
        short = self._narrow(v, self.nest.operand_level(other))
        pair = (self.loop_known[key], short)
        return (pair if counts[0] else pair[::-1]), I32

    def _narrow(self, v: Value, level: int) -> Value:
        if isinstance(v, Literal):
            return Literal(min(max(v.value, -1), 2**31 - 1), I32)
        known = self._known(level)
        if ("narrow", v) not in known:
            known["narrow", v] = name = self._name()
            self._lines(level).append(Let(name, "narrow", (v,), I64, I32))
        return known["narrow", v]

    def _cast(self, v: Value, of: np.dtype, to: np.dtype, lines: list[Statement]) -> Value:
        if of == to:
            return v
        name = self._name()
        lines.append(Let(name, "cast", (v,), of, to))
        return name

    # -- statements ------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        self.heads: dict[Index, str] = {}
        self.digits: dict[int, Digit] = {}
        self.chunk_known: dict = {}
        self.row_known: dict = {}
        self.chunk_lines: list[Statement] = []
        self.init: list[Statement] = []
        self.tail: list[Statement] = []
        self.flushes: list[Statement] = []
        self.combines: list[Combine] = []
        self.chunks = self._chunks()
        body: list[Statement] = []
        for p in range(self.nest.phases):
            body += self._phase(p)
        body += self._row_results()
        body = [*(self.digits[i] for i in sorted(self.digits)), *body]
        main = self._rows(body)
        ops = sum(COST.get(n.op, 1) for n in self.group.nodes)
        work = self.nest.elements * (ELEMENT_NS * ops + SLOT_NS * len(self.slots))
        text = (*self.chunk_lines, *self.init, *main, *self.tail)
        return Kernel(tuple(self.slots), text, self.chunks, tuple(self.combines), work)

    def _chunks(self) -> int:
        """Depends on shapes only."""
        s = self.space
        rows = max(1, self.nest.width // BLOCK) if self.nest.flat else self.nest.rows
        chunks = max(1, min(CHUNKS, self.nest.elements // CHUNK, rows))
        partials = sum(n.size for n in s.reduced if n not in s.rows)
        if partials > WIDE_PARTIALS:
            chunks = max(1, min(chunks, self.nest.elements // (4 * partials)))
        return chunks

    def _phase(self, p: int) -> list[Statement]:
        """One loop over the inner axes, with what comes before and after it in the row."""
        s, g = self.space, self.group
        self.row_lines: list[Statement] = []
        self.loop_known: dict = {}
        self.loop_lines: list[Statement] = []
        self.before: list[Statement] = []
        self.before_run: list[Statement] = []
        self.after_run: list[Statement] = []
        self.after: list[Statement] = []
        for n in self.nest.roots[p]:
            if n in s.reduced:
                self._reduce(n, self._get(n.inputs[0], p))
        results = [(n, self._get(n, p)) for n in self.nest.roots[p] if n not in s.reduced]
        scratch = sorted(
            (k for k in self.nest.kept if self.nest.phase[k] == p and k not in g.stores), key=_index
        )
        kept = [(n, self._get(n, p)) for n in scratch]
        for n, v in results:  # after all loads: a result may overwrite an input in place
            k = self._slot("array", n, n.dtype)
            self.loop_lines.append(Store(k, self._index(self.nest.value[n], 0, 2), v))
        for n, v in kept:
            k = self._slot("scratch", n, n.dtype, self.nest.width)
            self.loop_lines.append(Store(k, self._index(self._scratch_map(), 0, 2), v))
        loop = self._inner_loops() if self.loop_lines else []
        return self.row_lines + self.before + loop + self.after

    def _inner_loops(self) -> list[Statement]:
        ranges: list[tuple[str, int, tuple[Digit, ...]]]
        ranges = [(f"c{i}", r.size, ()) for i, r in enumerate(self.nest.inner)]
        if len(ranges) > NESTED:  # the leading axes share a loop
            head, ranges = ranges[: 1 - NESTED], ranges[1 - NESTED :]
            sizes = [size for _, size, _ in head]
            digits = tuple(
                Digit(var, "q", math.prod(sizes[i + 1 :]), size if i else 0)
                for i, (var, size, _) in enumerate(head)
            )
            ranges = [("q", math.prod(sizes), digits), *ranges]
        body: tuple[Statement, ...] = tuple(self.loop_lines)
        for i, (var, size, digits) in reversed(list(enumerate(ranges))):
            low: int | str = 0
            high = self._extent(i, size)
            runs = self.after_run and i == len(ranges) - 1
            cut = bool(runs) and self._run() < size
            if self.nest.flat:
                low, high = ("block", "end") if self._blocked() else ("low", "high")
            elif cut:
                low, high = "block", "end"
            body = (Loop(var, low, high, (*digits, *body)),)
            if runs:
                body = (*self.before_run, *body, *self.after_run)
            if cut:
                body = (Loop("block", 0, self._extent(i, size), body, "block", self._run(), "end"),)
        return list(body)

    def _blocked(self) -> bool:
        return bool(self.space.reduced)

    def _extent(self, i: int, size: int) -> int | str:
        if size < RUNTIME or self.nest.flat:
            return size
        if ("extent", i) not in self.chunk_known:
            self.chunk_known["extent", i] = f"n{i}"
            k = self._slot("count", None, I64, size, key=("extent", i))
            self.chunk_lines.append(Extent(f"n{i}", k))
        return f"n{i}"

    def _reduce(self, n: Node, v: Value) -> None:
        """Fold operand v of reduction n: in the row, into a total of the chunk, or into columns."""
        m, op, dtype = self.nest.value[n], FOLDS[n.op], n.dtype
        if n not in self.space.rows and any(a in self.nest.inner_leaves for a in m):
            self._column(n, v)
            return
        wider, pair = wide(n.op, dtype), paired(n.op, dtype)
        result, known_as = v, dtype
        if not (
            self.nest.inner and not self.nest.flat and not self.nest.cut[n] & self.nest.inner_all
        ):
            result, known_as = self._fold(n, v)
        if n in self.space.rows:
            self.row_known[n] = self._cast(result, known_as, dtype, self.after)
        elif not m:
            t = self._name("t")
            self.init.append(Start(t, first(n.op, wider), pair))
            self._add(t, op, result, known_as, wider, pair, self.after)
            k = self._slot("partial", n, wider, 1)
            self.tail.append(Store(k, Index(), self._closed(t, pair, self.tail)))
            self.combines.append(Combine(k, n))
        else:
            k = self._partial(n, wider, n)
            self._accumulate(k, op, self._index(m, 0, 1), result, known_as, wider, self.after)
            self.combines.append(Combine(k, n))

    def _fold(self, n: Node, v: Value) -> tuple[Value, np.dtype]:
        """Fold v over the inner loops: the result, and its dtype.

        A sum of floats meets in something wider after every run of the innermost loop, which is
        cut so that no run adds more than a few elements one by one to a large total.
        """
        op, dtype, a = FOLDS[n.op], n.dtype, self._name("a")
        wider, pair = wide(n.op, dtype), paired(n.op, dtype)
        exact = n.op == "sum" and dtype.kind == "f" and not self.nest.flat
        size = self.nest.inner[-1].size
        if exact and size < LANES:  # not worth a vector: every element is added in the wider form
            self.before.append(Start(a, first(n.op, wider), pair))
            self._add(a, op, v, dtype, wider, pair, self.loop_lines)
            return self._closed(a, pair, self.after), wider
        self.loop_lines.append(Fold(a, op, v, dtype, "free"))
        if not exact or (len(self.nest.inner) == 1 and self._run() == size):
            self.before.append(Start(a, first(n.op, dtype)))
            return a, dtype
        total = self._name("t")
        self.before.append(Start(total, first(n.op, wider), pair))
        self.before_run.append(Start(a, first(n.op, dtype)))
        self._add(total, op, a, dtype, wider, pair, self.after_run)
        return self._closed(total, pair, self.after), wider

    def _run(self) -> int:
        """Elements of the innermost loop between two visits to the wider totals."""
        size = self.nest.inner[-1].size
        if size > BLOCK:
            return BLOCK
        return size // LANES * LANES if size % LANES > FEW else size

    def _add(
        self, total: str, op: str, v: Value, of: np.dtype, to: np.dtype, pair: bool, lines: list
    ) -> None:
        """total = op(total, v), in dtype `to`."""
        v = self._cast(v, of, to, lines)
        lines.append(Fold(total, op, v, to, "pair" if pair else "strict"))

    def _closed(self, total: str, pair: bool, lines: list[Statement]) -> str:
        if not pair:
            return total
        name = self._name()
        lines.append(Finish(name, total))
        return name

    def _partial(self, n: Node, dtype: np.dtype, key: object) -> int:
        """A cleared accumulator array, one per chunk."""
        k = self._slot("partial", n, dtype, n.size, key)
        clear = Store(k, Index((("z", 1),)), first(n.op, dtype))
        self.init.append(Loop("z", 0, n.size, (clear,)))
        return k

    def _accumulate(
        self, k: int, op: str, at: Index, v: Value, of: np.dtype, to: np.dtype, lines: list
    ) -> None:
        """slot k [at] = op(itself, v), in dtype `to`."""
        v = self._cast(v, of, to, lines)
        old, new = self._name(), self._name()
        lines += [Load(old, k, at), Let(new, op, (old, v), to, to), Store(k, at, new)]

    def _column(self, n: Node, v: Value) -> None:
        """One accumulator per kept inner index; long float32 columns go to float64 now and then."""
        k, op = self._partial(n, n.dtype, n), FOLDS[n.op]
        at = self._index(self.nest.value[n], 0, 2)
        self._accumulate(k, op, at, v, n.dtype, n.dtype, self.loop_lines)
        deep = n.op == "sum" and n.dtype == F32 and self.nest.outer
        if deep and self.nest.elements > DEEP * self.chunks * n.size:
            w, z = self._partial(n, F64, (n, "wide")), Index((("z", 1),))
            name = self._name()
            flush: list[Statement] = [Load(name, k, z)]
            self._accumulate(w, op, z, name, F32, F64, flush)
            flush.append(Store(k, z, first(n.op, F32)))
            self.flushes.append(Loop("z", 0, n.size, tuple(flush)))
            k = w
        self.combines.append(Combine(k, n))

    def _row_results(self) -> list[Statement]:
        """Stores of what is known once per row, or once per chunk."""
        self.row_lines, self.loop_known, self.loop_lines = [], {}, []
        results = []
        for n in self.group.stores:
            row = n in self.space.rows
            if row or (n not in self.space.reduced and self.nest.level[n] < 2):
                results.append((n, self._get(n, self.nest.phases), row or self.nest.level[n]))
        for n, v, per_row in results:
            k = self._slot("array", n, n.dtype)
            at = Store(k, self._index(self.nest.value[n], 0, 1), v)
            (self.row_lines if per_row else self.tail).append(at)
        return self.row_lines

    def _rows(self, body: list[Statement]) -> list[Statement]:
        """The body within the loop over this chunk's rows or blocks."""
        if self.nest.flat:
            count: int | str = self.nest.width
            per_size = any(n in self.space.reduced and self.nest.value[n] for n in self.group.nodes)
            if not per_size:  # one text for all sizes
                self.chunk_lines.append(
                    Extent("n", self._slot("count", None, I64, self.nest.width))
                )
                count = "n"
            share = Share("low", "high", count, FLAT_UNIT)
            if not self._blocked():
                return [share, *body]
            return [share, Loop("block", "low", "high", tuple(body), "block", BLOCK, "end")]
        if not self.nest.outer:
            return body
        share = Share("low", "high", self.nest.rows, 1)
        if not self.flushes:
            return [share, Loop("r", "low", "high", tuple(body), "grid")]
        rows = Loop("r", "rows", "deep", tuple(body), "grid")
        return [share, Loop("rows", "low", "high", (rows, *self.flushes), "block", DEEP, "deep")]


def _index(n: Node) -> int:
    return n.index
