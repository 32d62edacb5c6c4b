"""Convolution and its transpose, over (batch, height, width, channels).

A convolution is one matrix product: every window of the image is a row, the kernel
(kh, kw, in, out) a matrix. Its three parts (the product, and the gradients of image and kernel) are
an op each, and the gradients of each are the two others.
"""

import itertools
from typing import Any

import numpy as np

from everyo.core.autocast import narrowed
from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.op import Sample, apply, op
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.ops.movement import reshape, transpose
from everyo.ops.windows import (
    Pair,
    Windows,
    columns,
    interleaved,
    pads_of,
    pair_of,
    phases,
    put_columns_back,
    reach,
    windows_of,
)

# ---------------------------------------------------------------------------------- the three parts


def _product(xp: Any, x: Any, kernel: Any, w: Windows, groups: int) -> Any:
    """Windows times kernel: (N, H, W, C), (kh, kw, C / groups, O) -> (N, H', W', O)."""
    if xp is TENSORS:
        return apply(CONV2D, x, kernel, w=w, groups=groups)
    n, out = x.shape[0], kernel.shape[-1]
    y = xp.matmul(columns(xp, x, w, groups), _matrix(xp, kernel, groups))
    return xp.reshape(_joined(xp, y, groups), (n, *w.count(x.shape), out))


def _onto_image(
    xp: Any, g: Any, kernel: Any, shape: tuple[int, ...], w: Windows, groups: int
) -> Any:
    """The gradient of the image: (N, H', W', O) and the kernel -> an image of `shape`.

    NumPy multiplies and adds up by taps. What is compiled is a convolution of the windows that see
    a cell, with the taps in reverse: one per phase of the stride.
    """
    if xp is TENSORS:
        return apply(CONV_TRANSPOSE2D, g, kernel, w=w, shape=shape, groups=groups)
    if xp is NUMPY:
        flat = _split(xp, xp.reshape(g, (-1, g.shape[-1])), groups)
        matrix = _matrix(xp, kernel, groups)
        rows = xp.matmul(flat, xp.transpose(matrix, (1, 0) if groups == 1 else (0, 2, 1)))
        return put_columns_back(xp, _by_window(xp, rows, w, groups), shape, w)
    n, _, _, channels = shape
    whole, parts = slice(None), []
    kernel = xp.copy(kernel)  # what is reshaped below is no view of a parameter that may be written
    around, (top, left) = reach(xp, g, w, shape)
    for down, right in itertools.product(*(phases(w, shape, i) for i in (0, 1))):
        if not down.taps or not right.taps:
            continue
        some = xp.getitem(kernel, (down.backwards, right.backwards))
        key = (slice(top + down.start, top + down.end), slice(left + right.start, left + right.end))
        seen = Windows((len(down.taps), len(right.taps)), dilation=(down.spacing, right.spacing))
        rows = columns(xp, xp.getitem(around, (whole, *key)), seen, groups)
        y = xp.matmul(rows, _turned(xp, some, groups))
        part = xp.reshape(_joined(xp, y, groups), (n, down.count, right.count, channels))
        parts.append((down, right, part))
    return interleaved(xp, parts, shape, w, g)


def _onto_kernel(xp: Any, x: Any, g: Any, shape: tuple[int, ...], w: Windows, groups: int) -> Any:
    """The gradient of the kernel, of `shape`, from the image and (N, H', W', O)."""
    if xp is TENSORS:
        return apply(CONV2D_KERNEL, x, g, w=w, shape=shape, groups=groups)
    rows = columns(xp, x, w, groups)
    flat = _split(xp, xp.reshape(g, (-1, g.shape[-1])), groups)
    matrix = xp.matmul(xp.transpose(rows, (1, 0) if groups == 1 else (0, 2, 1)), flat)
    return xp.reshape(_joined(xp, matrix, groups), shape)


def _by_window(xp: Any, rows: Any, w: Windows, groups: int) -> Any:
    """Products per group (groups, P, taps * C / groups) as rows of windows (P, taps * C)."""
    if groups == 1:
        return rows
    count, (_, size, width) = w.window[0] * w.window[1], rows.shape
    apart = xp.reshape(rows, (groups, size, count, width // count))
    return xp.reshape(xp.transpose(apart, (1, 2, 0, 3)), (size, groups * width))


def _matrix(xp: Any, kernel: Any, groups: int) -> Any:
    """The kernel as a matrix (taps * C / groups, O), or one per group."""
    kh, kw, channels, out = kernel.shape
    return _split(xp, xp.reshape(kernel, (kh * kw * channels, out)), groups)


def _turned(xp: Any, kernel: Any, groups: int) -> Any:
    """The kernel as a matrix (taps * O, C), or per group (taps * O / groups, C / groups)."""
    kh, kw, channels, out = kernel.shape
    if groups == 1:
        return xp.reshape(xp.transpose(kernel, (0, 1, 3, 2)), (kh * kw * out, channels))
    apart = xp.reshape(kernel, (kh, kw, channels, groups, out // groups))
    return xp.reshape(
        xp.transpose(apart, (3, 0, 1, 4, 2)), (groups, kh * kw * out // groups, channels)
    )


def _split(xp: Any, a: Any, groups: int) -> Any:
    """(P, O) as it is, or for groups as (groups, P, O / groups)."""
    if groups == 1:
        return a
    return xp.transpose(xp.reshape(a, (a.shape[0], groups, a.shape[1] // groups)), (1, 0, 2))


def _joined(xp: Any, a: Any, groups: int) -> Any:
    """The adjoint of `_split`."""
    if groups == 1:
        return a
    _, size, width = a.shape
    return xp.reshape(xp.transpose(a, (1, 0, 2)), (size, groups * width))


# ---------------------------------------------------------------------------------- convolution


def _convolved(x: Any, kernel: Any, w: Windows, groups: int) -> np.ndarray:
    """The reference: windows by NumPy, one einsum per group."""
    (sh, sw), (dh, dw) = w.stride, w.dilation
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, w.widths), w.extent, (1, 2))
    seen = seen[:, ::sh, ::sw, :, ::dh, ::dw]
    parts = zip(np.split(seen, groups, 3), np.split(kernel, groups, 3), strict=True)
    return np.concatenate([np.einsum("nhwcij,ijco->nhwo", a, b) for a, b in parts], 3)


_CASES = (
    (((2, 5, 4, 3), (3, 2, 3, 4)), {"w": Windows((3, 2)), "groups": 1}),
    (((2, 5, 4, 2), (3, 3, 2, 2)), {"w": Windows((3, 3), (2, 1), ((1, 1), (0, 1))), "groups": 1}),
    (((1, 6, 5, 4), (2, 2, 2, 6)), {"w": Windows((2, 2), (1, 2), dilation=(2, 1)), "groups": 2}),
)


@op(
    vjp=(
        lambda xp, g, y, x, k, w, groups: _onto_image(xp, g, k, tuple(x.shape), w, groups),
        lambda xp, g, y, x, k, w, groups: _onto_kernel(xp, x, g, tuple(k.shape), w, groups),
    ),
    saves=("b", "a"),
    kind="convolution",
    samples=[Sample(shapes, params) for shapes, params in _CASES],
    reference=_convolved,
)
def conv2d_(xp: Any, x: Any, kernel: Any, *, w: Windows, groups: int) -> Any:
    """Cross-correlation of images with a kernel: (N, H, W, C), (kh, kw, C / groups, O)."""
    return _product(xp, x, kernel, w, groups)


@op(
    vjp=(
        lambda xp, g, y, x, k, w, shape, groups: _product(xp, g, k, w, groups),
        lambda xp, g, y, x, k, w, shape, groups: _onto_kernel(xp, g, x, tuple(k.shape), w, groups),
    ),
    saves=("b", "a"),
    kind="convolution",
    samples=(
        Sample(
            ((2, 3, 3, 4), (3, 2, 3, 4)), {"w": Windows((3, 2)), "shape": (2, 5, 4, 3), "groups": 1}
        ),
        Sample(
            ((1, 3, 2, 4), (2, 3, 2, 4)),
            {"w": Windows((2, 3), (2, 2), ((0, 0), (1, 1))), "shape": (1, 6, 4, 4), "groups": 2},
        ),
    ),
)
def conv_transpose2d_(
    xp: Any, x: Any, kernel: Any, *, w: Windows, shape: tuple[int, ...], groups: int
) -> Any:
    """The adjoint of a convolution by its image: (N, H', W', O) -> an image of `shape`."""
    return _onto_image(xp, x, kernel, shape, w, groups)


@op(
    vjp=(
        lambda xp, g, y, x, z, w, shape, groups: _onto_image(xp, z, g, tuple(x.shape), w, groups),
        lambda xp, g, y, x, z, w, shape, groups: _product(xp, x, g, w, groups),
    ),
    saves=("b", "a"),
    kind="convolution",
    samples=(
        Sample(
            ((2, 5, 4, 3), (2, 3, 3, 4)), {"w": Windows((3, 2)), "shape": (3, 2, 3, 4), "groups": 1}
        ),
        Sample(
            ((1, 6, 4, 4), (1, 3, 2, 4)),
            {"w": Windows((2, 3), (2, 2), ((0, 0), (1, 1))), "shape": (2, 3, 2, 4), "groups": 2},
        ),
    ),
)
def conv2d_kernel_(
    xp: Any, x: Any, z: Any, *, w: Windows, shape: tuple[int, ...], groups: int
) -> Any:
    """The adjoint of a convolution by its kernel: image and (N, H', W', O) -> one of `shape`."""
    return _onto_kernel(xp, x, z, shape, w, groups)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: images (N, H, W, C), kernel (kh, kw, C / groups, O) -> (N, H', W', O).

    `padding` is "valid", "same" (H' = ceil(H / stride)), an int, or a pair with an int or (before,
    after) per axis. Raises `EveryOShapeError` for ranks, channels or sizes that do not fit.
    """
    x, weight = _ranked("conv2d", x, weight, 4)
    _grouped("conv2d", groups, x.shape[3], weight.shape[2] * groups, weight.shape[3])
    window = pair_of(weight.shape[:2], "conv2d", "the kernel")
    w = windows_of("conv2d", x.shape, window, stride, padding, dilation)
    return _with_bias("conv2d", apply(CONV2D, x, weight, w=w, groups=groups), bias)


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int = 1,
    padding: Any = "valid",
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of sequences (N, L, C) with a kernel (k, C / groups, O) -> (N, L', O).

    `padding` is "valid", "same", an int, or (before, after). Otherwise as `conv2d`.
    """
    x, weight = _ranked("conv1d", x, weight, 3)
    n, length, channels = x.shape
    rows = padding if isinstance(padding, str) else (0, padding)
    y = conv2d(
        reshape(x, (n, 1, length, channels)),
        reshape(weight, (1, *weight.shape)),
        bias,
        stride=(1, stride),
        padding=rows,
        dilation=(1, dilation),
        groups=groups,
    )
    return reshape(y, (n, *y.shape[2:]))


def conv_transpose2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = "valid",
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose of a convolution: (N, H, W, C) -> (N, H', W', O).

    The kernel is (kh, kw, C, O / groups).
    H' = (H - 1) * stride + extent - padding + output_padding, or H * stride for "same": a size that
    `conv2d` with the same stride and padding maps to H.
    """
    name = "conv_transpose2d"
    x, weight = _ranked(name, x, weight, 4)
    kh, kw, channels, out = weight.shape
    _grouped(name, groups, x.shape[3], channels, out * groups)
    steps, apart = pair_of(stride, name, "stride"), pair_of(dilation, name, "dilation")
    extent = Windows(pair_of((kh, kw), name, "the kernel"), dilation=apart).extent
    n, *sizes, _ = x.shape
    if padding == "same":
        sizes = [m * s for m, s in zip(sizes, steps, strict=True)]
    else:
        removed = pads_of(padding, name, (1, 1), Windows((kh, kw), steps, dilation=apart))
        more = _output_padding(output_padding, steps)
        sizes = [
            (m - 1) * s + e - sum(r) + o
            for m, s, e, r, o in zip(sizes, steps, extent, removed, more, strict=True)
        ]
    shape = (n, *sizes, out * groups)
    if min(sizes) <= 0:
        raise EveryOShapeError(f"{name}: padding {padding!r} leaves nothing of {x.shape}")
    w = windows_of(name, shape, (kh, kw), steps, padding, apart)
    # as the kernel of the convolution that this transposes: (kh, kw, O / groups, C)
    kernel = transpose(weight, (0, 1, 3, 2))
    y = apply(CONV_TRANSPOSE2D, x, kernel, w=w, shape=shape, groups=groups)
    return _with_bias(name, y, bias)


def _output_padding(value: Any, steps: Pair) -> Pair:
    given = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(given) != 2 or not all(0 <= v < s for v, s in zip(given, steps, strict=True)):
        raise EveryOShapeError(
            f"conv_transpose2d: output_padding must lie in [0, stride), got {value!r} for {steps}"
        )
    return int(given[0]), int(given[1])


def _ranked(owner: str, x: Any, weight: Any, rank: int) -> tuple[Tensor, Tensor]:
    x, weight = narrowed(as_tensor(x)), narrowed(as_tensor(weight))
    layout = "(batch, height, width, channels)" if rank == 4 else "(batch, length, channels)"
    if x.ndim != rank:
        raise EveryOShapeError(f"{owner} expects a {rank}-D tensor {layout}, got shape {x.shape}")
    if weight.ndim != rank:
        sizes = "kh, kw" if rank == 4 else "k"
        raise EveryOShapeError(
            f"{owner} expects a {rank}-D kernel ({sizes}, in, out), got shape {weight.shape}"
        )
    return x, weight


def _grouped(owner: str, groups: int, found: int, expected: int, out: int) -> None:
    if not isinstance(groups, int) or groups <= 0 or expected % groups or out % groups:
        raise EveryOShapeError(
            f"{owner}: groups must be positive and divide the channels, got groups={groups!r} for "
            f"{expected} -> {out} channels"
        )
    if found != expected:
        raise EveryOShapeError(
            f"{owner}: the image has {found} channel(s), the kernel expects {expected}"
        )


def _with_bias(owner: str, y: Tensor, bias: Any) -> Tensor:
    if bias is None:
        return y
    bias = narrowed(as_tensor(bias))
    if bias.shape != y.shape[3:]:
        raise EveryOShapeError(f"{owner}: bias must have shape {y.shape[3:]}, got {bias.shape}")
    return y + bias


CONV2D, CONV_TRANSPOSE2D, CONV2D_KERNEL = conv2d_.op, conv_transpose2d_.op, conv2d_kernel_.op
