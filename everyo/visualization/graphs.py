"""`plot_graph`: a picture of how a value is computed, for a tensor or for a compiled function.

Of a tensor the picture shows the eager graph: the ops between the leaves that require gradients and
the tensor. Of a compiled function it shows the traced program before it is fused, of which views
are labels on edges. Both are placed by the layout that `explain().save("step.svg")` uses, whose
picture is the detailed one: it has the fused kernels as boxes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from everyo.compile import CompiledFunction, draw, ir
from everyo.compile.layout import Edge, Key, Layout
from everyo.core.autograd import topological_order
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError
from everyo.nn.module import Module, Parameter
from everyo.training.history import PathLike
from everyo.visualization.style import COLOURS, INK, MUTED, FigSize, finish, new_axes

__all__ = ["plot_graph"]

LINE, CHAR, POINTS = 13.0, 6.1, 72.0  # of the text, in points; points of an inch
GAP_X, GAP_Y, MARGIN = 16.0, 22.0, 14.0
WIDEST = 100.0  # inches; larger pictures are scaled down


@dataclass(frozen=True)
class Box:
    """A node of the picture: a title, a line of small print, and what it is."""

    title: str
    small: str
    kind: str  # "leaf", "op" or "result"


FILL = {"leaf": "#f1f3f5", "op": "#ffffff", "result": "#eaf0fb"}
EDGE = {"leaf": MUTED, "op": MUTED, "result": COLOURS[0]}


def plot_graph(
    target: Tensor | CompiledFunction | ir.Graph,
    *,
    model: Module | None = None,
    title: str | None = None,
    save_path: PathLike | None = None,
    show: bool = False,
    figsize: FigSize = None,
) -> Any:
    """The graph behind a tensor, of a compiled function (its latest trace), or of `fn.graph()`.

    Parameters of `model` are shown by name. Returns the figure; a `save_path` that ends in .svg or
    .pdf stays sharp at any size.
    """
    if isinstance(target, Tensor):
        boxes, edges = _eager(target, model)
    else:
        graph = target.graph() if isinstance(target, CompiledFunction) else target
        if not isinstance(graph, ir.Graph):
            raise TypeError(
                f"plot_graph takes a tensor, a compiled function or its graph(), got "
                f"{type(target).__name__}"
            )
        boxes, edges = _traced(graph)
    return finish(_figure(boxes, edges, title, figsize), save_path, show)


def _eager(result: Tensor, model: Module | None) -> tuple[dict[Key, Box], list[Edge]]:
    """The boxes, operands first, and the edges of the graph that ends in a tensor."""
    if result.grad_node is None:
        raise EveryOError(
            "plot_graph: the tensor has no graph: nothing that it was computed from requires "
            "gradients, or it was computed under no_grad"
        )
    names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    boxes: dict[Key, Box] = {}
    edges: list[Edge] = []
    for tensor in reversed(topological_order(result)):
        node = tensor.grad_node
        if node is None:
            kind = "parameter" if isinstance(tensor, Parameter) else "tensor"
            name = names.get(id(tensor)) or tensor.name or kind
            boxes[id(tensor)] = Box(name, _typed(tensor), "leaf")
            continue
        kind = "result" if node is result.grad_node else "op"
        boxes[id(node)] = Box(node.operation, _typed(tensor), kind)
        sources = dict.fromkeys(id(p.grad_node or p) for p in node.parents)
        edges += [(source, id(node), "") for source in sources]
    return boxes, edges


def _typed(tensor: Tensor) -> str:
    return f"{tensor.dtype} {'×'.join(map(str, tensor.shape))}".strip()


def _traced(graph: ir.Graph) -> tuple[dict[Key, Box], list[Edge]]:
    """The same for the IR of a compiled function."""
    marks = draw.destinations(graph)
    boxes: dict[Key, Box] = {}
    edges: list[Edge] = []
    for node in ir.walk(graph.roots):
        if node.op in ir.VIEWS or node.op in ("const", "iota"):
            continue
        name, small, leaves = draw.label(node, marks)
        kind = "leaf" if node.op in ir.LEAVES else "result" if leaves else "op"
        boxes[node] = Box(f"{name} {leaves}".strip(), small, kind)
        sources = dict.fromkeys((draw.base(x), draw.views(x)) for x in node.inputs)
        edges += [(source, node, views) for source, views in sources if source in boxes]
    return boxes, edges


def _figure(
    boxes: dict[Key, Box], edges: Iterable[Edge], title: str | None, figsize: FigSize
) -> Any:
    edges = list(edges)
    sizes = {key: (CHAR * _letters(box) + 16.0, 2 * LINE + 8.0) for key, box in boxes.items()}
    plan = Layout(sizes, [(a, b, "") for a, b, _ in edges], GAP_X, GAP_Y)
    head = 2 * LINE if title else 0.0
    width, height = plan.width + 2 * MARGIN, plan.height + 2 * MARGIN + head
    scale = min(1.0, WIDEST * POINTS / max(width, height))
    natural = (max(width * scale / POINTS, 2.0), max(height * scale / POINTS, 1.0))
    figure, (axes,) = new_axes(1, figsize, natural)
    figure.set_layout_engine("none")
    drawn = min(figure.get_figwidth() / width, figure.get_figheight() / height) * POINTS
    axes.set_position((0, 0, 1, 1))
    axes.set_xlim(-MARGIN, plan.width + MARGIN)
    axes.set_ylim(plan.height + MARGIN, -MARGIN - head)
    axes.set_aspect("equal")
    axes.set_axis_off()
    if title:
        axes.text(
            plan.width / 2, -head, title, ha="center", va="center", color=INK,
            fontsize=12 * drawn, fontweight="bold",
        )  # fmt: skip
    for source, end, views in edges:
        _arrow(axes, plan, sizes, source, end, str(views), drawn)
    for key, box in boxes.items():
        _draw_box(axes, box, plan.place[key], sizes[key], drawn)
    return figure


def _letters(box: Box) -> float:
    return max(len(box.title), 0.85 * len(box.small), 4)


def _draw_box(
    axes: Any, box: Box, at: tuple[float, float], size: tuple[float, float], drawn: float
) -> None:
    from matplotlib.patches import FancyBboxPatch

    (x, y), (width, height) = at, size
    patch = FancyBboxPatch(
        at, width, height, boxstyle="round,pad=0,rounding_size=5", facecolor=FILL[box.kind],
        edgecolor=EDGE[box.kind], linewidth=(1.6 if box.kind == "result" else 0.9) * drawn,
        linestyle="--" if box.kind == "leaf" else "-", zorder=2,
    )  # fmt: skip
    axes.add_patch(patch)
    middle = x + width / 2
    common = {"ha": "center", "va": "center", "zorder": 3, "family": "monospace"}
    title_y = y + height * (0.36 if box.small else 0.5)
    axes.text(middle, title_y, box.title, color=INK, fontsize=9.5 * drawn, **common)
    axes.text(middle, y + height * 0.74, box.small, color=MUTED, fontsize=7.5 * drawn, **common)


def _arrow(
    axes: Any, plan: Layout, sizes: dict[Key, Any], source: Key, end: Key, views: str, drawn: float
) -> None:
    """A curve from the bottom of a box, through its vias, to the top of another."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    x, y = plan.place[source]
    start = (x + sizes[source][0] / 2, y + sizes[source][1])
    x, y = plan.place[end]
    stop = (x + sizes[end][0] / 2, y)
    points = [start, *plan.route(source, end, ""), stop]
    vertices, codes = [points[0]], [Path.MOVETO]
    for (ax, ay), (bx, by) in pairwise(points):
        bend = (by - ay) / 2
        vertices += [(ax, ay + bend), (bx, by - bend), (bx, by)]
        codes += [Path.CURVE4] * 3
    arrow = FancyArrowPatch(
        path=Path(vertices, codes), arrowstyle="-|>", mutation_scale=7 * drawn,
        color="#9aa5b1", linewidth=1.0 * drawn, zorder=1, shrinkA=0, shrinkB=0,
    )  # fmt: skip
    axes.add_patch(arrow)
    if views:
        axes.text(
            stop[0] + 3, stop[1] - 6, views, color=MUTED, fontsize=7 * drawn, family="monospace"
        )
