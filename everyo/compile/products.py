"""Matmul operands as matrices in memory: which views fold into the arguments of a BLAS call.

A matrix is a start, a leading dimension and a flag; its batch dims are strides. Operand views are
pushed into that form (`matrix`); what has none needs a copy. The batch dims of both operands and
the result unify and collapse to at most two loops.
"""

from dataclasses import dataclass

from everyo.compile.ir import IRError, Node
from everyo.compile.space import (
    Axis,
    Dims,
    Layout,
    axes_of,
    chain,
    contiguous,
    leaves,
    single,
    spread,
    strided,
    unify,
)

BATCH_LOOPS = 2
SLICE_FLOPS = 1e6  # a product is cut in two from here on
SLICE_UNIT = 16
BATCH_CHUNKS = 16


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


@dataclass(frozen=True)
class Product:
    """One matmul: c (m, n) = a (m, k) @ b (k, n), over at most two batch loops.

    `loops` holds (size, (stride in a, in b, in c)) per batch loop, in elements.
    """

    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    loops: tuple[tuple[int, tuple[int, int, int]], ...]

    @property
    def batches(self) -> int:
        return self.loops[0][0] * self.loops[1][0]

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batches

    @property
    def chunks(self) -> int:
        """Depends on shapes only: slices of the longer side, or batches."""
        if self.batches > 1:
            return min(self.batches, BATCH_CHUNKS)
        slices = self.flops > SLICE_FLOPS and max(self.m, self.n) >= 4 * SLICE_UNIT
        return 2 if slices else 1


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
    for x in (a, b):
        for mine, theirs in zip(x.batch, c.batch, strict=True):
            if not unify(axes_of(mine), axes_of(theirs)):
                return None
    maps = [{leaf: s for d in x.batch for leaf, s in spread(d)} for x in (a, b, c)]
    loops: list[tuple[int, tuple[int, int, int]]] = []
    for leaf in (x for d in c.batch for axis, _ in d for x in leaves(axis)):
        steps = (maps[0][leaf], maps[1][leaf], maps[2][leaf])
        if loops and all(o == s * leaf.size for o, s in zip(loops[-1][1], steps, strict=True)):
            loops[-1] = (loops[-1][0] * leaf.size, steps)
        else:
            loops.append((leaf.size, steps))
    if len(loops) > BATCH_LOOPS:
        return None
    loops = [(1, (0, 0, 0))] * (BATCH_LOOPS - len(loops)) + loops
    m, n, k = node.shape[-2], node.shape[-1], node.inputs[0].shape[-1]
    if c.turned:  # stored by columns: compute the transposed product
        loops = [(size, (q, p, r)) for size, (p, q, r) in loops]
        return Product(n, m, k, b.transposed(), a.transposed(), c.transposed(), tuple(loops))
    return Product(m, n, k, a, b, c, tuple(loops))


def missing_copies(node: Node, layout: Layout) -> list[bool]:
    """Which operands of a matmul must be copied before it can be planned."""
    need = [operand(o, layout) is None for o in node.inputs]
    if any(need) or joint(node, layout) is not None:
        return need
    return [chain(o)[0] is not o or layout(o) != contiguous(o.shape) for o in node.inputs]
