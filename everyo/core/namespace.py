"""The array namespaces that op records are written against.

`NUMPY` computes: NumPy's own functions under NumPy's names, and the few that NumPy lacks.
`TENSORS` is filled by the op records themselves: the same names as ops on tensors, so that a
gradient rule run on it is recorded and can be differentiated again. The third namespace, the
recorder of `eo.compile`, has the same names and lives in `everyo.compile.builder`.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from everyo.core.erf import erf

HALF = np.dtype(np.float16)
SMALL = 4096  # elements; below, filling an array is cheaper than a view with strides of 0
FLAT = 1 << 18  # flat indices that are made at once

DEVICES: list[Any] = []  # empty until the first array on a device exists, see core.device_array
TENSORS = SimpleNamespace()  # name -> differentiable op on tensors; see everyo.core.op


def kind_of(x: Any) -> str:
    """The kind of an array's or tensor's dtype: "f" floating, "i" integer, "b" bool."""
    return np.dtype(x.dtype).kind


def is_array(x: Any) -> bool:
    """Whether `x` is a NumPy array. One that records only claims to be: isinstance() says yes to
    it, so that a user's own tests go the same way while they are traced."""
    return issubclass(type(x), np.ndarray)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, np.divide(1, 1 + e), np.divide(e, 1 + e))


def astype(x: np.ndarray, dtype: Any) -> np.ndarray:
    return np.asarray(x).astype(dtype, copy=False)


def copy(x: np.ndarray) -> np.ndarray:
    return np.array(x)


def reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape)


def transpose(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return x.transpose(axes)


def broadcast_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only view, or a filled array where that costs less than making the view."""
    if math.prod(shape) > SMALL:
        return np.broadcast_to(x, shape)
    out = np.empty(shape, x.dtype)
    out[...] = x
    return out


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """numpy.matmul; half precision by way of float32, where NumPy has a fast product."""
    if type(a) is type(b) is np.ndarray and a.dtype == b.dtype == HALF:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(HALF)
    return np.matmul(a, b)


def _reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    """The reduction itself, without the wrapper that numpy.sum and its kin are. Half precision adds
    and multiplies up in float32."""
    reduce: Callable[..., Any] = ufunc.reduce
    wide = ufunc in (np.add, np.multiply)

    def reduction(x: np.ndarray, axis: tuple[int, ...], keepdims: bool = False) -> Any:
        if wide and x.dtype == HALF:
            return np.asarray(reduce(x, axis, np.float32, None, keepdims)).astype(HALF)
        return reduce(x, axis, None, None, keepdims)  # by position: a keyword costs as much again

    return reduction


def getitem(x: np.ndarray, key: Any) -> np.ndarray:
    return x[key]


def windows(
    x: np.ndarray, *, axis: int, count: int, size: int, step: int, spacing: int
) -> np.ndarray:
    """A read-only view with two axes instead of one: `count` windows, `step` apart, of `size`
    elements, `spacing` apart."""
    stride = x.strides[axis]
    shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], stride * step, stride * spacing, *x.strides[axis + 1 :])
    return as_strided(x, shape, strides, writeable=False)


def put(x: np.ndarray, key: Any, value: Any) -> np.ndarray:
    """`x` with `value` stored at `key`, as a new array."""
    out = np.array(x)
    out[key] = value
    return out


def put_add(shape: tuple[int, ...], key: Any, value: np.ndarray) -> np.ndarray:
    """Zeros of `shape` with `value` added at `key`; repeated indices add up: adjoint of getitem."""
    out = np.zeros(shape, value.dtype)
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        _add_rows(out, parts[0], value)
    elif any(isinstance(k, np.ndarray) for k in parts):
        np.add.at(out, key, value)
    else:
        out[key] = value
    return out


def _add_rows(out: np.ndarray, index: np.ndarray, value: np.ndarray) -> None:
    """Add rows of `value` to the indexed rows of `out`, element by element: numpy.add.at is several
    times faster with one flat index than with rows."""
    width = math.prod(out.shape[1:])
    flat, rows = out.reshape(-1), np.where(index < 0, index + len(out), index).reshape(-1, 1)
    value = np.broadcast_to(value, (*index.shape, *out.shape[1:])).reshape(len(rows), width)
    columns = np.arange(width)
    step = max(1, FLAT // max(width, 1))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        np.add.at(flat, (rows[part] * width + columns).reshape(-1), value[part].reshape(-1))


def pick(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """x[..., index[...]]: one element of each row, (..., n), (...) -> (...)."""
    return np.take_along_axis(x, index[..., None], -1)[..., 0]


def spread(g: np.ndarray, index: np.ndarray, n: int) -> np.ndarray:
    """The adjoint of pick: rows of n zeros with `g` at `index`."""
    out = np.zeros((*g.shape, n), g.dtype)
    np.put_along_axis(out, index[..., None], g[..., None], -1)
    return out


def random(state: np.ndarray, *, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Uniform numbers in [0, 1) from the Philox state (key, counter) of `everyo.core.random`."""
    words, count = state.view(np.uint64), math.prod(shape)
    narrow = np.dtype(dtype) != np.float64
    raw = np.random.Philox(key=words[:2], counter=words[2:]).random_raw(-(-count // (1 + narrow)))
    if narrow:
        halves = raw.astype("<u8", copy=False).view("<u4")[:count]
        return ((halves >> 8).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
    return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)


def all_hold(xp: Any, condition: Any) -> Any:
    """Whether a condition holds everywhere, 0-d."""
    return xp.all(condition, axis=tuple(range(len(condition.shape))), keepdims=False)


def require(condition: Any, error: type[Exception], message: str) -> None:
    """Raise `error(message)` unless `condition` (a 0-d bool array) holds."""
    if not condition:
        raise error(message)


def iota(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The index along `axis`, int64."""
    column = [-1 if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(column), shape)


def argsort(x: np.ndarray, *, axis: int) -> np.ndarray:
    return np.argsort(x, axis=axis, kind="stable")


def _named(names: str) -> dict[str, Any]:
    return {name: getattr(np, name) for name in names.split()}


def _merge(*arrays: Sequence[Any], axis: int) -> np.ndarray:
    return np.concatenate(arrays, axis=axis)


NUMPY = SimpleNamespace(
    **_named(
        "add subtract multiply divide negative power exp expm1 log log1p log2 log10 sqrt cbrt "
        "square reciprocal abs sign sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh floor "
        "ceil rint floor_divide remainder maximum minimum isnan isinf isfinite equal not_equal "
        "less less_equal greater greater_equal logical_and logical_or logical_xor logical_not "
        "where cumsum argmax argmin flip zeros ones full"
    ),
    sum=_reduction(np.add), prod=_reduction(np.multiply), max=_reduction(np.maximum),
    min=_reduction(np.minimum), any=_reduction(np.logical_or), all=_reduction(np.logical_and),
    matmul=matmul, reshape=reshape, transpose=transpose, broadcast_to=broadcast_to,
    erf=erf, sigmoid=sigmoid, astype=astype, copy=copy, getitem=getitem, put=put, put_add=put_add,
    windows=windows,
    pick=pick, spread=spread, random=random, require=require, iota=iota,
    argsort=argsort, merge=_merge, asarray=np.asarray,
)  # fmt: skip
