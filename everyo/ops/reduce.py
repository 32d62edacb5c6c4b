"""Reductions and scans. Axes are normalised to a tuple of non-negative ints before an op runs."""

import builtins
import math
import operator
from typing import Any

import numpy as np

from everyo.core.autograd import current_trace
from everyo.core.namespace import TENSORS, kind_of
from everyo.core.op import DERIVED, Sample, op
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError


def axes_of(a: Any, axis: Any, name: str = "axis") -> tuple[int, ...]:
    """`axis` (None, int or a sequence) as sorted non-negative axes of `a`.

    Raises `EveryOShapeError` for an axis that is out of range or named twice.
    """
    ndim = len(a.shape)
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    given = axis if isinstance(axis, tuple | list) else (axis,)
    out = []
    for raw in given:
        if isinstance(raw, bool) or not hasattr(raw, "__index__"):
            raise TypeError(f"{name} must be an int, a tuple of ints or None, got {axis!r}")
        i = operator.index(raw)
        if not -ndim <= i < ndim:
            raise EveryOShapeError(
                f"{name} {i} is out of range for a tensor of shape {tuple(a.shape)}"
            )
        out.append(i % ndim)
    if len(set(out)) != len(out):
        raise EveryOShapeError(f"{name} {axis!r} names an axis twice")
    return tuple(sorted(out))


def _axes(a: Any, *, axis: Any, **rest: Any) -> dict[str, Any]:
    return {"axis": axes_of(a, axis), **rest}


def keep(xp: Any, r: Any, a: Any, axis: tuple[int, ...]) -> Any:
    """A reduced value with its reduced axes as 1, so that it broadcasts against `a`."""
    if len(r.shape) == len(a.shape):
        return r
    return xp.reshape(r, kept(a.shape, axis))


def kept(shape: tuple[int, ...], axis: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the reduced axes as 1."""
    sizes = list(shape)
    for i in axis:
        sizes[i] = 1
    return tuple(sizes)


def expand(xp: Any, r: Any, a: Any, axis: tuple[int, ...]) -> Any:
    """A reduced value repeated over the shape of `a`."""
    return xp.broadcast_to(keep(xp, r, a, axis), a.shape)


def count_of(a: Any, axis: tuple[int, ...]) -> int:
    """How many elements are reduced into one."""
    return math.prod(a.shape[i] for i in axis)


def _samples(**more: Any) -> tuple[Sample, ...]:
    params: list[dict[str, Any]] = [
        {},
        {"axis": 0},
        {"axis": (0, 2), "keepdims": True},
        {"axis": -1},
    ]
    return tuple(Sample(((2, 3, 4),), params=p, **more) for p in params)


def floating(xp: Any, a: Any) -> Any:
    """Integers and bools as float64, as NumPy's mean and variance compute them."""
    return a if kind_of(a) == "f" else xp.astype(a, np.float64)


def _op(**fields: Any) -> Any:
    return op(**{"kind": "reduction", "prepare": _axes, **fields})


@_op(
    vjp=lambda xp, g, y, a, axis, keepdims: expand(xp, g, a, axis),
    samples=_samples(),
    methods=("sum",),
)
def sum(xp, a, *, axis=None, keepdims=False):
    """The sum over axes; bools and integers add up in int64."""
    return xp.sum(a, axis=axis, keepdims=keepdims)


def mean_over(xp: Any, a: Any, axis: tuple[int, ...], keepdims: bool = False) -> Any:
    """The mean in any namespace; half precision adds up in float32."""
    half = np.dtype(a.dtype) == np.float16
    wide = xp.astype(a, np.float32) if half else floating(xp, a)
    n = count_of(a, axis)
    out = xp.divide(xp.sum(wide, axis=axis, keepdims=keepdims), float(n))
    return xp.astype(out, np.float16) if half else out


@_op(
    vjp=lambda xp, g, y, a, axis, keepdims: expand(
        xp, xp.divide(g, float(count_of(a, axis))), a, axis
    ),
    samples=_samples(),
    methods=("mean",),
)
def mean(xp, a, *, axis=None, keepdims=False):
    """The mean over axes; NaN of nothing."""
    return mean_over(xp, a, axis, keepdims)


def _extreme_vjp(xp, g, y, a, axis, keepdims):
    """The gradient goes to the extreme elements, in equal shares."""
    hit = xp.equal(a, keep(xp, y, a, axis))
    count = xp.sum(xp.astype(hit, a.dtype), axis=axis, keepdims=True)
    return xp.where(hit, xp.divide(keep(xp, g, a, axis), count), 0.0)


def _nonempty(a: Any, *, axis: Any, **rest: Any) -> dict[str, Any]:
    axis = axes_of(a, axis)
    if a.size == 0 and count_of(a, axis) == 0:
        raise EveryOShapeError(
            f"an extreme over zero elements does not exist: shape {tuple(a.shape)}, axis {axis}"
        )
    return {"axis": axis, **rest}


@_op(
    vjp=_extreme_vjp,
    saves="ya",
    samples=_samples(second=False),
    methods=("max",),
    prepare=_nonempty,
)
def max(xp, a, *, axis=None, keepdims=False):
    """The largest element over axes; NaN if there is one. Ties share the gradient equally."""
    return xp.max(a, axis=axis, keepdims=keepdims)


@_op(
    vjp=_extreme_vjp,
    saves="ya",
    samples=_samples(second=False),
    methods=("min",),
    prepare=_nonempty,
)
def min(xp, a, *, axis=None, keepdims=False):
    """The smallest element over axes; NaN if there is one. Ties share the gradient equally."""
    return xp.min(a, axis=axis, keepdims=keepdims)


def _deviation(xp, a, axis):
    a = floating(xp, a)
    if np.dtype(a.dtype) == np.float16:  # squares of it would overflow
        a = xp.astype(a, np.float32)
    return xp.subtract(a, mean_over(xp, a, axis, keepdims=True))


def _spread(xp, a, axis, ddof, keepdims):
    d = _deviation(xp, a, axis)
    total = xp.sum(xp.multiply(d, d), axis=axis, keepdims=keepdims)
    return xp.divide(total, float(builtins.max(count_of(a, axis) - ddof, 0)))


def _narrow(xp, y, a):
    """What was computed in float32 for half precision as half precision again."""
    return xp.astype(y, np.float16) if np.dtype(a.dtype) == np.float16 else y


def _variance_vjp(xp, g, y, a, axis, keepdims, ddof):
    n = count_of(a, axis) - ddof
    factor = 2.0 / n if n > 0 else math.nan
    return xp.multiply(keep(xp, g, a, axis), xp.multiply(_deviation(xp, a, axis), factor))


@_op(
    vjp=_variance_vjp,
    saves="a",
    samples=(*_samples(), Sample(((5, 3),), params={"axis": 0, "ddof": 1})),
    aliases=("var",),
    methods=("var", "variance"),
    reference=lambda a, axis=None, keepdims=False, ddof=0: np.var(
        a, axis=axis, keepdims=keepdims, ddof=ddof
    ),
)
def variance(xp, a, *, axis=None, keepdims=False, ddof=0):
    """The variance over axes: the mean squared deviation; `ddof` is subtracted from the count."""
    return _narrow(xp, _spread(xp, a, axis, ddof, keepdims), a)


def _std_vjp(xp, g, y, a, axis, keepdims, ddof):
    n = float(count_of(a, axis) - ddof)
    flat = xp.equal(y, 0)
    per = xp.where(flat, 0.0, xp.divide(g, xp.multiply(xp.where(flat, 1.0, y), n)))
    return xp.multiply(keep(xp, per, a, axis), _deviation(xp, a, axis))


@_op(
    vjp=_std_vjp,
    saves="ya",
    samples=_samples(),
    methods=("std",),
    reference=lambda a, axis=None, keepdims=False, ddof=0: np.std(
        a, axis=axis, keepdims=keepdims, ddof=ddof
    ),
)
def std(xp, a, *, axis=None, keepdims=False, ddof=0):
    """The standard deviation over axes. Where it is 0, so is its gradient."""
    return _narrow(xp, xp.sqrt(_spread(xp, a, axis, ddof, keepdims)), a)


@_op(
    vjp=DERIVED,
    samples=(
        *_samples(low=0.5, high=1.5),
        Sample(((5,),), fixed={0: np.array([2.0, 0.0, 3.0, 4.0, 0.5])}),
        Sample(((4,),), fixed={0: np.array([0.0, 5.0, 0.0, 1.5])}),
    ),
    methods=("prod",),
)
def prod(xp, a, *, axis=None, keepdims=False):
    """The product over axes; its gradient is right also where factors are 0."""
    if xp is TENSORS:
        return _product_tree(xp, a, axis, keepdims)
    return xp.prod(a, axis=axis, keepdims=keepdims)


def _product_tree(xp, a, axis, keepdims):
    """The product by halving, so that the gradient is a tree of products and never a quotient."""
    rest = tuple(i for i in range(len(a.shape)) if i not in axis)
    n = count_of(a, axis)
    x = xp.reshape(xp.transpose(a, (*rest, *axis)), (*(a.shape[i] for i in rest), n))
    if n == 0:
        x = xp.add(xp.sum(x, axis=len(rest), keepdims=True), 1.0)
    while n > 1:
        half = n // 2
        folded = xp.multiply(
            xp.getitem(x, (..., slice(0, half))), xp.getitem(x, (..., slice(half, 2 * half)))
        )
        if n % 2:
            folded = xp.merge(folded, xp.getitem(x, (..., slice(n - 1, n))), axis=len(x.shape) - 1)
        x, n = folded, half + n % 2
    shape = kept(a.shape, axis) if keepdims else tuple(a.shape[i] for i in rest)
    return xp.reshape(x, shape)


@_op(samples=_samples(smooth=False), methods=("any",))
def any(xp, a, *, axis=None, keepdims=False):
    """Whether an element is true over axes. Not differentiable."""
    return xp.any(a, axis=axis, keepdims=keepdims)


@_op(samples=_samples(smooth=False), methods=("all",))
def all(xp, a, *, axis=None, keepdims=False):
    """Whether all elements are true over axes. Not differentiable."""
    return xp.all(a, axis=axis, keepdims=keepdims)


def _logsumexp_parts(xp, a, axis):
    top = xp.max(a, axis=axis, keepdims=True)
    return xp.where(xp.isfinite(top), top, 0.0)  # an infinite row must not become inf - inf


def _logsumexp_vjp(xp, g, y, a, axis, keepdims):
    shift = keep(xp, xp.where(xp.isfinite(y), y, 0.0), a, axis)
    return xp.multiply(keep(xp, g, a, axis), xp.exp(xp.subtract(a, shift)))


@_op(
    vjp=_logsumexp_vjp,
    saves="ya",
    samples=_samples(),
    methods=("logsumexp",),
    prepare=_nonempty,
    reference=lambda a, axis=None, keepdims=False: np.log(
        np.sum(np.exp(a), axis=axis, keepdims=keepdims)
    ),
)
def logsumexp(xp, a, *, axis=None, keepdims=False):
    """log(sum(exp(a))) over axes, without overflow; -inf where all elements are -inf."""
    a = floating(xp, a)
    top = _logsumexp_parts(xp, a, axis)
    out = xp.add(xp.log(xp.sum(xp.exp(xp.subtract(a, top)), axis=axis, keepdims=True)), top)
    return (
        out
        if keepdims
        else xp.reshape(out, tuple(n for i, n in enumerate(a.shape) if i not in axis))
    )


def _norm_vjp(xp, g, y, a, axis, keepdims):
    zero = xp.equal(y, 0)
    per = xp.where(zero, 0.0, xp.divide(g, xp.where(zero, 1.0, y)))
    return xp.multiply(keep(xp, per, a, axis), a)


@_op(
    vjp=_norm_vjp,
    saves="ya",
    samples=_samples(),
    methods=("norm",),
    reference=lambda a, axis=None, keepdims=False: np.sqrt(
        np.sum(a * a, axis=axis, keepdims=keepdims)
    ),
)
def norm(xp, a, *, axis=None, keepdims=False):
    """The Euclidean norm over axes. At the origin its gradient is 0."""
    a = floating(xp, a)
    return xp.sqrt(xp.sum(xp.multiply(a, a), axis=axis, keepdims=keepdims))


def _one_axis(a: Any, *, axis: Any, **rest: Any) -> dict[str, Any]:
    return {"axis": axes_of(a, operator.index(axis))[0], **rest}


@op(
    vjp=lambda xp, g, y, a, axis: xp.flip(xp.cumsum(xp.flip(g, axis), axis=axis), axis),
    samples=(Sample(((4, 3),), params={"axis": 0}), Sample(((5,),), params={"axis": -1})),
    kind="scan",
    methods=("cumsum",),
    prepare=_one_axis,
)
def cumsum(xp, a, *, axis):
    """Running sums along an axis; bools and integers add up in int64."""
    return xp.cumsum(a, axis=axis)


def _softmax_axis(a: Any, *, axis: Any) -> dict[str, Any]:
    return {"axis": axes_of(a, axis)}


def _softmax_vjp(xp, g, y, a, axis):
    inner = xp.sum(xp.multiply(g, y), axis=axis, keepdims=True)
    return xp.multiply(y, xp.subtract(g, inner))


_ROWS = (
    Sample(((3, 4),)),
    Sample(((2, 3, 4),), params={"axis": 1}),
    Sample(((5,),), params={"axis": 0}),
)


@op(
    vjp=_softmax_vjp,
    saves="y",
    samples=_ROWS,
    kind="composite",
    methods=("softmax",),
    prepare=_softmax_axis,
    reference=lambda a, axis=-1: np.exp(a) / np.exp(a).sum(axis=axis, keepdims=True),
)
def softmax(xp, a, *, axis=-1):
    """exp(a) / sum(exp(a)) along an axis, without overflow. A logit of -inf gets exactly 0."""
    a = floating(xp, a)
    e = xp.exp(xp.subtract(a, xp.max(a, axis=axis, keepdims=True)))
    return xp.divide(e, xp.sum(e, axis=axis, keepdims=True))


def _log_softmax_vjp(xp, g, y, a, axis):
    total = xp.sum(g, axis=axis, keepdims=True)
    return xp.subtract(g, xp.multiply(xp.exp(y), total))


@op(
    vjp=_log_softmax_vjp,
    saves="y",
    samples=_ROWS,
    kind="composite",
    methods=("log_softmax",),
    prepare=_softmax_axis,
    reference=lambda a, axis=-1: a - np.log(np.exp(a).sum(axis=axis, keepdims=True)),
)
def log_softmax(xp, a, *, axis=-1):
    """log(softmax(a)) along an axis, without underflow."""
    a = floating(xp, a)
    shifted = xp.subtract(a, xp.max(a, axis=axis, keepdims=True))
    return xp.subtract(shifted, xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True)))


def _arg(name: str) -> Any:
    def function(a: Any, axis: int | None = None) -> Any:
        a = as_tensor(a)
        where = None if axis is None else axes_of(a, operator.index(axis))[0]
        if (a.size if where is None else a.shape[where]) == 0:
            raise EveryOShapeError(
                f"{name} over zero elements does not exist: shape {a.shape}, axis {axis}"
            )
        trace = current_trace()
        if trace is None:
            return np.asarray(getattr(np, name)(a._data, axis=where))
        return getattr(trace.xp, name)(trace.read(a), axis=where)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The index of the first {'largest' if name == 'argmax' else 'smallest'} element (a NaN "
        "counts as one), flat or along an axis, as an int64 array. Not differentiable."
    )
    setattr(Tensor, name, function)
    setattr(TENSORS, name, function)
    return function


argmax, argmin = _arg("argmax"), _arg("argmin")
