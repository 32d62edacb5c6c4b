"""Passes: functions from a graph to a graph of the same meaning, run in the order of `PIPELINE`.

The law: for every input, `interpret` gives the same bits after a pass as before it (all NaNs being
one). Most of the work is local: `rewrite` applies the rules of rules.py to a whole graph in one
walk, in linear time. Nodes are rebuilt in the order of tracing, which their indices keep telling.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from everyo.compile import ir
from everyo.compile.ir import Check, Graph, Node
from everyo.compile.joining import nested_pieces, parts_in_a_row
from everyo.compile.rules import LOCAL, Rule, slice_of_slice
from everyo.compile.sums import Chains, sums_of_pieces

Pass = Callable[[Graph], Graph]
RULES: dict[Rule, Collection[str]] = {**LOCAL, sums_of_pieces: {"add"}}


def run(graph: Graph, steps: Sequence[Pass] | None = None) -> Graph:
    """`graph` after every pass, those of the pipeline; checked in between under EVERYO_CHECK=1."""
    for step in PIPELINE if steps is None else steps:
        graph = step(graph)
        if os.environ.get("EVERYO_CHECK") == "1":
            ir.check(graph)
    return graph


def simplify(graph: Graph) -> Graph:
    """Every local rule, everywhere."""
    return rewrite(graph, *RULES)


def rewrite(graph: Graph, *rules: Rule) -> Graph:
    """`graph` rebuilt with the rules applied to each node until none of them does; the graph
    itself if there is nothing to do."""
    if not rules:
        return graph
    of_op = {op: [r for r in rules if op in RULES.get(r, ir.OPS)] for op in ir.OPS}
    order = graph.order
    scratch = ir.Table().make
    if not any(rule(n, scratch) is not None for n in order for rule in of_op[n.op]):
        return graph
    new: dict[Node, Node] = {}
    made = _Settled(of_op)
    chains = Chains(graph, new, made.make) if sums_of_pieces in rules else None
    for node in order:
        made.line = graph.lines.get(node)
        if node.op == "add" and chains is not None and chains.take(node):
            continue
        again = made.table.again(node, tuple([new[i] for i in node.inputs]))
        new[node] = made.settle(again)
    return rebuilt(graph, new, made.lines)


class _Settled:
    """The nodes of a new graph, to which no rule applies any more."""

    def __init__(self, of_op: dict[str, list[Rule]]) -> None:
        self.of_op = of_op
        self.table = ir.Table()
        self.nodes: set[Node] = set()
        self.lines: dict[Node, str] = {}
        self.line: str | None = None  # that new nodes come from

    def make(self, op: str, *inputs: Node, **params: Any) -> Node:
        """What rules make nodes with."""
        return self.settle(self.table.make(op, *inputs, **params))

    def settle(self, node: Node) -> Node:
        """What is left of a node after all rules."""
        while node not in self.nodes:
            for rule in self.of_op[node.op]:
                better = rule(node, self.make)
                if better is not None:
                    node = better
                    break
            else:
                self.nodes.add(node)
                if self.line is not None:
                    self.lines.setdefault(node, self.line)
        return node


def rebuilt(graph: Graph, new: dict[Node, Node], lines: dict[Node, str]) -> Graph:
    """`graph` with each of its nodes n replaced by new[n]."""
    return Graph(
        graph.name,
        tuple(new[n] for n in graph.inputs),
        tuple(new[n] for n in graph.outputs),
        tuple((new[target], new[value]) for target, value in graph.writes),
        tuple(Check(new[c.bad], c.error, c.message) for c in graph.checks),
        lines,
    )


def lift_slices(graph: Graph) -> Graph:
    """Slices move above pointwise ops of which nothing but slices is read.

    A slice is read from memory. When it is taken of what is read, not of what is computed, the op
    joins the kernels that use it. This is done where it computes no element twice.
    """
    boxes = wanted_boxes(graph)
    if not boxes:
        return graph
    table = ir.Table()
    new: dict[Node, Node] = {}
    parts: dict[tuple[Node, Box], Node] = {}
    lines: dict[Node, str] = {}

    def part(node: Node, box: Box) -> Node:
        """Slice `box` of a node of the old graph, in the new one."""
        if (node, box) not in parts:
            parts[node, box] = table.make("slice", new[node], **dict(box))
        return parts[node, box]

    for node in graph.order:
        if node in boxes:
            for box in boxes[node]:
                if node.op == "slice":
                    parts[node, box] = part(node.inputs[0], nested(node.params, box))
                else:
                    parts[node, box] = table.again(node, tuple(part(i, box) for i in node.inputs))
            made = [parts[node, box] for box in boxes[node]]
        else:
            if node.op == "slice":
                new[node] = part(node.inputs[0], node.params)
            else:
                new[node] = table.again(node, tuple(new[i] for i in node.inputs))
            made = [new[node]]
        if node in graph.lines:
            lines.update((n, graph.lines[node]) for n in made)
    return simplify(rebuilt(graph, new, lines))


Box = tuple[tuple[str, Any], ...]  # the params of a slice


def nested(inner: Box, outer: Box) -> Box:
    return tuple(sorted(slice_of_slice(dict(inner), dict(outer)).items()))


def wanted_boxes(graph: Graph) -> dict[Node, Iterable[Box]]:
    """Slices and pointwise nodes that are only read in slices, and these; together not more
    elements than the node has. Empty if no slice can move."""
    if not any(n.op == "slice" and _moves(n.inputs[0]) for n in graph.order):
        return {}
    wanted: dict[Node, dict[Box, None] | None] = {}  # in order; None: the whole
    wanted.update((root, None) for root in graph.roots)
    found: dict[Node, Iterable[Box]] = {}
    for node in reversed(graph.order):
        boxes = wanted.get(node)
        below: Iterable[Box] | None = None
        if node.op == "slice":
            below = [nested(node.params, box) for box in boxes or ()] or [node.params]
        elif boxes and _moves(node):
            count = sum(math.prod(dict(box)["sizes"]) for box in boxes)
            below = boxes if count <= node.size else None
        if boxes and below:
            found[node] = boxes
        for operand in node.inputs:
            known = wanted.setdefault(operand, {})
            if below is None:
                wanted[operand] = None
            elif known is not None:
                known.update(dict.fromkeys(below))
    return found


def _moves(node: Node) -> bool:
    """Whether a slice of a node can be taken of its operands instead."""
    return node.op == "slice" or (node.op in ir.POINTWISE and node.op != "take")


def join_parts(graph: Graph) -> Graph:
    """Parts of one flat array that are assembled side by side become one part. Not before all of
    them are known: a joined one is a part no more."""
    return rewrite(rewrite(graph, nested_pieces), parts_in_a_row)


PIPELINE: tuple[Pass, ...] = (simplify, lift_slices, join_parts)
