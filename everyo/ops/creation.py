"""Functions that make tensors from sizes, ranges and random numbers."""

import operator
from typing import Any

import numpy as np

from everyo.core.autograd import current_trace
from everyo.core.device_array import moved
from everyo.core.dtype import FLOAT32, as_dtype
from everyo.core.random import DEFAULT, host_generator
from everyo.core.tensor import Tensor, _place, as_tensor
from everyo.exceptions import EveryODTypeError, EveryOShapeError


def _shape(given: Any) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], tuple | list):
        given = given[0]
    sizes = tuple(operator.index(n) for n in given)
    if any(n < 0 for n in sizes):
        raise EveryOShapeError(f"sizes must not be negative, got {sizes}")
    return sizes


def _make(array: Any, device: Any, requires_grad: bool = False) -> Tensor:
    place = _place(device)
    trace = current_trace()
    if trace is None:
        out = Tensor._wrap(moved(array, place))
    else:
        out = Tensor._wrap(trace.new(array, array.dtype) if type(array) is np.ndarray else array)
    if requires_grad:
        out.requires_grad = True
    return out


def zeros(
    *shape: Any, dtype: Any = None, device: Any = "cpu", requires_grad: bool = False
) -> Tensor:
    """Zeros of a shape, `zeros(2, 3)` or `zeros((2, 3))`; float32 by default."""
    return _make(np.zeros(_shape(shape), as_dtype(dtype or FLOAT32)), device, requires_grad)


def ones(
    *shape: Any, dtype: Any = None, device: Any = "cpu", requires_grad: bool = False
) -> Tensor:
    """Ones of a shape, `ones(2, 3)` or `ones((2, 3))`; float32 by default."""
    return _make(np.ones(_shape(shape), as_dtype(dtype or FLOAT32)), device, requires_grad)


def full(
    shape: Any, value: Any, *, dtype: Any = None, device: Any = "cpu", requires_grad: bool = False
) -> Tensor:
    """One value in a shape; float32 by default."""
    sizes = _shape(shape if isinstance(shape, tuple | list) else (shape,))
    return _make(np.full(sizes, value, as_dtype(dtype or FLOAT32)), device, requires_grad)


def zeros_like(ref: Any, *, requires_grad: bool = False) -> Tensor:
    """Zeros of the shape and dtype of a tensor."""
    ref = as_tensor(ref)
    return zeros(ref.shape, dtype=ref.dtype, device=ref.device, requires_grad=requires_grad)


def ones_like(ref: Any, *, requires_grad: bool = False) -> Tensor:
    """Ones of the shape and dtype of a tensor."""
    ref = as_tensor(ref)
    return ones(ref.shape, dtype=ref.dtype, device=ref.device, requires_grad=requires_grad)


def arange(
    start: Any, stop: Any = None, step: Any = 1.0, *, dtype: Any = None, device: Any = "cpu"
) -> Tensor:
    """Numbers from `start` (0 if only one bound is given) below `stop`; float32 by default."""
    if stop is None:
        start, stop = 0, start
    return _make(np.arange(start, stop, step).astype(as_dtype(dtype or FLOAT32)), device)


def linspace(
    start: Any, stop: Any, num: int = 50, *, dtype: Any = None, device: Any = "cpu"
) -> Tensor:
    """`num` numbers from `start` to `stop`, both included; float32 by default."""
    return _make(np.linspace(start, stop, num).astype(as_dtype(dtype or FLOAT32)), device)


def eye(n: int, m: int | None = None, *, device: Any = "cpu") -> Tensor:
    """The identity matrix (n, n), or (n, m) with ones on the diagonal; float32."""
    return _make(np.eye(n, m, dtype=FLOAT32), device)


def uniform(
    shape: Any, low: float = 0.0, high: float = 1.0, *, seed: Any = None, dtype: Any = None,
    device: Any = "cpu", requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Random numbers in [low, high). `seed` is an int or a numpy Generator; None draws from the
    generator of `manual_seed`."""
    sizes = _shape(shape if isinstance(shape, tuple | list) else (shape,))
    wanted = _random_dtype(dtype)
    if seed is not None:
        values = host_generator(seed).uniform(low, high, sizes).astype(wanted)
        if high > low:  # rounding to the dtype must not reach the open end
            values = np.minimum(values, np.nextafter(wanted.type(high), wanted.type(low)))
        return _make(values, device, requires_grad)
    values = _draw(DEFAULT.uniform, sizes, wanted)
    out = Tensor._wrap(values)
    if (low, high) != (0.0, 1.0):
        out = _below(out * (high - low) + low, low, high).detach()
    return _make(out.data, device, requires_grad)


def _below(t: Tensor, low: float, high: float) -> Tensor:
    from everyo.ops.elementwise import minimum

    if not high > low:
        return t
    kind = np.dtype(t.dtype).type
    return minimum(t, float(np.nextafter(kind(high), kind(low))))


def normal(
    shape: Any, mean: float = 0.0, std: float = 1.0, *, seed: Any = None, dtype: Any = None,
    device: Any = "cpu", requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normally distributed numbers; `seed` as in `uniform`."""
    sizes = _shape(shape if isinstance(shape, tuple | list) else (shape,))
    wanted = _random_dtype(dtype)
    if seed is not None:
        return _make(
            host_generator(seed).normal(mean, std, sizes).astype(wanted), device, requires_grad
        )
    out = Tensor._wrap(_draw(DEFAULT.normal, sizes, wanted))
    if (mean, std) != (0.0, 1.0):
        out = out * std + mean
    return _make(out.data, device, requires_grad)


def _draw(draw: Any, sizes: tuple[int, ...], dtype: np.dtype) -> Any:
    """Half precision is drawn in float32."""
    if dtype.itemsize >= 4:
        return draw(sizes, dtype)
    return Tensor._wrap(draw(sizes, FLOAT32)).astype(dtype).data


def _random_dtype(dtype: Any) -> np.dtype:
    wanted = as_dtype(dtype or FLOAT32)
    if wanted.kind != "f":
        raise EveryODTypeError(f"random numbers are floating, not {wanted}")
    return wanted


def rand(*shape: Any, seed: Any = None, device: Any = "cpu") -> Tensor:
    """Random float32 numbers in [0, 1)."""
    return uniform(_shape(shape), seed=seed, device=device)


def randn(*shape: Any, seed: Any = None, device: Any = "cpu") -> Tensor:
    """Standard normal float32 numbers."""
    return normal(_shape(shape), seed=seed, device=device)


def one_hot(indices: Any, num_classes: int, *, dtype: Any = None) -> Tensor:
    """Rows with a single 1 at each index: any shape, flattened to (n,) -> (n, num_classes).

    Raises `EveryOShapeError` for an index outside [0, num_classes).
    """
    source = indices._concrete("one_hot()") if isinstance(indices, Tensor) else np.asarray(indices)
    if source.dtype.kind not in "iub" and not (source == np.floor(source)).all():
        raise EveryOShapeError("one_hot: indices must be whole numbers")
    flat = source.reshape(-1).astype(np.int64)
    if num_classes <= 0 or (flat.size and not (flat.min() >= 0 and flat.max() < num_classes)):
        raise EveryOShapeError(f"one_hot: indices are out of range for {num_classes} classes")
    out = np.zeros((flat.size, num_classes), as_dtype(dtype or FLOAT32))
    out[np.arange(flat.size), flat] = 1
    return _make(out, "cpu")
