"""Tracing: running the unchanged engine on arrays that record.

A `Trace` is active in one thread. Everything in `everyo.core` that reads or writes values asks it
first: tensors that existed before become inputs of the graph when they are read, and what the
function does to them (in-place writes, `.grad`, optimizer scalars, module buffers, attributes) is
kept aside, so that nothing has changed if tracing fails. `everyo.compile.tracing` runs functions in
traces and turns what was recorded into a `Traced`.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from threading import RLock
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.builder import Builder
from everyo.compile.lines import forget, here
from everyo.compile.overlap import Memory
from everyo.compile.symbol import Step, Storage, Symbol, holds_traced, symbol, take_methods
from everyo.compile.traced import Source, geometry, owner_of, view_path
from everyo.core.autograd import MODE, TRACES
from everyo.core.device_array import DeviceArray
from everyo.core.dtype import FLOAT32, as_array, as_dtype
from everyo.core.forks import renewed
from everyo.core.namespace import is_array
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryODTypeError, EveryOTraceError

LOCK = renewed(RLock())  # one trace at a time


class Overlap(Exception):
    """Two inputs share memory and one is written: the trace starts again with their owner as
    input."""

    def __init__(self, owners: set[int]) -> None:
        self.owners = owners


def _overlap(a: Any, b: Any) -> Overlap:
    return Overlap({id(owner_of(a)), id(owner_of(b))})


class Trace:
    """The recorder of one run of one function."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Any] = (),
        merged: frozenset[int] = frozenset(),
        first: ir.Table | None = None,
    ) -> None:
        take_methods()
        self.name = name
        self.kind = Symbol  # of the arrays that are traced already
        self.life: list[
            Any
        ] = []  # every symbol refers to it: whoever outlives the trace is counted
        self.unused = getrefcount(self.life)
        self.merged = merged  # ids of owners whose views are read through them
        self.views: list[tuple[Source, int, Any]] = []
        self.table = ir.Table() if first is None else first.renewed()
        self.lines = self.table.lines
        self.xp = Builder(self)
        self.sources: list[Source] = []
        self._storages: list[Storage] = []
        self.symbols: dict[int, tuple[np.ndarray, Symbol]] = {}
        self.memory = Memory()  # of the same arrays
        self.first: dict[int, Source] = {}
        self.identical: dict[Any, tuple[Source, Source]] = {}
        self.kept: list[Any] = []  # keeps ids valid
        self.rebound: dict[int, tuple[Tensor, Symbol]] = {}
        self.grads: dict[int, tuple[Tensor, Any]] = {}
        self.grad_none: dict[int, tuple[Tensor, bool]] = {}
        self.items: dict[tuple[int, Any], tuple[Any, Any]] = {}
        self.loaded: dict[tuple[int, Any], Any] = {}
        self.statics: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        self.attributes: dict[tuple[int, str], tuple[Any, Any, Any, str]] = {}
        self.flags: dict[int, tuple[Tensor, bool, str]] = {}
        self.frozen: dict[int, tuple[np.ndarray, bytes]] = {}
        self.own: set[int] = set()
        self.checks: list[ir.Check] = []
        self.arguments = {id(leaf): i for i, leaf in enumerate(leaves)}
        self.kept += leaves

    # ------------------------------------------------------------------ inputs

    def _input(self, array: np.ndarray, source: Source, weak: bool = False) -> Symbol:
        """A symbol for an array that exists at call time."""
        narrow = None
        if array.dtype not in ir.DTYPES:
            if array.dtype.kind not in "iub" or array.dtype.itemsize > 8:
                raise EveryOTraceError(
                    f"an array of dtype {array.dtype} cannot enter a compiled function (supported: "
                    f"bool, int32, int64, float32, float64), at {here()}"
                )
            narrow = array.dtype
            source = Source("cast", source, np.dtype(np.int64))
            array = array.astype(np.int64)
        step = array.dtype.itemsize
        if any(s % step for s in array.strides):
            raise EveryOTraceError(
                f"an array with strides {array.strides} that are no multiple of its item size "
                f"{step}"
            )
        strides = None if array.flags.c_contiguous else tuple(s // step for s in array.strides)
        node = self.table.input(array.shape, array.dtype, strides)
        self.sources.append(source)
        self.note(node)
        storage = Storage()
        storage.node, storage.source, storage.narrow = node, source, narrow
        self._storages.append(storage)
        return symbol(self, storage, (), weak)

    def _captured(self, array: Any, source: Source) -> Symbol:
        """The symbol of an array that was there before the trace; the same array, the same
        symbol."""
        found = self.symbols.get(id(array))
        if found is None:
            owner = owner_of(array)
            if id(owner) in self.merged and owner is not array:
                made = self._through_owner(array, owner, source)
            else:
                for other, seen in self.memory.near(array):
                    if seen.storage.written:
                        raise _overlap(array, other)
                made = self._input(array, source)
                if id(owner) in self.merged:
                    self.views.append((source, len(self.sources) - 1, geometry(array, owner)))
            found = self._enter(array, made)
            self.first[id(array)] = source
        elif self.first[id(array)].name != source.name:
            self.identical[(self.first[id(array)].name, source.name)] = (
                self.first[id(array)],
                source,
            )
        return found[1]

    def _enter(self, array: Any, made: Symbol) -> tuple[Any, Symbol]:
        """Note the symbol of an array."""
        self.memory.add(array, made)
        made.storage.arrays += (array,)
        found = self.symbols[id(array)] = (array, made)
        return found

    def _through_owner(self, array: np.ndarray, owner: np.ndarray, source: Source) -> Symbol:
        """A view as a view of its owner, which is the input."""
        path = view_path(array, owner)
        if path is None:
            raise self.error(
                "a view written in place, or read after that, that is no slice of the array that "
                "owns it"
            )
        if id(owner) not in self.symbols:
            self.first[id(owner)] = Source("owner", source)
            self._enter(owner, self._input(owner, self.first[id(owner)]))
        whole = self.symbols[id(owner)][1]
        at = next(i for i, storage in enumerate(self._storages) if storage is whole.storage)
        self.views.append((source, at, geometry(array, owner)))
        return symbol(self, whole.storage, path)

    def read(self, tensor: Tensor) -> Symbol:
        """The array of a tensor, recording it as an input if it is not traced."""
        data = tensor._data
        if type(data) is Symbol:
            if data.trace is not self:
                data.leaked("an op")
            return data
        if id(tensor) in self.rebound:
            return self.rebound[id(tensor)][1]
        self.kept.append(tensor)
        at = self.arguments.get(id(tensor))
        return self._captured(data, Source("data", tensor) if at is None else Source("arg", at))

    def array(self, array: np.ndarray) -> Symbol:
        """An ndarray that reached an op: read again at every call."""
        if isinstance(array, Symbol):
            return array
        check_array(array)
        at = self.arguments.get(id(array))
        return self._captured(array, Source("array", array) if at is None else Source("arg", at))

    def number(self, value: float, position: int) -> Symbol:
        """A float argument: a run-time input that behaves like a Python float."""
        return self._input(np.asarray(value, np.float64), Source("arg", position), weak=True)

    def new(self, data: Any, dtype: Any = None, share: bool = False) -> Symbol:
        """What `Tensor(data)` holds inside a trace."""
        if isinstance(data, Tensor):
            data = self.read(data)
        if is_array(data):
            data = self.array(data)
            share = share and data.dtype.kind not in "iu"
        if isinstance(data, Symbol):
            kept = FLOAT32 if data.weak or data.dtype.kind in "iu" else data.dtype
            out = self.xp.astype(data, as_dtype(dtype) if dtype is not None else kept)
            return out if share or out is not data else self.xp.copy(out)
        if holds_traced(data):
            raise self.error(
                "a tensor from a list of traced values; use eo.stack or eo.concatenate"
            )
        return self._constant(as_array(data, dtype))

    def _constant(self, array: np.ndarray) -> Symbol:
        """Fresh data. One value everywhere is a literal of the graph; anything else is an input."""
        flat = array.reshape(-1)
        if (
            array.dtype in ir.DTYPES
            and flat.size
            and (flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all()
        ):
            return self.xp.full(array.shape, flat[0].item(), array.dtype)
        if array.size == 0:
            return self.xp.zeros(array.shape, array.dtype)
        return self._captured(array, Source("array", array))

    # ------------------------------------------------------------------ writes

    def write(self, tensor: Tensor, value: Any, key: Any = ...) -> None:
        """Store into the memory of a tensor."""
        self.assign(self.read(tensor), key, value)

    def assign(self, target: Symbol, key: Any, value: Any) -> None:
        """`target[key] = value`."""
        if isinstance(value, Tensor):
            value = self.read(value)
        value = self.xp.lift(value)
        storage = target.storage
        if storage.narrow is not None:
            raise self.error(f"an in-place write to an array of dtype {storage.narrow}")
        if storage.uncertain:
            raise self.error("an in-place write to memory of which a reshaped view exists")
        region = target
        if key is not Ellipsis and key != (Ellipsis,):
            parts = key if isinstance(key, tuple) else (key,)
            mask = parts[0] if len(parts) == 1 else None
            if mask is not None and getattr(mask, "dtype", None) == np.bool_ and value.ndim == 0:
                whole = self.xp.lift(mask)
                whole = self.xp.reshape(whole, whole.shape + (1,) * (target.ndim - whole.ndim))
                self.assign(
                    target, ..., self.xp.where(whole, self.xp.astype(value, target.dtype), target)
                )
                return
            if any(not isinstance(k, slice | int | type(None) | type(Ellipsis)) for k in parts):
                raise self.error(
                    "item assignment through an index array or mask; use eo.where or eo.scatter_add"
                )
            region = self.xp.getitem(target, key)
        node = self.xp.spread_to(self.xp.cast(value, region.dtype), region.shape)
        if storage.source is not None:
            self._refuse_written(target)
        storage.node = self._replaced(storage.node, region.path, node)
        storage.version += 1
        storage.written = True

    def _refuse_written(self, target: Symbol) -> None:
        """Two different inputs on the same memory are fine until one of them is written."""
        for array in target.storage.arrays:
            if not array.flags.writeable:
                raise ValueError("assignment destination is read-only")
            for other, seen in self.memory.near(array):
                if seen.storage is not target.storage:
                    raise _overlap(array, other)

    def _replaced(self, node: ir.Node, path: tuple[Step, ...], value: ir.Node) -> ir.Node:
        """`node` with the part that `path` views replaced by `value`."""
        chain = [node]
        for step in path:
            chain.append(self.xp.view(chain[-1], step))
        for below, (name, param) in zip(reversed(chain[:-1]), reversed(path), strict=True):
            match name:
                case "reshape":
                    value = self.xp.view(value, ("reshape", below.shape))
                case "transpose":
                    value = self.xp.view(
                        value,
                        ("transpose", tuple(sorted(range(len(param)), key=param.__getitem__))),
                    )
                case "slice":
                    starts, steps, sizes = param
                    if sizes != below.shape or any(s != 1 for s in steps):
                        value = self.table.make(
                            "assemble", below, value, starts=(starts,), steps=(steps,)
                        )
                case "broadcast":
                    if param != below.shape:
                        raise ValueError("assignment destination is read-only")
        return value

    def rebind(self, tensor: Tensor, value: Any) -> None:
        """`tensor.data = value`."""
        s = self.xp.copy(self.xp.astype(self.xp.lift(value), tensor._data.dtype))
        if type(tensor._data) is Symbol:
            tensor._data = s
        else:
            self.kept.append(tensor)
            self.rebound[id(tensor)] = (tensor, s)

    def get_grad(self, tensor: Tensor) -> Any:
        """`tensor.grad`."""
        if type(tensor._data) is Symbol:
            return tensor._grad
        if id(tensor) in self.grads:
            return self.grads[id(tensor)][1]
        g = tensor._grad
        self.grad_none[id(tensor)] = (tensor, g is None)
        self.kept.append(tensor)
        if g is None:
            return None
        if isinstance(g, Tensor):
            return g
        at = self.arguments.get(id(tensor))
        return self._captured(g, Source("grad", tensor) if at is None else Source("arg_grad", at))

    def set_grad(self, tensor: Tensor, value: Any) -> None:
        """`tensor.grad = value`."""
        if type(tensor._data) is Symbol:
            tensor._grad = value
        else:
            self.kept.append(tensor)
            self.grads[id(tensor)] = (tensor, value)

    # ------------------------------------------------------------------ scalars, buffers,
    # attributes

    def load(self, container: Any, key: Any) -> Any:
        """A value kept in a dict: numbers with a point and arrays are inputs, the rest
        constants."""
        at = (id(container), key)
        if at in self.items:
            return self.items[at][1]
        if at not in self.loaded:
            self.kept.append(container)
            value = container[key]
            if isinstance(value, np.ndarray):
                value = self._captured(value, Source("item", container, key))
            elif type(value) is float:
                value = self._input(np.asarray(value), Source("item", container, key), weak=True)
            else:
                self.statics[at] = (container, key, value)
            self.loaded[at] = value
        return self.loaded[at]

    def store(self, container: Any, key: Any, value: Any) -> None:
        """A value stored in a dict: stored again by every call."""
        self.kept.append(container)
        self.items[(id(container), key)] = (container, value)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """A plain attribute of a module or optimizer. Traced values are stored again by every call;
        anything else is remembered, and refused if a second trace writes it again."""
        if (id(owner), name) in self.attributes:
            previous = self.attributes[(id(owner), name)][2]
        else:
            previous = owner.__dict__.get(name, _MISSING)
        self.kept.append(owner)
        if id(owner) in self.own:
            object.__setattr__(owner, name, value)
            return
        self.attributes[(id(owner), name)] = (owner, value, previous, here())
        object.__setattr__(owner, name, value)

    def set_flag(self, tensor: Tensor) -> None:
        """`requires_grad` of a tensor is about to change; at the end it must be as it was."""
        if type(tensor._data) is not Symbol:
            self.kept.append(tensor)
            before = (
                self.flags[id(tensor)][1] if id(tensor) in self.flags else tensor._requires_grad
            )
            self.flags[id(tensor)] = (tensor, before, here())

    def freeze(self, array: np.ndarray) -> None:
        """Python code used the contents of an array: they are a guard."""
        self.frozen[id(array)] = (array, array.tobytes())

    def made(self, owner: Any) -> None:
        """A module or optimizer that the traced function creates: its attributes are its own
        affair."""
        self.kept.append(owner)
        self.own.add(id(owner))

    def undo_attributes(self) -> None:
        """Take back the attributes written so far."""
        for tensor, before, _ in self.flags.values():
            tensor._requires_grad = before
        for (_, name), (owner, _, previous, _) in self.attributes.items():
            put_back(owner, name, previous)

    # ------------------------------------------------------------------ checks, errors, lines

    def check(self, bad: ir.Node, error: type[Exception], message: str) -> None:
        """Record a condition on values."""
        self.checks.append(ir.Check(bad, error, message))

    def concrete(self, value: Any, what: str) -> Any:
        """A value was asked for that exists only when the compiled program runs."""
        raise EveryOTraceError(
            f"{what} needs the value of a traced {_describe(value)} at {here()}; while "
            f"{self.name!r} is being compiled values do not exist yet, and a branch on one would "
            "be frozen. For control flow use eo.where; pass what is constant as an int, bool or "
            "str argument (static); or compile with fallback='eager'"
        )

    def error(self, what: str) -> EveryOTraceError:
        """An error that names the user's line."""
        return EveryOTraceError(
            f"{what}, at {here()}: this cannot be traced; change it, or compile with "
            "fallback='eager'"
        )

    def note(self, node: ir.Node) -> None:
        """Remember where a node was made."""
        if node not in self.lines:
            self.lines[node] = here()

    def survivor(self) -> str | None:
        """Where a traced array was made that somebody still holds after the trace, or None."""
        self.symbols.clear()
        self.memory.clear()
        self.kept.clear()
        for table in (
            self.rebound,
            self.grads,
            self.grad_none,
            self.items,
            self.loaded,
            self.attributes,
            self.flags,
        ):
            table.clear()
        if getrefcount(self.life) > self.unused:
            gc.collect()  # a cycle of the user's own is no leak
        if getrefcount(self.life) == self.unused:
            return None
        alive = [s for s in gc.get_referrers(self.life) if type(s) is Symbol]
        return self.lines.get(max((s.node for s in alive), key=lambda n: n.index), "unknown")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the ops of this thread."""
        with LOCK:
            TRACES.append(self)
            previous, MODE.trace = MODE.trace, self
            try:
                yield
            finally:
                MODE.trace = previous
                TRACES.remove(self)
                forget()


_MISSING = object()


def put_back(owner: Any, name: str, previous: Any) -> None:
    """Give an attribute the value that it had."""
    if previous is _MISSING:
        owner.__dict__.pop(name, None)
    else:
        object.__setattr__(owner, name, previous)


def _describe(value: Any) -> str:
    return f"{'tensor' if isinstance(value, Tensor) else 'array'} of shape {tuple(value.shape)}"


def check_array(array: np.ndarray | np.generic | DeviceArray) -> None:
    """Refuse arrays that no tensor can hold, and those whose operators are not NumPy's."""
    if isinstance(array, np.ndarray) and type(array) not in (np.ndarray, np.memmap, Symbol):
        raise EveryOTraceError(
            f"a {type(array).__name__} takes part in a compiled function; give it the plain array, "
            "numpy.asarray(a)"
        )
    if array.dtype.kind not in "fiub":
        raise EveryODTypeError(f"an argument of dtype {array.dtype} is not supported")
