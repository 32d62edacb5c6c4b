"""Graph -> Graph in the form that kernels can express: what is missing is a `copy`.

After this pass nothing is computed in half precision (see `widen`), nothing is folded over empty
operands or axes of size 1, every operand has a strided form in its consumer, every result (output,
write, check) is a value of its own that lies as its destination does, and every opaque op reads
operands that its native row can walk.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everyo.compile import passes
from everyo.compile.ir import LEAVES, OPAQUE, VIEWS, Check, Graph, IRError, Node, Table, walk
from everyo.compile.products import missing_copies
from everyo.compile.space import analyse, chain, contiguous, strided
from everyo.compile.widen import widened

ORDERED_ROUNDS = 4  # so many rounds try storage orders; after that a copy never asks for another
ROUNDS = 64
HARMLESS = {"broadcast", "transpose"}  # views that always have a strided form
BATCHED = 4  # matmul results of at most so many dims may be stored in another order

Rule = Callable[[Table, Node, tuple[Node, ...]], Node]


@dataclass(frozen=True)
class Legal:
    """A legal graph and the storage order of its values (dims, outermost first) where not C."""

    graph: Graph
    orders: dict[Node, tuple[int, ...]]

    def layout(self, node: Node) -> list[int]:
        """Strides of a value, in elements: an input's own, else those of its storage order."""
        strides = node.param("strides") if node.op == "input" else None
        return (
            list(strides) if strides is not None else contiguous(node.shape, self.orders.get(node))
        )


def legalize(graph: Graph) -> Legal:
    """Insert copies until none is missing; a copy can change the best storage orders and so on."""
    graph, table = _rebuild(passes.rewrite(graph, widened), _sized)
    for turn in range(ROUNDS):
        legal = Legal(graph, storage_orders(graph) if turn < ORDERED_ROUNDS else {})
        needs = {n: _needs(n, legal) for n in walk(graph.roots) if _computed(n)}
        needs = {n: need for n, need in needs.items() if any(need)}
        if needs:
            graph, table = _rebuild(graph, lambda t, n, i: _with_copies(t, n, i, needs, legal))  # noqa: B023
        settled = _settle(graph, table, legal)
        if not needs and settled.roots == graph.roots:
            return legal
        graph = settled
    raise IRError(f"legalize does not settle: {graph}")


def storage_orders(graph: Graph) -> dict[Node, tuple[int, ...]]:
    """Matmul results whose consumers all see them transposed alike are stored that way."""
    wanted: dict[Node, set[tuple[int, ...]]] = {}
    for n in walk(graph.roots):
        for o in n.inputs if n.op not in VIEWS else ():
            base, views = chain(o)
            if base.op == "matmul":
                turned = views and views[0].op == "transpose"
                axes = views[0].param("axes") if turned else tuple(range(base.ndim))
                wanted.setdefault(base, set()).add(axes)
    kept = {chain(r)[0] for r in graph.roots}
    orders = {n: next(iter(p)) for n, p in wanted.items() if len(p) == 1 and n not in kept}
    return {n: p for n, p in orders.items() if p[-1] >= len(p) - 2 and len(p) <= BATCHED}


def _computed(n: Node) -> bool:
    return bool(n.size) and n.op not in VIEWS and n.op not in LEAVES


def _in_trace_order(graph: Graph) -> list[Node]:
    """All nodes, operands first, in the order of tracing if the indices still tell it."""
    order = walk((*graph.inputs, *graph.roots))
    if all(i.index < n.index for n in order for i in n.inputs):
        order.sort(key=lambda n: n.index)
    return order


def _rebuild(graph: Graph, rule: Rule) -> tuple[Graph, Table]:
    """The same graph in a table of its own, each node made by `rule(table, node, operands)`."""
    table, new = Table(), dict[Node, Node]()
    for n in _in_trace_order(graph):
        new[n] = rule(table, n, tuple(new[i] for i in n.inputs))
    rebuilt = Graph(
        graph.name,
        tuple(new[i] for i in graph.inputs),
        tuple(new[o] for o in graph.outputs),
        tuple((new[t], new[v]) for t, v in graph.writes if t.size),
        tuple(Check(new[c.bad], c.error, c.message) for c in graph.checks),
    )
    return rebuilt, table


def _again(table: Table, n: Node, inputs: tuple[Node, ...]) -> Node:
    return table.make(n.op, *inputs, **dict(n.params))


def _sized(table: Table, n: Node, inputs: tuple[Node, ...]) -> Node:
    """No fold over nothing or over axes of size 1, no empty operand of anything."""
    if _computed(n) and any(not i.size for i in inputs):
        if n.op != "assemble":
            return _filled(table, n, 1 if n.op == "prod" else 0)
        full = [k for k, i in enumerate(inputs[1:]) if i.size]
        if not full:
            return inputs[0]
        starts, steps = (tuple(n.param(p)[k] for k in full) for p in ("starts", "steps"))
        pieces = [inputs[k + 1] for k in full]
        return table.make("assemble", inputs[0], *pieces, starts=starts, steps=steps)
    if n.op in ("sum", "prod", "max", "min"):
        x, axes = inputs[0], n.param("axes")
        gone = [a for a in axes if x.shape[a] == 1]
        if gone:
            x = table.make(
                "reshape", x, shape=tuple(s for a, s in enumerate(x.shape) if a not in gone)
            )
            axes = tuple(a - sum(g < a for g in gone) for a in axes if a not in gone)
            return table.make(n.op, x, axes=axes) if axes else x
    return _again(table, n, inputs)


def _filled(table: Table, n: Node, value: int) -> Node:
    """A value of n's shape whose elements are all the same."""
    literal = table.const(value, n.dtype)
    if not n.shape:
        return literal
    ones = table.make("reshape", literal, shape=(1,) * n.ndim)
    return table.make("broadcast", ones, shape=n.shape)


def _needs(n: Node, legal: Legal) -> list[bool]:
    """Which operands of n need a copy."""
    if n.op == "matmul":
        return missing_copies(n, legal.layout)
    if n.op == "assemble":
        return [chain(o)[0].op == "iota" or strided(o, legal.layout) is None for o in n.inputs]
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


def _with_copies(
    table: Table, n: Node, inputs: tuple[Node, ...], needs: dict[Node, list[bool]], legal: Legal
) -> Node:
    need = needs.get(n, [False] * len(inputs))
    whole = n.op in OPAQUE
    copies = (
        (_copied(table, i) if whole else _reachable(table, o, i, legal)) if wanted else i
        for wanted, o, i in zip(need, n.inputs, inputs, strict=True)
    )
    return _again(table, n, tuple(copies))


def _copied(table: Table, n: Node) -> Node:
    return table.make("copy", n)


def _reachable(table: Table, old: Node, new: Node, legal: Legal) -> Node:
    """The operand with a copy below the first view that has no strided form, else on top."""
    above: list[Node] = []
    while strided(old, legal.layout) is None:
        above.append(old)
        old, new = old.inputs[0], new.inputs[0]
    new = _copied(table, new)
    for view in reversed(above):
        new = _again(table, view, (new,))
    return new


def _settle(graph: Graph, table: Table, legal: Legal) -> Graph:
    """Every result is a computed value of its own that lies as its destination does."""
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
    return Graph(graph.name, graph.inputs, outputs, writes, checks)
