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

from everyo.compile.fuse import COST, COSTLY, Group
from everyo.compile.ir import F32, F64, I64, Node
from everyo.compile.nest import Nest
from everyo.compile.program import (
    FOLDS,
    Combine,
    Digit,
    Extent,
    Finish,
    Fold,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Share,
    Start,
    Statement,
    Store,
    Value,
    first,
    paired,
    wide,
)
from everyo.compile.sizes import RUNTIME, sized
from everyo.compile.space import Layout
from everyo.compile.values import Values

CHUNK = 8192  # a chunk has at least so many elements
CHUNKS = 16  # and there are at most so many of them
BLOCK = 1024  # a sum runs over at most so many elements before it goes to float64
FEW = 4  # so many elements of a sum may be added one by one
LANES = 64  # elements that a vectorised sum takes at once; what remains is added one by one
SHORT = 8  # sums of fewer elements are too short for any vector
LONG = 512  # elements of a loop over costly functions that computes several vectors side by side
DEEP = 256  # a float32 column sum takes at most so many rows before it goes to float64
NESTED = 3  # inner loops; more axes than that share one loop (Python allows 20 nested blocks)
FLAT_UNIT = 16  # chunks of flat kernels are cut at multiples of this
WIDE_PARTIALS = 64  # accumulators of more elements than this limit the number of chunks
ELEMENT_NS, SLOT_NS = 0.006, 0.03  # estimated time per op and per buffer, per element


def lower(group: Group, layout: Layout, direct: Mapping[Node, Node] | None = None) -> Kernel:
    """The kernel of a loop group; `direct` maps values to the inputs they are written into."""
    return sized(_Lowering(group, layout, direct or {}).kernel())


class _Lowering:
    """The statements around the values of one group."""

    def __init__(self, group: Group, layout: Layout, direct: Mapping[Node, Node]) -> None:
        self.group, self.space = group, group.loop
        self.nest = Nest(group, layout)
        self.values = Values(self.nest, direct)
        self.chunks = self._chunks()
        self.init: list[Statement] = []  # before the rows
        self.tail: list[Statement] = []  # after them
        self.flushes: list[Statement] = []  # between blocks of them
        self.combines: list[Combine] = []

    def kernel(self) -> Kernel:
        body: list[Statement] = []
        for p in range(self.nest.phases):
            body += self._phase(p)
        body += self._row_results()
        body = [*(self.values.digits[i] for i in sorted(self.values.digits)), *body]
        main = self._rows(body)
        ops = sum(COST.get(n.op, 1) for n in self.group.nodes)
        work = self.nest.elements * (ELEMENT_NS * ops + SLOT_NS * len(self.values.slots))
        text = (*self.values.chunk_lines, *self.init, *main, *self.tail)
        return Kernel(tuple(self.values.slots), text, self.chunks, tuple(self.combines), work)

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
        self.values.new_loop()
        self.before: list[Statement] = []
        self.before_run: list[Statement] = []
        self.after_run: list[Statement] = []
        self.after: list[Statement] = []
        for n in self.nest.roots[p]:
            if n in s.reduced:
                self._reduce(n, self.values.get(n.inputs[0], p))
        results = [(n, self.values.get(n, p)) for n in self.nest.roots[p] if n not in s.reduced]
        scratch = sorted(
            (k for k in self.nest.kept if self.nest.phase[k] == p and k not in g.stores), key=_index
        )
        kept = [(n, self.values.get(n, p)) for n in scratch]
        for n, v in results:  # after all loads: a result may overwrite an input in place
            k = self.values.slot("array", n, n.dtype)
            self.values.loop_lines.append(Store(k, self.values.index(self.nest.value[n], 0, 2), v))
        for n, v in kept:
            k = self.values.slot("scratch", n, n.dtype, self.nest.width)
            self.values.loop_lines.append(
                Store(k, self.values.index(self.values.scratch_map(), 0, 2), v)
            )
        loop = self._inner_loops() if self.values.loop_lines else []
        return self.values.row_lines + self.before + loop + self.after

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
        body: tuple[Statement, ...] = tuple(self.values.loop_lines)
        for i, (var, size, digits) in reversed(list(enumerate(ranges))):
            low: int | str = 0
            high = self._extent(i, size)
            runs = self.after_run and i == len(ranges) - 1
            cut = bool(runs) and self._run() < size
            if self.nest.flat:
                low, high = ("block", "end") if self._blocked() else ("low", "high")
            elif cut:
                low, high = "block", "end"
            abreast = i == len(ranges) - 1 and size >= LONG and any(map(_costly, body))
            body = (Loop(var, low, high, (*digits, *body), abreast=abreast),)
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
        if ("extent", i) not in self.values.chunk_known:
            self.values.chunk_known["extent", i] = f"n{i}"
            k = self.values.slot("count", None, I64, size, key=("extent", i))
            self.values.chunk_lines.append(Extent(f"n{i}", k))
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
            self.values.row_known[n] = self.values.cast(result, known_as, dtype, self.after)
        elif not m:
            t = self.values.name("t")
            self.init.append(Start(t, first(n.op, wider), pair))
            self._add(t, op, result, known_as, wider, pair, self.after)
            k = self.values.slot("partial", n, wider, 1)
            self.tail.append(Store(k, Index(), self._closed(t, pair, self.tail)))
            self.combines.append(Combine(k, n))
        else:
            k = self._partial(n, wider, n)
            self._accumulate(k, op, self.values.index(m, 0, 1), result, known_as, wider, self.after)
            self.combines.append(Combine(k, n))

    def _fold(self, n: Node, v: Value) -> tuple[Value, np.dtype]:
        """Fold v over the inner loops: the result, and its dtype.

        A sum of floats meets in something wider after every run of the innermost loop, which is
        cut so that no run adds more than a few elements one by one to a large total.
        """
        op, dtype, a = FOLDS[n.op], n.dtype, self.values.name("a")
        wider, pair = wide(n.op, dtype), paired(n.op, dtype)
        exact = n.op == "sum" and dtype.kind == "f" and not self.nest.flat
        size = self.nest.inner[-1].size
        if exact and size < SHORT:  # not worth a vector: every element is added in the wider form
            self.before.append(Start(a, first(n.op, wider), pair))
            self._add(a, op, v, dtype, wider, pair, self.values.loop_lines)
            return self._closed(a, pair, self.after), wider
        self.values.loop_lines.append(Fold(a, op, v, dtype, "free"))
        if not exact or (len(self.nest.inner) == 1 and self._run() == size):
            self.before.append(Start(a, first(n.op, dtype)))
            return a, dtype
        total = self.values.name("t")
        self.before.append(Start(total, first(n.op, wider), pair))
        self.before_run.append(Start(a, first(n.op, dtype)))
        self._add(total, op, a, dtype, wider, pair, self.after_run)
        return self._closed(total, pair, self.after), wider

    def _run(self) -> int:
        """Elements of the innermost loop between two visits to the wider totals."""
        size = self.nest.inner[-1].size
        if size > BLOCK:
            return BLOCK
        return size // LANES * LANES if size > LANES and size % LANES > FEW else size

    def _add(
        self, total: str, op: str, v: Value, of: np.dtype, to: np.dtype, pair: bool, lines: list
    ) -> None:
        """total = op(total, v), in dtype `to`."""
        v = self.values.cast(v, of, to, lines)
        lines.append(Fold(total, op, v, to, "pair" if pair else "strict"))

    def _closed(self, total: str, pair: bool, lines: list[Statement]) -> str:
        if not pair:
            return total
        name = self.values.name()
        lines.append(Finish(name, total))
        return name

    def _partial(self, n: Node, dtype: np.dtype, key: object) -> int:
        """A cleared accumulator array, one per chunk."""
        k = self.values.slot("partial", n, dtype, n.size, key)
        clear = Store(k, Index((("z", 1),)), first(n.op, dtype))
        self.init.append(Loop("z", 0, n.size, (clear,)))
        return k

    def _accumulate(
        self, k: int, op: str, at: Index, v: Value, of: np.dtype, to: np.dtype, lines: list
    ) -> None:
        """slot k [at] = op(itself, v), in dtype `to`."""
        v = self.values.cast(v, of, to, lines)
        old, new = self.values.name(), self.values.name()
        lines += [Load(old, k, at), Let(new, op, (old, v), to, to), Store(k, at, new)]

    def _column(self, n: Node, v: Value) -> None:
        """One accumulator per kept inner index; long float32 columns go to float64 now and then."""
        k, op = self._partial(n, n.dtype, n), FOLDS[n.op]
        at = self.values.index(self.nest.value[n], 0, 2)
        self._accumulate(k, op, at, v, n.dtype, n.dtype, self.values.loop_lines)
        deep = n.op == "sum" and n.dtype == F32 and self.nest.outer
        if deep and self.nest.elements > DEEP * self.chunks * n.size:
            w, z = self._partial(n, F64, (n, "wide")), Index((("z", 1),))
            name = self.values.name()
            flush: list[Statement] = [Load(name, k, z)]
            self._accumulate(w, op, z, name, F32, F64, flush)
            flush.append(Store(k, z, first(n.op, F32)))
            self.flushes.append(Loop("z", 0, n.size, tuple(flush)))
            k = w
        self.combines.append(Combine(k, n))

    def _row_results(self) -> list[Statement]:
        """Stores of what is known once per row, or once per chunk."""
        self.values.new_loop()
        results = []
        for n in self.group.stores:
            row = n in self.space.rows
            if row or (n not in self.space.reduced and self.nest.level[n] < 2):
                results.append((n, self.values.get(n, self.nest.phases), row or self.nest.level[n]))
        for n, v, per_row in results:
            k = self.values.slot("array", n, n.dtype)
            at = Store(k, self.values.index(self.nest.value[n], 0, 1), v)
            (self.values.row_lines if per_row else self.tail).append(at)
        return self.values.row_lines

    def _rows(self, body: list[Statement]) -> list[Statement]:
        """The body within the loop over this chunk's rows or blocks."""
        if self.nest.flat:
            count: int | str = self.nest.width
            per_size = any(n in self.space.reduced and self.nest.value[n] for n in self.group.nodes)
            if not per_size:  # one text for all sizes
                self.values.chunk_lines.append(
                    Extent("n", self.values.slot("count", None, I64, self.nest.width))
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


def _costly(s: Statement) -> bool:
    return isinstance(s, Let) and s.op in COSTLY


def _index(n: Node) -> int:
    return n.index
