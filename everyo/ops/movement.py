"""Ops that move values without computing: reshape, transpose, slices, joins, padding."""

import builtins
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.core.namespace import TENSORS
from everyo.core.op import Sample, op
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.ops.reduce import axes_of


def _op(**fields: Any) -> Any:
    return op(**{"kind": "movement", **fields})


# ---------------------------------------------------------------------------------- views


def _sizes(a: Any, shape: Any) -> tuple[int, ...]:
    """`shape` with one -1 filled in; `EveryOShapeError` unless it has as many elements as `a`."""
    given = tuple(operator.index(n) for n in shape)
    known = math.prod(n for n in given if n != -1)
    bad = given.count(-1) > 1 or any(n < -1 for n in given)
    if not bad and -1 in given:
        bad = known == 0 or a.size % known != 0
        given = tuple(a.size // known if n == -1 else n for n in given) if not bad else given
    if bad or math.prod(given) != a.size:
        raise EveryOShapeError(f"Cannot reshape {tuple(a.shape)} ({a.size} elements) to {given}")
    return given


def _reshape_prepare(a: Any, *, shape: Any) -> dict[str, Any]:
    return {"shape": _sizes(a, shape if isinstance(shape, tuple | list) else (shape,))}


@_op(
    vjp=lambda xp, g, y, a, shape: xp.reshape(g, a.shape),
    samples=(
        Sample(((3, 4),), params={"shape": (2, 6)}),
        Sample(((3, 4),), params={"shape": (-1,)}),
    ),
    prepare=_reshape_prepare,
    view=True,
)
def reshape(xp, a, *, shape):
    """The same elements in another shape; one size may be -1."""
    return xp.reshape(a, shape)


def _flat(*args: Any) -> Any:
    return args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args


def _reshape_method(self: Tensor, *shape: Any) -> Tensor:
    """The same elements in another shape, `t.reshape(2, 3)` or `t.reshape((2, -1))`."""
    return reshape(self, _flat(*shape))


def _transpose_prepare(a: Any, *, axes: Any) -> dict[str, Any]:
    ndim = len(a.shape)
    if axes is None:
        return {"axes": tuple(reversed(range(ndim)))}
    given = tuple(operator.index(i) for i in (axes if isinstance(axes, tuple | list) else (axes,)))
    if sorted(i % ndim if -ndim <= i < ndim else -1 for i in given) != list(range(ndim)):
        raise EveryOShapeError(
            f"axes {given} are not a permutation of the axes of shape {tuple(a.shape)}"
        )
    return {"axes": tuple(i % ndim for i in given)}


@_op(
    vjp=lambda xp, g, y, a, axes: xp.transpose(
        g, tuple(sorted(range(len(axes)), key=axes.__getitem__))
    ),
    samples=(Sample(((2, 3, 4),)), Sample(((2, 3, 4),), params={"axes": (1, 2, 0)})),
    prepare=_transpose_prepare,
    view=True,
)
def transpose(xp, a, *, axes=None):
    """The axes in another order; reversed by default."""
    return xp.transpose(a, axes)


def _transpose_method(self: Tensor, *axes: Any) -> Tensor:
    """The axes in another order, `t.transpose(1, 0)`; reversed without arguments."""
    return transpose(self, _flat(*axes) if axes else None)


setattr(Tensor, "reshape", _reshape_method)  # noqa: B010
setattr(Tensor, "transpose", _transpose_method)  # noqa: B010


def _broadcast_prepare(a: Any, *, shape: Any) -> dict[str, Any]:
    shape = tuple(
        operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,))
    )
    try:
        fits = np.broadcast_shapes(a.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise EveryOShapeError(f"cannot broadcast a tensor of shape {tuple(a.shape)} to {shape}")
    return {"shape": shape}


@_op(
    vjp=lambda xp, g, y, a, shape: g,
    samples=(Sample(((3, 1),), params={"shape": (2, 3, 4)}), Sample(((),), params={"shape": (2,)})),
    prepare=_broadcast_prepare,
    methods=("broadcast_to",),
)
def broadcast_to(xp, a, *, shape):
    """The tensor repeated to a shape by the rules of broadcasting. A copy."""
    return xp.copy(xp.broadcast_to(a, shape))


def _flip_prepare(a: Any, *, axis: Any) -> dict[str, Any]:
    return {"axis": axes_of(a, axis)}


@_op(
    vjp=lambda xp, g, y, a, axis: xp.flip(g, axis),
    samples=(Sample(((2, 3),)), Sample(((2, 3),), params={"axis": 1})),
    prepare=_flip_prepare,
    methods=("flip",),
    view=True,
)
def flip(xp, a, *, axis=None):
    """The elements in reverse order along axes (all by default)."""
    return xp.flip(a, axis)


# ---------------------------------------------------------------------------------- joining


def _merge_rule(i: int) -> Any:
    def rule(xp, g, y, *tensors, axis):
        start = builtins.sum(t.shape[axis] for t in tensors[:i])
        return xp.getitem(g, (*(slice(None),) * axis, slice(start, start + tensors[i].shape[axis])))

    return rule


@_op(
    vjp=_merge_rule,
    arity=-1,
    samples=(
        Sample(((2, 3), (2, 1), (2, 2)), params={"axis": 1}),
        Sample(((2, 3), (1, 3)), params={"axis": 0}),
    ),
    reference=lambda *a, axis: np.concatenate(a, axis),
)
def merge(xp, *tensors, axis):
    """The op behind `concatenate`: the tensors are operands, the axis is not negative."""
    return xp.merge(*tensors, axis=axis)


def concatenate(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Join tensors along an existing axis; all other sizes must agree.

    Raises `EveryOShapeError` for an empty list or shapes that do not fit.
    """
    parts = [as_tensor(t) for t in tensors]
    if not parts:
        raise EveryOShapeError("Cannot concatenate an empty list of tensors")
    shapes = [t.shape for t in parts]
    if not shapes[0]:
        raise EveryOShapeError("Cannot concatenate 0-d tensors; use stack()")
    at = axes_of(parts[0], axis)[0]
    if len({(len(s), s[:at], s[at + 1 :]) for s in shapes}) != 1:
        raise EveryOShapeError(
            f"Cannot concatenate shapes {', '.join(map(str, shapes))} along axis {axis}"
        )
    return merge(*parts, axis=at)


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Join tensors of equal shape along a new axis.

    Raises `EveryOShapeError` for an empty list or different shapes.
    """
    parts = [as_tensor(t) for t in tensors]
    if not parts or len({t.shape for t in parts}) != 1:
        raise EveryOShapeError(
            f"stack needs tensors of one shape, got {[t.shape for t in parts] or 'an empty list'}"
        )
    return concatenate([unsqueeze(t, axis) for t in parts], _new_axis(parts[0], axis))


def split(a: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut along an axis: into `sections` equal parts, or before each index of a sequence."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    n = a.shape[at]
    if isinstance(sections, int | np.integer):
        if sections <= 0 or n % sections:
            raise EveryOShapeError(f"split: {n} elements do not divide into {sections} equal parts")
        cuts = [n // sections * i for i in range(sections + 1)]
    else:
        cuts = [0, *(operator.index(i) for i in sections), n]
    return [a[(*(slice(None),) * at, slice(i, j))] for i, j in itertools.pairwise(cuts)]


# ---------------------------------------------------------------------------------- padding


def _pad_prepare(a: Any, *, widths: Any, value: Any) -> dict[str, Any]:
    try:
        pairs = np.broadcast_to(np.asarray(widths), (len(a.shape), 2))
    except (ValueError, TypeError):
        pairs = None
    if pairs is None or (pairs.size and (pairs.dtype.kind not in "iu" or (pairs < 0).any())):
        raise EveryOShapeError(
            f"pad: widths {widths!r} must be non-negative ints: a number, (before, after), or one "
            f"pair per axis of shape {tuple(a.shape)}"
        )
    return {"widths": tuple((int(b), int(e)) for b, e in pairs), "value": value}


def inside_of(a: Any, widths: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    """Where the unpadded elements lie."""
    return tuple(slice(before, before + n) for n, (before, _) in zip(a.shape, widths, strict=True))


@_op(
    vjp=lambda xp, g, y, a, widths, value: xp.getitem(g, inside_of(a, widths)),
    samples=(
        Sample(((2, 3),), params={"widths": 1}),
        Sample(((2, 3),), params={"widths": ((0, 2), (1, 0)), "value": 3.0}),
    ),
    prepare=_pad_prepare,
    methods=("pad",),
    reference=lambda a, widths, value=0.0: np.pad(a, widths, constant_values=value),
)
def pad(xp, a, *, widths, value=0.0):
    """The tensor surrounded by `value`; `widths` as numpy.pad takes them."""
    shape = tuple(n + before + after for n, (before, after) in zip(a.shape, widths, strict=True))
    return xp.put(xp.full(shape, value, a.dtype), inside_of(a, widths), a)


# ---------------------------------------------------------------------------------- composites


def _new_axis(a: Any, axis: int) -> int:
    ndim = len(a.shape) + 1
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise EveryOShapeError(
            f"axis {axis} is out of range for a new axis of shape {tuple(a.shape)}"
        )
    return axis % ndim


def unsqueeze(a: Any, axis: int) -> Tensor:
    """A new axis of size 1 at `axis`."""
    a = as_tensor(a)
    at = _new_axis(a, axis)
    return reshape(a, (*a.shape[:at], 1, *a.shape[at:]))


def squeeze(a: Any, axis: Any = None) -> Tensor:
    """Without the axes of size 1: all of them, or those named."""
    a = as_tensor(a)
    axes = tuple(i for i, n in enumerate(a.shape) if n == 1) if axis is None else axes_of(a, axis)
    if any(a.shape[i] != 1 for i in axes):
        raise EveryOShapeError(f"squeeze: axis {axis} of shape {a.shape} is not of size 1")
    return reshape(a, tuple(n for i, n in enumerate(a.shape) if i not in axes))


def flatten(a: Any, start_dim: int = 0) -> Tensor:
    """The axes from `start_dim` on as one."""
    a = as_tensor(a)
    if not a.shape:
        return reshape(a, (1,))
    start = axes_of(a, start_dim, "start_dim")[0]
    return reshape(a, (*a.shape[:start], math.prod(a.shape[start:])))


def roll(a: Any, shift: Any, axis: Any = None) -> Tensor:
    """The elements moved by `shift` along axes, those pushed out coming in on the other side."""
    a = as_tensor(a)
    if axis is None:
        return reshape(roll(reshape(a, (-1,)), shift, 0), a.shape)
    shifts = tuple(shift) if isinstance(shift, tuple | list) else (shift,)
    given = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    count = builtins.max(len(shifts), len(given))
    shifts, given = (p * count if len(p) == 1 else p for p in (shifts, given))
    if len(shifts) != len(given):
        raise EveryOShapeError(f"roll: {len(shifts)} shifts for {len(given)} axes")
    for step, raw in zip(shifts, given, strict=True):
        i = axes_of(a, raw)[0]
        n = a.shape[i]
        if n and step % n:
            before = (slice(None),) * i
            a = concatenate(
                [a[(*before, slice(n - step % n, n))], a[(*before, slice(0, n - step % n))]], i
            )
    return a


def repeat(a: Any, repeats: int, axis: int | None = None) -> Tensor:
    """Each element (or slice along an axis) `repeats` times in a row."""
    a = as_tensor(a)
    if axis is None:
        a, axis = reshape(a, (-1,)), 0
    at = axes_of(a, axis)[0]
    shape = a.shape
    wide = broadcast_to(
        unsqueeze(a, at + 1), (*shape[: at + 1], operator.index(repeats), *shape[at + 1 :])
    )
    return reshape(wide, (*shape[:at], shape[at] * repeats, *shape[at + 1 :]))


def tile(a: Any, reps: Any) -> Tensor:
    """The whole tensor repeated `reps` times along each axis, as numpy.tile."""
    a = as_tensor(a)
    reps = tuple(reps) if isinstance(reps, tuple | list) else (reps,)
    shape = (1,) * (len(reps) - len(a.shape)) + a.shape
    reps = (1,) * (len(shape) - len(reps)) + reps
    mixed = tuple(n for r, s in zip(reps, shape, strict=True) for n in (1, s))
    wide = tuple(n for r, s in zip(reps, shape, strict=True) for n in (operator.index(r), s))
    return reshape(
        broadcast_to(reshape(a, mixed), wide),
        tuple(r * s for r, s in zip(reps, shape, strict=True)),
    )


def _triangle(a: Any, k: int, lower: bool) -> Tensor:
    a = as_tensor(a)
    if len(a.shape) < 2:
        raise EveryOShapeError(f"tril and triu need at least two dimensions, got shape {a.shape}")
    m, n = a.shape[-2:]
    rows, columns = np.arange(m)[:, None] + k, np.arange(n)
    keep = columns <= rows if lower else columns >= rows
    return TENSORS.where(keep, a, False if a.dtype == "bool" else 0)


def tril(a: Any, k: int = 0) -> Tensor:
    """Zero above the k-th diagonal of the last two axes."""
    return _triangle(a, k, True)


def triu(a: Any, k: int = 0) -> Tensor:
    """Zero below the k-th diagonal of the last two axes."""
    return _triangle(a, k, False)


for _function in (
    concatenate,
    stack,
    split,
    unsqueeze,
    squeeze,
    flatten,
    roll,
    repeat,
    tile,
    tril,
    triu,
):
    setattr(TENSORS, _function.__name__, _function)
    if _function not in (concatenate, stack):
        setattr(Tensor, _function.__name__, _function)
