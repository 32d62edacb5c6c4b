"""Half precision in graphs: a dtype of storage; every computation on it is one on float32, rounded.

That is how NumPy computes halves, so the rewritten graph means the same, bit for bit. What is left
in halves are moves, and casts between them and floats, which is all that kernels need to know.
"""

from typing import Any

from everyo.compile.ir import F16, F32, F64, LEAVES, VIEWS, Node

MOVES = {*LEAVES, *VIEWS, "where", "copy", "take", "assemble"}


def computes_halves(node: Node) -> bool:
    """Whether a node computes on halves, instead of moving or converting them."""
    mentioned = F16 in (node.dtype, *(i.dtype for i in node.inputs))
    return mentioned and node.op not in MOVES and node.op != "cast"


def widened(node: Node, make: Any) -> Node | None:
    """The rule: one node on halves as nodes on float32."""
    if node.op == "cast":
        source, target = node.inputs[0].dtype, node.dtype
        if (source == F16 and target != F32) or (target == F16 and source not in (F32, F64)):
            return make("cast", make("cast", node.inputs[0], dtype=F32), dtype=target)
        return None
    if not computes_halves(node):
        return None
    cast = _below_windows if node.op == "matmul" else _cast
    wide = [cast(i, make) if i.dtype == F16 else i for i in node.inputs]
    out = make(node.op, *wide, **dict(node.params))
    return make("cast", out, dtype=F16) if node.dtype == F16 else out


def _cast(x: Node, make: Any) -> Node:
    return make("cast", x, dtype=F32)


def _below_windows(x: Node, make: Any) -> Node:
    """A cast of what windows show, not of every window: products read windows where they lie."""
    views = []
    while x.op in VIEWS:
        views.append(x)
        x = x.inputs[0]
    while views and not any(v.op == "window" for v in views):
        x = views.pop()
    x = _cast(x, make)
    for view in reversed(views):
        x = make(view.op, x, **dict(view.params))
    return x
