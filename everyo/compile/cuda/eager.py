"""The array namespace of a device: NumPy's names, each call a graph of one op, compiled and cached.

A call is recorded by the same `Builder` that traces use and run by the same `Program`; calls with
operands of equal shapes, dtypes and layouts share it. Views never compute. Where no operand is on
the device, NumPy answers.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.compile import ir, passes
from everyo.compile.trace import Trace
from everyo.compile.traced import Source
from everyo.compile.tree import flatten, unflatten
from everyo.core.device import Device
from everyo.core.device_array import DeviceArray, moved
from everyo.core.namespace import NUMPY
from everyo.exceptions import EveryODTypeError, EveryOTraceError

PROGRAMS = 4096  # kept, the least recently used go first
VALUES = 4  # numbers per place that are baked in; one that changes more often becomes an input


class DeviceNamespace:
    """Functions on device arrays, for op records (`xp`)."""

    def __init__(self, backend: Any, where: Device | None = None) -> None:
        self.backend = backend
        self.device = where or Device("cuda", 0)
        self._programs: OrderedDict[Any, tuple[Any, Any, list[Any]]] = OrderedDict()
        self._numbers: dict[Any, set[Any]] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not hasattr(NUMPY, name):
            raise AttributeError(f"no function {name!r} on arrays of a device")

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.run(name, lambda xp, *a, **k: getattr(xp, name)(*a, **k), args, kwargs)

        function.__name__ = name
        setattr(self, name, function)
        return function

    def forward(self, op: Any, data: Sequence[Any], params: dict[str, Any]) -> Any:
        """The forward of an op record as one program; a view, or what asks for values on the way,
        function by function."""
        if not op.view:
            try:
                return self.run(op.name, op.forward, data, params)
            except EveryOTraceError:
                pass
        return op.forward(self, *data, **params)

    def run(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """`function(xp, *args, **kwargs)` as one program."""
        leaves, structure = flatten((tuple(args), kwargs))
        if not any(isinstance(x, DeviceArray) for x in leaves):
            return function(NUMPY, *args, **kwargs)
        arrays: list[Any] = []
        specs: list[Any] = []
        places: list[int] = []
        for i, x in enumerate(leaves):
            if isinstance(x, np.generic):
                x = np.asarray(x)
            if isinstance(x, DeviceArray | np.ndarray):
                strides = None if _contiguous(x) else x.strides
                specs.append((type(x).__name__, x.shape, x.dtype, strides))
            elif type(x) is float and self._changes(name, structure, i, x):
                specs.append(("number",))
            else:
                specs.append(("value", type(x), repr(x)))
                continue
            arrays.append(x)
            places.append(i)
        where = next(x.device for x in arrays if isinstance(x, DeviceArray))
        key = (name, where, structure, tuple(specs))
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
        if found is None:
            found = self._build(name, function, leaves, structure, arrays, places, where)
            with self._lock:
                self._programs[key] = found
                if len(self._programs) > PROGRAMS:
                    self._programs.popitem(last=False)
        program, result, constants = found
        given = [np.float64(a) if type(a) is float else a for a in arrays]
        outputs = program([*given, *constants])
        return unflatten(result, outputs)

    def _changes(self, name: str, structure: Any, place: int, value: float) -> bool:
        """Whether a number has had too many values in this place to be baked in."""
        seen = self._numbers.setdefault((name, structure, place), set())
        if len(seen) < VALUES:
            seen.add(repr(value))
        return repr(value) not in seen

    def _build(
        self, name: str, function: Callable[..., Any], leaves: Sequence[Any], structure: Any,
        arrays: Sequence[Any], places: Sequence[int], where: Device,
    ) -> tuple[Any, Any, list[Any]]:  # fmt: skip
        """The program of a call, the structure of its result, and arrays the op makes itself."""
        trace = Trace(name)
        with trace.active():
            filled = list(leaves)
            for i, a in zip(places, arrays, strict=True):
                if type(a) is float:
                    filled[i] = trace.number(a, i)
                    continue
                if a.dtype not in ir.DTYPES:
                    raise EveryODTypeError(f"{name}: {a.dtype} is not supported on {where}")
                filled[i] = trace._input(a, Source("arg", i))
            args, kwargs = unflatten(structure, filled)
            result, shape = flatten(function(trace.xp, *args, **kwargs))
            nodes = tuple(trace.xp.lift(r).node for r in result)
        graph = ir.Graph(name, tuple(trace.table.inputs), nodes, (), tuple(trace.checks))
        constants = [moved(s.owner, where) for s in trace.sources[len(arrays) :]]
        return self.backend.program(passes.run(graph), where), shape, constants

    # -- views: nothing is computed

    def asarray(self, x: Any) -> Any:
        return moved(x, self.device) if isinstance(x, np.ndarray) else x

    def reshape(self, x: Any, shape: Any) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, axes: Any) -> Any:
        return x.transpose(axes)

    def broadcast_to(self, x: Any, shape: Any) -> Any:
        return x.broadcast_to(shape) if isinstance(x, DeviceArray) else NUMPY.broadcast_to(x, shape)

    def getitem(self, x: Any, key: Any) -> Any:
        if not isinstance(x, DeviceArray):
            return x[key]
        window = x.window(key)
        if window is not None:
            return window
        return self.run("getitem", lambda xp, x, key: xp.getitem(x, key), (x, _on_host(key)), {})

    def astype(self, x: Any, dtype: Any) -> Any:
        if not isinstance(x, DeviceArray):
            return NUMPY.astype(x, dtype)
        if x.dtype == np.dtype(dtype):
            return x
        kind = np.dtype(dtype)
        return self.run("astype", lambda xp, x, kind: xp.astype(x, kind), (x, kind), {})

    # -- writes and checks

    def assign(self, target: DeviceArray, key: Any, value: Any) -> None:
        """`target[key] = value`, in the memory of the target."""
        window = target.window(key)
        if window is None:
            key = _on_host(key)
            host = target.numpy()
            host[key] = value.numpy() if isinstance(value, DeviceArray) else value
            window, value = target, host
        if not window.size:
            return
        given = value if isinstance(value, DeviceArray | np.ndarray) else np.asarray(value)
        if np.broadcast_shapes(given.shape, window.shape) != window.shape:
            raise ValueError(f"a value of shape {given.shape} does not fit {window.shape}")
        key = ("assign", window.device, _spec(window), _spec(given))
        found = self._programs.get(key)
        if found is None:
            trace = Trace("assign")
            with trace.active():
                operands: tuple[Any, Any] = (window, given)
                place, source = (trace._input(a, Source("arg", i)) for i, a in enumerate(operands))
                node = trace.xp.cast(source, window.dtype)
                node = trace.xp.spread_to(node, window.shape)
            inputs = tuple(trace.table.inputs)
            graph = ir.Graph("assign", inputs, (), ((place.node, node),))
            found = (self.backend.program(passes.run(graph), window.device), None, [])
            self._programs[key] = found
        found[0]([window, given])

    def require(self, condition: Any, error: type[Exception], message: str) -> None:
        if not bool(condition):
            raise error(message)

    def put(self, x: Any, key: Any, value: Any) -> Any:
        out = self.copy(x)
        self.assign(out, key, value)
        return out

    # -- new arrays

    def full(self, shape: Any, value: Any, dtype: Any) -> DeviceArray:
        return DeviceArray.upload(np.full(shape, value, dtype), self.device)

    def zeros(self, shape: Any, dtype: Any) -> DeviceArray:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any) -> DeviceArray:
        return self.full(shape, 1, dtype)

    def iota(self, shape: Any, axis: int) -> DeviceArray:
        return DeviceArray.upload(NUMPY.iota(shape, axis), self.device)


def _contiguous(x: Any) -> bool:
    return x.is_contiguous if isinstance(x, DeviceArray) else x.flags.c_contiguous


def _spec(x: Any) -> Any:
    return (type(x).__name__, x.shape, x.dtype, None if _contiguous(x) else x.strides)


def _on_host(key: Any) -> Any:
    """An index with masks as positions: how many there are is known on the host only."""
    parts = key if isinstance(key, tuple) else (key,)
    out: list[Any] = []
    for k in parts:
        if isinstance(k, DeviceArray) and k.dtype == np.bool_:
            out += np.nonzero(k.numpy())
        elif isinstance(k, np.ndarray) and k.dtype == np.bool_:
            out += np.nonzero(k)
        else:
            out.append(np.asarray(k) if isinstance(k, list) else k)
    return tuple(out) if isinstance(key, tuple) or len(out) != 1 else out[0]
