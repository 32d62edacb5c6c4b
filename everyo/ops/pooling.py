"""Pooling: the largest value or the mean of each window of (batch, height, width, channels)."""

import functools
from typing import Any

import numpy as np

from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.op import Sample, apply, op
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.ops.windows import Windows, looked_back, pair_of, put_back, taps, windows_of

NOWHERE = -1  # the tap of a window that has no maximum, being NaN


def _first_of_the_largest(xp, g, y, x, w):
    """The gradient goes to the first tap, in window order, that holds the maximum."""
    seen = taps(xp, x, w, lowest(x))
    if xp is NUMPY or xp is TENSORS:
        pieces, taken = [], None
        for one in seen:
            hit = mine = xp.equal(one, y)
            if taken is not None:
                mine = xp.logical_and(hit, xp.logical_not(taken))
            taken = hit if taken is None else xp.logical_or(taken, hit)
            pieces.append(xp.where(mine, g, 0.0))
        return put_back(xp, pieces, tuple(x.shape), w)
    first = NOWHERE
    for t, one in reversed([*enumerate(seen)]):
        first = xp.where(xp.equal(one, y), t, first)
    return looked_back(
        xp, [(g, 0.0), (first, NOWHERE)], lambda tap, g, first: xp.where(
            xp.equal(first, tap), g, 0.0), tuple(x.shape), w)  # fmt: skip


def lowest(x: Any) -> float:
    """What never is a maximum: -inf, or the smallest integer."""
    dtype = np.dtype(x.dtype)
    return -float("inf") if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _windows_of_image(x: Any, w: Windows, fill: float) -> np.ndarray:
    """The reference: (N, H', W', C, kh, kw) by NumPy."""
    sh, sw = w.stride
    padded = np.pad(x, w.widths, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, w.window, (1, 2))[:, ::sh, ::sw]


_POOLS = (
    Sample(((2, 4, 6, 3),), {"w": Windows((2, 2), (2, 2))}),
    Sample(((1, 5, 5, 2),), {"w": Windows((3, 2), (2, 2), ((1, 1), (0, 1)))}),
    Sample(((1, 5, 4, 2),), {"w": Windows((3, 3), (1, 1))}),
)


@op(
    vjp=_first_of_the_largest,
    saves="ya",
    kind="convolution",
    samples=_POOLS,
    reference=lambda x, w: _windows_of_image(x, w, -np.inf).max((4, 5)),
)
def max_pool2d_(xp: Any, x: Any, *, w: Windows) -> Any:
    """The largest value of each window; NaN if there is one."""
    return functools.reduce(xp.maximum, taps(xp, x, w, lowest(x)))


@functools.lru_cache(256)
def _cells(shape: tuple[int, ...], w: Windows, dtype: np.dtype) -> Any:
    """How many cells of each window are real: a number, or an array (H', W', 1) at padded edges."""
    per_axis = []
    for size, k, s, (before, _), n in zip(
        shape[1:3], w.window, w.stride, w.pads, w.count(shape), strict=True
    ):
        start = np.arange(n) * s - before
        per_axis.append(np.minimum(start + k, size) - np.maximum(start, 0))
    cells = np.outer(*per_axis)
    if (cells == w.window[0] * w.window[1]).all():
        return float(w.window[0] * w.window[1])
    return cells[:, :, None].astype(dtype)


def _share(xp: Any, total: Any, x: Any, w: Windows) -> Any:
    return xp.divide(total, _cells(tuple(x.shape), w, np.dtype(x.dtype)))


@op(
    vjp=lambda xp, g, y, x, w: looked_back(
        xp, [(_share(xp, g, x, w), 0.0)], lambda tap, share: share, tuple(x.shape), w
    ),
    kind="convolution",
    samples=_POOLS,
    reference=lambda x, w: np.nanmean(
        np.where(
            _windows_of_image(np.ones_like(x), w, 0.0) == 1, _windows_of_image(x, w, 0.0), np.nan
        ),
        (4, 5),
    ),
)
def avg_pool2d_(xp: Any, x: Any, *, w: Windows) -> Any:
    """The mean of each window over the cells that are not padding."""
    return _share(xp, functools.reduce(xp.add, taps(xp, x, w)), x, w)


def max_pool2d(x: Any, pool_size: Any = 2, *, stride: Any = None, padding: Any = "valid") -> Tensor:
    """The largest value of each window: (N, H, W, C) -> (N, H', W', C). Padding never counts.

    `stride` is the window by default; `padding` as in `conv2d`. At a tie the gradient goes to the
    first element of the window.
    """
    x = as_tensor(x)
    return apply(MAX_POOL2D, x, w=_pools("max_pool2d", x, pool_size, stride, padding))


def avg_pool2d(x: Any, pool_size: Any = 2, *, stride: Any = None, padding: Any = "valid") -> Tensor:
    """The mean of each window over real cells: (N, H, W, C) -> (N, H', W', C).

    `stride` is the window by default; `padding` as in `conv2d`.
    """
    x = as_tensor(x)
    return apply(AVG_POOL2D, x, w=_pools("avg_pool2d", x, pool_size, stride, padding))


def _pools(owner: str, x: Tensor, pool_size: Any, stride: Any, padding: Any) -> Windows:
    if x.ndim != 4:
        raise EveryOShapeError(
            f"{owner} expects a 4-D tensor (batch, height, width, channels), got shape {x.shape}"
        )
    window = pair_of(pool_size, owner, "pool_size")
    w = windows_of(owner, x.shape, window, window if stride is None else stride, padding)
    if any(max(pads) >= k for pads, k in zip(w.pads, window, strict=True)):
        raise EveryOShapeError(
            f"{owner}: padding {padding!r} must be smaller than the window {window}, or a window "
            "would hold nothing but padding"
        )
    return w


MAX_POOL2D, AVG_POOL2D = max_pool2d_.op, avg_pool2d_.op
