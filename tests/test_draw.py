"""Pictures of graphs: well-formed, complete, and without boxes over each other."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from ir_builder import Builder
from ir_programs import programs

from everyo.compile import ir, passes
from everyo.compile.draw import svg
from everyo.compile.fuse import fuse
from everyo.compile.layout import Layout, spread

NAMESPACE = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Kernel:
    nodes: tuple[ir.Node, ...]


def drawn(text):
    """The texts of the computed nodes, kernel by kernel."""
    root = ElementTree.fromstring(text)
    kernels = [g for g in root.iter(f"{NAMESPACE}g") if g.get("class") == "kernel"]
    return [
        [
            "".join(g.find(f"{NAMESPACE}text").itertext())
            for g in kernel.iter(f"{NAMESPACE}g")
            if g.get("class") in ("node", "leaves")
        ]
        for kernel in kernels
    ]


def ops(labels):
    return sorted(re.match(r"\w+", text)[0] for text in labels)


@given(programs("tame"))
@settings(max_examples=100, deadline=None)
def test_every_computed_node_is_drawn_once_per_kernel(case):
    graph = passes.run(case.build()[0])
    computed = [n for n in ir.walk(graph.roots) if n.op not in ir.LEAVES | ir.VIEWS]
    assert [ops(k) for k in drawn(svg(graph))] == [sorted(n.op for n in computed)]
    schedule = fuse(graph)
    want = [sorted(n.op for n in g.nodes) for g in schedule.groups]
    assert [ops(k) for k in drawn(svg(schedule.graph, schedule.groups))] == want


def test_a_node_names_its_literals_its_type_and_where_it_goes():
    b = Builder()
    x = b.input((2, 3))
    y = b.op("where", b.op("less", b.iota((2, 3), 1), 2), b.op("exp", x), 0.5)
    graph = b.graph(b.reduce("sum", y, (1,)), writes=((x, y),), lines={y: 'a "net".py:3 <&>'})
    text = svg(graph)
    assert drawn(text) == [
        [
            "less(index, 2) bool 2×3 ", "exp f32 2×3 ", "where(·, ·, 0.5) f32 2×3 → input 0",
            "sum axes 1 f32 2 → output 0",
        ]
    ]  # fmt: skip
    (title,) = ElementTree.fromstring(text).iter(f"{NAMESPACE}title")
    assert title.text == 'a "net".py:3 <&>'


def test_a_node_of_two_kernels_is_drawn_in_both():
    b = Builder()
    x = b.input((4,))
    e = b.op("exp", x)
    y, z = b.op("sqrt", e), b.op("tanh", e)
    text = svg(b.graph(y, z), [Kernel((e, y)), Kernel((e, z))])
    assert [ops(k) for k in drawn(text)] == [["exp", "sqrt"], ["exp", "tanh"]]
    assert "3 operations in 2 kernels" in text


@pytest.mark.parametrize("kernels", [None, []])
def test_a_graph_that_computes_nothing_can_be_drawn(kernels):
    b = Builder()
    x = b.input((2,))
    ElementTree.fromstring(svg(b.graph(x, b.table.const(1, ir.F32)), kernels))
    assert len(svg(ir.Graph("empty", (), ()), kernels)) > 100


def test_boxes_do_not_overlap_and_edges_go_down():
    sizes = {k: (10.0 + 7 * (k % 5), 8.0 + k % 3) for k in range(60)}
    edges = [(k // 3, k, "") for k in range(1, 60)] + [(k, 59 - k % 4, "") for k in range(0, 50, 5)]
    edges = [(a, b, name) for a, b, name in edges if a < b]
    layout = Layout(sizes, edges, 5.0, 9.0)
    boxes = [(*layout.place[k], *sizes[k]) for k in sizes]
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= -1e-6
        assert x + w <= layout.width + 1e-6
        assert y + h <= layout.height + 1e-6
        for u, v, p, q in boxes[:i]:
            assert x + w <= u + 1e-6 or u + p <= x + 1e-6 or y + h <= v or v + q <= y
    for a, b, name in edges:
        points = layout.route(a, b, name)
        heights = [layout.place[a][1], *(y for _, y in points), layout.place[b][1]]
        assert heights == sorted(heights)
        assert layout.rank[a] < layout.rank[b]


def test_spread_is_the_nearest_placement_without_overlap():
    assert spread([0, 10, 30], [5, 5], [1, 1, 1]) == [0, 10, 30]
    assert spread([0, 0], [10], [1, 1]) == [-5, 5]
    assert spread([0, 0], [10], [3, 1]) == [-2.5, 7.5]
    assert spread([7, 3, 5], [1, 1], [1, 1, 1]) == pytest.approx([4, 5, 6])
