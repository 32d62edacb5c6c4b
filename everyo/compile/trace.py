"""Tracing: running the unchanged engine on arrays that record.

A `Trace` is active in one thread. Everything in `everyo.core` that reads or writes values asks it
first: tensors that existed before become inputs of the graph when they are read, and what the
function does to them (in-place writes, `.grad`, optimizer scalars, module buffers, attributes) is
kept aside, so that nothing has changed if tracing fails. `finish` turns all of it into a `Traced`:
the graph, where its inputs come from, and what to do with its outputs.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import getrefcount
from threading import RLock
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.builder import Builder
from everyo.compile.symbol import Step, Storage, Symbol, symbol
from everyo.core.autograd import MODE, TRACES
from everyo.core.device_array import DeviceArray
from everyo.core.dtype import FLOAT32, as_array, as_dtype
from everyo.core.forks import renewed
from everyo.core.namespace import is_array
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryODTypeError, EveryOTraceError

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LOCK = renewed(RLock())  # one trace at a time


@dataclass(frozen=True, eq=False)
class Source:
    """Where the array of one graph input comes from at call time."""

    kind: str  # "arg", "arg_grad", "data", "grad", "item", "array", "cast", "owner"
    owner: Any  # the position of the argument, the tensor, the container or the array
    key: Any = None

    def fetch(self, leaves: Sequence[Any]) -> Any:
        """The array (or number) now; `leaves` are the dynamic arguments of the call."""
        match self.kind:
            case "arg":
                leaf = leaves[self.owner]
                return leaf._data if isinstance(leaf, Tensor) else leaf
            case "arg_grad":
                return _plain(leaves[self.owner]._grad)
            case "data":
                return self.owner._data
            case "grad":
                return _plain(self.owner._grad)
            case "item":
                return self.owner[self.key]
            case "cast":
                return np.asarray(self.owner.fetch(leaves)).astype(self.key)
            case "owner":
                return owner_of(self.owner.fetch(leaves))
        return self.owner

    @property
    def name(self) -> tuple[Any, ...]:
        """What identifies the source among those of another trace of the same function."""
        if self.kind == "array":
            return (self.kind,)
        if self.kind in ("cast", "owner"):
            return (self.kind, *self.owner.name, self.key)
        return (self.kind, self.owner if isinstance(self.owner, int) else id(self.owner), self.key)


def _plain(value: Any) -> Any:
    return value._data if isinstance(value, Tensor) else value


class Overlap(Exception):
    """Two inputs share memory and one is written: the trace starts again with their owner as
    input."""

    def __init__(self, owners: set[int]) -> None:
        self.owners = owners


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def geometry(array: np.ndarray, owner: np.ndarray) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Where a view lies in its owner: offset in bytes, shape, strides."""
    return (
        array.__array_interface__["data"][0] - owner.__array_interface__["data"][0],
        array.shape,
        array.strides,
    )


def view_path(array: np.ndarray, owner: np.ndarray) -> tuple[Step, ...] | None:
    """The view steps that lead from a contiguous owner to one of its views, or None."""
    offset, shape, strides = geometry(array, owner)
    if not owner.flags.c_contiguous or owner.dtype != array.dtype or not owner.size:
        return None
    starts = list(np.unravel_index(offset // owner.itemsize, owner.shape)) if owner.ndim else []
    steps, sizes, order = [1] * owner.ndim, [1] * owner.ndim, []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        fits = [
            j for j in range(owner.ndim)
            if j not in order and stride % owner.strides[j] == 0 and stride
            and 0 <= starts[j] + stride // owner.strides[j] * (n - 1) < owner.shape[j]
        ]  # fmt: skip
        if not fits:
            return None
        j = fits[0]
        steps[j], sizes[j] = stride // owner.strides[j], n
        order.append(j)
    rest = [j for j in range(owner.ndim) if j not in order]
    return (
        ("slice", (tuple(int(s) for s in starts), tuple(steps), tuple(sizes))),
        ("transpose", (*order, *rest)), ("reshape", shape),
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a traced array is found after the program has run: an input or an output, and the view
    of it."""

    kind: str  # "input", "output"
    index: int
    path: tuple[Step, ...]

    def resolve(self, arrays: Sequence[Any], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """The array itself."""
        array: Any = arrays[self.index] if self.kind == "input" else outputs[self.index]
        return self.viewed(array if type(array) is DeviceArray else np.asarray(array))

    def viewed(self, array: Any) -> Any:
        """The view of its input or output."""
        for name, value in self.path:
            match name:
                case "reshape":
                    array = array.reshape(value)
                case "transpose":
                    array = array.transpose(value)
                case "broadcast":
                    array = np.broadcast_to(array, value)
                case "slice":
                    array = array[tuple(_slice(*entry) for entry in zip(*value, strict=True))]
        return array


def _slice(start: int, step: int, size: int) -> slice:
    stop = start + size * step
    return slice(start, None if stop < 0 else stop, step)


@dataclass(frozen=True)
class Leaf:
    """One leaf of the result. `what`: "tensor" (with its gradient at `grad`), "array", "number" (at
    `place`), "arg" (an argument itself), "same" (as an earlier leaf), "object" (`value` as it is)
    or "fresh" (a copy of it)."""

    what: str
    place: Place | None = None
    value: Any = None
    requires_grad: bool = False
    is_leaf: bool = True
    grad: Place | None = None


@dataclass(frozen=True)
class Effect:
    """Something the call leaves behind, besides in-place writes: `what` is "grad", "data", "item"
    or "attribute" of `owner` (a position for an argument)."""

    what: str
    owner: Any
    key: Any
    value: Any  # a Place, or the Python value itself
    wrap: str = ""  # "tensor", "number" or "" (array)


@dataclass(frozen=True, eq=False)
class Traced:
    """The outcome of a trace."""

    graph: ir.Graph
    sources: tuple[Source, ...]
    leaves: tuple[Leaf, ...]
    structure: Any
    effects: tuple[Effect, ...]
    grad_none: tuple[tuple[Any, bool], ...]  # (tensor or position, whether its .grad was None)
    statics: tuple[tuple[Any, Any, Any], ...]  # (container, key, value) read as constants
    attributes: tuple[
        tuple[Any, str, Any, str], ...
    ]  # plain ones written: owner, name, value before, line
    views: tuple[
        tuple[Source, int, Any], ...
    ]  # (source, input, geometry) of arrays read through their owner
    identical: tuple[tuple[Source, Source], ...]  # sources that gave one and the same array
    frozen: tuple[tuple[np.ndarray, bytes], ...] = ()  # arrays whose contents the trace used
    arrays: frozenset[int] = frozenset()  # ids of the arrays that are inputs themselves
    parents: tuple[Any, ...] = ()  # what the results' graph hangs on: tensors, or positions
    results: tuple[int, ...] = field(default=())  # the leaves that require gradients
    table: ir.Table | None = None  # of the graph, for the next trace


class Trace:
    """The recorder of one run of one function."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Any] = (),
        merged: frozenset[int] = frozenset(),
        first: ir.Table | None = None,
    ) -> None:
        self.name = name
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
                    f"bool, int32, int64, float32, float64), at {self.line()}"
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
                self._look_for_overlap(
                    array, [s for _, s in self.symbols.values() if s.storage.written]
                )
                made = self._input(array, source)
                if id(owner) in self.merged:
                    self.views.append((source, len(self.sources) - 1, geometry(array, owner)))
            found = self.symbols[id(array)] = (array, made)
            self.first[id(array)] = source
        elif self.first[id(array)].name != source.name:
            self.identical[(self.first[id(array)].name, source.name)] = (
                self.first[id(array)],
                source,
            )
        return found[1]

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
            self.symbols[id(owner)] = (owner, self._input(owner, self.first[id(owner)]))
        whole = self.symbols[id(owner)][1]
        at = next(i for i, storage in enumerate(self._storages) if storage is whole.storage)
        self.views.append((source, at, geometry(array, owner)))
        return symbol(self, whole.storage, path)

    def _look_for_overlap(self, array: np.ndarray, others: Sequence[Symbol]) -> None:
        """Two different inputs on the same memory are fine until one of them is written."""
        storages = {id(s.storage) for s in others}
        for other, seen in self.symbols.values():
            if (
                other is not array
                and id(seen.storage) in storages
                and np.may_share_memory(array, other)
            ):
                raise Overlap({id(owner_of(array)), id(owner_of(other))})

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
        if _holds_traced(data):
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
        for array, seen in list(self.symbols.values()):
            if seen.storage is target.storage:
                if not array.flags.writeable:
                    raise ValueError("assignment destination is read-only")
                apart = [s for _, s in self.symbols.values() if s.storage is not target.storage]
                self._look_for_overlap(array, apart)

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
        self.attributes[(id(owner), name)] = (owner, value, previous, self.line())
        object.__setattr__(owner, name, value)

    def set_flag(self, tensor: Tensor) -> None:
        """`requires_grad` of a tensor is about to change; at the end it must be as it was."""
        if type(tensor._data) is not Symbol:
            self.kept.append(tensor)
            before = (
                self.flags[id(tensor)][1] if id(tensor) in self.flags else tensor._requires_grad
            )
            self.flags[id(tensor)] = (tensor, before, self.line())

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
            f"{what} needs the value of a traced {_describe(value)} at {self.line()}; while "
            f"{self.name!r} is being compiled values do not exist yet, and a branch on one would "
            "be frozen. For control flow use eo.where; pass what is constant as an int, bool or "
            "str argument (static); or compile with fallback='eager'"
        )

    def error(self, what: str) -> EveryOTraceError:
        """An error that names the user's line."""
        return EveryOTraceError(
            f"{what}, at {self.line()}: this cannot be traced; change it, or compile with "
            "fallback='eager'"
        )

    def line(self) -> str:
        """The user's file and line that is being traced."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            own = _OWN.get(name)
            if own is None:
                own = _OWN[name] = name.startswith(PACKAGE)
            if not own:
                return _named(name, frame.f_lineno)
            frame = frame.f_back
        return "unknown"

    def note(self, node: ir.Node) -> None:
        """Remember where a node was made."""
        if node not in self.lines:
            self.lines[node] = self.line()

    def survivor(self) -> str | None:
        """Where a traced array was made that somebody still holds after the trace, or None."""
        self.symbols.clear()
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

    # ------------------------------------------------------------------ the outcome

    def finish(self, result: Any, flatten: Callable[[Any], tuple[list[Any], Any]]) -> Traced:
        """Everything the call has to compute, return and leave behind."""
        outputs: dict[int, int] = {}
        nodes: list[ir.Node] = []
        inputs = {id(storage): i for i, storage in enumerate(self._storages)}

        def place(s: Symbol) -> Place:
            at = inputs.get(id(s.storage))
            if at is not None and not s.weak:
                return Place("input", at, s.path)
            if id(s.storage) not in outputs:
                outputs[id(s.storage)] = len(nodes)
                nodes.append(s.storage.node)
                self.kept.append(s.storage)
            return Place("output", outputs[id(s.storage)], s.path)

        for tensor, before, line in self.flags.values():
            if tensor._requires_grad is not before:
                raise EveryOTraceError(
                    f"requires_grad of a tensor of shape {tensor.shape} is set to {not before} at "
                    f"{line} and left so; a compiled function does not run that line again: set it "
                    "outside, or back before returning"
                )
        flat, structure = flatten(result)
        places = {id(x): i for i, x in reversed(list(enumerate(flat))) if _holds_traced(x)}
        leaves = tuple(
            self._leaf(x, place) if places.get(id(x), i) == i else Leaf("same", value=places[id(x)])
            for i, x in enumerate(flat)
        )
        effects = []
        for tensor, s in self.rebound.values():
            effects.append(Effect("data", self._owner(tensor), None, place(s)))
        for tensor, g in self.grads.values():
            effects.append(self._effect("grad", self._owner(tensor), None, g, place))
        for (_, key), (container, value) in self.items.items():
            effects.append(self._effect("item", container, key, value, place))
        for (_, name), (owner, value, _, _) in self.attributes.items():
            if _holds_traced(value):
                effects.append(self._effect("attribute", owner, name, value, place))
        writes = tuple(
            (node, storage.node)
            for node, storage in zip(self.table.inputs, self._storages, strict=True)
            if storage.written and storage.node is not node
        )  # fmt: skip
        graph = ir.Graph(
            self.name,
            tuple(self.table.inputs),
            tuple(nodes),
            writes,
            tuple(dict.fromkeys(self.checks)),
            self.lines,
        )
        return Traced(
            graph, tuple(self.sources), leaves, structure, tuple(effects),
            tuple((self._owner(t), none) for t, none in self.grad_none.values()),
            tuple(self.statics.values()),
            tuple((owner, name, before, line)
                  for (_, name), (owner, value, before, line) in self.attributes.items()
                  if not _holds_traced(value)),
            views=tuple(self.views), identical=tuple(self.identical.values()),
            frozen=tuple(self.frozen.values()),
            arrays=frozenset(id(s.owner) for s in self.sources if s.kind == "array"),
            results=tuple(i for i, leaf in enumerate(leaves)
                          if leaf.what == "tensor" and not leaf.is_leaf),
            table=self.table,
        )  # fmt: skip

    def _owner(self, tensor: Tensor) -> Any:
        return self.arguments.get(id(tensor), tensor)

    def _leaf(self, x: Any, place: Callable[[Symbol], Place]) -> Leaf:
        if isinstance(x, Tensor):
            if type(x._data) is Symbol:
                g = x._grad._data if isinstance(x._grad, Tensor) else x._grad
                own = None if g is None else place(g)
                return Leaf(
                    "tensor", place(self.read(x)), None, x._requires_grad, x.grad_node is None, own
                )
            at = self.arguments.get(id(x))
            return Leaf("object", value=x) if at is None else Leaf("arg", value=at)
        if isinstance(x, Symbol):
            if x.storage.narrow is None:
                return Leaf("number" if x.weak else "array", place(x))
            x = self._argument(x)
        at = self.arguments.get(id(x))
        return Leaf("object", value=x) if at is None else Leaf("arg", value=at)

    def _argument(self, x: Symbol) -> Any:
        """The array that a symbol of a narrow integer dtype stands for."""
        array = next((a for a, s in self.symbols.values() if s.storage is x.storage), None)
        if x.path or array is None:
            raise self.error(f"a view of an array of dtype {x.dtype} as a result")
        return array

    def _effect(
        self, what: str, owner: Any, key: Any, value: Any, place: Callable[[Symbol], Place]
    ) -> Effect:
        if isinstance(value, Tensor) and type(value._data) is Symbol:
            return Effect(what, owner, key, place(self.read(value)), "tensor")
        if isinstance(value, Symbol):
            return Effect(what, owner, key, place(value), "number" if value.weak else "")
        if _holds_traced(value):
            raise self.error(f"a container of traced values stored in {key!r}")
        return Effect(what, owner, key, value, "object")


_MISSING = object()
_OWN: dict[str, bool] = {}  # file name -> whether it belongs to the library


@functools.cache
def _named(file: str, line: int) -> str:
    return f"{file}:{line}"


def put_back(owner: Any, name: str, previous: Any) -> None:
    """Give an attribute the value that it had."""
    if previous is _MISSING:
        owner.__dict__.pop(name, None)
    else:
        object.__setattr__(owner, name, previous)


def _describe(value: Any) -> str:
    return f"{'tensor' if isinstance(value, Tensor) else 'array'} of shape {tuple(value.shape)}"


def _holds_traced(data: Any) -> bool:
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


def check_array(array: np.ndarray | np.generic | DeviceArray) -> None:
    """Refuse arrays that no tensor can hold, and those whose operators are not NumPy's."""
    if isinstance(array, np.ndarray) and type(array) not in (np.ndarray, np.memmap, Symbol):
        raise EveryOTraceError(
            f"a {type(array).__name__} takes part in a compiled function; give it the plain array, "
            "numpy.asarray(a)"
        )
    if array.dtype.kind not in "fiub":
        raise EveryODTypeError(f"an argument of dtype {array.dtype} is not supported")
