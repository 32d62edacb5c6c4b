"""Graph -> Graph in the form that kernels can express: what is missing is a `copy`.

After this pass nothing is computed in half precision (see `widen`), nothing is folded over empty
operands or axes of size 1, every operand has a strided form in its consumer, every result (output,
write, check) is a value of its own that lies as its destination does, and every opaque op reads
operands that its native row can walk.
"""

from dataclasses import dataclass, field, replace

from everyo.compile import parts, passes
from everyo.compile.ir import (
    F16,
    LEAVES,
    OPAQUE,
    POINTWISE,
    REDUCTIONS,
    VIEWS,
    Check,
    Graph,
    IRError,
    Node,
    Table,
)
from everyo.compile.parts import Part
from everyo.compile.products import missing_copies, planned
from everyo.compile.rules import Make, full, fuse_axes
from everyo.compile.scan import Read, Scan
from everyo.compile.space import analyse, chain, contiguous, single, strided
from everyo.compile.widen import widened

ORDERED_ROUNDS = 4  # so many rounds try storage orders; after that a copy never asks for another
ROUNDS = 64
HARMLESS = {"broadcast", "transpose"}  # views that always have a strided form
TURNED = {"matmul", "assemble"}  # what can be stored in any order
BATCHED = 4  # matmul results of at most so many dims may be stored in another order


@dataclass(frozen=True)
class Legal:
    """A legal graph, the storage order of its values (dims, outermost first) where not C, and which
    of them lie in others."""

    graph: Graph
    orders: dict[Node, tuple[int, ...]]
    anywhere: bool  # whether products read operands of any form, see `products.Tiled`
    parts: dict[Node, Part] = field(default_factory=dict)

    def layout(self, node: Node) -> list[int]:
        """Strides of a value, in elements: an input's own, those it has as a part of another value,
        else those of its storage order."""
        if node in self.parts:
            return list(self.parts[node].strides)
        strides = node.param("strides") if node.op == "input" else None
        return (
            list(strides) if strides is not None else contiguous(node.shape, self.orders.get(node))
        )

    def home(self, node: Node) -> tuple[Node, int]:
        """The value whose memory holds this one, and where in there, in elements."""
        part = self.parts.get(node)
        return (node, 0) if part is None else (part.root, part.offset)


def legalize(graph: Graph, anywhere: bool = True) -> Legal:
    """Insert copies until none is missing; a copy can change the best storage orders and so on."""
    halves = any(n.dtype == F16 for n in graph.order)
    sizes = any(not n.size or n.op in REDUCTIONS for n in graph.order)
    graph = passes.rewrite(graph, *[widened] * halves, *[sized] * sizes)
    if not all(t.size for t, _ in graph.writes):
        graph = replace(graph, writes=tuple((t, v) for t, v in graph.writes if t.size))
    for turn in range(ROUNDS):
        orders = storage_orders(graph) if turn < ORDERED_ROUNDS else {}
        legal = Legal(graph, orders, anywhere)
        needs = {n: _needs(n, legal) for n in graph.order if _computed(n)}
        needs = {n: need for n, need in needs.items() if any(need)}
        if needs:
            graph = _with_copies(graph, needs, legal)
        settled = _settle(graph, legal)
        if not needs and settled.roots == graph.roots:
            return _with_parts(legal)
        graph = settled
    raise IRError(f"legalize does not settle: {graph}")


def _with_parts(legal: Legal) -> Legal:
    """With the values that can be made as pieces of others."""

    def accepts(n: Node) -> bool:
        """Whether a node can read its operands and write its value as they lie."""
        if n.op == "matmul" and not planned(n, legal.layout, legal.anywhere):
            return False
        return not any(_needs(n, legal))

    parts.find(legal.graph, legal.layout, legal.parts, accepts)
    return legal


def storage_orders(graph: Graph) -> dict[Node, tuple[int, ...]]:
    """Products and assembled arrays that are seen transposed alike by all are stored that way."""
    wanted: dict[Node, set[tuple[int, ...]]] = {}
    if not any(n.op in TURNED for n in graph.order):
        return {}
    for n in graph.order:
        for o in n.inputs if n.op not in VIEWS else ():
            base, views = chain(o)
            if base.op in TURNED:
                turned = views and views[0].op == "transpose"
                axes = views[0].param("axes") if turned else tuple(range(base.ndim))
                wanted.setdefault(base, set()).add(axes)
    kept = {chain(r)[0] for r in graph.roots}
    orders = {n: next(iter(p)) for n, p in wanted.items() if len(p) == 1 and n not in kept}
    return {
        n: p for n, p in orders.items()
        if n.op != "matmul" or (p[-1] >= len(p) - 2 and len(p) <= BATCHED)
    }  # fmt: skip


def _computed(n: Node) -> bool:
    return bool(n.size) and n.op not in VIEWS and n.op not in LEAVES


def sized(n: Node, make: Make) -> Node | None:
    """The rule: no fold over nothing or over axes of size 1, no empty operand of anything."""
    if _computed(n) and not all(i.size for i in n.inputs):
        if n.op != "assemble":
            return full(make, 1 if n.op == "prod" else 0, n)
        kept = [k for k, i in enumerate(n.inputs[1:]) if i.size]
        if not kept:
            return n.inputs[0]
        starts, steps = (tuple(n.param(p)[k] for k in kept) for p in ("starts", "steps"))
        pieces = [n.inputs[k + 1] for k in kept]
        return make("assemble", n.inputs[0], *pieces, starts=starts, steps=steps)
    if n.op in REDUCTIONS:
        x, axes = n.inputs[0], n.param("axes")
        gone = [a for a in axes if x.shape[a] == 1]
        if gone:
            x = make("reshape", x, shape=tuple(s for a, s in enumerate(x.shape) if a not in gone))
            axes = fuse_axes(axes, gone)
            return make(n.op, x, axes=axes) if axes else x
    return None


def _needs(n: Node, legal: Legal) -> list[bool]:
    """Which operands of n need a copy; empty if none has views."""
    if n.op in POINTWISE and n.op != "take" and not any(o.op in VIEWS for o in n.inputs):
        return []
    if n.op == "matmul":
        return missing_copies(n, legal.layout, legal.anywhere)
    if n.op == "assemble":
        return [chain(o)[0].op == "iota" or strided(o, legal.layout) is None for o in n.inputs]
    if n.op == "scan":
        return _scan_needs(n, legal)
    if n.op in OPAQUE:
        return [not _flat(o, legal) for o in n.inputs]
    if n.op != "take" and all(v.op in HARMLESS for o in n.inputs for v in chain(o)[1]):
        return [False] * len(n.inputs)
    alone = [strided(o, legal.layout) is None for o in n.inputs]
    if n.op == "take" and chain(n.inputs[0])[0].op in ("const", "iota"):
        alone[0] = True
    if any(alone) or analyse([n], legal.layout) is not None:
        return alone
    return [chain(o)[0] is not o for o in n.inputs]


def _flat(o: Node, legal: Legal) -> bool:
    """Whether an operand is a value in memory in C order."""
    base, views = chain(o)
    plain = base.op not in ("const", "iota") and all(v.op == "reshape" for v in views)
    return plain and legal.layout(base) == contiguous(base.shape)


def _scan_needs(n: Node, legal: Legal) -> list[bool]:
    """What is read must lie in a line, what a series begins with in any strided form."""
    scan = Scan.of(dict(n.params))
    reads = {r.operand for r in scan.reads if isinstance(r, Read)}
    lies = _even if scan.scalar else _flat
    needs = []
    for k, o in enumerate(n.inputs):
        nowhere = chain(o)[0].op in ("const", "iota")
        fits = lies(o, legal) if k in reads else strided(o, legal.layout) is not None
        needs.append(nowhere or not fits)
    return needs


def _even(o: Node, legal: Legal) -> bool:
    """Whether the elements of an operand lie one step from each other."""
    got = strided(o, legal.layout)
    return got is not None and single([pair for pairs in got[1] for pair in pairs]) is not None


def _with_copies(graph: Graph, needs: dict[Node, list[bool]], legal: Legal) -> Graph:
    """The graph with copies of the operands that need one."""
    table, new = Table(), dict[Node, Node]()
    for n in graph.order:
        inputs = [new[i] for i in n.inputs]
        for k, wanted in enumerate(needs.get(n, ())):
            if wanted and n.op in OPAQUE:
                copied = _copied_matrix if n.op == "matmul" else _copied
                inputs[k] = copied(table, inputs[k])
            elif wanted:
                inputs[k] = _reachable(table, n.inputs[k], inputs[k], legal)
        new[n] = table.again(n, tuple(inputs))
    return passes.rebuilt(graph, new, {new[n]: line for n, line in graph.lines.items() if n in new})


def _copied(table: Table, n: Node) -> Node:
    return table.make("copy", n)


def _copied_matrix(table: Table, n: Node) -> Node:
    """A copy, below a transpose of rows and columns: that it is read as it is stored, and one copy
    serves both."""
    if n.op == "transpose" and n.ndim >= 2:
        *batch, row, column = n.param("axes")
        if (*batch, column, row) == tuple(range(n.ndim)):
            return table.again(n, (_copied(table, n.inputs[0]),))
    return _copied(table, n)


def _reachable(table: Table, old: Node, new: Node, legal: Legal) -> Node:
    """The operand with a copy below the first view that has no strided form, else on top."""
    above: list[Node] = []
    while strided(old, legal.layout) is None:
        above.append(old)
        old, new = old.inputs[0], new.inputs[0]
    new = _copied(table, new)
    for view in reversed(above):
        new = table.again(view, (new,))
    return new


def _settle(graph: Graph, legal: Legal) -> Graph:
    """Every result is a computed value of its own that lies as its destination does."""
    table = Table(1 + max((n.index for n in (*graph.inputs, *graph.roots)), default=0))
    homes: set[Node] = set()

    def settle(n: Node, flat: bool) -> Node:
        base, views = chain(n)
        fits = base is n or (flat and all(v.op == "reshape" for v in views))
        while base in homes or base.op in LEAVES or not fits:
            base = n = _copied(table, n)
            fits = True
        homes.add(base)
        return n

    def flat(target: Node) -> bool:
        return legal.layout(target) == contiguous(target.shape)

    outputs = tuple(settle(o, True) if o.size else o for o in graph.outputs)
    writes = tuple((t, settle(v, flat(t))) for t, v in graph.writes)
    checks = tuple(Check(settle(c.bad, True), c.error, c.message) for c in graph.checks)
    return replace(graph, outputs=outputs, writes=writes, checks=checks)
