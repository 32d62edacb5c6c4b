"""Elementwise functions of analysis: exponentials, logarithms, roots and trigonometry."""

import math

import numpy as np

from everyo.ops.elementwise import one, pointwise, two

LN2, LN10 = math.log(2.0), math.log(10.0)

# ---------------------------------------------------------------------------------- exponentials


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, y),
    saves="y",
    samples=one(),
    methods=("exp",),
    primitive="exp",
)
def exp(xp, a):
    """e ** a."""
    return xp.exp(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.add(y, 1)),
    saves="y",
    samples=one(),
    methods=("expm1",),
    primitive="expm1",
)
def expm1(xp, a):
    """e ** a - 1, accurate near 0."""
    return xp.expm1(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, a),
    saves="a",
    samples=one(0.3, 3.0),
    methods=("log",),
    primitive="log",
)
def log(xp, a):
    """The natural logarithm."""
    return xp.log(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.add(a, 1)),
    saves="a",
    samples=one(-0.5, 3.0),
    methods=("log1p",),
    primitive="log1p",
)
def log1p(xp, a):
    """log(1 + a), accurate near 0."""
    return xp.log1p(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.multiply(a, LN2)),
    saves="a",
    samples=one(0.3, 3.0),
    methods=("log2",),
    primitive="log2",
)
def log2(xp, a):
    """The logarithm to base 2."""
    return xp.log2(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.multiply(a, LN10)),
    saves="a",
    samples=one(0.3, 3.0),
    methods=("log10",),
    primitive="log10",
)
def log10(xp, a):
    """The logarithm to base 10."""
    return xp.log10(a)


def _sqrt_vjp(xp, g, y, a):
    """0.5 / sqrt(a), finite at 0, so that sqrt(sum(t * t)) has gradient 0 at the origin."""
    smallest = float(np.sqrt(np.finfo(np.dtype(a.dtype)).tiny))
    return xp.divide(xp.multiply(g, 0.5), xp.where(xp.equal(y, 0), smallest, y))


@pointwise(vjp=_sqrt_vjp, saves="y", samples=one(0.3, 3.0), methods=("sqrt",), primitive="sqrt")
def sqrt(xp, a):
    """The square root; its gradient is finite at 0."""
    return xp.sqrt(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.multiply(xp.multiply(y, y), 3)),
    saves="y",
    samples=one(0.3, 3.0),
    methods=("cbrt",),
    primitive="cbrt",
)
def cbrt(xp, a):
    """The cube root, also of negative numbers."""
    return xp.cbrt(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(
        g, xp.multiply(xp.exp(xp.negative(xp.multiply(a, a))), 2 / math.sqrt(math.pi))
    ),
    saves="a",
    samples=one(),
    methods=("erf",),
    primitive="erf",
    reference=np.vectorize(math.erf, otypes=[np.float64]),
)
def erf(xp, a):
    """The error function."""
    return xp.erf(a)


# ---------------------------------------------------------------------------------- trigonometry


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.cos(a)),
    saves="a",
    samples=one(),
    methods=("sin",),
    primitive="sin",
)
def sin(xp, a):
    """The sine of an angle in radians."""
    return xp.sin(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.negative(xp.multiply(g, xp.sin(a))),
    saves="a",
    samples=one(),
    methods=("cos",),
    primitive="cos",
)
def cos(xp, a):
    """The cosine of an angle in radians."""
    return xp.cos(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.add(xp.multiply(y, y), 1)),
    saves="y",
    samples=one(-1.2, 1.2),
    methods=("tan",),
    primitive="tan",
)
def tan(xp, a):
    """The tangent of an angle in radians."""
    return xp.tan(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.sqrt(xp.subtract(1, xp.multiply(a, a)))),
    saves="a",
    samples=one(-0.8, 0.8),
    aliases=("arcsin",),
    methods=("asin",),
    primitive="arcsin",
    reference=np.arcsin,
)
def asin(xp, a):
    """The angle in [-pi/2, pi/2] whose sine is a."""
    return xp.arcsin(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.negative(xp.divide(g, xp.sqrt(xp.subtract(1, xp.multiply(a, a))))),
    saves="a",
    samples=one(-0.8, 0.8),
    aliases=("arccos",),
    methods=("acos",),
    primitive="arccos",
    reference=np.arccos,
)
def acos(xp, a):
    """The angle in [0, pi] whose cosine is a."""
    return xp.arccos(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.divide(g, xp.add(xp.multiply(a, a), 1)),
    saves="a",
    samples=one(),
    aliases=("arctan",),
    methods=("atan",),
    primitive="arctan",
    reference=np.arctan,
)
def atan(xp, a):
    """The angle in [-pi/2, pi/2] whose tangent is a."""
    return xp.arctan(a)


def _atan2_part(xp, g, a, b, other):
    return xp.multiply(g, xp.divide(other, xp.add(xp.multiply(a, a), xp.multiply(b, b))))


@pointwise(
    vjp=(
        lambda xp, g, y, a, b: _atan2_part(xp, g, a, b, b),
        lambda xp, g, y, a, b: xp.negative(_atan2_part(xp, g, a, b, a)),
    ),
    saves=("ab", "ab"),
    samples=two(0.5, 2.0),
    aliases=("arctan2",),
    primitive="arctan2",
    reference=np.arctan2,
)
def atan2(xp, a, b):
    """The angle of the point (b, a), in [-pi, pi]."""
    return xp.arctan2(a, b)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.cosh(a)),
    saves="a",
    samples=one(),
    methods=("sinh",),
    primitive="sinh",
)
def sinh(xp, a):
    """The hyperbolic sine."""
    return xp.sinh(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.sinh(a)),
    saves="a",
    samples=one(),
    methods=("cosh",),
    primitive="cosh",
)
def cosh(xp, a):
    """The hyperbolic cosine."""
    return xp.cosh(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.subtract(1, xp.multiply(y, y))),
    saves="y",
    samples=one(),
    methods=("tanh",),
    primitive="tanh",
)
def tanh(xp, a):
    """The hyperbolic tangent."""
    return xp.tanh(a)
