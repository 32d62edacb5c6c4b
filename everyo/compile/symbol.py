"""Arrays that record: what stands for an ndarray while a function is traced.

A `Storage` is a piece of memory, its contents a node of the graph that writing replaces. A `Symbol`
is an array on a storage, the whole of it or a view (`path`: the view steps from the whole to it),
so that in-place writes are seen by every array on the same memory, exactly as in NumPy.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from everyo.compile.ir import Node
from everyo.core.autograd import MODE
from everyo.core.namespace import TENSORS
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOTraceError

Step = tuple[str, Any]  # a view op and its parameter


class Storage:
    """Memory of the traced function. `node` is what it holds now."""

    source: Any = None  # of an input
    arrays: tuple[Any, ...] = ()  # that were there before the trace and lie in it
    narrow: np.dtype | None = None  # the dtype it really has: an integer, in the graph an int64
    version = 0
    written = False
    uncertain = False  # a reshape exists that may or may not share this memory
    node: Node


class Symbol:
    """An ndarray whose values do not exist yet. Arithmetic, NumPy functions, indexing and in-place
    writes are recorded; asking for values raises `EveryOTraceError`."""

    __slots__ = (
        "__weakref__", "_node", "_storage", "_version", "dtype", "life", "path", "shape", "trace",
        "weak", "whole",
    )  # fmt: skip
    __array_priority__ = 2000
    whole: Node | None  # what it holds, as long as nobody has asked for its storage
    _node: Node | None  # of a view, and the version of its storage that it shows
    _storage: Storage
    _version: int
    dtype: np.dtype
    life: list[Any]  # whose references the trace counts at its end
    path: tuple[Step, ...]
    shape: tuple[int, ...]
    trace: Any
    weak: bool  # behaves like a Python number in promotion

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What isinstance() takes it for: the user's code shall go the way it goes on numbers."""
        return np.ndarray if not self.weak else float if self.node.dtype.kind == "f" else Symbol

    @property
    def node(self) -> Node:
        """The node of this array's present contents."""
        if self.whole is not None:
            return self.whole
        if not self.path:
            return self.storage.node
        if self._node is None or self._version != self.storage.version:
            node = self.storage.node
            for step in self.path:
                node = self.trace.xp.view(node, step)
            self._node, self._version = node, self.storage.version
        return self._node

    @property
    def storage(self) -> Storage:
        """The memory that the array lies in."""
        if self.whole is not None:
            self._storage = Storage()
            self._storage.node, self.whole = self.whole, None
        return self._storage

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.node.nbytes

    @property
    def itemsize(self) -> int:
        return self.node.dtype.itemsize

    @property
    def base(self) -> Any:
        """Not None for a view, as in NumPy."""
        return self.storage if self.path else None

    @property
    def T(self) -> "Symbol":
        return self.trace.xp.transpose(self, None)

    def leaked(self, what: str) -> Any:
        """Values were asked for outside the trace: the array outlived the function that was
        traced."""
        raise EveryOTraceError(
            f"{what} of a traced value that was kept after the traced function of "
            f"{self.trace.name!r} "
            "returned; return it from the function instead"
        )

    def _alive(self, what: str) -> None:
        """Raise unless the trace that this array belongs to is going on, in this thread."""
        if MODE.trace is not self.trace:
            self.leaked(what)

    def _values(self, what: str) -> Any:
        self._alive(what)
        return self.trace.concrete(self, what)

    def __bool__(self) -> bool:
        return self._values("bool()")

    def __float__(self) -> float:
        return self._values("float()")

    def __int__(self) -> int:
        return self._values("int()")

    def __index__(self) -> int:
        return self._values("int()")

    def __format__(self, spec: str) -> str:
        return self._values("formatting") if self.weak or spec else repr(self)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._values("numpy.asarray()")

    def item(self) -> Any:
        """Not available while tracing."""
        return self._values("item()")

    def tolist(self) -> Any:
        """Not available while tracing."""
        return self._values("tolist()")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __hash__(self) -> int:
        return id(self)

    def copy(self) -> "Symbol":
        """The same values in memory of their own."""
        return self.trace.xp.copy(self)

    def __copy__(self) -> "Symbol":
        return self.copy()

    def __deepcopy__(self, memo: dict) -> "Symbol":
        return self.copy()

    def astype(self, dtype: Any, copy: bool = True) -> "Symbol":
        """Another dtype, a copy."""
        out = self.trace.xp.astype(self, dtype)
        return self.copy() if out is self and copy else out

    def __getitem__(self, key: Any) -> "Symbol":
        return _unwrap(TENSORS.index(Tensor._wrap(self), _wrapped(key)))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.trace.assign(self, key, value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self._alive(f"numpy.{ufunc.__name__}")
        if any(isinstance(x, Tensor) for x in inputs):
            return NotImplemented
        function = getattr(TENSORS, ufunc.__name__, None)
        if method != "__call__" or function is None or set(kwargs) - {"out"}:
            return NotImplemented
        out = kwargs.get("out")
        result = _unwrap(function(*(_wrapped(x) for x in inputs)))
        if out is None:
            return result
        if not isinstance(out[0], Symbol):
            raise self.trace.error(
                f"numpy.{ufunc.__name__} writes a traced value into an ordinary array"
            )
        out[0][...] = result
        return out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._alive(f"numpy.{func.__name__}")
        function = getattr(TENSORS, func.__name__, None)
        if function is None:
            raise self.trace.error(
                f"numpy.{func.__name__} cannot be traced; use the op of the same name in everyo"
            )
        result = function(
            *(_wrapped(a) for a in args), **{k: _wrapped(v) for k, v in kwargs.items()}
        )
        return _unwrap(result)

    def __repr__(self) -> str:
        return f"<traced array {self.dtype}{list(self.shape)}>"


_NEW = object.__new__


def holding(trace: Any, node: Node, weak: bool = False) -> Symbol:
    """An array over new memory that holds `node`."""
    out: Symbol = _NEW(Symbol)  # without __init__, which would double the cost
    out.trace = trace
    if MODE.trace is not trace:
        out.leaked("an op")
    out.life = trace.life
    out.path = ()
    out.weak = weak
    out.whole = node
    out.shape = node.shape
    out.dtype = node.dtype
    return out


def symbol(trace: Any, storage: Storage, path: tuple[Step, ...] = (), weak: bool = False) -> Symbol:
    """An array on a storage, or a view of it."""
    out = holding(trace, storage.node, weak)
    out._storage, out.whole = storage, None
    if path:
        out.path, out._node = path, None
        out.shape = out.node.shape
    out.dtype = storage.narrow or out.node.dtype
    return out


def _wrapped(x: Any) -> Any:
    if isinstance(x, Symbol):
        return x if x.weak else Tensor._wrap(x)
    if isinstance(x, list | tuple):
        return type(x)(_wrapped(v) for v in x)
    return x


def _unwrap(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x._data
    if isinstance(x, list | tuple):
        return type(x)(_unwrap(v) for v in x)
    return x


def _binary(name: str, swapped: bool) -> Callable[[Symbol, Any], Any]:
    def operator(self: Symbol, other: Any) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented
        function = getattr(self.trace.xp, name)
        return function(other, self) if swapped else function(self, other)

    return operator


def _in_place(name: str) -> Callable[[Symbol, Any], Symbol]:
    def operator(self: Symbol, other: Any) -> Symbol:
        if isinstance(other, Tensor):
            other = other._data
        result = getattr(self.trace.xp, name)(self, other)
        if self.weak:
            return result
        self[...] = result
        return self

    return operator


_OPERATORS = dict(
    add="add", sub="subtract", mul="multiply", truediv="divide", pow="power",
    floordiv="floor_divide",
    mod="remainder", matmul="matmul",
)  # fmt: skip
for _short, _name in _OPERATORS.items():
    setattr(Symbol, f"__{_short}__", _binary(_name, False))
    setattr(Symbol, f"__r{_short}__", _binary(_name, True))
    setattr(Symbol, f"__i{_short}__", _in_place(_name))
for _short, _name in dict(
    lt="less", le="less_equal", gt="greater", ge="greater_equal", eq="equal", ne="not_equal",
    and_="logical_and", or_="logical_or", xor="logical_xor",
).items():  # fmt: skip
    setattr(Symbol, f"__{_short.rstrip('_')}__", _binary(_name, False))
for _short, _name in dict(neg="negative", abs="abs", invert="logical_not").items():
    setattr(Symbol, f"__{_short}__", lambda self, _name=_name: getattr(self.trace.xp, _name)(self))


def _method(name: str) -> Callable[..., Any]:
    """A method of tensors for arrays."""

    def call(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        return _unwrap(getattr(Tensor, name)(Tensor._wrap(self), *args, **kwargs))

    return call


_OWN = frozenset(dir(Symbol))  # what tensors lend no method for
_seen = 0  # attributes that tensors had when their methods were taken


def take_methods() -> None:
    """Give traced arrays the methods that tensors have by now. (With a `__getattr__` instead every
    access to an attribute would take three times as long.)"""
    global _seen
    if len(vars(Tensor)) == _seen:
        return
    _seen = len(vars(Tensor))
    for name in dir(Tensor):
        if not name.startswith("_") and name not in _OWN and callable(getattr(Tensor, name)):
            setattr(Symbol, name, _method(name))


Symbol.__name__ = "traced array"  # in errors about attributes that it has not


def holds_traced(data: Any) -> bool:
    """Whether a nested list, tuple or dict contains traced values."""
    stack = [data]
    while stack:
        x = stack.pop()
        if isinstance(x, Symbol) or (isinstance(x, Tensor) and type(x._data) is Symbol):
            return True
        if isinstance(x, list | tuple):
            stack += x
        elif isinstance(x, dict):
            stack += x.values()
    return False
