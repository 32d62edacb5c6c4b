"""Matmul operands as they lie in memory: which views fold into the arguments of a product.

To BLAS a matrix is a start, a leading dimension and a flag (`Product`). Our own kernel takes any
operand whose rows and columns have places of their own, as tables (`Tiled`): the windows of an
image are such. Operand views are pushed into one of these forms; what has none needs a copy. The
batch dims of both operands and the result unify and collapse to at most two loops.
"""

from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np

from everyo.compile import pool, tiles
from everyo.compile.ir import IRError, Node
from everyo.compile.space import (
    Axis,
    Dims,
    Layout,
    Pairs,
    axes_of,
    chain,
    contiguous,
    leaves,
    single,
    spread,
    strided,
    unify,
)
from everyo.compile.tiles import Tile

BATCH_LOOPS = 2
SLICE_FLOPS = 1e6  # a product is cut in two from here on
SLICE_UNIT = 16
FEW_SLICES = 2
MANY_FLOPS = 8e6  # of a slice, where there are more than two: each packs the shared operand anew
PROCESSORS = pool.processors()  # not the threads in use, on which no bit depends
BATCH_CHUNKS = 16
ROWS_TO_PACK = 8  # a packed panel should be used by as many rows
CHUNK_FLOPS = 2e5  # of a chunk of our own products, at least


@dataclass(frozen=True)
class Matrix:
    """Elements (i, j) at offset + i * lead + j, or + i + j * lead if `turned`."""

    base: Node
    offset: int
    batch: Dims
    turned: bool
    lead: int

    @property
    def steps(self) -> tuple[int, int]:
        return (1, self.lead) if self.turned else (self.lead, 1)

    def transposed(self) -> "Matrix":
        return Matrix(self.base, self.offset, self.batch, not self.turned, self.lead)


Operand = TypeVar("Operand", "Matrix", "Grid")


@dataclass(frozen=True)
class Matmul(Generic[Operand]):
    """One matmul: c (m, n) = a (m, k) @ b (k, n), over at most two batch loops.

    `loops` holds (size, (stride in a, in b, in c)) per batch loop, in elements.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    c: Operand
    loops: tuple[tuple[int, tuple[int, int, int]], ...]

    @property
    def batches(self) -> int:
        return self.loops[0][0] * self.loops[1][0]

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batches

    def transposed(self) -> Self:
        """The same values as c.T = b.T @ a.T: how a result is made that is stored by columns."""
        loops = tuple((size, (q, p, r)) for size, (p, q, r) in self.loops)
        a, b, c = (x.transposed() for x in (self.a, self.b, self.c))
        return type(self)(self.n, self.m, self.k, b, a, c, loops)


class Product(Matmul["Matrix"]):
    """A matmul for BLAS."""

    @property
    def chunks(self) -> int:
        """Slices of the longer side, or batches: a matter of shapes and the machine."""
        if self.batches > 1:
            return min(self.batches, BATCH_CHUNKS)
        units = max(self.m, self.n) // SLICE_UNIT
        if self.flops <= SLICE_FLOPS or units < 2 * FEW_SLICES:
            return 1
        return max(FEW_SLICES, min(PROCESSORS, units // 2, int(self.flops / MANY_FLOPS)))


def matrix(dims: Dims, shape: tuple[int, ...], base: Node, offset: int) -> Matrix | None:
    """The matrix form of the last two dims, None if there is none."""
    row, col = single(dims[-2]), single(dims[-1])
    if row is None or col is None:
        return None
    m, n = shape[-2:]
    for turned, (long, one), (rows, cols) in (
        (False, (row, col), (m, n)),
        (True, (col, row), (n, m)),
    ):
        lead = long if rows > 1 else max(cols, 1)
        if (one == 1 or cols == 1) and lead >= cols:
            return Matrix(base, offset, dims[:-2], turned, lead)
    return None


def operand(o: Node, layout: Layout) -> Matrix | None:
    got = strided(o, layout) if chain(o)[0].op not in ("const", "iota") else None
    return None if got is None else matrix(got[1], o.shape, got[0], got[2])


@dataclass(frozen=True)
class Grid:
    """Elements (i, j) at offset + the place of i among the rows + that of j among the columns."""

    base: Node
    offset: int
    batch: Dims
    rows: Pairs
    columns: Pairs

    def transposed(self) -> "Grid":
        return Grid(self.base, self.offset, self.batch, self.columns, self.rows)

    @property
    def near(self) -> bool:
        """Whether neighbours along the rows or the columns lie side by side."""
        ends = [spread(pairs)[-1:] for pairs in (self.rows, self.columns)]
        return any(not end or abs(end[0][1]) == 1 for end in ends)


class Tiled(Matmul["Grid"]):
    """A matmul for our own kernel. The columns of c lie side by side."""

    @property
    def lead(self) -> int | None:
        """The distance of b's rows if its columns lie side by side, else None: b is packed."""
        together = single(self.b.columns) in ((0, 1) if self.n == 1 else (1,))
        return single(self.b.rows) if together else None

    @property
    def quick(self) -> bool:
        """Whether our own kernel is as fast as BLAS."""
        bytes_ = self.m * self.n * self.k * self.c.base.dtype.itemsize
        return bytes_ <= tiles.own_limit() and (self.lead is not None or self.m >= ROWS_TO_PACK)

    @property
    def by_columns(self) -> bool:
        """Whether chunks share the columns."""
        return self.n > 4 * self.m

    def chunks(self, shape: Tile) -> int:
        """Depends on shapes only: batches, or slices in units of tiles."""
        most = self.batches
        if most == 1:
            side, unit = (self.n, shape.width) if self.by_columns else (self.m, shape.rows)
            most = min(-(-side // unit), max(1, int(self.flops / CHUNK_FLOPS)))
        return min(most, BATCH_CHUNKS)


def places(pairs: Pairs) -> np.ndarray:
    """Where the elements of a dim lie, in order."""
    out = np.zeros(1, np.int64)
    for axis, stride in spread(pairs):
        out = (out[:, None] + np.arange(axis.size) * stride).reshape(-1)
    return out


def grid(o: Node, layout: Layout) -> Grid | None:
    """An operand as it lies; None if it has no strided form."""
    got = strided(o, layout) if chain(o)[0].op not in ("const", "iota") else None
    return None if got is None else Grid(got[0], got[2], got[1][:-2], *got[1][-2:])


def tiled(node: Node, layout: Layout) -> Tiled | None:
    """The plan of a matmul by our own kernel; None if an operand must be copied first."""
    a, b = (grid(o, layout) for o in node.inputs)
    if a is None or b is None or not a.near or not b.near:
        return None
    dims: Dims = [[(Axis(n), s)] for n, s in zip(node.shape, layout(node), strict=True)]
    c = Grid(node, 0, dims[:-2], *dims[-2:])
    loops = batch_loops(a.batch, b.batch, c.batch)
    if loops is None:
        return None
    m, n, k = node.shape[-2], node.shape[-1], node.inputs[0].shape[-1]
    plan = Tiled(m, n, k, a, b, c, loops)
    if n == 1 or single(c.columns) == 1:
        return plan
    return None if m > 1 and single(c.rows) != 1 else plan.transposed()


def product(node: Node, layout: Layout) -> Product:
    """The plan of a matmul whose operands have a joint form."""
    found = joint(node, layout)
    if found is None:
        raise IRError(f"matmul without a plan: {node}")
    return found


def joint(node: Node, layout: Layout) -> Product | None:
    """The plan of a matmul, None if its operands have no joint form."""
    a, b = (operand(o, layout) for o in node.inputs)
    strides = layout(node)
    dims: Dims = [[(Axis(n), s)] for n, s in zip(node.shape, strides, strict=True)]
    c = matrix(dims, node.shape, node, 0)
    if a is None or b is None or c is None:
        return None
    loops = batch_loops(a.batch, b.batch, c.batch)
    if loops is None:
        return None
    plan = Product(node.shape[-2], node.shape[-1], node.inputs[0].shape[-1], a, b, c, loops)
    return plan.transposed() if c.turned else plan  # turned: stored by columns


def batch_loops(a: Dims, b: Dims, c: Dims) -> tuple[tuple[int, tuple[int, int, int]], ...] | None:
    """The batch dims of a product as two loops; None if they are more."""
    for x in (a, b):
        for mine, theirs in zip(x, c, strict=True):
            if not unify(axes_of(mine), axes_of(theirs)):
                return None
    maps = [{leaf: s for d in x for leaf, s in spread(d)} for x in (a, b, c)]
    loops: list[tuple[int, tuple[int, int, int]]] = []
    for leaf in (x for d in c for axis, _ in d for x in leaves(axis)):
        steps = (maps[0][leaf], maps[1][leaf], maps[2][leaf])
        if loops and all(o == s * leaf.size for o, s in zip(loops[-1][1], steps, strict=True)):
            loops[-1] = (loops[-1][0] * leaf.size, steps)
        else:
            loops.append((leaf.size, steps))
    if len(loops) > BATCH_LOOPS:
        return None
    return (*[(1, (0, 0, 0))] * (BATCH_LOOPS - len(loops)), *loops)


def planned(node: Node, layout: Layout, anywhere: bool) -> bool:
    """Whether there is a plan for a matmul as its operands and its result lie."""
    return (anywhere and tiled(node, layout) is not None) or joint(node, layout) is not None


def missing_copies(node: Node, layout: Layout, anywhere: bool) -> list[bool]:
    """Which operands of a matmul must be copied before it can be planned; `anywhere` says that our
    own kernel may read them."""
    if anywhere and tiled(node, layout) is not None:
        return [False, False]
    need = [operand(o, layout) is None for o in node.inputs]
    if any(need) or joint(node, layout) is not None:
        return need
    return [chain(o)[0] is not o or layout(o) != contiguous(o.shape) for o in node.inputs]
