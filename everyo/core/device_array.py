"""`DeviceArray`: shape, dtype and strides over bytes on a CUDA device.

It is what `Tensor._data` holds there. Views share the bytes; whatever computes is done by the
namespace that the compiler registers (`everyo.cuda.backend`), so nothing here knows a kernel.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from everyo import cuda
from everyo.core.device import CPU, Device
from everyo.core.namespace import DEVICES
from everyo.exceptions import EveryODeviceError

Shape = tuple[int, ...]
CUDA = 2  # DLPack's number for devices of this kind
REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_or": "any",
    "logical_and": "all",
}  # fmt: skip


class DeviceArray:
    """An array on a device. `strides` and `offset` are in bytes; `buffer` owns the memory."""

    __slots__ = ("__weakref__", "base", "buffer", "dtype", "offset", "shape", "strides")
    __array_priority__ = 900

    def __init__(
        self, buffer: Any, shape: Shape, dtype: Any, strides: Shape | None = None, offset: int = 0,
        base: "DeviceArray | None" = None,
    ) -> None:  # fmt: skip
        if not DEVICES:
            DEVICES.append(DeviceArray)
        self.base = base  # the array that this one is a view of
        self.buffer, self.shape, self.dtype = buffer, tuple(shape), np.dtype(dtype)
        self.strides = contiguous(shape, self.dtype.itemsize) if strides is None else tuple(strides)
        self.offset = offset

    # -- what it is

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device:
        """Where the bytes are."""
        return Device("cuda", self.buffer.runtime.index)

    @property
    def address(self) -> int:
        """The address of the first element on the device."""
        return self.buffer.address + self.offset

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in C order without gaps."""
        want = contiguous(self.shape, self.itemsize)
        pairs = zip(self.shape, self.strides, want, strict=True)
        return not self.size or all(n == 1 or have == need for n, have, need in pairs)

    @property
    def flags(self) -> SimpleNamespace:
        """What NumPy's arrays have: whether in C order, and that they can be written."""
        return SimpleNamespace(c_contiguous=self.is_contiguous, writeable=True, owndata=False)

    @property
    def T(self) -> "DeviceArray":
        return self.transpose(tuple(reversed(range(self.ndim))))

    # -- to and from the host

    @classmethod
    def upload(cls, array: np.ndarray, device: Device) -> "DeviceArray":
        """A copy of a NumPy array on a device."""
        array = np.asarray(array, order="C")
        out = cls.empty(array.shape, array.dtype, device)
        if array.size:
            out.buffer.runtime.upload(out.address, array)
        return out

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any, device: Device) -> "DeviceArray":
        """An array whose elements are not set."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return cls(cuda.backend().buffer(device.index, size), tuple(shape), dtype)

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        if not self.is_contiguous:
            return self.copy().numpy()
        raw = self.buffer.runtime.download(self.address, self.nbytes)
        return raw.view(self.dtype).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a device cannot become a NumPy array without a copy")
        out = self.numpy()
        return out if dtype is None else out.astype(dtype, copy=False)

    def item(self) -> Any:
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.numpy()!r}, device={self.device})"

    # -- views: the same bytes

    def view(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> "DeviceArray":
        base = self if self.base is None else self.base
        return DeviceArray(
            self.buffer, tuple(shape), self.dtype, tuple(strides), self.offset + offset, base
        )

    def reshape(self, *shape: Any) -> "DeviceArray":
        """Another shape; a view where the layout allows it, else a copy."""
        new = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        known = math.prod(n for n in new if n != -1)
        new = tuple(self.size // known if n == -1 else int(n) for n in new)
        if math.prod(new) != self.size:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {new}")
        source = self if self.is_contiguous else self.copy()
        return source.view(new, contiguous(new, self.itemsize))

    def transpose(self, axes: Sequence[int]) -> "DeviceArray":
        return self.view([self.shape[a] for a in axes], [self.strides[a] for a in axes])

    def broadcast_to(self, shape: Sequence[int]) -> "DeviceArray":
        extra = len(shape) - self.ndim
        if extra < 0 or np.broadcast_shapes(self.shape, tuple(shape)) != tuple(shape):
            raise ValueError(f"shape {self.shape} does not broadcast to {tuple(shape)}")
        pairs = zip(self.shape, self.strides, shape[extra:], strict=True)
        return self.view(shape, [0] * extra + [0 if n == 1 != k else s for n, s, k in pairs])

    def window(self, key: Any) -> "DeviceArray | None":
        """The part that a key of slices and ints selects, as a view; None for other keys."""
        parts = list(key) if isinstance(key, tuple) else [key]
        plain = slice | int | np.integer | type(None) | type(Ellipsis)
        if any(not isinstance(k, plain) or isinstance(k, bool) for k in parts):
            return None
        # NumPy does the arithmetic, on an array of these strides that has no memory.
        shadow = np.lib.stride_tricks.as_strided(np.empty(0, self.dtype), self.shape, self.strides)
        part = shadow[tuple(parts)] if parts else shadow
        start = shadow.__array_interface__["data"][0]
        if not isinstance(part, np.ndarray):
            part = shadow[(*parts, Ellipsis)]
        shift = part.__array_interface__["data"][0] - start
        return self.view(part.shape, part.strides, shift if part.size else 0)

    # -- what computes

    @property
    def xp(self) -> Any:
        """The array namespace that computes here."""
        return cuda.backend().namespace_on(self.buffer.runtime.index)

    def copy(self) -> "DeviceArray":
        return self.xp.copy(self)

    def astype(self, dtype: Any, copy: bool = True) -> "DeviceArray":
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return self.xp.astype(self, dtype)

    def min(self) -> Any:
        """The smallest element, as a number."""
        return self.xp.min(self, axis=tuple(range(self.ndim)), keepdims=False).item()

    def max(self) -> Any:
        """The largest element, as a number."""
        return self.xp.max(self, axis=tuple(range(self.ndim)), keepdims=False).item()

    def __getitem__(self, key: Any) -> "DeviceArray":
        return self.xp.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.xp.assign(self, key, value)

    def __deepcopy__(self, memo: dict) -> "DeviceArray":
        return self.copy()

    def __reduce__(self) -> Any:
        return _restored, (self.numpy(), str(self.device))

    # -- NumPy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's functions of elements, and their reductions, computed on the device."""
        if method == "reduce" and ufunc.__name__ in REDUCTIONS:
            x, axis, _, _, keepdims = (*inputs, None, None, None, False)[:5]
            keepdims = kwargs.get("keepdims", keepdims)
            reduce = getattr(self.xp, REDUCTIONS[ufunc.__name__])
            return reduce(x, axis=kwargs.get("axis", axis), keepdims=keepdims)
        name = {"absolute": "abs"}.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or kwargs or not hasattr(self.xp, name):
            return NotImplemented
        return getattr(self.xp, name)(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's other functions: a few of them the device computes too."""
        if func in (np.may_share_memory, np.shares_memory):
            return _share_memory(*args[:2])
        if func is np.broadcast_to:
            return args[0].broadcast_to(args[1])
        if func in (np.shape, np.ndim, np.size):
            return getattr(self, func.__name__)
        if func in (np.where, np.cumsum, np.argmax, np.argmin, np.argsort, np.flip):
            kept = {k: v for k, v in kwargs.items() if k != "kind"}  # every sort is stable here
            return getattr(self.xp, func.__name__)(*args, **kept)
        raise TypeError(
            f"numpy.{func.__name__} does not compute on {self.device}; use the functions of "
            "everyo, or numpy() for a copy on the host"
        )

    # -- other libraries

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol: CuPy, Numba and PyTorch share the bytes."""
        return {
            "shape": self.shape, "strides": None if self.is_contiguous else self.strides,
            "typestr": self.dtype.str, "data": (self.address if self.size else 0, False),
            "version": 3, "stream": self.buffer.runtime.stream_number,
        }  # fmt: skip

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"DLPack: an array on {self.device} is not exported to {dl_device}")
        shared = self.copy() if copy else self
        exported = self.buffer.runtime.exported(shared, stream)
        return exported.__dlpack__(stream=-1, max_version=max_version)

    @classmethod
    def shared(cls, source: Any) -> "DeviceArray":
        """An array over the memory of another library's array on a CUDA device. What that library
        has launched so far comes first."""
        kind, index = source.__dlpack_device__() if hasattr(source, "__dlpack__") else (CUDA, 0)
        if kind != CUDA:
            raise BufferError(f"DLPack: device type {int(kind)} is neither the host's nor CUDA")
        runtime = cuda.backend().runtime(index)
        face, owner = getattr(source, "__cuda_array_interface__", None), source
        if face is None:
            owner, face = runtime.interface(source)
        if face["data"][1]:
            raise BufferError("an array that can only be read cannot be shared with EveryO")
        stream = face.get("stream")
        if stream is not None:
            runtime.wait_for(stream)
        dtype = np.dtype(face["typestr"])
        strides = face.get("strides") or contiguous(face["shape"], dtype.itemsize)
        size = math.prod(face["shape"]) * dtype.itemsize
        buffer = cuda.backend().shared(index, face["data"][0], size, owner)
        return cls(buffer, face["shape"], dtype, strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.buffer.runtime.index)


def _restored(array: np.ndarray, device: str) -> Any:
    """What was pickled: on its device if that is there, else on the host."""
    from everyo.core.device import device as find

    place = find(device)
    return DeviceArray.upload(array, place) if place.is_cuda else array


def contiguous(shape: Sequence[int], itemsize: int) -> Shape:
    """Strides in bytes of C order."""
    out, step = [], itemsize
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def _share_memory(a: Any, b: Any) -> bool:
    """Whether two arrays may have bytes in common; one on the host has none with a device."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray) and a.buffer is b.buffer):
        return False
    (a_low, a_high), (b_low, b_high) = _span(a), _span(b)
    return a_low < b_high and b_low < a_high


def _span(a: DeviceArray) -> tuple[int, int]:
    """First and last byte of an array within its buffer."""
    ends = [(n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)]
    low, high = sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
    return (a.offset + low, a.offset + high + a.itemsize) if a.size else (0, 0)


def place_of(data: Any) -> Device:
    """Where an array is."""
    return data.device if type(data) is DeviceArray else CPU


def is_on_device(data: Any) -> bool:
    """Whether this is an array on a device."""
    return type(data) is DeviceArray


def placed(name: str, args: Sequence[Any], data: Sequence[Any]) -> Any:
    """The namespace that computes on these operands, None for NumPy's. `args` are the operands as
    given: a tensor on another device is an error, unless it has a single element."""
    places = {place_of(a) for a in data if type(a) is DeviceArray}
    if not places:
        return None
    for a, d in zip(args, data, strict=True):
        if hasattr(a, "grad_node") and type(d) is np.ndarray and d.ndim:
            places.add(CPU)
    if len(places) > 1:
        first, second = sorted(map(str, places))[:2]
        raise EveryODeviceError(
            f"{name}: one operand is on {first}, another on {second}; move one with .to(...)"
        )
    return next(d for d in data if type(d) is DeviceArray).xp


def moved(data: Any, place: Device) -> Any:
    """An array on another device: a copy, or itself where it is there already. What a trace records
    has no device."""
    if place == place_of(data) or not issubclass(type(data), DeviceArray | np.ndarray | np.generic):
        return data
    host = data.numpy() if type(data) is DeviceArray else np.asarray(data)
    return DeviceArray.upload(host, place) if place.is_cuda else host
