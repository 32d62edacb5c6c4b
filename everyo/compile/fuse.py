"""Graph -> Schedule: which nodes share a kernel, in which order kernels run, what is stored.

Groups grow by merging edges, those that carry most bytes first; whether two groups may be one is
decided by their common iteration space (`space.analyse`), never by a pattern. A value that crosses
groups is stored, or computed again where it is used if that is cheap.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from everyo.compile import tape
from everyo.compile.ir import (
    LEAVES,
    OPAQUE,
    PARTS,
    REDUCTIONS,
    VIEWS,
    Graph,
    IRError,
    Node,
    require,
    walk,
)
from everyo.compile.legalize import Legal, legalize
from everyo.compile.merge import Groups
from everyo.compile.space import (
    Space,
    analyse,
    chain,
    fits,
    last_axis,
    size_of,
)

CLONE_OPS = 12  # a crossing value of at most so many cheap ops is computed again ...
CLONE_LOADS = 1  # ... if that needs at most so many full-size loads more
AGAIN_BYTES = 4 << 20  # a costly value larger than this is computed again, not stored and read
SMALL = 8  # a value this many times smaller than the crossing one is stored, not computed again
MAX_OPS = 96  # nodes of one kernel
MAX_SLOTS = 40  # buffers of one kernel
FREE_OPS = 4  # a producer of fewer points may run once per point if it is at most so many cheap ops

# Estimated cost of an op per element; what is not listed costs 1.
COST = {
    "divide": 4, "sqrt": 4, "floor_divide": 8, "remainder": 8, "take": 8,
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "log2", "log10", "cbrt", "tanh"), 16),
    **dict.fromkeys(("sin", "cos", "tan", "arcsin", "arccos", "arctan", "erf", "sigmoid"), 16),
    **dict.fromkeys(("sinh", "cosh", "arctan2"), 24), "power": 40,
}  # fmt: skip
COSTLY = {op for op, cost in COST.items() if cost > 8}


def cheap(n: Node) -> bool:
    """A node that costs less to compute again than to store and load."""
    return n.op not in COSTLY and n.op not in REDUCTIONS and n.op not in OPAQUE and n.op != "take"


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes of one kernel, operands first; a cheap node may be in several groups."""

    kind: str  # "loop", "tape", or the opaque op
    nodes: tuple[Node, ...]
    stores: tuple[Node, ...]  # the nodes whose values leave the group
    space: Space | None  # of a loop

    @property
    def loop(self) -> Space:
        """The space of a group that is known to be a loop."""
        if self.space is None:
            raise IRError(f"not a loop: {self}")
        return self.space

    def __str__(self) -> str:
        n = self.nodes[0]
        if self.kind == "tape":
            return (
                f"tape of {len(self.nodes)} operations -> {', '.join(map(_typed, self.stores[:4]))}"
            )
        if self.space is None:
            return f"{self.kind} {' , '.join(map(_typed, n.inputs))} -> {_typed(n)}"
        s = self.space
        role = "row" if s.rows else "fold" if s.reduced else "map"
        shape = f"{size_of(s.domain - s.inner)} x {size_of(s.inner)}"
        stores = ", ".join(map(_typed, self.stores))
        return f"{role} {shape}: {' '.join(n.op for n in self.nodes)} -> {stores}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """Groups in the order in which they run."""

    legal: Legal
    groups: tuple[Group, ...]

    @property
    def graph(self) -> Graph:
        return self.legal.graph

    def __str__(self) -> str:
        return "\n".join(f"{i:3d} {g}" for i, g in enumerate(self.groups))


def _typed(n: Node) -> str:
    return f"{n.dtype.name}[{','.join(map(str, n.shape))}]"


def fuse(graph: Graph, tapes: bool = True, anywhere: bool = True) -> Schedule:
    """The groups of a graph; without `tapes`, long scalar graphs are kernels too. `anywhere` says
    that products read operands of any form."""
    legal = legalize(graph, anywhere)
    partition = _Partition(legal, tapes)
    partition.grow()
    return Schedule(legal, tuple(_finish(partition)))


def check(schedule: Schedule) -> None:
    """Raise `IRError` if a group reads what no earlier group stored, or a value is stored twice."""
    ready: set[Node] = set()
    for g in schedule.groups:
        inside = set(g.nodes)
        require(set(g.stores) <= inside, "stores outside the group", g)
        single = len(g.nodes) == 1 or g.kind == "tape"
        require(g.space is not None or single, "an opaque group has one node", g)
        for n in g.nodes:
            for o in n.inputs:
                base = chain(o)[0]
                known = base in ready or base in inside or base.op in LEAVES or not base.size
                require(known, "group", g, "reads", base, "before it is stored")
        require(not ready & set(g.stores), "stored twice:", ready & set(g.stores))
        ready |= set(g.stores)
    for root in schedule.graph.roots:
        require(not root.size or chain(root)[0] in ready, "never stored:", root)


class _Partition:
    """The groups of the nodes that are computed, as they grow."""

    def __init__(self, legal: Legal, tapes: bool) -> None:
        self.legal = legal
        graph = legal.graph
        self.checked = set(walk(c.bad for c in graph.checks))  # what the checks need
        self.forced = {chain(r)[0] for r in graph.roots if r.size}  # what must lie in memory
        self.writes = {chain(v)[0] for _, v in graph.writes}
        self.compute = [
            n for n in graph.order if n.size and n.op not in VIEWS and n.op not in LEAVES
        ]
        self.tapes = tape.partition(self.compute, self.checked) if tapes else {}
        self.users: dict[Node, set[Node]] = {}  # readers, but for those on the value's own tape
        self.edges: list[tuple[Node, Node]] = []
        for n in self.compute:
            mine = self.tapes.get(n)
            for i, o in enumerate(n.inputs):
                if mine is None or self.tapes.get(o) != mine:
                    self._edge(n, o, n.op == "take" and i == 0)
        self.edges.sort(key=lambda e: (-e[0].nbytes, e[0].index, e[1].index))
        first: dict[tuple[int, bool], int] = {}  # tape -> its group
        group = {
            n: first.setdefault(self.tapes[n], i) if n in self.tapes else i
            for i, n in enumerate(self.compute)
        }
        self.groups = Groups(group, self.users, () if self.tapes else range(len(self.compute)))
        self.group, self.members = self.groups.group, self.groups.members
        if self.tapes:
            self.groups.settle(self.order())
        self.plain = {g: _plain_shape(self.compute[g]) for g in self.members}
        self.rejected: set[tuple[int, int, int, int]] = set()

    def _edge(self, n: Node, o: Node, table: bool) -> None:
        base, views = chain(o)
        if not fits(base):
            return
        mine, other = self.tapes.get(n), self.tapes.get(base)
        if mine is not None and mine == other:
            return
        self.users.setdefault(base, set()).add(n)
        if mine is not None or other is not None:
            self.forced.add(base)
            return
        apart = n.op in OPAQUE or base.op in OPAQUE or base.op == "input" or table
        if apart or any(v.op in PARTS for v in views):
            self.forced.add(base)
        else:
            self.edges.append((base, n))

    def grow(self) -> None:
        """Vertical: join producer and consumer; horizontal: join readers of the same operand."""
        shared: dict[Node, list[Node]] = {}
        for n in self.compute:
            for o in n.inputs if n.op not in OPAQUE and n not in self.tapes else ():
                base = chain(o)[0]
                if fits(base) and base.size > 1:
                    shared.setdefault(o, []).append(n)
        siblings = sorted(shared.items(), key=lambda kv: -kv[0].size)
        pairs = [(r[0], x) for _, r in siblings for x in r[1:]]
        changed = True
        while changed:
            changed = False
            for a, b in self.edges:
                changed |= self._join(self.group[a], self.group[b])
            for a, b in pairs:
                changed |= self._join(self.group[a], self.group[b], sibling=True)
        self._gather_scalars()

    def _gather_scalars(self) -> None:
        """The single numbers that a group reads are made by one group as far as possible: the
        kernel of a number is all overhead."""
        for g in [g for g, nodes in self.members.items() if nodes[0] not in self.tapes]:
            bases = (chain(o)[0] for n in self.members.get(g, ()) for o in n.inputs)
            numbers = dict.fromkeys(b for b in bases if b.size == 1 and self.group.get(b, g) != g)
            plain = [
                b for b in numbers if b not in self.tapes and self.plain[self.group[b]] == b.shape
            ]
            for b in plain[1:]:
                self._join(self.group[plain[0]], self.group[b])

    def _join(self, a: int, b: int, sibling: bool = False) -> bool:
        key = (a, b, len(self.members[a]), len(self.members[b]))
        if a == b or key in self.rejected:
            return False
        self.rejected.add(key)
        if self._writes_early(a, b) or self._writes_early(b, a):
            return False
        both = self.members[a] + self.members[b]
        if len(both) > MAX_OPS or self._slots(both) > MAX_SLOTS:
            return False
        same = self.plain[a] is not None and self.plain[a] == self.plain[b]
        if not same and not self._share_space(a, b, both, sibling):
            return False
        if not self.groups.join(a, b):
            return False
        self.plain[a] = self.plain[a] if same else None
        return True

    def _writes_early(self, a: int, b: int) -> bool:
        """Whether group b writes state, which waits for the checks, and these wait for group a."""
        if not any(n in self.writes for n in self.members[b]):
            return False
        return any(n in self.checked for n in self.members[a])

    def _slots(self, nodes: list[Node]) -> int:
        """Buffers that a kernel of these nodes would read and write."""
        inside = set(nodes)
        loads = {b for n in nodes for o in n.inputs if fits(b := chain(o)[0]) and b not in inside}
        stores = [n for n in nodes if n in self.forced or not self.users.get(n, set()) <= inside]
        return len(loads) + len(stores)

    def _share_space(self, a: int, b: int, both: list[Node], sibling: bool) -> bool:
        """Whether two groups run over one space and nothing is computed more often for it."""
        s = analyse(both, self.legal.layout)
        if s is None:
            return False
        da, db = s.span(self.members[a]), s.span(self.members[b])
        if sibling:
            return da == db == s.domain
        outer = s.domain - s.inner
        if da not in (
            s.domain,
            db,
        ):  # a producer of fewer points: once per row, needed nowhere else
            per_row = da <= (outer if s.inner else s.domain - {last_axis(s)})
            kept = any(n in self.forced for n in self.members[a])
            free = len(self.members[a]) <= FREE_OPS and all(map(cheap, self.members[a]))
            alone = self.groups.after[a] == {b}
            if not alone or not (per_row or free) or (kept and not per_row):
                return False
        return db in (s.domain, da) or db <= outer  # a consumer of fewer points: after its row

    def order(self) -> list[int]:
        """Trace order as far as dependences allow; groups that write state as late as possible."""
        waits = {g: len(sources) for g, sources in self.groups.before.items()}
        key = {
            g: (any(n in self.writes for n in m), max(n.index for n in m))
            for g, m in self.members.items()
        }
        ready = [(*key[g], g) for g in self.members if not waits[g]]
        heapq.heapify(ready)
        out = []
        while ready:
            *_, g = heapq.heappop(ready)
            out.append(g)
            for t in self.groups.after[g]:
                waits[t] -= 1
                if not waits[t]:
                    heapq.heappush(ready, (*key[t], t))
        require(len(out) == len(self.members), "cycle between groups")
        return out


def _plain_shape(n: Node) -> tuple[int, ...] | None:
    """The shape of a node whose operands all lie in it: such nodes always fit together."""
    if n.op in REDUCTIONS or n.op in OPAQUE or n.op == "take":
        return None
    bases = [chain(o)[0] for o in n.inputs]
    direct = all(
        b is o or b.op == "const" or (b.op == "input" and b.size == 1)
        for o, b in zip(n.inputs, bases, strict=True)
    )
    return n.shape if direct else None


def _finish(p: _Partition) -> Iterable[Group]:
    """Decide what crosses groups in memory, drop what nobody needs, make the groups."""
    layout = p.legal.layout
    sequence = p.order()
    position = {g: i for i, g in enumerate(sequence)}
    stored = {n for n in p.forced if n.op not in LEAVES}
    nodes = {g: _with_clones(p, list(p.members[g]), g, position, stored) for g in sequence}
    for g in sequence:
        if p.members[g][0] in p.tapes:  # whatever leaves a tape is stored, whatever is on it needed
            own = tuple(n for n in p.members[g] if n in stored)
            yield Group("tape", tuple(p.members[g]), own, None)
            continue
        inside, needed = set(nodes[g]), set()
        stack = [n for n in p.members[g] if n in stored]
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                stack += [b for o in n.inputs if (b := chain(o)[0]) in inside]
        left = sorted(needed, key=lambda n: n.index)
        if left and left[0].op in OPAQUE:
            yield Group(left[0].op, tuple(left), tuple(left), None)
        elif left:
            whole = analyse(left, layout)
            for part in [left] if whole is not None else _components(left):
                own = tuple(n for n in part if n in stored and p.group[n] == g)
                space = whole if whole is not None else analyse(part, layout)
                require(space is not None, "a group lost its space:", part)
                yield Group("loop", tuple(part), own, space)


def _with_clones(
    p: _Partition, nodes: list[Node], g: int, position: dict[int, int], stored: set[Node]
) -> list[Node]:
    """The nodes of group g and those it computes again; what it reads otherwise is now stored."""
    if nodes[0] in p.tapes:
        return nodes
    have = {chain(o)[0] for n in nodes for o in n.inputs}
    crossing = {b for b in have if b in p.group and p.group[b] != g and b not in stored}
    for v in sorted(crossing, key=lambda n: n.index):
        cone = _cone(v, set(nodes), stored) if v.size > 1 else None
        if cone is not None and _worth_it(p, cone, v, nodes, have, g, position):
            nodes = nodes + list(cone.nodes)
            stored |= cone.small | cone.promoted
            have |= cone.loads | cone.small | cone.promoted
        else:
            stored.add(v)
    return nodes


@dataclass(frozen=True)
class _Cone:
    """What it takes to compute a value again: the nodes, and where that ends."""

    nodes: set[Node]
    loads: set[Node]  # in memory, or in the group
    small: set[Node]  # statistics of rows: to be stored
    promoted: set[Node]  # costly values: to be stored instead of the cheap function of them


def _cone(v: Node, inside: set[Node], stored: set[Node]) -> _Cone | None:
    cone = _Cone(set(), set(), set(), set())
    stack = [v]
    while stack:
        n = stack.pop()
        if n in cone.nodes or not fits(n):
            continue
        if n.op == "input" or n in stored or n in inside:
            cone.loads.add(n)
        elif n.size * SMALL <= v.size and n is not v:
            cone.small.add(n)
        elif cheap(n) or (n.op in COSTLY and n.nbytes > AGAIN_BYTES):
            if any(w.op in PARTS for o in n.inputs for w in chain(o)[1]):
                return None
            cone.nodes.add(n)
            stack += [chain(o)[0] for o in n.inputs]
        elif n is not v and n.size <= v.size and n.op not in OPAQUE:
            cone.promoted.add(n)
        else:
            return None
        if len(cone.nodes) > CLONE_OPS:
            return None
    return cone


def _worth_it(
    p: _Partition,
    cone: _Cone,
    v: Node,
    nodes: list[Node],
    have: set[Node],
    g: int,
    position: dict[int, int],
) -> bool:
    """Few ops, at most one more full-size load, everything known in time, and the same space."""
    inside = set(nodes)
    more = len(cone.promoted) + sum(
        n not in have and n not in inside and 2 * n.size >= v.size for n in cone.loads
    )
    if more > CLONE_LOADS or len(nodes) + len(cone.nodes) > MAX_OPS:
        return False
    known = (cone.loads | cone.small | cone.promoted) - inside
    if any(n in p.group and position[p.group[n]] >= position[g] for n in known):
        return False
    if nodes[0].op in OPAQUE:
        return False
    before = analyse(nodes, p.legal.layout)
    both = analyse([*nodes, *cone.nodes], p.legal.layout)
    if both is None or before is None:
        return False
    return size_of(both.domain) == size_of(before.domain)


def _components(nodes: list[Node]) -> list[list[Node]]:
    """What is left of a group whose connecting nodes are no longer needed."""
    parts: list[list[Node]] = []
    for n in nodes:
        near = {chain(o)[0] for o in n.inputs}
        touching = [q for q in parts if near & set(q)]
        joined = [m for q in touching for m in q]
        parts = [*(q for q in parts if q not in touching), [*joined, n]]
    return [sorted(q, key=lambda n: n.index) for q in parts]
