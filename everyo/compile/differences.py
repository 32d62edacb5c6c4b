"""What two traces of one function differ in."""

from dataclasses import replace
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.traced import Traced


def differences(first: Traced, second: Traced) -> str | None:
    """What two traces of one function in one state differ in, or None. The second was made with the
    table of the first, so that equal values are one node; arrays that were equal are constants."""
    g, h = first.graph, second.graph
    if (g.inputs, g.roots, g.writes, g.checks) != (h.inputs, h.roots, h.writes, h.checks):
        return _changed(g, h)
    for s, t, node in zip(first.sources, second.sources, first.graph.inputs, strict=True):
        where = first.graph.lines.get(node, "")
        if s.name != t.name:
            return f"an input was read from another {s.kind} in the second trace, at {where}"
        if s.kind == "array" and s.owner is not t.owner and not _equal(s.owner, t.owner):
            return (
                f"an array of shape {s.owner.shape} that the function makes differs between two "
                f"traces, at {where}"
            )
    if repr(first.leaves) != repr(second.leaves) and not _same_leaves(first, second):
        return "the results differ in kind between two traces"
    if len(first.effects) != len(second.effects):
        return "the second trace leaves other effects than the first"
    for e, f in zip(first.effects, second.effects, strict=True):
        if (e.what, e.key, e.wrap) != (f.what, f.key, f.wrap) or (
            e.wrap == "object" and e.value is not f.value and repr(e.value) != repr(f.value)
        ):
            return (
                f"{e.what} {e.key!r} is set to {e.value!r} in the first trace, to {f.value!r} in "
                "the second"
            )
    return None


def _changed(first: ir.Graph, second: ir.Graph) -> str:
    """Where two graphs differ: line by line, since what follows a new node is new too."""
    a, b = (str(replace(g, lines={})).splitlines() for g in (first, second))
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return f"{_described(first, i - 1)}, then {_described(second, i - 1)}"
    return f"first trace {len(a)} operations, second trace {len(b)}"


def _described(graph: ir.Graph, i: int) -> str:
    """Node `i` of the printed graph: the constant or the op, and the user's line that it comes
    from."""
    order = ir.walk((*graph.inputs, *graph.roots))
    if not 0 <= i < len(order):
        return "the end of the trace"
    node = order[i]
    reached = {node}
    reached.update(
        n for n in order[i:] if reached.intersection(n.inputs)
    )  # what is computed from it
    lines = [graph.lines[n] for n in order[i:] if n in reached and n in graph.lines]
    what = (
        f"the constant {node.param('value')!r}"
        if node.op == "const"
        else f"{node.op} of shape {node.shape}"
    )
    return f"{what} at {lines[0]}" if lines else what


def _equal(a: Any, b: Any) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    )


def _same_leaves(first: Traced, second: Traced) -> bool:
    for a, b in zip(first.leaves, second.leaves, strict=False):
        if (a.what, a.place, a.requires_grad) != (b.what, b.place, b.requires_grad):
            return False
        if a.value is not b.value and repr(a.value) != repr(b.value):
            return False
    return len(first.leaves) == len(second.leaves)
