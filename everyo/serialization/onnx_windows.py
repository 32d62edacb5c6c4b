"""Convolutions found again in a graph: a product of the windows of a padded image with a matrix.

The recorder knows no convolution, only views and products. ONNX has an operator for it that
runtimes are good at, so the pattern that `everyo.ops.convolution` leaves is looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everyo.serialization.onnx_graph import ONE, Sizes, Value

WINDOWS_FIRST = (0, 1, 3, 2, 4, 5)  # (n, rows, kh, across, kw, channels): windows, then their cells
GROUPS_FIRST = (5, 0, 1, 3, 2, 4, 6)  # the same with the channels of a group last
ZERO = type(ONE)(0, 0)


@dataclass(frozen=True)
class Convolution:
    """What ONNX calls so; `image` is the position of an unpadded image (n, height, width, c)."""

    image: int
    window: tuple[int, int]
    counts: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    groups: int


def convolution(values: Sequence[Value], refs: Sequence[Any], v: Value) -> Convolution | None:
    """The convolution that a product is, None if it is none."""

    def below(node: Value, op: str, **params: Any) -> Value | None:
        fits = node.node.op == op and all(node.params[k] == p for k, p in params.items())
        return values[node.inputs[0]] if fits else None

    groups = 1
    seen = below(values[v.inputs[0]], "reshape")
    if seen is not None and len(seen.shape) == 7:
        groups = seen.shape[0].more
        seen = below(seen, "transpose", axes=_sizes(GROUPS_FIRST))
        seen = None if seen is None else below(seen, "reshape")
    elif seen is not None:
        seen = below(seen, "transpose", axes=_sizes(WINDOWS_FIRST))
    across = seen
    if across is None or below(across, "window", axis=type(ONE)(0, 3)) is None:
        return None
    down = values[across.inputs[0]]
    image = below(down, "window", axis=type(ONE)(0, 1))
    if image is None or len(image.shape) != 4:
        return None
    at, (pads, inner) = down.inputs[0], _padding(values, refs, image)
    if inner is not None:
        at = inner
    given = [
        [w.params[name] for w in (down, across)] for name in ("size", "count", "step", "spacing")
    ]
    sizes = [s for pair in given for s in pair] + list(image.shape[1:])
    if any(not s.fixed for s in sizes):
        return None
    window, counts, strides, dilations = ((a.more, b.more) for a, b in given)
    for n, k, count, s, d in zip(
        (image.shape[1].more, image.shape[2].more), window, counts, strides, dilations, strict=True
    ):
        if count != (n - (k - 1) * d - 1) // s + 1:  # ONNX has as many windows as there fit
            return None
    return Convolution(at, window, counts, strides, dilations, pads, groups)


def _sizes(numbers: Sequence[int]) -> Sizes:
    return tuple(type(ONE)(0, n) for n in numbers)


def _padding(
    values: Sequence[Value], refs: Sequence[Any], image: Value
) -> tuple[tuple[int, int, int, int], int | None]:
    """The zeros around an image, and the position of what they are around; None if it has none."""
    none = (0, 0, 0, 0), None
    if image.node.op != "assemble" or len(image.inputs) != 2:
        return none
    fill = refs[image.inputs[0]].constant
    inner = values[image.inputs[1]].shape
    before = image.params["starts"][0]
    whole = all(s == ONE for s in image.params["steps"][0])
    if fill is None or fill.size != 1 or fill.reshape(-1)[0] != 0 or not whole:
        return none
    edges = (before[0], before[3]) == (ZERO, ZERO) and inner[0] == image.shape[0]
    if not edges or inner[3] != image.shape[3] or any(not s.fixed for s in inner[1:]):
        return none
    (top, left), (height, width) = ([s.more for s in x[1:3]] for x in (before, inner))
    bottom, right = image.shape[1].more - top - height, image.shape[2].more - left - width
    return (top, left, bottom, right), image.inputs[1]


def convolved(emit: Any, image: str, matrix: str, found: Convolution, v: Value) -> str:
    """Write the operator; the name of the product as the graph has it. ONNX has channels first."""
    (kh, kw), g = found.window, found.groups
    cells, out = v.shape[-1].more, v.shape[-1].more * g
    channels = emit.graph.values[v.inputs[1]].shape[-2].more // (kh * kw)
    sizes = (g, kh, kw, channels, cells) if g > 1 else (kh, kw, channels, out)
    kernel = emit._to_shape(matrix, _sizes(sizes))
    kernel = emit("Transpose", kernel, perm=(0, 4, 3, 1, 2) if g > 1 else (3, 2, 0, 1))
    if g > 1:
        kernel = emit._to_shape(kernel, _sizes((out, channels, kh, kw)))
    name = emit(
        "Conv", emit("Transpose", image, perm=(0, 3, 1, 2)), kernel, group=g,
        kernel_shape=found.window, strides=found.strides, dilations=found.dilations,
        pads=found.pads,
    )  # fmt: skip
    name = emit("Transpose", name, perm=(0, 2, 3, 1))
    if g == 1:
        return emit._to_shape(name, v.shape)
    name = emit._to_shape(name, (v.shape[-2], *_sizes((g, cells))))
    return emit("Transpose", name, perm=(1, 0, 2))
