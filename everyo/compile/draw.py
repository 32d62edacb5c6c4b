"""A picture of a graph: an SVG with one box per kernel and the nodes it fuses inside.

Two layouts of one kind are nested: nodes within a kernel, kernels within the page. Inputs are
repeated in every kernel that reads them, literals are written where they are used, and views are
labels of edges, as they are in the kernels. A bold frame marks what leaves the graph.
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol
from xml.sax.saxutils import escape

from everyo.compile import ir
from everyo.compile.ir import Graph, Node
from everyo.compile.layout import Edge, Key, Layout, Point
from everyo.compile.rules import literal

CHAR, LINE = 6.7, 20.0  # size of a letter and of a node
GAP_X, GAP_Y = 12.0, 18.0  # between nodes
CARD_X, CARD_Y, PAD, TITLE = 26.0, 40.0, 12.0, 16.0  # between kernels, and inside their boxes
SHORT = {
    "float16": "f16", "float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64",
    "bool": "bool",
}  # fmt: skip
STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #1f2933 }
text .type { fill: #6b7785 } .head { font-size: 14px } .small { font-size: 9.5px; fill: #52606d }
.node rect { fill: #ffffff; stroke: #9aa5b1 } .leaves rect { fill: #ffffff; stroke: #1f2933;
stroke-width: 2 } .source rect { fill: #f1f3f5; stroke: #9aa5b1; stroke-dasharray: 3 2 }
path { fill: none; stroke: #7b8794; stroke-width: 1.1 } path.cross { stroke-width: 1.8 }
"""


class Kernel(Protocol):
    """What is drawn in one box: a group of a schedule."""

    nodes: Sequence[Node]


def svg(graph: Graph, schedule: Sequence[Kernel] | None = None) -> str:
    """`graph` as SVG text; with the groups of a schedule, each in a box of its own."""
    boxed = schedule is not None
    groups = [list(k.nodes) for k in schedule] if schedule is not None else [computed(graph)]
    owner = producers(groups)
    reads = [foreign(nodes, i, owner) for i, nodes in enumerate(groups)]
    leaving = {value for values in reads for value in values}
    marks = destinations(graph)
    cards = []
    for i, nodes in enumerate(groups):
        stores = [n for n in nodes if n in leaving and owner[n] == i]
        cards.append(card(nodes, i, reads[i], stores, graph, marks, boxed))
    edges = [(owner[value], i, value) for i, values in enumerate(reads) for value in values]
    page = Layout({i: c.size for i, c in enumerate(cards)}, edges, CARD_X, CARD_Y)
    parts = [box(page.place[i], c, i) for i, c in enumerate(cards)] if boxed else []
    for source, target, value in edges:
        start = moved(cards[source].ports[value, "out"], page.place[source])
        end = moved(cards[target].ports[value, "in"], page.place[target])
        below = (start[0], page.rows[page.rank[source]][1])  # past the taller kernels beside it
        points = [start, below, *page.route(source, target, value), end]
        parts.append(curve(points, f'class="cross" style="stroke: {colour(source, 0.45, 0.6)}"'))
    for i, c in enumerate(cards):
        x, y = page.place[i]
        parts += [f'<g class="kernel" transform="translate({x:.1f},{y:.1f})">', *c.drawing, "</g>"]
    head = f"{graph.name}: {counted(len(owner), 'operation')}"
    if boxed:
        head += f" in {counted(len(groups), 'kernel')}"
    return document(head, parts, page)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def computed(graph: Graph) -> list[Node]:
    return [n for n in ir.walk(graph.roots) if is_computed(n)]


def is_computed(node: Node) -> bool:
    return node.op not in ir.LEAVES and node.op not in ir.VIEWS


def producers(groups: list[list[Node]]) -> dict[Node, int]:
    """The group that each node is read from: the first that has it."""
    owner: dict[Node, int] = {}
    for i, nodes in enumerate(groups):
        for n in nodes:
            owner.setdefault(n, i)
    return owner


def destinations(graph: Graph) -> dict[Node, list[str]]:
    """What becomes of the nodes that leave the graph."""
    marks: dict[Node, list[str]] = {}
    for i, n in enumerate(graph.outputs):
        marks.setdefault(base(n), []).append(f"output {i}")
    for target, n in graph.writes:
        marks.setdefault(base(n), []).append(f"input {target.param('index')}")
    for check in graph.checks:
        marks.setdefault(base(check.bad), []).append("check")
    return marks


def base(node: Node) -> Node:
    """`node` without its views."""
    while node.op in ir.VIEWS:
        node = node.inputs[0]
    return node


def views(node: Node) -> str:
    """The views above the base that change the order of elements."""
    names = []
    while node.op in ir.VIEWS:
        names += {"slice": ["[:]"], "transpose": ["T"], "window": ["[[:]]"]}.get(node.op, [])
        node = node.inputs[0]
    return " ".join(reversed(names))


# One kernel


@dataclass(frozen=True)
class Card:
    """A kernel drawn at the origin; values come in and out at its ports."""

    size: Point
    ports: dict[tuple[Node, str], Point]
    drawing: list[str]


def foreign(nodes: list[Node], number: int, owner: dict[Node, int]) -> list[Node]:
    """The values of other kernels that `nodes` read."""
    values = dict.fromkeys(base(operand) for n in nodes for operand in n.inputs)
    return [v for v in values if v not in nodes and owner.get(v, number) != number]


def card(
    nodes: list[Node], number: int, loads: list[Node], stores: list[Node], graph: Graph,
    marks: dict[Node, list[str]], boxed: bool,
) -> Card:  # fmt: skip
    """One kernel, laid out and drawn."""
    links = [
        (base(operand), n, views(operand))
        for n in nodes
        for operand in dict.fromkeys(n.inputs)
        if base(operand).op not in ("const", "iota")
    ]
    sources = [
        v for v in dict.fromkeys(a for a, _, _ in links) if v not in nodes and v not in loads
    ]
    sizes: dict[Key, Point] = {(v, "in"): (1.0, 0.0) for v in loads}
    sizes |= {n: (CHAR * len(" ".join(label(n, marks))) + 10, LINE) for n in (*sources, *nodes)}
    sizes |= {(n, "out"): (1.0, 0.0) for n in stores}
    ends = [((a, "in") if a in loads else a, b, views) for a, b, views in links]
    edges: list[Edge] = [(a, b, "") for a, b, _ in ends] + [(n, (n, "out"), "") for n in stores]
    plan = Layout(sizes, edges, GAP_X, GAP_Y, {k: k[1] for k in sizes if isinstance(k, tuple)})
    title = f"{number}  {summary(nodes)}"
    width = max(plan.width, len(title) * CHAR)
    shift = (PAD + (width - plan.width) / 2, PAD + TITLE)
    height = plan.height + 2 * PAD + TITLE
    drawing = []
    for a, b, text in [*ends, *((n, (n, "out"), "") for n in stores)]:
        (x0, y0), (x1, y1) = plan.place[a], plan.place[b]
        start = (x0 + sizes[a][0] / 2, y0 + sizes[a][1])
        end = (x1 + sizes[b][0] / 2, y1)
        points = [moved(p, shift) for p in (start, *plan.route(a, b, ""), end)]
        if isinstance(a, tuple):
            points.insert(0, (points[0][0], 0.0))
        if isinstance(b, tuple):
            points.append((points[-1][0], height))
        drawing.append(curve(points, 'class="edge"', text))
    if boxed:
        around = f'stroke="{colour(number, 0.6, 0.95)}" stroke-width="4" stroke-linejoin="round"'
        for halo in (around, ""):  # edges may pass behind the title
            drawing.append(f'<text class="small" x="8" y="14" {halo}>{escape(title)}</text>')
    for n in (*sources, *nodes):
        kind = "source" if n in sources else "leaves" if n in marks else "node"
        drawing.append(
            pill(n, moved(plan.place[n], shift), sizes[n][0], label(n, marks), kind, graph)
        )
    ports = {}
    for v, side in (*((v, "in") for v in loads), *((n, "out") for n in stores)):
        ports[v, side] = (plan.place[v, side][0] + shift[0], 0.0 if side == "in" else height)
    return Card((width + 2 * PAD, height), ports, drawing)


def summary(nodes: list[Node]) -> str:
    """What a kernel is, in a few words."""
    largest = max((n.shape for n in nodes), key=math.prod, default=())
    count = nodes[0].op if len(nodes) == 1 else counted(len(nodes), "op")
    return f"{count} over {extents(largest)}" if largest else f"{count}, scalar"


def extents(shape: ir.Shape) -> str:
    return "×".join(map(str, shape))


def label(node: Node, marks: dict[Node, list[str]]) -> tuple[str, str, str]:
    """The op with its literals, its type, and where it goes."""
    if node.op == "input":
        return f"input {node.param('index')}", typed(node), ""
    args = [written(i) for i in node.inputs]
    name = node.op if set(args) <= {"·"} else f"{node.op}({', '.join(args)})"
    if node.op in ir.REDUCTIONS:
        name += f" axes {', '.join(map(str, node.param('axes')))}"
    return name, typed(node), " ".join(f"→ {m}" for m in marks.get(node, ()))


def written(node: Node) -> str:
    """An operand as it is written in its consumer: literals and indices are, the rest is a dot."""
    value = literal(node)
    if value is not None:
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return "index" if base(node).op == "iota" else "·"


def typed(node: Node) -> str:
    return f"{SHORT[node.dtype.name]} {extents(node.shape)}".strip()


# Text


def moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]


def colour(number: int, saturation: float, lightness: float) -> str:
    """A colour for each kernel: hues a golden angle apart."""
    rgb = colorsys.hls_to_rgb(number * 0.381966 % 1.0, lightness, saturation)
    return "#" + "".join(f"{round(255 * c):02x}" for c in rgb)


def box(at: Point, c: Card, number: int) -> str:
    (x, y), (width, height) = at, c.size
    fill, stroke = colour(number, 0.6, 0.95), colour(number, 0.4, 0.7)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def curve(points: list[Point], attributes: str, text: str = "") -> str:
    """A smooth line down through the points, with a word beside it."""
    path = "M{:.1f} {:.1f}".format(*points[0])
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y0 + y1) / 2
        path += f"C{x0:.1f} {bend:.1f} {x1:.1f} {bend:.1f} {x1:.1f} {y1:.1f}"
    line = f'<path {attributes} d="{path}"/>'
    (x0, y0), (x1, y1) = points[-2:]
    x, y = (x0 + x1) / 2 + 3, (y0 + y1) / 2 + 3
    word = f'<text class="small" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>' if text else ""
    return line + word


def pill(
    node: Node, at: Point, width: float, words: tuple[str, str, str], kind: str, graph: Graph
) -> str:  # fmt: skip
    """A node: op, type and destination in a box; the line of the program as a tool tip."""
    (x, y), (name, kind_of, goes) = at, words
    where = graph.lines.get(node, "")
    tip = f"<title>{escape(where)}</title>" if where else ""
    return (
        f'<g class="{kind}">{tip}<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{LINE}" '
        f'rx="5"/><text x="{x + 5:.1f}" y="{y + 14:.1f}">{escape(name)} '
        f'<tspan class="type">{escape(kind_of)}</tspan> {escape(goes)}</text></g>'
    )


def document(head: str, parts: list[str], page: Layout) -> str:
    margin, title = 20.0, 30.0
    width = max(page.width, 8.5 * len(head)) + 2 * margin
    height = page.height + 2 * margin + title
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text class="head" x="{margin}" y="{margin + 10}">{escape(head)}</text>',
        f'<g transform="translate({margin},{margin + title})">',
        *parts, "</g>", "</svg>", "",
    ])  # fmt: skip
