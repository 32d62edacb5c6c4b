"""Elementwise ops: one value per point, operands broadcast. Each block is the whole op; functions
of analysis are in `transcendental`, those between the layers of a network in `activations`."""

import builtins
from typing import Any

import numpy as np

from everyo.core.namespace import TENSORS, is_array, kind_of
from everyo.core.op import Sample, op
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryODTypeError, EveryOShapeError


def one(low: float = -2.0, high: float = 2.0, **more: Any) -> tuple[Sample, ...]:
    """The samples of an op of one operand."""
    return (Sample(((3, 4),), low=low, high=high, **more),)


def two(low: float = -2.0, high: float = 2.0, **more: Any) -> tuple[Sample, ...]:
    """The samples of an op of two operands: shapes that broadcast in every way."""
    shapes = [((3, 4), (3, 4)), ((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((), (3,))]
    return tuple(Sample(s, low=low, high=high, **more) for s in shapes)


def pointwise(**fields: Any) -> Any:
    """`op` for a function of the values at one point."""
    return op(kind="elementwise", **fields)


# ---------------------------------------------------------------------------------- arithmetic


@pointwise(
    vjp=(lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: g),
    samples=two(),
    methods=("__add__", "add"),
    primitive="add",
)
def add(xp, a, b):
    """a + b."""
    return xp.add(a, b)


@pointwise(
    vjp=(lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: xp.negative(g)),
    samples=two(),
    methods=("__sub__", "subtract"),
    primitive="subtract",
)
def subtract(xp, a, b):
    """a - b."""
    return xp.subtract(a, b)


@pointwise(
    vjp=(lambda xp, g, y, a, b: xp.multiply(g, b), lambda xp, g, y, a, b: xp.multiply(g, a)),
    saves=("b", "a"),
    samples=two(),
    methods=("__mul__", "multiply"),
    primitive="multiply",
)
def multiply(xp, a, b):
    """a * b."""
    return xp.multiply(a, b)


@pointwise(
    vjp=(
        lambda xp, g, y, a, b: xp.divide(g, b),
        lambda xp, g, y, a, b: xp.negative(xp.divide(xp.multiply(g, y), b)),
    ),
    saves=("b", "yb"),
    samples=two(0.5, 2.0),
    methods=("__truediv__", "divide"),
    primitive="divide",
)
def divide(xp, a, b):
    """a / b; integers and bools give float64."""
    return xp.divide(a, b)


@pointwise(
    vjp=lambda xp, g, y, a: xp.negative(g),
    samples=one(),
    methods=("__neg__", "negative"),
    primitive="negative",
)
def negative(xp, a):
    """-a."""
    return xp.negative(a)


def _power_base(xp, g, y, a, b):
    """b * a**(b - 1), with 0 where b is 0 although a**-1 may be infinite."""
    if type(b) in (int, float):
        if b == 0:
            return xp.zeros(a.shape, a.dtype)
        if b == 1:
            return g
        return xp.multiply(g, xp.multiply(xp.power(a, b - 1) if b != 2 else a, b))
    none = xp.equal(b, 0)
    lower = xp.power(a, xp.where(none, 1.0, xp.subtract(b, 1)))
    return xp.where(none, 0.0, xp.multiply(g, xp.multiply(b, lower)))


def _power_exponent(xp, g, y, a, b):
    """a**b * log(a); at a = 0 the limit 0, except for negative exponents, where there is none."""
    origin = xp.equal(a, 0)
    return xp.multiply(g, xp.where(xp.logical_and(origin, xp.greater_equal(b, 0)), 0.0, xp.multiply(
        y, xp.log(xp.where(origin, 1.0, a)))))  # fmt: skip


@pointwise(
    vjp=(_power_base, _power_exponent),
    saves=("ab", "yab"),
    samples=(
        *two(0.5, 2.0),
        Sample(((3, 4), ()), fixed={1: 3}, low=-2),
        Sample(((5,), ()), fixed={1: -1.5}, low=0.5),
    ),
    methods=("__pow__", "power"),
    primitive="power",
)
def power(xp, a, exponent):
    """a ** exponent; both may be tensors."""
    squared = type(exponent) in (int, float) and exponent == 2
    if squared and hasattr(a, "dtype") and kind_of(a) != "b":
        return xp.square(a)
    return xp.power(a, exponent)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.multiply(a, 2)),
    saves="a",
    samples=one(),
    methods=("square",),
)
def square(xp, a):
    """a * a."""
    return xp.square(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.negative(xp.multiply(g, xp.multiply(y, y))),
    saves="y",
    samples=one(0.5, 2.0),
    methods=("reciprocal",),
    reference=lambda a: 1 / a,
)
def reciprocal(xp, a):
    """1 / a."""
    return xp.divide(1, a)


@pointwise(samples=two(1.0, 5.0, smooth=False), methods=("__floordiv__",), primitive="floor_divide")
def floor_divide(xp, a, b):
    """The largest whole number not above a / b. Not differentiable."""
    return xp.floor_divide(a, b)


@pointwise(
    vjp=(
        lambda xp, g, y, a, b: g,
        lambda xp, g, y, a, b: xp.negative(xp.multiply(g, xp.floor_divide(a, b))),
    ),
    saves=("", "ab"),
    samples=(
        Sample(((3, 4), ()), fixed={1: 0.7}),
        Sample(((3,), (3,)), fixed={1: np.array([3.1, -2.3, 5.0])}),
    ),
    aliases=("mod",),
    methods=("__mod__",),
    primitive="remainder",
)
def remainder(xp, a, b):
    """a - b * floor(a / b): the sign is that of b."""
    return xp.remainder(a, b)


@pointwise(
    vjp=lambda xp, g, y, a: xp.multiply(g, xp.sign(a)),
    saves="a",
    samples=(*one(0.2, 2.0), *one(-2.0, -0.2)),
    aliases=("absolute",),
    methods=("__abs__", "abs"),
    primitive="abs",
)
def abs(xp, a):
    """|a|; the gradient at 0 is 0."""
    return xp.abs(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.zeros(a.shape, a.dtype),
    samples=one(0.2, 2.0),
    methods=("sign",),
    primitive="sign",
)
def sign(xp, a):
    """-1, 0 or 1; NaN for NaN. The gradient is 0."""
    return xp.sign(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.zeros(a.shape, a.dtype),
    samples=one(0.1, 0.9),
    methods=("floor",),
    primitive="floor",
)
def floor(xp, a):
    """The largest whole number not above a. The gradient is 0."""
    return xp.floor(a)


@pointwise(
    vjp=lambda xp, g, y, a: xp.zeros(a.shape, a.dtype),
    samples=one(0.1, 0.9),
    methods=("ceil",),
    primitive="ceil",
)
def ceil(xp, a):
    """The smallest whole number not below a. The gradient is 0."""
    return xp.ceil(a)


@pointwise(
    vjp=lambda xp, g, y, a, decimals: xp.zeros(a.shape, a.dtype),
    samples=(*one(0.1, 0.4), Sample(((4,),), params={"decimals": 1}, low=0.11, high=0.14)),
    aliases=("rint",),
    methods=("round", "__round__"),
)
def round(xp, a, *, decimals=0):
    """The nearest number with `decimals` decimals, halves to even. The gradient is 0."""
    if kind_of(a) == "i":
        return xp.copy(a)
    if not decimals:
        return xp.rint(a)
    scale = 10.0 ** builtins.abs(decimals)
    up, down = (xp.multiply, xp.divide) if decimals > 0 else (xp.divide, xp.multiply)
    return down(xp.rint(up(a, scale)), scale)


# ---------------------------------------------------------------------------------- choosing


def _share_of(better: str) -> tuple[Any, Any]:
    """Gradients of maximum and minimum: all to the better operand, half to each at a tie."""

    def rule(a_first: bool) -> Any:
        def vjp(xp, g, y, a, b):
            mine, other = (a, b) if a_first else (b, a)
            won = getattr(xp, better)(mine, other)
            return xp.where(won, g, xp.where(xp.equal(mine, other), xp.multiply(g, 0.5), 0.0))

        return vjp

    return rule(True), rule(False)


@pointwise(
    vjp=_share_of("greater"),
    saves=("ab", "ab"),
    samples=two(),
    methods=("maximum",),
    primitive="maximum",
)
def maximum(xp, a, b):
    """The larger operand; NaN if either is NaN. At a tie the gradient is split equally."""
    return xp.maximum(a, b)


@pointwise(
    vjp=_share_of("less"),
    saves=("ab", "ab"),
    samples=two(),
    methods=("minimum",),
    primitive="minimum",
)
def minimum(xp, a, b):
    """The smaller operand; NaN if either is NaN. At a tie the gradient is split equally."""
    return xp.minimum(a, b)


def _clip_inside(xp, g, y, a, low, high):
    inside = None
    for bound, compare in ((low, xp.greater_equal), (high, xp.less_equal)):
        if bound is not None:
            ok = compare(a, bound)
            inside = ok if inside is None else xp.logical_and(inside, ok)
    return g if inside is None else xp.where(inside, g, 0.0)


@pointwise(
    vjp=(
        _clip_inside,
        lambda xp, g, y, a, low, high: xp.where(xp.less(a, low), g, 0.0),
        lambda xp, g, y, a, low, high: xp.where(xp.greater(a, high), g, 0.0),
    ),
    saves=("abc", "ab", "ac"),
    samples=(
        Sample(((5, 4), (), ()), fixed={1: -1.0, 2: 1.0}),
        Sample(((5, 4), (4,), ()), fixed={1: np.array([-1.5, -1.0, 0.0, 0.1]), 2: np.array(0.9)}),
    ),
    reference=lambda a, low, high: np.clip(a, low, high),
)
def clip_between(xp, a, low, high):
    """The op behind `clip`: bounds are operands, None is no bound."""
    if low is not None:
        a = xp.maximum(a, low)
    return a if high is None else xp.minimum(a, high)


def clip(a: Any, low: Any = None, high: Any = None) -> Tensor:
    """a limited to [low, high]; None is no limit. The gradient is 1 inside, bounds included.

    Raises `EveryOShapeError` if low > high.
    """
    known = all(is_array(b) or isinstance(b, int | float | np.generic) for b in (low, high))
    if known and np.any(np.greater(low, high)):
        raise EveryOShapeError(f"clip needs low <= high, got low={low} and high={high}")
    return clip_between(a, low, high)


@pointwise(
    vjp=(
        None,
        lambda xp, g, y, c, a, b: xp.where(c, g, 0.0),
        lambda xp, g, y, c, a, b: xp.where(c, 0.0, g),
    ),
    saves=("", "a", "a"),
    samples=(
        Sample(((3, 4),) * 3, fixed={0: np.arange(12).reshape(3, 4) % 3 == 0}),
        Sample(((3, 1), (1, 4), ()), fixed={0: np.array([[True], [False], [True]])}),
    ),
    primitive="where",
    plain="a",
    reference=np.where,
)
def where(xp, condition, a, b):
    """a where the condition holds, else b. The gradient goes to the chosen one alone."""
    return xp.where(condition, a, b)


# ---------------------------------------------------------------------------------- predicates

_PAIR = (Sample(((3, 4), (3, 4)), smooth=False), Sample(((3, 1), (4,)), smooth=False))


def _compare(name: str, method: str, condition: str) -> Any:
    def forward(xp, a, b):
        return getattr(xp, name)(a, b)

    forward.__name__ = name
    forward.__doc__ = f"Whether {condition}, elementwise. Not differentiable."
    return pointwise(samples=_PAIR, methods=(method,) if method else (), primitive=name)(forward)


equal = _compare("equal", "__eq__", "a equals b")
not_equal = _compare("not_equal", "__ne__", "a differs from b")
less = _compare("less", "__lt__", "a is below b")
less_equal = _compare("less_equal", "__le__", "a is not above b")
greater = _compare("greater", "__gt__", "a is above b")
greater_equal = _compare("greater_equal", "__ge__", "a is not below b")
logical_and = _compare("logical_and", "", "a and b are both true (not 0)")
logical_or = _compare("logical_or", "", "a or b is true (not 0)")
logical_xor = _compare("logical_xor", "", "one of a and b alone is true (not 0)")


@pointwise(samples=one(smooth=False), primitive="logical_not")
def logical_not(xp, a):
    """Whether a is zero or False, elementwise. Not differentiable."""
    return xp.logical_not(a)


@pointwise(samples=one(smooth=False), methods=("isnan",), primitive="isnan")
def isnan(xp, a):
    """Whether a is NaN, elementwise. Not differentiable."""
    return xp.isnan(a)


@pointwise(samples=one(smooth=False), methods=("isinf",), primitive="isinf")
def isinf(xp, a):
    """Whether a is infinite, elementwise. Not differentiable."""
    return xp.isinf(a)


@pointwise(samples=one(smooth=False), methods=("isfinite",), primitive="isfinite")
def isfinite(xp, a):
    """Whether a is neither infinite nor NaN, elementwise. Not differentiable."""
    return xp.isfinite(a)


# ---------------------------------------------------------------------------------- the same values


@pointwise(
    vjp=lambda xp, g, y, a: g,
    samples=one(),
    aliases=("copy",),
    reference=lambda a: a,
)
def identity(xp, a):
    """A copy of a; the gradient passes through."""
    return xp.copy(a)


@pointwise(
    vjp=lambda xp, g, y, a, dtype: xp.astype(g, a.dtype),
    samples=(Sample(((3, 4),), params={"dtype": "float64"}, dtype="float64"),),
    reference=lambda a, dtype: a.astype(dtype),
)
def astype(xp, a, *, dtype):
    """a in another dtype. To a floating dtype the gradient passes through."""
    return xp.astype(a, dtype)


def _reflect(function: Any) -> Any:
    return lambda a, b: function(b, a)


def _on_bools(function: Any, sign: str) -> Any:
    """The operator `sign`, which is `function` on bools; on numbers it would mean their bits."""

    def operation(*operands: Any) -> Tensor:
        dtypes = [getattr(t, "dtype", type(t).__name__) for t in operands]
        if any(str(d) != "bool" for d in dtypes):
            raise EveryODTypeError(
                f"{sign} combines bool tensors, got {', '.join(map(str, dtypes))}"
            )
        return function(*operands)

    return operation


for _name, _function in (
    ("add", add), ("sub", subtract), ("mul", multiply), ("truediv", divide), ("pow", power),
    ("floordiv", floor_divide), ("mod", remainder),
):  # fmt: skip
    setattr(Tensor, f"__r{_name}__", _reflect(_function))
for _name, _sign, _function in (
    ("and", "&", logical_and), ("or", "|", logical_or), ("xor", "^", logical_xor),
):  # fmt: skip
    _operation = _on_bools(_function, _sign)
    setattr(Tensor, f"__{_name}__", _operation)
    setattr(Tensor, f"__r{_name}__", _reflect(_operation))
    setattr(TENSORS, f"bitwise_{_name}", _operation)
_operation = _on_bools(logical_not, "~")
setattr(Tensor, "__invert__", _operation)  # noqa: B010
setattr(Tensor, "__pos__", identity)  # noqa: B010
setattr(Tensor, "clip", clip)  # noqa: B010
TENSORS.invert = _operation
TENSORS.clip = clip
