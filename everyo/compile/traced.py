"""What a trace gives: a graph, where its inputs come from, and what to do with its outputs.

A `Source` fetches the array of an input at call time; a `Place` finds a traced array after the
program has run; a `Leaf` is one part of the result, an `Effect` something that the call leaves
behind. `Traced` holds them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.symbol import Step
from everyo.core.device_array import DeviceArray
from everyo.core.tensor import Tensor


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
