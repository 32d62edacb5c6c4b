"""Reading and adding at positions: slices, integer and boolean indexing, gather and scatter."""

import operator
from typing import Any

import numpy as np

from everyo.core.autograd import current_trace, namespace
from everyo.core.namespace import TENSORS, all_hold, is_array, kind_of
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

    Raises `EveryOIndexError` (an `IndexError` too) for positions outside an axis, masks of another
    shape and too many entries.
    """
    a = as_tensor(a)
    rest, indices = separate(_normal_key(a, key))
    return take_at(a, *indices, key=rest) if indices else slice_(a, rest)


def _normal_key(a: Tensor, key: Any) -> tuple[Any, ...]:
    """The key as slices, None, Ellipsis, ints and integer arrays, all within bounds. A mask becomes
    the positions where it is true, one array per axis."""
    entries = [_entry(k) for k in (key if isinstance(key, tuple) else (key,))]
    widths = [0 if k is None or k is Ellipsis else k.ndim if _is_mask(k) else 1 for k in entries]
    ndim, spent = len(a.shape), sum(widths)
    if spent > ndim or sum(k is Ellipsis for k in entries) > 1:
        raise EveryOIndexError(f"{spent} index entries for a tensor of shape {a.shape}")
    out: list[Any] = []
    axis = 0
    for k, width in zip(entries, widths, strict=True):
        if _is_mask(k):
            if k.shape != a.shape[axis : axis + width]:
                raise EveryOIndexError(
                    f"a mask of shape {k.shape} does not fit a tensor of shape {a.shape}"
                )
            trace = current_trace()
            if trace is not None:
                trace.freeze(k)
            out += np.nonzero(k)
        else:
            if not (k is None or k is Ellipsis or isinstance(k, slice)):
                _check_index(k, a.shape[axis], axis, a.shape)
            out.append(k)
        axis += ndim - spent if k is Ellipsis else width
    return tuple(out)


def _is_mask(k: Any) -> bool:
    return is_array(k) and k.dtype.kind == "b"


def _entry(k: Any) -> Any:
    """One entry of a key: integers as ints, what is like an array as integer array or mask."""
    if k is None or k is Ellipsis:
        return k
    if isinstance(k, slice):
        return slice(*(None if b is None else operator.index(b) for b in (k.start, k.stop, k.step)))
    if isinstance(k, bool | np.bool_):
        raise EveryOIndexError("a single bool is not an index; None makes a new axis")
    if isinstance(k, int | np.integer):
        return int(k)
    return _index_array(k)


def _index_array(k: Any) -> Any:
    """A list, array or tensor as an array (or tensor) of integers, or as a mask."""
    if isinstance(k, Tensor):
        kind = k._data.dtype.kind
        if kind == "b":
            return k._concrete("a boolean mask as index")
        if kind in "iu":
            return k
        xp, values = namespace(), k.data  # tensor([0, 2]) is float32
        xp.require(
            all_hold(xp, xp.equal(values, xp.floor(values))),
            EveryODTypeError,
            f"an index of dtype {k.dtype} with a fraction; use whole numbers or integers",
        )
        return Tensor._wrap(xp.astype(values, np.dtype(np.int64)))
    if hasattr(k, "__array_ufunc__") and not (is_array(k) or isinstance(k, np.generic)):
        kind = kind_of(k)  # an array that records
        if kind == "b":
            return k.trace.concrete(k, "a boolean mask as index")
        if kind not in "iu":
            raise EveryODTypeError(f"an index of dtype {k.dtype}; convert it with astype('int64')")
        return k
    array = np.asarray(k)
    if array.dtype.kind == "b":
        return array
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise EveryODTypeError(f"an index of dtype {array.dtype}; use integers, booleans or slices")
    return array.astype(np.int64, copy=False)


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
            all_hold(xp, inside),
            EveryOIndexError,
            message,
        )


def assign(a: Tensor, key: Any, value: Any) -> None:
    """`a[key] = value` on a tensor that takes part in no graph."""
    if current_trace() is None:
        entries = [k._data if isinstance(k, Tensor) else k for k in _normal_key(a, key)]
    else:
        parts = key if isinstance(key, tuple) else (key,)
        entries = [k.data if isinstance(k, Tensor) else k for k in parts]
        entries = [np.asarray(k) if isinstance(k, list) else k for k in entries]
    a._write(value.data if isinstance(value, Tensor) else value, tuple(entries))


def take_along_axis(a: Any, indices: Any, axis: int = -1) -> Tensor:
    """One element per position of `indices` along an axis, as numpy.take_along_axis: the other
    sizes are those of `a`, or 1."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    indices = _integers(indices)
    shape = tuple(indices.shape)
    sizes = a.shape[:at] + shape[at : at + 1] + a.shape[at + 1 :]
    if len(shape) != len(a.shape) or any(
        n not in (1, m) for n, m in zip(shape, sizes, strict=True)
    ):
        raise EveryOShapeError(
            f"take_along_axis: indices {shape} do not fit {a.shape} along axis {axis}"
        )
    return a[_along(sizes, indices, at)]


def _integers(indices: Any) -> Any:
    found = _index_array(indices)
    if _is_mask(found):
        raise EveryODTypeError("indices along an axis are integers, not bools")
    return found


def _along(sizes: tuple[int, ...], indices: Any, at: int) -> tuple[Any, ...]:
    """The key that takes `indices` along axis `at` and every position of the other axes."""
    grid = [
        np.arange(n).reshape([-1 if i == j else 1 for j in range(len(sizes))])
        for i, n in enumerate(sizes)
    ]
    grid[at] = indices
    return tuple(grid)


def gather(a: Any, axis: int, indices: Any) -> Tensor:
    """One element per position of `indices` along an axis; the other sizes are at most those of
    `a`, as torch.gather."""
    a = as_tensor(a)
    at = axes_of(a, axis)[0]
    indices = _integers(indices)
    _check_along("gather", a, at, tuple(indices.shape))
    return a[_along(tuple(indices.shape), indices, at)]


def scatter_add(a: Any, axis: int, indices: Any, values: Any) -> Tensor:
    """`a` with `values` added at `indices` along an axis; repeated positions add up."""
    a, values = as_tensor(a), as_tensor(values)
    at = axes_of(a, axis)[0]
    indices = _integers(indices)
    shape = tuple(indices.shape)
    _check_along("scatter_add", a, at, shape)
    if values.shape != shape:
        raise EveryOShapeError(f"scatter_add: values {values.shape} for indices {shape}")
    key = _normal_key(a, _along(shape, indices, at))
    return a + TENSORS.astype(put_add(a.shape, key, values), a._data.dtype)


def _check_along(name: str, a: Tensor, at: int, shape: tuple[int, ...]) -> None:
    if len(shape) != len(a.shape) or any(
        n > m for i, (n, m) in enumerate(zip(shape, a.shape, strict=True)) if i != at
    ):
        raise EveryOShapeError(f"{name}: indices {shape} do not fit {a.shape} along axis {at}")


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


METHODS = (take_along_axis, gather, scatter_add, argsort, sort, topk)
for _function in (index, getitem, put_add, assign, *METHODS):
    setattr(TENSORS, _function.__name__, _function)
for _function in METHODS:
    setattr(Tensor, _function.__name__, _function)
