"""Losses as ops: one named node each in the eager graph, dissolved by the compiler."""

import numpy as np

from everyo.core.op import Sample, op

_LABELS = np.array([0, 2, 1, 2])


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
    return xp.spread(v, index, n)


def _rows(xp, a):
    """exp(a - max) and its sum, along the last axis."""
    shifted = xp.subtract(a, xp.max(a, axis=(len(a.shape) - 1,), keepdims=True))
    e = xp.exp(shifted)
    return shifted, e, xp.sum(e, axis=(len(a.shape) - 1,), keepdims=True)


def _cross_entropy_vjp(xp, g, y, a, labels):
    _, e, total = _rows(xp, a)
    g = xp.reshape(g, (*g.shape, 1))
    scaled = xp.multiply(xp.divide(e, total), g)
    return xp.subtract(scaled, xp.spread(xp.reshape(g, g.shape[:-1]), labels, a.shape[-1]))


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
