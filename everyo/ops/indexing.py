"""Reading and adding at positions: slices, integer and boolean indexing, gather and scatter."""

import operator
from typing import Any

import numpy as np

from everyo.core.autograd import current_trace, namespace
from everyo.core.namespace import TENSORS
from everyo.core.op import Sample, op
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryODTypeError, EveryOIndexError, EveryOShapeError
from everyo.ops.reduce import axes_of


def _op(**fields: Any) -> Any:
    return op(**{"kind": "indexing", **fields})


@_op(
    vjp=lambda xp, g, y, a, key: xp.put_add(a.shape, key, g),
    samples=(
        Sample(((4, 5),), params={"key": (slice(1, 3), slice(None, None, -2))}),
        Sample(((4, 5),), params={"key": (2,)}),
        Sample(((4, 5),), params={"key": (None, Ellipsis, 1)}),
    ),
    view=True,
    aliases=("getitem",),
    reference=lambda a, key: a[key],
)
def slice_(xp, a, *, key):
    """Basic indexing: integers, slices, Ellipsis and None. A view."""
    return xp.getitem(a, key)


def _gather_rule(i: int) -> Any:
    if i:
        return None
    return lambda xp, g, y, a, *indices, key: xp.put_add(a.shape, filled(key, indices), g)


@_op(
    vjp=_gather_rule,
    arity=-1,
    saves="*",
    plain="*",
    samples=(
        Sample(((4, 3), (3,)), params={"key": (0,)}, fixed={1: np.array([2, 0, 2])}),
        Sample(
            ((4, 3), (2, 2)),
            params={"key": (slice(None), 0)},
            fixed={1: np.array([[2, 0], [1, 1]])},
        ),
        Sample(
            ((4, 3), (2,), (2,)),
            params={"key": (0, 1)},
            fixed={1: np.array([3, -1]), 2: np.array([0, 2])},
        ),
    ),
    reference=lambda a, *indices, key: a[filled(key, indices)],
)
def take_at(xp, a, *indices, key):
    """Integer-array indexing: `key` with its ints replaced by the index operands. A copy."""
    return xp.getitem(a, filled(key, indices))


def filled(key: tuple, indices: tuple) -> tuple:
    """`key` with each int k replaced by indices[k]; without indices its ints are positions."""
    if not indices:
        return key
    return tuple(indices[k] if type(k) is int else k for k in key)


@_op(
    vjp=lambda i: (
        None
        if i
        else (lambda xp, g, y, v, *indices, shape, key: xp.getitem(g, filled(key, indices)))
    ),
    arity=-1,
    saves="*",
    plain="*",
    samples=(
        Sample(
            ((3, 2), (3,)), params={"shape": (4, 2), "key": (0,)}, fixed={1: np.array([1, 1, 0])}
        ),
        Sample(((2, 2),), params={"shape": (4, 2), "key": (slice(1, 3),)}),
    ),
    reference=lambda v, *indices, shape, key: _added(v, shape, filled(key, indices)),
)
def add_at(xp, v, *indices, shape, key):
    """Zeros of `shape` with `v` added at `key`; repeated positions add up."""
    return xp.put_add(shape, filled(key, indices), v)


def _added(v: Any, shape: tuple[int, ...], key: tuple) -> np.ndarray:
    out = np.zeros(shape)
    np.add.at(out, key, v)
    return out


def put_add(shape: tuple[int, ...], key: Any, value: Any) -> Tensor:
    """`add_at` with the index arrays inside the key."""
    rest, indices = separate(key)
    return add_at(value, *indices, shape=shape, key=rest)


def getitem(a: Any, key: Any) -> Tensor:
    """`a[key]` for keys that are already normal: no bounds are checked."""
    rest, indices = separate(key)
    return take_at(a, *indices, key=rest) if indices else slice_(a, rest)


def separate(key: Any) -> tuple[tuple, list[Any]]:
    """A key as (key with ints k for arrays, arrays); without arrays the ints stay indices."""
    parts = key if isinstance(key, tuple) else (key,)
    arrays = [k for k in parts if not isinstance(k, slice | int | type(None) | type(Ellipsis))]
    if not arrays:
        return parts, []
    numbered: list[Any] = []
    out: list[Any] = []
    for k in parts:
        if isinstance(k, slice | type(None) | type(Ellipsis)):
            out.append(k)
        else:
            out.append(len(numbered))
            numbered.append(np.int64(k) if type(k) is int else k)
    return tuple(out), numbered


def index(a: Any, key: Any) -> Tensor:
    """`a[key]`: basic keys give views, integer arrays and boolean masks copies.

    Raises `EveryOIndexError` (an `IndexError` too) for positions outside an axis or too many entries.
    """
    a = as_tensor(a)
    parts = list(key) if isinstance(key, tuple) else [key]
    fixed: list[Any] = []
    for k in parts:
        if isinstance(k, slice):
            fixed.append(
                slice(
                    *(None if b is None else operator.index(b) for b in (k.start, k.stop, k.step))
                )
            )
        elif k is None or k is Ellipsis:
            fixed.append(k)
        elif isinstance(k, bool | np.bool_):
            fixed.append(np.asarray(k))
        elif isinstance(k, int | np.integer):
            fixed.append(int(k))
        else:
            fixed += _index_arrays(k)
    entries = sum(1 for k in fixed if k is not None and k is not Ellipsis)
    if entries > len(a.shape) or sum(1 for k in fixed if k is Ellipsis) > 1:
        raise EveryOIndexError(f"{entries} index entries for a tensor of shape {a.shape}")
    _check_bounds(a, fixed)
    rest, indices = separate(tuple(fixed))
    return take_at(a, *indices, key=rest) if indices else slice_(a, rest)


def _index_arrays(k: Any) -> list[Any]:
    """An index entry as integer arrays: a boolean mask becomes one array per axis of the mask."""
    if isinstance(k, Tensor):
        kind = k._data.dtype.kind
        if kind == "b":
            return list(np.nonzero(k._concrete("a boolean mask as index")))
        if kind in "iu":
            return [k]
        whole = k._data if current_trace() is None else None
        if whole is not None and (whole == np.floor(whole)).all():
            return [whole.astype(np.int64)]
        raise EveryODTypeError(f"an index of dtype {k.dtype}; convert it with astype('int64')")
    if hasattr(k, "__array_ufunc__") and not isinstance(k, np.ndarray | np.generic):
        return [k]
    array = np.asarray(k)
    if array.dtype.kind == "b":
        return list(np.nonzero(array))
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise EveryODTypeError(f"an index of dtype {array.dtype}; use integers, booleans or slices")
    return [array.astype(np.int64, copy=False)]


def _check_bounds(a: Any, key: list[Any]) -> None:
    spent = sum(1 for k in key if k is not None and k is not Ellipsis)
    axis = 0
    for k in key:
        if k is Ellipsis:
            axis += len(a.shape) - spent
        elif k is not None:
            n = a.shape[axis]
            if not isinstance(k, slice):
                _check_index(k, n, axis, a.shape)
            axis += 1


def _check_index(k: Any, n: int, axis: int, shape: tuple[int, ...]) -> None:
    """Raise (or, in a trace, record a check) unless every entry of `k` lies in [-n, n)."""
    message = f"an index is out of range for axis {axis} with size {n} of shape {tuple(shape)}"
    if isinstance(k, int):
        if not -n <= k < n:
            raise EveryOIndexError(
                f"index {k} is out of range for axis {axis} with size {n}, shape {tuple(shape)}"
            )
        return
    trace = current_trace()
    if trace is None:
        values = k._data if isinstance(k, Tensor) else k
        if values.size and not (values.min() >= -n and values.max() < n):
            worst = values.min() if values.min() < -n else values.max()
            raise EveryOIndexError(
                f"index {worst} is out of range for axis {axis} with size {n}, shape {tuple(shape)}"
            )
    elif np.size(k) if not hasattr(k, "size") else k.size:
        xp = trace.xp
        values = trace.read(k) if isinstance(k, Tensor) else k
        inside = xp.logical_and(xp.greater_equal(values, -n), xp.less(values, n))
        xp.require(
            xp.all(inside, axis=tuple(range(len(inside.shape))), keepdims=False),
            EveryOIndexError,
            message,
        )


def assign(a: Tensor, key: Any, value: Any) -> None:
    """`a[key] = value` on a tensor that takes part in no graph."""
    parts = key if isinstance(key, tuple) else (key,)
    fixed: list[Any] = []
    for k in parts:
        if isinstance(k, Tensor):
            k = k.data
        elif isinstance(k, list):
            k = np.asarray(k)
        fixed.append(k)
    if current_trace() is None:
        plain = [int(k) if isinstance(k, np.integer) else k for k in fixed]
        if not any(isinstance(k, np.ndarray) for k in plain):
            _check_bounds(a, [k for k in plain])
    a._write(value.data if isinstance(value, Tensor) else value, tuple(fixed))


def take_along_axis(a: Any, indices: Any, axis: int = -1) -> Tensor:
    """One element per position of `indices` along an axis, as numpy.take_along_axis."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    indices = _integers(indices)
    shape = indices.shape
    if len(shape) != len(a.shape) or any(
        n != m for i, (n, m) in enumerate(zip(shape, a.shape, strict=True)) if i != at
    ):
        raise EveryOShapeError(
            f"take_along_axis: indices {shape} do not fit {a.shape} along axis {axis}"
        )
    return a[_along(shape, indices, at)]


def _integers(indices: Any) -> Any:
    found = _index_arrays(indices)
    return found[0]


def _along(shape: tuple[int, ...], indices: Any, at: int) -> tuple:
    grid = [
        np.arange(n).reshape([-1 if i == j else 1 for j in range(len(shape))])
        for i, n in enumerate(shape)
    ]
    grid[at] = indices
    return tuple(grid)


def gather(a: Any, axis: int, indices: Any) -> Tensor:
    """`take_along_axis` with torch's order of arguments."""
    return take_along_axis(a, indices, axis)


def scatter_add(a: Any, axis: int, indices: Any, values: Any) -> Tensor:
    """`a` with `values` added at `indices` along an axis; repeated positions add up."""
    a, values = as_tensor(a), as_tensor(values)
    at = axes_of(a, axis)[0]
    indices = _integers(indices)
    shape = indices.shape
    fits = len(shape) == len(a.shape) and tuple(values.shape) == tuple(shape) and all(
        n <= m for i, (n, m) in enumerate(zip(shape, a.shape, strict=True)) if i != at
    )  # fmt: skip
    if not fits:
        raise EveryOShapeError(
            f"scatter_add: indices {shape} and values {values.shape} do not fit {a.shape}"
        )
    key = list(_along(shape, indices, at))
    _check_bounds(a, key)
    return a + TENSORS.astype(put_add(a.shape, tuple(key), values), a._data.dtype)


for _name, _function in (("index", index), ("getitem", getitem), ("put_add", put_add), ("assign", assign),
                         ("take_along_axis", take_along_axis), ("gather", gather), ("scatter_add", scatter_add)):  # fmt: skip
    setattr(TENSORS, _name, _function)
for _function in (take_along_axis, gather, scatter_add):
    setattr(Tensor, _function.__name__, _function)


def _order(a: Any, axis: int, descending: bool) -> Any:
    """The stable order of the elements along an axis, as an int64 tensor."""
    data, xp = a.data, namespace()
    if descending:
        data = xp.flip(data, (axis,))
    order = xp.argsort(data, axis=axis)
    if descending:
        order = xp.flip(xp.subtract(a.shape[axis] - 1, order), (axis,))
    return Tensor._wrap(order)


def argsort(a: Any, axis: int = -1, descending: bool = False) -> Tensor:
    """The positions that sort `a` along an axis, stable, NaN last, int64. Not differentiable."""
    a = as_tensor(a)
    return _order(a, axes_of(a, axis)[0], descending)


def sort(a: Any, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements in ascending (or descending) order along an axis; differentiable."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    return take_along_axis(a, _order(a, at, descending), at)


def topk(a: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis, sorted, and their positions."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    if not 0 <= operator.index(k) <= a.shape[at]:
        raise EveryOShapeError(
            f"topk: k={k} is out of range for axis {axis} with size {a.shape[at]}"
        )
    order = _order(a, at, largest)[(*(slice(None),) * at, slice(0, k))]
    return take_along_axis(a, order, at), order


for _function in (argsort, sort, topk):
    setattr(TENSORS, _function.__name__, _function)
    setattr(Tensor, _function.__name__, _function)
