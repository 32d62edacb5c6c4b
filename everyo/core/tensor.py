"""`Tensor`: an array with a place in the graph.

The array is in the slot `_data` (read by the engine), the gradient in `_grad`, the node that
computed the tensor in `grad_node`. Operators and most methods are installed by the op records.
Everything that reads or writes values goes through a few hooks here (`data`, `grad`, `_write`),
which hand over to the active trace, so that `eo.compile` sees state being read and written.
"""

import html
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from everyo.core import autograd
from everyo.core.autograd import MODE, TRACES, Clock, current_trace
from everyo.core.device import CPU, Device, device
from everyo.core.device_array import DeviceArray, moved, place_of
from everyo.core.dtype import NAMES, DTypeLike, as_array, as_dtype
from everyo.core.interop import array_function
from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.state import Epoch
from everyo.exceptions import (
    EveryODTypeError,
    EveryOGradientError,
    EveryOIndexError,
    EveryOShapeError,
)

SHOWN = 1000  # tensors with more elements are not printed in full


class Tensor:
    """An n-dimensional array that can record how it was computed.

    `data` is copied. Without `dtype`, Python numbers, lists and integers become float32, floating
    NumPy arrays keep their precision, bool stays bool. Raises `EveryODTypeError` for ragged or
    non-numeric data and `EveryOGradientError` for `requires_grad` on a non-floating tensor.
    """

    __slots__ = ("__weakref__", "_cell", "_data", "_grad", "_requires_grad", "grad_node", "name")
    __array_priority__ = 1000
    grad_node: Any

    if TYPE_CHECKING:  # operators and methods that the op records install

        def _binary(self, other: Any) -> "Tensor": ...

        def __getattr__(self, name: str) -> Any: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _binary
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _binary
        __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = _binary

        def __neg__(self) -> "Tensor": ...

        def __pos__(self) -> "Tensor": ...

        def __abs__(self) -> "Tensor": ...

        def __invert__(self) -> "Tensor": ...

    def __init__(
        self,
        data: Any,
        *,
        dtype: DTypeLike | None = None,
        device: Any = "cpu",
        requires_grad: bool = False,
        name: str | None = None,
    ) -> None:
        place = _place(device)
        trace = current_trace()
        if trace is not None:
            self._data = trace.new(data, dtype)
        else:
            array = as_array(data._data if isinstance(data, Tensor) else data, dtype)
            self._data = moved(array, place)
        self._grad = self.grad_node = None
        self._requires_grad = False
        self._cell = [0]
        self.name = name
        if requires_grad:
            self.requires_grad = True

    # ------------------------------------------------------------------ making tensors internally

    @classmethod
    def _wrap(cls, array: Any) -> "Tensor":
        """A tensor over `array` itself, without a copy."""
        out = Tensor.__new__(Tensor)
        out._data = array
        out._grad = out.name = out.grad_node = None
        out._requires_grad = False
        out._cell = [0]
        return out

    @classmethod
    def _leaf(cls, tensor: "Tensor") -> "Tensor":
        """A new leaf over the same data that requires gradients."""
        out = cls._wrap(tensor.data)
        out._cell = tensor._cell
        out._requires_grad = True
        return out

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def dtype(self) -> str:
        """The name of the dtype, e.g. `"float32"`."""
        return NAMES[self._data.dtype]

    @property
    def device(self) -> Device:
        """Where the data lives."""
        return place_of(self._data)

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor was made by the user rather than by a tracked op."""
        return self.grad_node is None

    @property
    def T(self) -> "Tensor":
        """The tensor with its axes reversed."""
        return TENSORS.transpose(self)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for this tensor; only floating tensors can require it."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self._data.dtype.kind != "f":
            raise EveryOGradientError(
                f"only floating point tensors can require gradients, this one is {self.dtype}; "
                "convert it with astype('float32')"
            )
        if not value and self.grad_node is not None:
            raise EveryOGradientError(
                "requires_grad of a computed tensor cannot be switched off; use detach()"
            )
        trace = current_trace()
        if trace is not None:
            trace.set_flag(self)
        self._requires_grad = bool(value)
        Epoch.now += 1

    # ------------------------------------------------------------------ values and gradients

    @property
    def data(self) -> Any:
        """The live array behind the tensor; writing into it changes the tensor. Assigning an array
        of the same shape replaces it by a copy, cast to the tensor's dtype; after
        `tensor.data -= x` it is the same array still."""
        trace = MODE.trace if TRACES else None
        return self._data if trace is None else trace.read(self)

    @data.setter
    def data(self, value: Any) -> None:
        trace = current_trace()
        if isinstance(value, Tensor):
            value = value.data
        shape = np.shape(value) if not hasattr(value, "shape") else value.shape
        if shape != self.shape:
            raise EveryOShapeError(
                f"data of shape {shape} cannot replace data of shape {self.shape}"
            )
        if value is (self._data if trace is None else trace.read(self)):
            self._cell[0] = Clock.written = Clock.tick()
            return
        if trace is not None:
            trace.rebind(self, value)
        else:
            place = place_of(self._data)
            self._data = moved(np.array(value, self._data.dtype), place)
            self._cell = [0]
        Epoch.now += 1

    @property
    def grad(self) -> Any:
        """The accumulated gradient, an array of the tensor's dtype and shape, or None."""
        trace = MODE.trace if TRACES else None
        return self._grad if trace is None else trace.get_grad(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None and not isinstance(value, Tensor):
            trace = current_trace()
            if trace is not None:
                value = trace.xp.astype(trace.array(value), self._data.dtype)
            elif type(value) is DeviceArray:
                value = moved(value.astype(self._data.dtype, copy=False), place_of(self._data))
            else:
                value = moved(np.asarray(value, self._data.dtype), place_of(self._data))
        if value is not None and value.shape != self.shape:
            raise EveryOGradientError(
                f"a gradient of shape {value.shape} for a tensor of shape {self.shape}"
            )
        self._store_grad(value)

    def _store_grad(self, value: Any) -> None:
        trace = MODE.trace if TRACES else None
        if trace is None:
            self._grad = value
        else:
            trace.set_grad(self, value)

    def _write(self, value: Any, key: Any = ...) -> None:
        """Store `value` (cast, broadcast) into the buffer at `key`, seen by every view of it."""
        trace = MODE.trace if TRACES else None
        if trace is None:
            try:
                self._data[key] = value
            except (ValueError, TypeError, IndexError) as error:
                kind = EveryOIndexError if isinstance(error, IndexError) else EveryOShapeError
                raise kind(
                    f"cannot store a value of shape {np.shape(value)} in a tensor of shape "
                    f"{self.shape}: {error}"
                ) from None
        else:
            trace.write(self, value, key)
        self._cell[0] = Clock.written = Clock.tick()

    def backward(self, gradient: Any = None, *, create_graph: bool = False) -> None:
        """Accumulate d(self)/d(leaf), weighted by `gradient`, into `.grad` of every leaf below.

        `gradient` has the tensor's shape; without it the tensor must have one element. With
        `create_graph=True` the gradients are tensors with a graph of their own. Raises
        `EveryOGradientError` if nothing requires gradients, if the shape of `gradient` is wrong, or
        if a saved value was overwritten; then no `.grad` has changed.
        """
        autograd.backward(self, gradient, create_graph=create_graph)

    def zero_grad(self) -> None:
        """Set `.grad` to None."""
        self._store_grad(None)

    def retain_grad(self) -> "Tensor":
        """Keep `.grad` although this tensor is not a leaf. Returns the tensor."""
        if not self._requires_grad:
            raise EveryOGradientError("retain_grad() on a tensor that does not require gradients")
        if self.grad_node is not None:
            self.grad_node.retained = weakref.ref(self)
        return self

    def detach(self) -> "Tensor":
        """The same data without a graph."""
        out = Tensor._wrap(self.data)
        out._cell = self._cell
        return out

    def numpy(self) -> np.ndarray:
        """A copy of the data as a NumPy array."""
        return np.array(self._concrete("numpy()"))

    def tolist(self) -> Any:
        """The data as nested lists of Python numbers."""
        return self._concrete("tolist()").tolist()

    def item(self) -> Any:
        """The only element as a Python number; `ValueError` for any other size."""
        if self.size != 1:
            raise ValueError(f"item() needs exactly one element, the tensor has shape {self.shape}")
        return self._concrete("item()").item()

    def _concrete(self, what: str) -> np.ndarray:
        """The data as numbers, which a traced tensor does not have."""
        trace = current_trace()
        if trace is not None:
            return trace.concrete(self, what)
        if type(self._data) is DeviceArray:
            return self._data.numpy()
        if type(self._data) is not np.ndarray:
            return self._data.leaked(what)
        return self._data

    # ------------------------------------------------------------------ conversions

    def astype(self, dtype: DTypeLike) -> "Tensor":
        """Another dtype. To a floating dtype it stays in the graph; to int or bool it leaves it."""
        target = as_dtype(dtype)
        if target == self._data.dtype:
            return TENSORS.identity(self)
        return TENSORS.astype(self, target)

    def to(self, device: Any = None, *, dtype: DTypeLike | None = None) -> "Tensor":
        """The tensor on a device and in a dtype; itself if nothing changes."""
        out = self if dtype is None or as_dtype(dtype) == self._data.dtype else self.astype(dtype)
        place = out.device if device is None else _place(device)
        if current_trace() is not None or place == out.device:
            return out
        other = Tensor._wrap(moved(out._data, place))
        if out._requires_grad and MODE.grad:
            home = out.device

            def backward_fn(gradient: Any, xp: Any, through: Any = None) -> list[Any]:
                return [gradient.to(home) if through else moved(gradient, home)]

            other.grad_node = autograd.Node("to", [out], backward_fn, {"device": str(place)})
            other._requires_grad = True
        return other

    def _move(self, place: Device) -> None:
        """Change the device of this very tensor and of its gradient."""
        if place == self.device:
            return
        self._data = moved(self._data, place)
        if isinstance(self._grad, Tensor):
            self._grad = self._grad.detach().to(place)
        elif self._grad is not None:
            self._grad = moved(self._grad, place)
        self._cell = [0]
        Epoch.now += 1

    def cpu(self) -> "Tensor":
        """The tensor on the CPU."""
        return self.to("cpu")

    def cuda(self, *, strict: bool = False) -> "Tensor":
        """The tensor on the CUDA device if there is one (`strict=True`: or an error)."""
        return self.to(device("cuda", strict=strict))

    def clone(self) -> "Tensor":
        """A differentiable copy with storage of its own."""
        return TENSORS.identity(self)

    # ------------------------------------------------------------------ Python protocols

    def __getitem__(self, key: Any) -> "Tensor":
        return TENSORS.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if MODE.grad and (
            self._requires_grad or (isinstance(value, Tensor) and value._requires_grad)
        ):
            raise EveryOGradientError(
                "item assignment on a tensor that takes part in a graph; do it under no_grad(), or "
                "build the result with where() or concatenate()"
            )
        TENSORS.assign(self, key, value)

    def _in_place(self, function: Callable[..., Any], other: Any) -> "Tensor":
        tracked = self._requires_grad or (isinstance(other, Tensor) and other._requires_grad)
        if MODE.grad and tracked:
            return function(self, other)
        with autograd.no_grad():
            result = function(self, other)
        if result.shape != self.shape:
            raise EveryOShapeError(
                f"in-place: a result of shape {result.shape} does not fit a tensor of shape "
                f"{self.shape}"
            )
        if not np.can_cast(result._data.dtype, self._data.dtype, "same_kind"):
            raise EveryODTypeError(
                f"in-place: a result of dtype {result.dtype} does not fit {self.dtype}"
            )
        self._write(result.data)
        return self

    def __iadd__(self, other: Any) -> "Tensor":  # type: ignore[misc]
        return self._in_place(TENSORS.add, other)

    def __isub__(self, other: Any) -> "Tensor":  # type: ignore[misc]
        return self._in_place(TENSORS.subtract, other)

    def __imul__(self, other: Any) -> "Tensor":  # type: ignore[misc]
        return self._in_place(TENSORS.multiply, other)

    def __itruediv__(self, other: Any) -> "Tensor":  # type: ignore[misc]
        return self._in_place(TENSORS.divide, other)

    def __ipow__(self, other: Any) -> "Tensor":  # type: ignore[misc]
        return self._in_place(TENSORS.power, other)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of a tensor of shape {self.shape} is ambiguous; use any(), all()"
            )
        return bool(self._concrete("bool()"))

    def __float__(self) -> float:
        return float(self.item() if current_trace() is None else self._concrete("float()"))

    def __int__(self) -> int:
        return int(self.item() if current_trace() is None else self._concrete("int()"))

    def __index__(self) -> int:
        if self._data.dtype.kind not in "iu" or self.shape:
            raise TypeError(
                f"only a 0-d integer tensor can be an index, not {self.dtype}{self.shape}"
            )
        return int(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    __hash__ = object.__hash__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._concrete("numpy.asarray()"), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = getattr(TENSORS, ufunc.__name__, None)
        if method != "__call__" or kwargs or function is None:
            return NotImplemented
        return function(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return array_function(func, args, kwargs)

    def __dlpack__(self, **kwargs: Any) -> Any:
        if self._requires_grad:
            raise EveryOGradientError(
                "DLPack export of a tensor that requires gradients; use detach()"
            )
        if type(self._data) is DeviceArray and current_trace() is None:
            return self._data.__dlpack__(**kwargs)
        return self._concrete("DLPack export").__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        if type(self._data) is DeviceArray and current_trace() is None:
            return self._data.__dlpack_device__()
        return self._concrete("DLPack export").__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The data for CuPy, Numba and PyTorch, which share it; only on a CUDA device."""
        if type(self._data) is not DeviceArray or self._requires_grad:
            raise AttributeError("only a detached tensor on a CUDA device has this interface")
        return self._data.__cuda_array_interface__

    def __getstate__(self) -> dict[str, Any]:
        if self.grad_node is not None:
            raise EveryOGradientError(
                "only leaf tensors can be pickled or deep-copied; use detach()"
            )
        return {**getattr(self, "__dict__", {}), "_data": self._data, "_grad": self._grad,
                "_requires_grad": self._requires_grad, "name": self.name}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._cell, self.grad_node = [0], None
        for key, value in state.items():
            setattr(self, key, value)

    def __repr__(self) -> str:
        place = f", device={self.device}" if self.device.is_cuda else ""
        if type(self._data) is not np.ndarray and not place:
            body = "traced"
        elif self.size > SHOWN:
            return f"<Tensor shape={self.shape} dtype={self.dtype} with {self.size} elements>"
        else:
            body = np.array2string(np.asarray(self._data), separator=", ", prefix="Tensor(")
        grad = ", requires_grad=True" if self._requires_grad else ""
        return f"Tensor({body}, shape={self.shape}, dtype={self.dtype}{place}{grad})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _place(spec: Any) -> Device:
    return CPU if spec is None or spec == "cpu" else device(spec)


def tensor(
    data: Any,
    *,
    dtype: DTypeLike | None = None,
    device: Any = "cpu",
    requires_grad: bool = False,
    name: str | None = None,
) -> Tensor:
    """A new tensor from numbers, lists, arrays or another tensor; the data is copied.

    >>> tensor([1, 2, 3]).dtype
    'float32'
    """
    return Tensor(data, dtype=dtype, device=device, requires_grad=requires_grad, name=name)


def as_tensor(data: Any, *, device: Any = None, dtype: DTypeLike | None = None) -> Tensor:
    """`data` as a tensor: a tensor itself, a floating or bool array shared, the rest copied."""
    if device is not None:
        return as_tensor(data, dtype=dtype).to(device)
    if isinstance(data, Tensor):
        return data if dtype is None else data.astype(dtype)
    if type(data) is DeviceArray:
        return Tensor._wrap(data if dtype is None else data.astype(as_dtype(dtype), copy=False))
    trace = current_trace()
    if trace is not None:
        return Tensor._wrap(trace.new(data, dtype, share=True))
    if type(data) is np.ndarray and data.dtype in NAMES:
        kept = data.dtype.kind in "fb" if dtype is None else as_dtype(dtype) == data.dtype
        if kept:
            return Tensor._wrap(data)
    return Tensor._wrap(as_array(data, dtype))


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a `Tensor`."""
    return isinstance(obj, Tensor)


HOSTS = (1, 3)  # DLPack's numbers for memory of the host: any, pinned for CUDA


def from_dlpack(source: Any) -> Tensor:
    """A tensor that shares the memory of any array with `__dlpack__`, on the host or on a CUDA
    device; there `__cuda_array_interface__` will do as well."""
    if not hasattr(source, "__dlpack_device__") or source.__dlpack_device__()[0] not in HOSTS:
        shared = DeviceArray.shared(source)
        as_dtype(shared.dtype)
        return Tensor._wrap(shared)
    array = np.from_dlpack(source)
    return Tensor._wrap(array.view(as_dtype(array.dtype)))


TENSORS.as_tensor = as_tensor
TENSORS.ones = lambda shape, dtype: Tensor._wrap(autograd.namespace(MODE.where).ones(shape, dtype))
TENSORS.zeros = lambda shape, dtype: Tensor._wrap(
    autograd.namespace(MODE.where).zeros(shape, dtype)
)
TENSORS.full = lambda shape, value, dtype: Tensor._wrap(
    autograd.namespace(MODE.where).full(shape, value, dtype)
)
TENSORS.iota = lambda shape, axis: Tensor._wrap(autograd.namespace(MODE.where).iota(shape, axis))
TENSORS.require = lambda condition, error, message: autograd.namespace().require(
    condition.data if isinstance(condition, Tensor) else condition, error, message
)
NUMPY.as_tensor = as_tensor
