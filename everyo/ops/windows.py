"""Sliding windows over the two middle axes of (batch, height, width, channels).

A window of kh x kw taps moves over the padded image. `taps` gives, for each tap in row order, the
image as that tap sees it, one element per window; `columns` has every window as a row, ready for a
matrix product, without moving anything. `put_back` and `put_columns_back` are their adjoints: they
add what belongs to each tap onto the image. `looked_back` gives the same image cell by cell: cells
that lie alike in their windows (a `Phase`) see these as windows again, so a compiler needs no
temporary per tap.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    x = padded(xp, x, w.widths, fill)
    return [xp.getitem(x, key) for key in w.keys(shape)]


def padded(xp: Any, x: Any, widths: tuple[Pair, ...], fill: float = 0.0) -> Any:
    """The array surrounded by `fill`."""
    if not any(map(any, widths)):
        return x
    if xp is TENSORS:
        return xp.pad(x, widths, fill)
    outer = tuple(n + b + a for n, (b, a) in zip(x.shape, widths, strict=True))
    if fill == 0:
        return xp.put_add(outer, inside_of(x, widths), x)
    return xp.put(xp.full(outer, fill, x.dtype), inside_of(x, widths), x)


def columns(xp: Any, x: Any, w: Windows, groups: int = 1) -> Any:
    """Every window of an image as a row, (N * H' * W', kh * kw * C), or for groups of channels
    (groups, N * H' * W', kh * kw * C / groups). A view wherever views have such strides."""
    counts = w.count(x.shape)
    x = padded(xp, x, w.widths)
    for axis, i in ((1, 0), (3, 1)):
        x = xp.windows(
            x, axis=axis, count=counts[i], size=w.window[i], step=w.stride[i], spacing=w.dilation[i]
        )
    n, rows, kh, across, kw, channels = x.shape
    points, cells = n * rows * across, kh * kw * channels
    if groups == 1:
        return xp.reshape(xp.transpose(x, (0, 1, 3, 2, 4, 5)), (points, cells))
    x = xp.reshape(x, (n, rows, kh, across, kw, groups, channels // groups))
    return xp.reshape(xp.transpose(x, (5, 0, 1, 3, 2, 4, 6)), (groups, points, cells // groups))


def put_back(xp: Any, pieces: Sequence[Any], shape: tuple[int, ...], w: Windows) -> Any:
    """Add what each tap gives onto an image of `shape`: the adjoint of `taps`."""
    outer, keys = w.padded(shape), w.keys(shape)
    if xp is NUMPY:
        total = np.zeros(outer, pieces[0].dtype)
        for key, piece in zip(keys, pieces, strict=True):
            total[key] += piece
    else:
        total = functools.reduce(
            xp.add, [xp.put_add(outer, key, p) for key, p in zip(keys, pieces, strict=True)]
        )
    if outer == shape:
        return total
    inside = [slice(b, b + n) for n, (b, _) in zip(shape, w.widths, strict=True)]
    return xp.getitem(total, tuple(inside))


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


# ---------------------------------------------------------------------------------- looking back


@dataclass(frozen=True)
class Phase:
    """Cells of one axis that lie alike in the windows over it: `count` from `first` on, a stride
    apart. The q-th of them is tap `taps[t]` of window `start + q + t * spacing`."""

    first: int
    count: int
    taps: tuple[int, ...]
    start: int
    spacing: int

    @property
    def end(self) -> int:
        """Behind the last window that sees one of the cells."""
        return self.start + self.count + max(len(self.taps) - 1, 0) * self.spacing

    @property
    def backwards(self) -> slice:
        """The taps as an index."""
        step = self.taps[1] - self.taps[0] if len(self.taps) > 1 else -1
        stop = self.taps[-1] + step
        return slice(self.taps[0], stop if stop >= 0 else None, step)


def phases(w: Windows, shape: Sequence[int], i: int) -> list[Phase]:
    """The phases of axis i (0: height, 1: width) of an image: as many as the stride, or fewer."""
    size, k, s, d = shape[1 + i], w.window[i], w.stride[i], w.dilation[i]
    before = w.pads[i][0]
    found = []
    for p in range(s):
        q = -((p - before) // s)
        first = q * s + p - before
        if first < size:
            taps = tuple(t for t in reversed(range(k)) if t * d % s == p)
            start = q - (taps[0] * d - p) // s if taps else q
            found.append(Phase(first, -((first - size) // s), taps, start, d // math.gcd(s, d)))
    return found


def reach(xp: Any, g: Any, w: Windows, shape: Sequence[int], fill: float = 0.0) -> tuple[Any, Pair]:
    """What there is per window (N, H', W', ...), surrounded by `fill` so that every phase finds all
    it looks at; and where the first window is now."""
    seen = [[p for p in phases(w, shape, i) if p.taps] for i in (0, 1)]
    pads = [
        (max([0, *(-p.start for p in axis)]), max([0, *(p.end - n for p in axis)]))
        for axis, n in zip(seen, g.shape[1:3], strict=True)
    ]
    return padded(xp, g, ((0, 0), *pads, (0, 0)), fill), (pads[0][0], pads[1][0])


def interleaved(
    xp: Any,
    parts: Sequence[tuple[Phase, Phase, Any]],
    shape: tuple[int, ...],
    w: Windows,
    like: Any,
) -> Any:
    """The image of which each part has the cells of its two phases; elsewhere it is zero."""
    whole = slice(None)
    if len(parts) == 1 and tuple(parts[0][2].shape) == shape:
        return parts[0][2]
    image = xp.zeros(shape, like.dtype)
    for down, right, part in parts:
        row, column = (
            slice(p.first, p.first + (p.count - 1) * s + 1, s)
            for p, s in zip((down, right), w.stride, strict=True)
        )
        image = xp.put(image, (whole, row, column, whole), part)
    return image


def looked_back(
    xp: Any,
    given: Sequence[tuple[Any, float]],
    piece: Callable[..., Any],
    shape: tuple[int, ...],
    w: Windows,
) -> Any:
    """The image whose cells are sums of piece(tap, *values) over the taps that see them.

    `given` are arrays (N, H', W', C) of values per window, each with one that stands for no window.
    Where windows do not overlap, the image is one map over all its cells; elsewhere it is one sum
    per phase. `put_back` adds the same up by taps.
    """
    if xp is NUMPY or xp is TENSORS:
        values = [a for a, _ in given]
        pieces = [piece(t, *values) for t in range(w.window[0] * w.window[1])]
        return put_back(xp, pieces, shape, w)
    if w.stride == w.window and w.dilation == (1, 1):
        return _tiled(xp, [a for a, _ in given], piece, shape, w)
    arrays = [reach(xp, a, w, shape, fill) for a, fill in given]
    rows, columns = (phases(w, shape, i) for i in (0, 1))
    whole, (top, left) = slice(None), arrays[0][1]
    parts = []
    for down, right in itertools.product(rows, columns):
        total = None
        for (a, i), (b, j) in itertools.product(enumerate(down.taps), enumerate(right.taps)):
            y = top + down.start + a * down.spacing
            x = left + right.start + b * right.spacing
            key = (whole, slice(y, y + down.count), slice(x, x + right.count), whole)
            mine = piece(i * w.window[1] + j, *(xp.getitem(v, key) for v, _ in arrays))
            total = mine if total is None else xp.add(total, mine)
        if total is not None:
            parts.append((down, right, total))
    return interleaved(xp, parts, shape, w, given[0][0])


def _tiled(
    xp: Any, arrays: Sequence[Any], piece: Callable[..., Any], shape: tuple[int, ...], w: Windows
) -> Any:
    """`looked_back` for windows side by side: every cell belongs to at most one."""
    (kh, kw), (n, rows, across, channels) = w.window, arrays[0].shape
    grid = (1, 1, kh, 1, kw, 1)
    tap = xp.add(xp.multiply(xp.iota(grid, 2), kw), xp.iota(grid, 4))
    values = [xp.reshape(a, (n, rows, 1, across, 1, channels)) for a in arrays]
    image = xp.broadcast_to(piece(tap, *values), (n, rows, kh, across, kw, channels))
    image = xp.reshape(image, (n, rows * kh, across * kw, channels))
    (top, _), (left, _) = w.pads
    whole = slice(None)
    image = xp.getitem(image, (whole, slice(top, top + shape[1]), slice(left, left + shape[2])))
    missing = [(0, have - n) for have, n in zip(shape, image.shape, strict=True)]
    return padded(xp, image, tuple(missing))


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
