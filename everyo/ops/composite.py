"""Losses and normalisation as ops: one named node each in the eager graph, dissolved by the
compiler."""

from typing import Any

import numpy as np

from everyo.core.namespace import all_hold
from everyo.core.op import Sample, op
from everyo.exceptions import EveryOShapeError
from everyo.ops.reduce import axes_of, floating, mean_over

_LABELS = np.array([0, 2, 1, 2])


def require_inside(xp: Any, values: Any, count: int, name: str) -> None:
    """Raise `EveryOShapeError` (or, in a trace, record a check) unless all lie in [0, count)."""
    inside = xp.logical_and(xp.greater_equal(values, 0), xp.less(values, count))
    xp.require(
        all_hold(xp, inside),
        EveryOShapeError,
        f"{name} are out of range; they must lie in [0, {count})",
    )


@op(
    vjp=(lambda xp, g, y, a, index: xp.spread(g, index, a.shape[-1]), None),
    saves=("b", ""),
    plain="b",
    kind="indexing",
    samples=(Sample(((4, 3), (4,)), fixed={1: _LABELS}),),
    reference=lambda a, i: a[np.arange(len(i)), i],
)
def pick(xp, a, index):
    """One element of each row: (..., n), (...) -> (...). Indices lie in [0, n)."""
    require_inside(xp, index, a.shape[-1], "pick: indices")
    return xp.pick(a, index)


@op(
    vjp=(lambda xp, g, y, v, index, n: xp.pick(g, index), None),
    saves=("b", ""),
    plain="b",
    kind="indexing",
    samples=(Sample(((4,), (4,)), params={"n": 3}, fixed={1: _LABELS}),),
    reference=lambda v, i, n: np.where(np.arange(n) == i[:, None], v[:, None], 0),
)
def spread(xp, v, index, *, n):
    """Rows of n zeros with v at the index: (...), (...) -> (..., n). The adjoint of pick."""
    require_inside(xp, index, n, "spread: indices")
    return xp.spread(v, index, n)


def _rows(xp, a):
    """exp(a - max) and its sum, along the last axis."""
    shifted = xp.subtract(a, xp.max(a, axis=(len(a.shape) - 1,), keepdims=True))
    e = xp.exp(shifted)
    return shifted, e, xp.sum(e, axis=(len(a.shape) - 1,), keepdims=True)


def _cross_entropy_vjp(xp, g, y, a, labels):
    _, e, total = _rows(xp, a)
    scale = xp.divide(xp.reshape(g, (*g.shape, 1)), total)
    return xp.subtract(xp.multiply(e, scale), xp.spread(g, labels, a.shape[-1]))


@op(
    vjp=(_cross_entropy_vjp, None),
    saves=("ab", ""),
    plain="b",
    kind="composite",
    samples=(Sample(((4, 3), (4,)), fixed={1: _LABELS}),),
    reference=lambda a, i: np.log(np.exp(a).sum(-1)) - a[np.arange(len(i)), i],
)
def cross_entropy(xp, logits, labels):
    """-log softmax(logits)[label] per row: (..., classes), (...) -> (...)."""
    require_inside(xp, labels, logits.shape[-1], "cross_entropy: targets")
    shifted, _, total = _rows(xp, logits)
    return xp.subtract(xp.reshape(xp.log(total), logits.shape[:-1]), xp.pick(shifted, labels))


@op(
    vjp=(
        lambda xp, g, y, z, t: xp.multiply(g, xp.subtract(xp.sigmoid(z), t)),
        lambda xp, g, y, z, t: xp.negative(xp.multiply(g, z)),
    ),
    saves=("ab", "a"),
    kind="composite",
    samples=(Sample(((3, 4), (3, 4)), low=0.1, high=0.9),),
    reference=lambda z, t: np.logaddexp(0, z) - z * t,
)
def binary_cross_entropy_with_logits(xp, logits, target):
    """max(z, 0) - z * t + log1p(exp(-|z|)), elementwise; its gradient is sigmoid(z) - t."""
    soft = xp.log1p(xp.exp(xp.negative(xp.abs(logits))))
    return xp.add(xp.subtract(xp.maximum(logits, 0), xp.multiply(logits, target)), soft)


def _deviation(xp, a, axis, eps):
    """(a - mean, 1 / sqrt(variance + eps)) over the axes."""
    d = xp.subtract(a, mean_over(xp, a, axis, keepdims=True))
    variance = mean_over(xp, xp.multiply(d, d), axis, keepdims=True)
    return d, xp.divide(1.0, xp.sqrt(xp.add(variance, eps)))


def _wide(xp, a):
    """Half precision in float32: its squares would overflow."""
    half = np.dtype(a.dtype) == np.float16
    return xp.astype(a, np.float32) if half else floating(xp, a)


def _normalize_vjp(xp, g, y, a, axis, eps):
    """With the mean and the spread depending on a, g loses its mean and its part along y."""
    _, scale = _deviation(xp, _wide(xp, a), axis, eps)
    g, y = _wide(xp, g), _wide(xp, y)
    along = mean_over(xp, xp.multiply(g, y), axis, keepdims=True)
    rest = xp.subtract(xp.subtract(g, mean_over(xp, g, axis, keepdims=True)), xp.multiply(y, along))
    return xp.multiply(rest, scale)


def _normalize_prepare(a: Any, *, axis: Any, eps: float) -> dict[str, Any]:
    return {"axis": axes_of(a, axis), "eps": eps}


@op(
    vjp=_normalize_vjp,
    saves="ya",
    kind="composite",
    samples=(
        Sample(((3, 5),), params={"axis": -1}),
        Sample(((4, 2, 3),), params={"axis": (0, 1), "eps": 0.1}),
    ),
    prepare=_normalize_prepare,
    reference=lambda a, axis, eps=1e-5: (
        (a - a.mean(axis, keepdims=True)) / np.sqrt(a.var(axis, keepdims=True) + eps)
    ),
)
def normalize(xp, a, *, axis, eps=1e-5):
    """(a - mean) / sqrt(variance + eps) over axes, the variance of the population."""
    d, scale = _deviation(xp, _wide(xp, a), axis, eps)
    y = xp.multiply(d, scale)
    return xp.astype(y, np.float16) if np.dtype(a.dtype) == np.float16 else y
