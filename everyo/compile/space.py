"""Axes that unify: how the dims of all values of a group become one iteration space.

Every dim of a value is a list of (axis, stride) pairs, row-major. Pushing dims through views and
equating the dims of operands renames and splits axes, until equal axes mean equal loop variables.
`analyse` does this for a set of nodes from scratch and answers every question of legality: a set
that shares one iteration space may be one kernel.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from everyo.compile.ir import LEAVES, PARTS, REDUCTIONS, VIEWS, Node

ONE_ROW = 1 << 15  # a whole-array reduction may count as a row up to this size
FEW_ROWS = 8  # fewer rows than this are not worth a kernel per row


class Axis:
    """A range of an index. `link` lists the axes it turned out to be, outermost first."""

    __slots__ = ("link", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.link: tuple[Axis, ...] | None = None

    def __repr__(self) -> str:
        return f"<{self.size}>"


Pairs = list[tuple[Axis, int]]
Dims = list[Pairs]
Layout = Callable[[Node], list[int]]


def leaves(axis: Axis) -> list[Axis]:
    """The unlinked axes that make up this one, outermost first; those of size 1 vanish."""
    if axis.link is None:
        return [axis] if axis.size > 1 else []
    out, stack = [], [axis]
    while stack:
        a = stack.pop()
        if a.link is not None:
            stack += a.link[::-1]
        elif a.size > 1:
            out.append(a)
    return out


def size_of(axes: Iterable[Axis]) -> int:
    return math.prod(a.size for a in axes)


def unify(left: Iterable[Axis], right: Iterable[Axis]) -> bool:
    """Make two row-major axis lists equal by renaming and splitting; False if they do not align."""
    a, b = list(left), list(right)
    while True:
        for s in (a, b):
            while s and (s[-1].link is not None or s[-1].size == 1):
                s += leaves(s.pop())
        if not a or not b:
            return not a and not b
        x, y = a.pop(), b.pop()
        if x is y:
            continue
        big, small, rest = (x, y, a) if x.size >= y.size else (y, x, b)
        if big.size == small.size:
            big.link = (small,)
        elif big.size % small.size:
            return False
        else:
            high = Axis(big.size // small.size)
            big.link = (high, small)
            rest.append(high)


def axes_of(pairs: Pairs) -> list[Axis]:
    return [axis for axis, _ in pairs]


def spread(pairs: Pairs) -> Pairs:
    """The same pairs over leaf axes."""
    out: Pairs = []
    for axis, stride in pairs:
        inner = []
        for leaf in reversed(leaves(axis)):
            inner.append((leaf, stride))
            stride *= leaf.size
        out += inner[::-1]
    return out


def stored(pairs: Pairs, stride: int) -> Pairs:
    """The leaves of one dim of a value that is stored with this stride along the dim."""
    out = []
    for leaf in reversed([x for axis, _ in pairs for x in leaves(axis)]):
        out.append((leaf, stride))
        stride *= leaf.size
    return out[::-1]


def single(pairs: Pairs) -> int | None:
    """The one stride of a dim, 0 if its size is 1, None if it has no single stride."""
    p = spread(pairs)
    if any(a != b * x.size for (_, a), (x, b) in pairwise(p)):
        return None
    return p[-1][1] if p else 0


def contiguous(shape: Sequence[int], order: Sequence[int] | None = None) -> list[int]:
    """Row-major strides; with `order`, the storage order of the dims, outermost first."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order if order is not None else range(len(shape))):
        strides[d] = step
        step *= shape[d]
    return strides


def chain(node: Node) -> tuple[Node, list[Node]]:
    """The value below a chain of views, and the views from the value upwards."""
    views = []
    while node.op in VIEWS:
        views.append(node)
        node = node.inputs[0]
    return node, views[::-1]


def through(dims: Dims, offset: int, view: Node) -> tuple[Dims, int] | None:
    """Push dims through one view; None if the result has no strided form."""
    below = view.inputs[0].shape
    if view.op == "transpose":
        return [dims[a] for a in view.param("axes")], offset
    if view.op == "broadcast":
        pushed = [
            d if s == t else [(Axis(t), 0)] for d, s, t in zip(dims, below, view.shape, strict=True)
        ]
        return pushed, offset
    out: Dims = []
    if view.op == "slice":
        steps = zip(dims, below, view.param("starts"), view.param("steps"), view.shape, strict=True)
        for d, full, start, step, size in steps:
            if size == full and (step == 1 or size == 1):
                out.append(d)
                continue
            d = spread(d)
            if size == full and step == -1:  # every digit of a composite index runs backwards
                offset += sum((axis.size - 1) * stride for axis, stride in d)
                out.append([(axis, -stride) for axis, stride in d])
            elif (stride := single(d)) is not None:
                out.append([(Axis(size), stride * step)])
                offset += start * stride
            else:
                return None
        return out, offset
    if view.op == "window":
        axis = view.param("axis")
        stride = single(dims[axis])
        if stride is None:
            return None
        apart = view.param("step") * stride, view.param("spacing") * stride
        pair = [[(Axis(n), s)] for n, s in zip(view.shape[axis : axis + 2], apart, strict=True)]
        return [*dims[:axis], *pair, *dims[axis + 1 :]], offset
    pairs = [p for d in dims for p in d]
    out = [[(Axis(s), 0)] for s in view.shape]
    if not unify(axes_of(pairs), [d[0][0] for d in out]):
        return None
    pairs = spread(pairs)
    for d in reversed(out):  # hand the leaves out again, innermost first
        keep = len(pairs) - len(leaves(d[0][0]))
        d[:] = pairs[keep:]
        del pairs[keep:]
    return out, offset


def strided(operand: Node, layout: Layout) -> tuple[Node, Dims, int] | None:
    """(base, dims, offset) of an operand read from where its base lies; None: no strided form.
    An iota lies nowhere: its value is its address."""
    base, views = chain(operand)
    shape = base.shape
    strides = unit(base) if base.op == "iota" else layout(base)
    while views and views[0].op == "reshape" and strides == contiguous(shape) and base.op != "iota":
        shape, views = views[0].shape, views[1:]
        strides = contiguous(shape)
    dims: Dims = [[(Axis(n), s)] for n, s in zip(shape, strides, strict=True)]
    offset = 0
    for view in views:
        pushed = through(dims, offset, view)
        if pushed is None:
            return None
        dims, offset = pushed
    return base, dims, offset


def unit(base: Node) -> list[int]:
    """The "strides" of an iota."""
    return [int(i == base.param("axis")) for i in range(base.ndim)]


@dataclass(frozen=True)
class Access:
    """Where an operand lies: a stride per axis of the space, in elements of `base`."""

    base: Node
    offset: int
    dims: Dims
    row: int = 0  # for the table of a take: the stride of its first dim


@dataclass(eq=False)
class Space:
    """The iteration space of a set of nodes."""

    dims: dict[Node, Dims] = field(default_factory=dict)  # of computed nodes; strides mean nothing
    loads: dict[Node, Access] = field(default_factory=dict)  # by operand; a table by its take
    reduced: dict[Node, tuple[Dims, Dims]] = field(default_factory=dict)  # operand dims, cut dims
    domain: frozenset[Axis] = frozenset()
    inner: frozenset[Axis] = frozenset()  # what the row reductions fold
    rows: set[Node] = field(default_factory=set)  # reductions whose result is known once per row
    known: dict[tuple[Axis, ...], frozenset[Axis]] = field(default_factory=dict)  # see `leaf_set`

    def axes(self, node: Node) -> frozenset[Axis]:
        return self.leaf_set(self.dims[node])

    def leaf_set(self, dims: Dims) -> frozenset[Axis]:
        """The axes that dims run over, once everything is unified."""
        key = tuple([axis for pairs in dims for axis, _ in pairs])
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = frozenset([leaf for axis in key for leaf in leaves(axis)])
        return found

    def span(self, nodes: Iterable[Node]) -> frozenset[Axis]:
        """All axes that these nodes and the operands of their reductions run over."""
        out: frozenset[Axis] = frozenset()
        for n in nodes:
            out |= self.leaf_set(self.reduced[n][0]) if n in self.reduced else self.axes(n)
        return out


def analyse(nodes: Iterable[Node], layout: Layout) -> Space | None:
    """The common iteration space of the nodes; None if there is none."""
    s, consumed = Space(), set[Node]()
    order = sorted(nodes, key=lambda n: n.index)
    inside = set(order)
    for n in order:
        if not _enter(n, s, inside, consumed, layout):
            return None
    sets = {n: s.axes(n) for n in s.dims}
    if any(size_of(sets[n]) != n.size for n in s.dims):  # an axis twice: a diagonal
        return None
    whole = [*sets.values(), *(s.leaf_set(d) for d, _ in s.reduced.values())]
    s.domain = frozenset().union(*whole)
    if s.domain not in whole:  # an outer product nobody asked for
        return None
    return s if _roles(s, consumed) else None


def _enter(n: Node, s: Space, inside: set[Node], consumed: set[Node], layout: Layout) -> bool:
    """Give node n its dims and equate them with those of its operands."""
    if n.op in REDUCTIONS:
        d = _operand(n.inputs[0], n.inputs[0], s, inside, consumed, layout)
        if d is None:
            return False
        axes = n.param("axes")
        s.dims[n] = [x for i, x in enumerate(d) if i not in axes]
        s.reduced[n] = (d, [x for i, x in enumerate(d) if i in axes])
        return True
    out: Dims | None = None
    if n.op == "take":
        out = [[(Axis(k), 0)] for k in n.shape]
    for i, o in enumerate(n.inputs):
        base = chain(o)[0] if o.op in VIEWS else o
        if base.op == "const":
            continue
        table = n.op == "take" and i == 0
        if table and base in inside:
            return False
        d = _operand(o, n if table else o, s, inside, consumed, layout)
        if d is None:
            return False
        if out is None:  # the axes of the first operand are those of the result
            out = [[(axis, 0) for axis, _ in pairs] for pairs in d]
            continue
        mine = out
        if n.op == "take":
            k = n.inputs[1].ndim
            mine = out[k:] if table else out[:k]
        for x, y in zip(mine, d, strict=True):
            if not (len(x) == len(y) == 1 and x[0][0] is y[0][0]):
                if not unify(axes_of(x), axes_of(y)):
                    return False
    s.dims[n] = out if out is not None else [[(Axis(k), 0)] for k in n.shape]
    return True


def _operand(
    o: Node, key: Node, s: Space, inside: set[Node], consumed: set[Node], layout: Layout
) -> Dims | None:
    """Dims of an operand, of the group or loaded (`key` is the take if o is its table)."""
    base, views = chain(o) if o.op in VIEWS else (o, [])
    if base in inside:
        dims, offset = s.dims[base], 0
        consumed.add(base)
        for v in views:
            pushed = None if v.op in PARTS else through(dims, offset, v)
            if pushed is None:
                return None
            dims, offset = pushed
        return dims
    if key in s.loads:
        return s.loads[key].dims
    got = strided(o, layout)
    if got is None:
        return None
    base, dims, offset = got
    row: int | None = 0
    if key is not o:  # a table: its first dim is walked by the index, not by the space
        row, dims = single(dims[0]), dims[1:]
    if row is None:
        return None
    if base.op != "const":
        s.loads[key] = Access(base, offset, dims, row)
    return dims


def _roles(s: Space, consumed: set[Node]) -> bool:
    """Which axes are folded inside a row, and which reductions that makes row reductions."""
    cut = {n: s.leaf_set(c) for n, (_, c) in s.reduced.items()}
    full = size_of(s.domain)

    def rowable(n: Node) -> bool:
        axes = [x for d in s.reduced[n][0] for axis, _ in d for x in leaves(axis)]
        last = axes[-1] if axes else None
        return last in cut[n] and (size_of(s.domain - cut[n]) >= FEW_ROWS or full <= ONE_ROW)

    used = [n for n in s.reduced if n in consumed]
    inner = {cut[n] for n in used}
    if len(inner) > 1 or not all(rowable(n) for n in used):
        return False
    if not inner:
        partial = [
            n for n in s.reduced if cut[n] != s.domain and s.leaf_set(s.reduced[n][0]) == s.domain
        ]
        inner = {cut[n] for n in partial if rowable(n)}
    s.inner = next(iter(inner)) if len(inner) == 1 else frozenset()
    s.rows = {n for n in s.reduced if cut[n] == s.inner}
    # an accumulation must meet each of its elements exactly once
    return all(
        s.leaf_set(s.reduced[n][0]) in (s.domain, s.domain - s.inner)
        for n in s.reduced
        if n not in s.rows
    )


def last_axis(s: Space) -> Axis | None:
    """The innermost axis of a value that runs over the whole domain."""
    full = next((d for n, d in s.dims.items() if s.axes(n) == s.domain), None)
    if full is None:
        full = next(d for d, _ in s.reduced.values() if s.leaf_set(d) == s.domain)
    return next((leaves(a)[-1] for d in reversed(full) for a, _ in reversed(d) if leaves(a)), None)


def fits(base: Node) -> bool:
    """Whether a value may be a slot of a kernel: everything but literals and index arithmetic."""
    return base.op not in LEAVES or base.op == "input"
