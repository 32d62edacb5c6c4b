"""Values that are made where they belong: as the pieces of an assembled array.

The results of a split, a concatenation, a stack, or of slices in a backward pass meet in one array.
A piece whose makers and readers can do with the strides it has there lies in that array from the
start, and is never copied. An array that is such a piece itself passes its place on to its own
pieces, so nested concatenations cost nothing either.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everyo.compile.ir import LEAVES, OPAQUE, REDUCTIONS, VIEWS, Graph, Node, Table
from everyo.compile.joining import covered
from everyo.compile.space import Axis, Dims, Layout, chain, contiguous, single, spread, through

RUN = 16  # elements next to each other that are worth a loop of their own
ALIGNED = 16  # bytes of the widest load of a device


@dataclass(frozen=True)
class Part:
    """A value that lies in another one: where it begins, and its strides, in elements."""

    root: Node
    offset: int
    strides: tuple[int, ...]


def find(
    graph: Graph, layout: Layout, parts: dict[Node, Part], accepts: Callable[[Node], bool]
) -> None:  # fmt: skip
    """Add to `parts`, which `layout` knows, every piece that can lie in its place.

    `accepts` says whether a node can read its operands and write its value as they lie.
    """
    written = {chain(v)[0] for _, v in graph.writes}
    wholes = [
        n for n in reversed(graph.order) if n.op == "assemble" and n not in written and covered(n)
    ]
    if not wholes:
        return
    readers: dict[Node, set[Node]] = {}
    for n in graph.order:
        for o in n.inputs if n.op not in VIEWS else ():
            readers.setdefault(chain(o)[0], set()).add(n)
    apart = {chain(r)[0] for r in graph.roots}  # results lie in arrays of their own
    for whole in wholes:
        for v, part in _pieces(whole, layout, parts):
            if v in parts or v in apart or v.op in LEAVES or not _worth_it(v, part):
                continue
            parts[v] = part
            if not all(accepts(n) for n in (v, *readers[v])):
                del parts[v]


def boxes(n: Node, layout: Layout) -> Iterable[tuple[Node, list[int], int]]:
    """The pieces of an assemble with their strides and offsets in it."""
    strides = layout(n)
    for o, starts, steps in zip(n.inputs[1:], n.param("starts"), n.param("steps"), strict=True):
        offset = sum(a * s for a, s in zip(starts, strides, strict=True))
        yield o, [k * s for k, s in zip(steps, strides, strict=True)], offset


def _pieces(whole: Node, layout: Layout, parts: dict[Node, Part]) -> Iterable[tuple[Node, Part]]:
    """The values below the pieces, with the places they would have."""
    home = parts.get(whole, Part(whole, 0, ()))
    for o, strides, offset in boxes(whole, layout):
        v = chain(o)[0]
        own = _below(o, strides)
        if own is not None:
            yield v, Part(home.root, home.offset + offset, own)


def _below(o: Node, strides: list[int]) -> tuple[int, ...] | None:
    """The strides that the value below an operand needs for the operand to have these."""
    dims: Dims = [[(Axis(k), s)] for k, s in zip(o.shape, strides, strict=True)]
    for view in reversed(chain(o)[1]):
        below = view.inputs[0]
        if view.op == "transpose":
            axes = view.param("axes")
            dims = [dims[axes.index(a)] for a in range(len(axes))]
        elif view.op == "reshape":
            pushed = through(dims, 0, Table().make("reshape", view, shape=below.shape))
            if pushed is None:
                return None
            dims = pushed[0]
        else:
            return None
    found = [single(spread(d)) for d in dims]
    return None if None in found else tuple(s for s in found if s is not None)


def _worth_it(v: Node, part: Part) -> bool:
    """Whether a value can be stored there about as fast as next to nothing."""
    if v.size == 1:
        return True
    run = 1
    for n, s in sorted(zip(v.shape, part.strides, strict=True), key=lambda x: x[1]):
        if n > 1 and s == run:
            run *= n
    flat = run == v.size
    whole = v.op in REDUCTIONS or (v.op in OPAQUE and v.op not in ("matmul", "assemble"))
    if whole and not (flat and list(part.strides) == contiguous(v.shape)):
        return False  # these are stored in one go
    return (flat or run >= RUN) and part.offset * v.dtype.itemsize % ALIGNED == 0
