"""Pieces of assembled arrays that become one: rules that are asked once all pieces are known.

What a loop hands out piece by piece lies in one flat array (see `scan`). Where such parts are put
side by side again, they are one part: seen in another shape, and copied at once or not at all.
"""

from everyo.compile.boxes import disjoint
from everyo.compile.ir import Node, Shape
from everyo.compile.rules import Make


def nested_pieces(node: Node, make: Make) -> Node | None:
    """The pieces of pieces, each in its place, where there are parts of flat arrays among them."""
    if node.op != "assemble":
        return None
    pieces: list[tuple[Node, Shape, Shape]] = []
    for piece, start, step in zip(
        node.inputs[1:], node.param("starts"), node.param("steps"), strict=True
    ):
        nested = piece.op == "assemble" and set(step) == {1} and covered(piece)
        if nested and any(map(flat_part, piece.inputs[1:])):
            inner = zip(piece.inputs[1:], piece.param("starts"), piece.param("steps"), strict=True)
            for x, at, apart in inner:
                pieces.append((x, tuple(a + b for a, b in zip(start, at, strict=True)), apart))
        else:
            pieces.append((piece, start, step))
    if len(pieces) == len(node.inputs) - 1:
        return None
    rest, starts, steps = zip(*pieces, strict=True)
    return make("assemble", node.inputs[0], *rest, starts=starts, steps=steps)


def parts_in_a_row(node: Node, make: Make) -> Node | None:
    """Parts of one flat array, one beside the other here and there, as one piece."""
    if node.op != "assemble" or len(node.inputs) < 3:
        return None
    runs: list[_Run] = []
    for piece, start, step in zip(
        node.inputs[1:], node.param("starts"), node.param("steps"), strict=True
    ):
        run = _Run(piece, start, step)
        if not runs or not runs[-1].take(run):
            runs.append(run)
    if len(runs) == len(node.inputs) - 1:
        return None
    pieces = [r.piece(make) for r in runs]  # and where they are
    starts, steps = tuple(r.start for r in runs), tuple(r.step for r in runs)
    return make("assemble", node.inputs[0], *pieces, starts=starts, steps=steps)


def flat_part(piece: Node) -> Node | None:
    """The slice of a flat array without gaps that a piece is, in any shape."""
    while piece.op == "reshape":
        piece = piece.inputs[0]
    if piece.op != "slice" or piece.ndim != 1:
        return None
    return piece if piece.size == 1 or piece.param("steps")[0] == 1 else None


class _Run:
    """A piece of an assembled array: any one, or parts of a flat array in a row."""

    def __init__(self, node: Node, start: Shape, step: Shape) -> None:
        self.node, self.start, self.step = node, start, step
        self.count = 1
        self.base: Node | None = None  # the flat array
        self.first = self.apart = self.axis = 0
        while node.op == "reshape":
            node = node.inputs[0]
        if (
            node.op == "slice"
            and node.ndim == 1
            and (node.size == 1 or node.param("steps")[0] == 1)
        ):
            self.base, self.first = node.inputs[0], node.param("starts")[0]

    def take(self, other: "_Run") -> bool:
        """Add the next part if it goes on as these do."""
        shape = self.node.shape
        if self.base is None or other.base is not self.base or other.node.shape != shape:
            return False
        ways = [b - a for a, b in zip(self.start, other.start, strict=True)]
        moved = [i for i, way in enumerate(ways) if way]
        if len(moved) != 1 or shape[moved[0]] != 1:
            return False
        axis, way, apart = moved[0], ways[moved[0]], other.first - self.first
        if self.count == 1:
            rest = zip(shape, self.step, other.step, strict=True)
            if not apart or self.node.size not in (1, abs(apart)):
                return False
            if any(a != b for size, a, b in rest if size > 1):
                return False
            self.axis, self.apart = axis, apart
            self.step = tuple(way if i == axis else s for i, s in enumerate(self.step))
        goes_on = axis == self.axis and way == self.count * self.step[axis]
        if not goes_on or apart != self.count * self.apart:
            return False
        self.count += 1
        return True

    def piece(self, make: Make) -> Node:
        """The piece; `start` and `step` then say where it is."""
        if self.base is None or self.count == 1:
            return self.node
        n, axis, shape, size = self.count, self.axis, self.node.shape, self.node.size
        first, apart = self.first, self.apart
        if self.step[axis] < 0:  # from the other end
            first, apart = first + (n - 1) * apart, -apart
            last = self.start[axis] + (n - 1) * self.step[axis]
            self.start = tuple(last if i == axis else a for i, a in enumerate(self.start))
            self.step = tuple(-s if i == axis else s for i, s in enumerate(self.step))
        if size == 1:
            x = make("slice", self.base, starts=(first,), steps=(apart,), sizes=(n,))
        else:
            low = min(first, first + (n - 1) * apart)
            x = make("slice", self.base, starts=(low,), steps=(1,), sizes=(n * size,))
            x = make("reshape", x, shape=(n, *shape))
            if apart < 0:
                starts, steps = (n - 1,) + (0,) * len(shape), (-1,) + (1,) * len(shape)
                x = make("slice", x, starts=starts, steps=steps, sizes=x.shape)
            order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))
            x = make("transpose", x, axes=order)
        return make("reshape", x, shape=(*shape[:axis], n, *shape[axis + 1 :]))


def covered(n: Node) -> bool:
    """Whether the pieces of an assemble are disjoint and leave nothing of its base."""
    pieces = n.inputs[1:]
    if sum(p.size for p in pieces) != n.size:
        return False
    shapes = [p.shape for p in pieces]
    return disjoint(list(zip(n.param("starts"), n.param("steps"), shapes, strict=True)))
