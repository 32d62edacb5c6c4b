"""Sliding windows over the two middle axes of (batch, height, width, channels).

A window of kh x kw taps moves over the padded image. `taps` gives, for each tap in row order, the
image as that tap sees it, one element per window; `columns` has all of them side by side, ready
for a matrix product. `put_back` and `put_columns_back` are their adjoints: they add what belongs to
each tap onto the image. Everything is slices and joins, so every namespace has it; NumPy has a
quicker way to the same values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from everyo.core.namespace import NUMPY, TENSORS
from everyo.exceptions import EveryOShapeError
from everyo.ops.movement import inside_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Where the windows lie, per axis: their size, step and padding, and the distance of taps."""

    window: Pair
    stride: Pair = (1, 1)
    pads: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)

    @property
    def extent(self) -> Pair:
        """How many cells a window reaches over."""
        (h, w), (dh, dw) = self.window, self.dilation
        return (h - 1) * dh + 1, (w - 1) * dw + 1

    @property
    def widths(self) -> tuple[Pair, ...]:
        """The padding of all four axes."""
        return ((0, 0), *self.pads, (0, 0))

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the padded image."""
        return tuple(n + b + a for n, (b, a) in zip(shape, self.widths, strict=True))

    def count(self, shape: Sequence[int]) -> Pair:
        """How many windows fit in each direction."""
        _, height, width, _ = self.padded(shape)
        (eh, ew), (sh, sw) = self.extent, self.stride
        return (height - eh) // sh + 1, (width - ew) // sw + 1

    def keys(self, shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """For each tap, where the windows have it in the padded image."""
        counts = self.count(shape)
        rows, columns = (
            [slice(i * d, i * d + (n - 1) * s + 1, s) for i in range(k)]
            for k, d, n, s in zip(self.window, self.dilation, counts, self.stride, strict=True)
        )
        everything = slice(None)
        return [(everything, row, column, everything) for row in rows for column in columns]


def taps(xp: Any, x: Any, w: Windows, fill: float = 0.0) -> list[Any]:
    """The image as each tap sees it: kh * kw arrays (N, H', W', C). Padding holds `fill`."""
    shape = tuple(x.shape)
    x = pad_image(xp, x, w, fill)
    return [xp.getitem(x, key) for key in w.keys(shape)]


def pad_image(xp: Any, x: Any, w: Windows, fill: float = 0.0) -> Any:
    """The image with its padding."""
    shape = tuple(x.shape)
    outer = w.padded(shape)
    if outer == shape:
        return x
    if xp is TENSORS:
        return xp.pad(x, w.widths, fill)
    if fill == 0:
        return xp.put_add(outer, inside_of(x, w.widths), x)
    return xp.put(xp.full(outer, fill, x.dtype), inside_of(x, w.widths), x)


def columns(xp: Any, x: Any, w: Windows) -> Any:
    """Every window as a row: (N, H, W, C) -> (N * H' * W', kh * kw * C)."""
    n, _, _, channels = x.shape
    rows, across = w.count(x.shape)
    kh, kw = w.window
    flat = (n * rows * across, kh * kw * channels)
    if xp is not NUMPY:
        seen = taps(xp, x, w)
        return xp.reshape(xp.merge(*seen, axis=3) if len(seen) > 1 else seen[0], flat)
    x = pad_image(xp, x, w)
    (sh, sw), (dh, dw) = w.stride, w.dilation
    batch, down, right, channel = x.strides
    view = as_strided(
        x,
        (n, rows, across, kh, kw, channels),
        (batch, down * sh, right * sw, down * dh, right * dw, channel),
        writeable=False,
    )
    return view.reshape(flat)


def put_back(xp: Any, pieces: Sequence[Any], shape: tuple[int, ...], w: Windows) -> Any:
    """Add what each tap gives onto an image of `shape`: the adjoint of `taps`."""
    outer, keys = w.padded(shape), w.keys(shape)
    if xp is NUMPY:
        total = np.zeros(outer, pieces[0].dtype)
        for key, piece in zip(keys, pieces, strict=True):
            total[key] += piece
    else:
        placed = [xp.put_add(outer, key, p) for key, p in zip(keys, pieces, strict=True)]
        total = placed[0]
        for image in placed[1:]:
            total = xp.add(total, image)
    if outer == shape:
        return total
    _, (top, _), (left, _), _ = w.widths
    whole = slice(None)
    inside = (whole, slice(top, top + shape[1]), slice(left, left + shape[2]), whole)
    return xp.getitem(total, inside)


def put_columns_back(xp: Any, rows: Any, shape: tuple[int, ...], w: Windows) -> Any:
    """The adjoint of `columns`: (N * H' * W', kh * kw * C) -> an image of `shape`."""
    n, _, _, channels = shape
    wide = xp.reshape(rows, (n, *w.count(shape), w.window[0] * w.window[1] * channels))
    whole = slice(None)
    pieces = [
        xp.getitem(wide, (whole, whole, whole, slice(k * channels, (k + 1) * channels)))
        for k in range(w.window[0] * w.window[1])
    ]
    return put_back(xp, pieces, shape, w)


# ---------------------------------------------------------------------------------- arguments


def pair_of(value: Any, owner: str, name: str) -> Pair:
    """An int or a pair of ints, all positive, as a pair."""
    given = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(given) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in given):
        raise EveryOShapeError(f"{owner}: {name} must be positive, an int or a pair; got {value!r}")
    return int(given[0]), int(given[1])


def pads_of(padding: Any, owner: str, sizes: Pair, w: Windows) -> tuple[Pair, Pair]:
    """The padding (before, after) per axis: of "valid", "same", an int, a pair of ints or of pairs.

    "same" gives ceil(size / stride) windows; an odd cell goes to the end.
    """
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding == "same":
        total = [
            max((-(-n // s) - 1) * s + e - n, 0)
            for n, s, e in zip(sizes, w.stride, w.extent, strict=True)
        ]
        return (total[0] // 2, total[0] - total[0] // 2), (total[1] // 2, total[1] - total[1] // 2)
    axes = tuple(padding) if isinstance(padding, tuple | list) else (padding, padding)
    pairs = [tuple(p) if isinstance(p, tuple | list) else (p, p) for p in axes]
    fits = len(pairs) == 2 and all(
        len(p) == 2 and all(isinstance(n, int | np.integer) and n >= 0 for n in p) for p in pairs
    )
    if not fits or isinstance(padding, bool):
        raise EveryOShapeError(
            f"Unknown padding {padding!r} in {owner}: use 'valid', 'same', a non-negative int, or "
            "for each axis an int or (before, after)"
        )
    (top, bottom), (left, right) = pairs
    return (int(top), int(bottom)), (int(left), int(right))


def windows_of(
    owner: str, shape: Sequence[int], window: Pair, stride: Any, padding: Any, dilation: Any = 1
) -> Windows:
    """The windows over an image of a shape; `EveryOShapeError` if not even one fits."""
    w = Windows(
        window, pair_of(stride, owner, "stride"), dilation=pair_of(dilation, owner, "dilation")
    )
    pads = pads_of(padding, owner, (shape[1], shape[2]), w)
    w = Windows(window, w.stride, pads, w.dilation)
    _, height, width, _ = w.padded(shape)
    if w.extent[0] > height or w.extent[1] > width:
        raise EveryOShapeError(
            f"{owner}: a window of {w.extent} cells does not fit; it is larger than the padded "
            f"image ({height}, {width})"
        )
    return w
