"""The loop nest of a group: which axes are rows and which lie inside them, and where values belong.

Axes follow the storage order of the largest result, and neighbours that every access walks alike
become one loop. A value is placed by its level and its phase; what a later phase of the row needs
again is reloaded, kept, or computed again, whichever is cheaper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from everyo.compile.fuse import COST, Group
from everyo.compile.ir import Node, require
from everyo.compile.space import Axis, Layout, Pairs, Space, chain, leaves, spread, stored

KEEP = 6  # a row value of at most this cost is computed again in a later loop of the row


@dataclass(frozen=True)
class Range:
    """A loop variable's axes after collapsing: `leaf` carries the stride, `members` are all."""

    leaf: Axis
    size: int
    members: frozenset[Axis]


Map = dict[Axis, int]  # stride per leaf axis


class Nest:
    """The loops of a group, and where in them each of its values is known.

    `outer` and `inner` are the loop variables; `level` of a value is 0 once per chunk, 1 once per
    row, 2 per element; `phase` counts the row reductions before it; `roots` are what each phase is
    there for, `kept` the values that a later phase reloads.
    """

    def __init__(self, group: Group, layout: Layout) -> None:
        self.group, self.space, self.layout = group, group.loop, layout
        self.inside = set(group.nodes)
        self._maps()
        self._axes()
        self._levels()
        self._plan()

    def _maps(self) -> None:
        """Strides per leaf axis of every operand and every value."""
        s, g = self.space, self.group

        def leaf_map(pairs: Pairs) -> Map:
            m: Map = {}
            for leaf, stride in pairs:
                m[leaf] = m.get(leaf, 0) + stride
            return m

        self.access = {
            o: leaf_map([x for d in a.dims for x in spread(d)]) for o, a in s.loads.items()
        }
        self.value = {
            n: leaf_map(
                [x for d, st in zip(s.dims[n], self.layout(n), strict=True) for x in stored(d, st)]
            )
            for n in g.nodes
        }
        self.cut = {n: s.leaf_set(c) for n, (_, c) in s.reduced.items()}

    def _axes(self) -> None:
        """Order and collapse the axes; choose the inner ones."""
        s, g = self.space, self.group
        order = _order(s, g, self.access, self.value)
        addressed = list(self.access.values()) + [
            self.value[n] for n in g.nodes if self._in_memory(n)
        ]
        present = addressed + [self.value[n] for n in g.nodes if not self._in_memory(n)]

        def collapse(axes: Sequence[Axis]) -> list[Range]:
            out: list[Range] = []
            for a in axes:
                last = out[-1] if out else None
                if (
                    last
                    and all(m.get(last.leaf, 0) == m.get(a, 0) * a.size for m in addressed)
                    and all((last.leaf in m) == (a in m) for m in present)
                ):
                    out[-1] = Range(a, last.size * a.size, last.members | {a})
                else:
                    out.append(Range(a, a.size, frozenset({a})))
            return out

        self.outer = collapse([a for a in order if a not in s.inner])
        self.inner = collapse([a for a in order if a in s.inner])
        self.flat = False
        if not self.inner and self.outer:
            self.inner = [self.outer.pop()]
            self.flat = not self.outer
        self.inner_leaves = {r.leaf for r in self.inner}
        self.inner_all = frozenset().union(*(r.members for r in self.inner))
        self.rows = math.prod(r.size for r in self.outer)
        self.width = math.prod(r.size for r in self.inner)
        self.elements = self.rows * self.width

    def _in_memory(self, n: Node) -> bool:
        return n in self.space.reduced or n in self.group.stores

    def _levels(self) -> None:
        """Level and phase of every value."""
        self.phase: dict[Node, int] = {}
        self.level: dict[Node, int] = {}
        for n in self.group.nodes:
            before = [self.phase[b] for o in n.inputs if (b := chain(o)[0]) in self.inside]
            self.phase[n] = max(before, default=0) + (n in self.space.reduced)
            if n in self.space.reduced:
                self.level[n] = 1
                continue
            operands = n.inputs[1:] if n.op == "take" else n.inputs
            self.level[n] = max([self.map_level(self.value[n]), *map(self.operand_level, operands)])
        loops = (self.phase[n] - (n in self.space.reduced) for n in self.group.nodes)
        self.phases = 1 + max(loops, default=0)

    def map_level(self, m: Map) -> int:
        if any(a in self.inner_leaves for a in m):
            return 2
        return int(any(r.leaf in m for r in self.outer))

    def operand_level(self, o: Node) -> int:
        base = chain(o)[0]
        if base in self.inside:
            return self.level[base]
        return self.map_level(moving(self.access[o])) if o in self.access else 0

    def _plan(self) -> None:
        """Per phase its roots; last phase first, which values of earlier phases are kept for it."""
        g, s = self.group, self.space
        self.kept: set[Node] = set()
        self.roots: dict[int, list[Node]] = {p: [] for p in range(self.phases)}
        for n in g.nodes:
            if n in s.reduced:
                self.roots[self.phase[n] - 1].append(n)
            elif n in g.stores and self.level[n] == 2:
                self.roots[self.phase[n]].append(n)
        for p in reversed(range(self.phases)):
            made = self.roots[p] + [k for k in self.kept if self.phase[k] == p]
            stack = [chain(o)[0] for n in made for o in n.inputs]
            seen: set[Node] = set()
            while stack:
                n = stack.pop()
                if n in seen or n not in self.inside or self.level[n] != 2:
                    continue
                seen.add(n)
                if self.phase[n] < p and (n in g.stores or self._cost(n) > KEEP):
                    self.kept.add(n)
                else:
                    stack += [chain(o)[0] for o in n.inputs]

    def _cost(self, node: Node) -> float:
        """Cost of computing an element again."""
        total, seen, stack = 0.0, set[Node](), [node]
        while stack and total <= KEEP:
            n = stack.pop()
            if n in self.inside and n not in seen and self.level[n] == 2:
                seen.add(n)
                total += COST.get(n.op, 1)
                stack += [chain(o)[0] for o in n.inputs]
        return total


def moving(m: Map) -> Map:
    return {a: stride for a, stride in m.items() if stride}


def _order(s: Space, g: Group, access: dict[Node, Map], value: dict[Node, Map]) -> list[Axis]:
    """Axes outermost first, in the storage order of the largest result, else operand."""

    def by_stride(m: Map) -> list[Axis]:
        return sorted((a for a in m if m[a]), key=lambda a: -abs(m[a]))

    found = [by_stride(value[n]) for n in g.stores if n not in s.reduced]
    found += [by_stride(access[o]) for o, a in s.loads.items() if a.base.op != "iota"]
    found += [[x for axes in d for a, _ in axes for x in leaves(a)] for d in s.dims.values()]
    found += [[x for axes in d for a, _ in axes for x in leaves(a)] for d, _ in s.reduced.values()]
    best = max(found, key=len, default=[])
    require(set(best) == s.domain, "no value spans the space of", g)
    return best
