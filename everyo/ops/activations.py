"""Elementwise functions between the layers of a network, each with its own stable gradient."""

import math

import numpy as np

from everyo.ops.elementwise import one, pointwise

INVERSE_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
GELU_SCALE, GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.multiply(y, xp.subtract(1, y))),
    saves="y",
    samples=one(),
    methods=("sigmoid",),
    primitive="sigmoid",
    reference=lambda a: 1 / (1 + np.exp(-a)),
)
def sigmoid(xp, a):
    """1 / (1 + exp(-a)), without overflow."""
    return xp.sigmoid(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.where(xp.greater(a, 0), g, 0.0),
    saves="a",
    samples=(*one(0.2, 2.0), *one(-2.0, -0.2)),
    methods=("relu",),
    reference=lambda a: np.maximum(a, 0),
)
def relu(xp, a):
    """max(a, 0); the gradient at 0 is 0, and NaN stays NaN."""
    return xp.maximum(a, 0)


@pointwise(
    vjp=lambda xp, g, y, a, negative_slope: xp.where(
        xp.greater(a, 0), g, xp.multiply(g, negative_slope)
    ),
    saves="a",
    samples=(*one(0.2, 2.0), *one(-2.0, -0.2, params={"negative_slope": 0.1})),
    reference=lambda a, negative_slope=0.01: np.where(a > 0, a, a * negative_slope),
)
def leaky_relu(xp, a, *, negative_slope=0.01):
    """a where positive, else a * negative_slope."""
    return xp.where(xp.greater(a, 0), a, xp.multiply(a, negative_slope))


def _elu_vjp(xp, g, y, a, alpha):
    below = xp.multiply(xp.exp(xp.minimum(a, 0)), alpha)
    return xp.where(xp.greater(a, 0), g, xp.multiply(g, below))


@pointwise(
    vjp=_elu_vjp,
    saves="a",
    samples=(*one(0.2, 2.0), *one(-2.0, -0.2)),
    reference=lambda a, alpha=1.0: np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0))),
)  # fmt: skip
def elu(xp, a, *, alpha=1.0):
    """a where positive, else alpha * (exp(a) - 1)."""
    return xp.where(xp.greater(a, 0), a, xp.multiply(xp.expm1(xp.minimum(a, 0)), alpha))


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.sigmoid(a)),
    saves="a",
    samples=one(),
    reference=lambda a: np.logaddexp(0, a),
)
def softplus(xp, a):
    """log(1 + exp(a)), without overflow."""
    return xp.add(xp.maximum(a, 0), xp.log1p(xp.exp(xp.negative(xp.abs(a)))))


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.sigmoid(xp.negative(a))),
    saves="a",
    samples=one(),
    reference=lambda a: -np.logaddexp(0, -a),
)
def log_sigmoid(xp, a):
    """log(sigmoid(a)), without underflow."""
    return xp.subtract(xp.minimum(a, 0), xp.log1p(xp.exp(xp.negative(xp.abs(a)))))


def _silu_vjp(xp, g, y, a):
    s = xp.sigmoid(a)
    return xp.multiply(g, xp.multiply(s, xp.add(xp.multiply(a, xp.subtract(1, s)), 1)))


@pointwise(vjp=_silu_vjp, saves="a", samples=one(), reference=lambda a: a / (1 + np.exp(-a)))
def silu(xp, a):
    """a * sigmoid(a)."""
    return xp.multiply(a, xp.sigmoid(a))


def _gelu_share(xp, a, approximate):
    """The normal distribution function at a, or what is nearly that."""
    if approximate == "none":
        return xp.multiply(xp.add(xp.erf(xp.multiply(a, math.sqrt(0.5))), 1), 0.5)
    inner = xp.add(xp.multiply(xp.multiply(a, a), GELU_SCALE * GELU_CUBIC), GELU_SCALE)
    return xp.add(xp.multiply(xp.tanh(xp.multiply(a, inner)), 0.5), 0.5)


def _gelu_vjp(xp, g, y, a, approximate):
    share, square = _gelu_share(xp, a, approximate), xp.multiply(a, a)
    if approximate == "none":
        density = xp.multiply(xp.exp(xp.multiply(square, -0.5)), INVERSE_SQRT_2PI)
        return xp.multiply(g, xp.add(share, xp.multiply(a, density)))
    slope = xp.add(xp.multiply(square, 6 * GELU_SCALE * GELU_CUBIC), 2 * GELU_SCALE)
    moved = xp.multiply(xp.multiply(xp.multiply(a, share), xp.subtract(1, share)), slope)
    return xp.multiply(g, xp.add(share, moved))


def _gelu_prepare(a, *, approximate):
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return {"approximate": approximate}


@pointwise(
    vjp=_gelu_vjp,
    saves="a",
    samples=(*one(), *one(params={"approximate": "tanh"})),
    prepare=_gelu_prepare,
    reference=lambda a, approximate="none": a * 0.5 * (1 + (
        np.tanh(GELU_SCALE * (a + GELU_CUBIC * a**3)) if approximate == "tanh"
        else np.vectorize(math.erf, otypes=[float])(a / math.sqrt(2)))),
)  # fmt: skip
def gelu(xp, a, *, approximate="none"):
    """a times the normal distribution function at a; `approximate` is "none" or "tanh"."""
    return xp.multiply(a, _gelu_share(xp, a, approximate))
