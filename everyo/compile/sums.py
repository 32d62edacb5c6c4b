"""Gradients of slices: sums of arrays that are zero outside a few boxes become one array.

Where boxes do not overlap, such a sum adds where two arrays have the same box; elsewhere it is
x + 0.0, which is x but for the sign of -0.0. Nothing is made of a chain of sums before its last one
is known, and each step costs what the smaller side has: a gradient of n slices costs about n.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from everyo.compile.boxes import Box, Room
from everyo.compile.ir import VIEWS, Graph, Node
from everyo.compile.rules import Make, full, is_literal, literal

TERMS = 16  # nodes of a sum that are looked at
POSITIVE = {"exp", "abs", "sigmoid", "cosh"}  # never -0.0


@dataclass
class Sum:
    """An array that is zero outside of boxes: what lies in each, and after how many additions it
    was put there. Since then 0.0 has been added to it, unless that was the last one."""

    zeros: Node
    pieces: dict[Box, tuple[Node, int]]
    room: Room
    additions: int = 0

    def piece(self, box: Box, make: Make) -> Node:
        node, at = self.pieces[box]
        return node if at == self.additions else plus_zero(node, make)

    def node(self, make: Make) -> Node:
        pieces = [self.piece(box, make) for box in self.pieces]
        starts, steps, _ = zip(*self.pieces, strict=True)
        return make("assemble", self.zeros, *pieces, starts=starts, steps=steps)


def placed(node: Node) -> Sum | None:
    """An assemble over zeros as a sum, None if the node is none."""
    if node.op != "assemble" or not is_literal(node.inputs[0], 0):
        return None
    room, places = Room(), zip(node.param("starts"), node.param("steps"), strict=True)
    pieces: dict[Box, tuple[Node, int]] = {
        (start, step, p.shape): (p, 0)
        for (start, step), p in zip(places, node.inputs[1:], strict=True)
    }
    fits = len(pieces) == len(node.inputs) - 1 and all(room.add(box) for box in pieces)
    return Sum(node.inputs[0], pieces, room) if fits else None


def added(left: Sum, right: Sum, make: Make) -> Sum | None:
    """The sum of two, which are used up; None, and they are not, if boxes overlap."""
    big, small = (left, right) if len(left.pieces) >= len(right.pieces) else (right, left)
    if not all(big.room.add(box) for box in small.pieces if box not in big.pieces):
        return None
    now = big.additions + 1
    for box in small.pieces:
        if box in big.pieces:
            both = make("add", left.piece(box, make), right.piece(box, make))
            big.pieces[box] = both, now
        else:
            big.pieces[box] = plus_zero(small.piece(box, make), make), now
    big.additions = now
    return big


def plus_zero(x: Node, make: Make) -> Node:
    """x + 0.0; an integer, or what has no -0.0 in it, is that itself."""
    return x if unsigned(x) else make("add", x, full(make, 0.0, x))


def unsigned(x: Node) -> bool:
    """Whether no element is -0.0 by construction: of a sum if one term is not, of an assembled
    array if no piece is. Nodes remember that it is so."""
    stack = [x]
    while stack:
        n = stack.pop()
        if n.op in VIEWS or n.op == "assemble":
            stack += n.inputs
        elif n.dtype.kind == "f" and not n.unsigned:
            if not any(map(_unsigned_term, terms(n))):
                return False
            n.unsigned = True
    return True


def terms(x: Node) -> Iterator[Node]:
    """What x is the sum of, as far as `TERMS` nodes tell."""
    found = [x]
    for n in found:
        while n.op in VIEWS and n.size:
            n = n.inputs[0]
        yield n
        if n.op == "add" and len(found) < TERMS:
            found += n.inputs


def _unsigned_term(n: Node) -> bool:
    value = literal(n)
    known = n.unsigned or n.op in POSITIVE
    return known or (value is not None and not is_literal(n, -0.0))


def sums_of_pieces(node: Node, make: Make) -> Node | None:
    """A sum of two arrays of pieces as one."""
    total = _total([placed(x) for x in node.inputs], make)
    return None if total is None else total.node(make)


def _total(sums: Sequence[Sum | None], make: Make) -> Sum | None:
    left, right = sums
    return None if left is None or right is None else added(left, right, make)


class Chains:
    """Sums of pieces of a graph that is rebuilt, `new` being its nodes so far. One that only
    another addition reads waits for that one."""

    def __init__(self, graph: Graph, new: dict[Node, Node], make: Make) -> None:
        self.graph, self.new, self.make = graph, new, make
        self.waiting: dict[Node, Sum] = {}

    def take(self, n: Node) -> bool:
        """Whether an addition is a sum of pieces, which is then in `new` or waits; if not, its
        operands are in `new`."""
        sums = [self.waiting.pop(o) if o in self.waiting else placed(self.new[o]) for o in n.inputs]
        total = _total(sums, self.make)
        if total is None:
            for o, s in zip(n.inputs, sums, strict=True):
                if s is not None and o not in self.new:
                    self.new[o] = s.node(self.make)
            return False
        if self._readers.get(n) == ["add"]:
            self.waiting[n] = total
        else:
            self.new[n] = total.node(self.make)
        return True

    @cached_property
    def _readers(self) -> dict[Node, list[str]]:
        """The ops that read each node."""
        readers: dict[Node, list[str]] = {n: ["root"] for n in self.graph.roots}
        for n in self.graph.order:
            for o in n.inputs:
                readers.setdefault(o, []).append(n.op)
        return readers
