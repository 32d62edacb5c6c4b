"""The array namespace of a trace: NumPy's functions, recorded as nodes of the graph.

Every method takes symbols, arrays and Python numbers and returns a symbol. What NumPy would decide
at run time is decided here: result dtypes (by NumPy's own resolution, Python numbers weak),
broadcasting, axes. The nodes it makes are the few primitives of `everyo.compile.ir`.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.ir import BOOL, F64, I64, Node
from everyo.compile.symbol import Step, Symbol, holding, symbol
from everyo.core.device_array import DeviceArray
from everyo.exceptions import EveryOTraceError

_UFUNCS = {n: getattr(np, n) for n in (*ir.UNARY, *ir.BINARY) if hasattr(np, n) and n != "copy"}
_UFUNCS["abs"] = np.absolute
_LIKE = {
    "erf": np.exp,
    "sigmoid": np.exp,
    "square": np.square,
}  # ops that resolve dtypes as these do
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_ON_BOOL = {
    "add": "logical_or",
    "multiply": "logical_and",
    "maximum": "maximum",
    "minimum": "minimum",
}


_PYTHON = {int: I64, float: F64, bool: BOOL}  # the dtypes of Python's numbers


@functools.cache
def loop_dtypes(name: str, kinds: tuple[Any, ...]) -> tuple[np.dtype, ...]:
    """The operand dtypes and the result dtype of NumPy's loop for these operands; Python's own
    types stand for weak numbers."""
    ufunc = _LIKE.get(name) or _UFUNCS[name]
    return ufunc.resolve_dtypes((*kinds, None))


class Builder:
    """Records the calls of one trace."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.table: ir.Table = trace.table
        self.lines: dict[Node, str] = trace.lines
        self.numbers: dict[tuple[Any, ...], Node] = {}  # see `_number`

    def close(self) -> None:
        """No call comes any more: let go of the trace, which holds this namespace."""
        self.__dict__.clear()

    # ------------------------------------------------------------------ lifting and wrapping

    def lift(self, x: Any) -> Symbol:
        """Anything an op takes as a symbol."""
        if isinstance(x, Symbol):
            if x.trace is not self.trace:
                x.leaked("an op")
            return x
        if type(x) in (int, float, bool):
            return holding(self.trace, self.table.const(x, _PYTHON[type(x)]), True)
        return self.trace.array(x if type(x) is DeviceArray else np.asarray(x))

    def wrap(self, node: Node, weak: bool = False) -> Symbol:
        """A symbol over new memory that holds `node`."""
        if node not in self.lines:
            self.lines[node] = self.trace.line()
        return holding(self.trace, node, weak)

    def _wide(self, s: Symbol) -> Symbol:
        """A narrow integer array as the int64 one that it is in the graph."""
        return s if s.storage.narrow is None else self.wrap(s.node)

    def _own(self, x: Any) -> Symbol:
        """`lift` for ops whose result would have a dtype that the graph does not know."""
        s = self.lift(x)
        if s.storage.narrow is not None:
            raise EveryOTraceError(
                f"an array of dtype {s.dtype} takes part in a computation at {self.trace.line()}; "
                "inside a compiled function convert it first: eo.tensor(a), or a.astype('int64') "
                "for whole numbers"
            )
        return s

    def cast(self, s: Symbol, dtype: np.dtype) -> Node:
        """The node of `s` in another dtype."""
        node = s.node
        if dtype == s.storage.narrow:
            self._own(s)
        if node.dtype == dtype:
            return node
        if dtype not in ir.DTYPES:
            raise EveryOTraceError(
                f"{dtype} is not supported inside a compiled function (supported: bool, int32, "
                f"int64, float32, float64) at {self.trace.line()}; convert with astype()"
            )
        if node.op == "const" and type(node.param("value")) in (int, float, bool):
            with np.errstate(all="ignore"):
                return self.table.const(
                    np.asarray(node.param("value"), node.dtype).astype(dtype), dtype
                )
        return self.table.make("cast", node, dtype=dtype)

    def spread_to(self, node: Node, shape: tuple[int, ...]) -> Node:
        """`node` broadcast to `shape`."""
        if node.shape == shape:
            return node
        if len(node.shape) < len(shape):
            node = self.table.make(
                "reshape", node, shape=(1,) * (len(shape) - len(node.shape)) + node.shape
            )
        return node if node.shape == shape else self.table.make("broadcast", node, shape=shape)

    def _recorder(self, name: str) -> Callable[..., Symbol]:
        """The function `name`: short for arrays of one shape and one floating dtype."""
        trace, make, wrap, pointwise = self.trace, self.table.make, self.wrap, self._pointwise

        def unary(a: Any) -> Symbol:
            if type(a) is Symbol and not a.weak and a.trace is trace and a.dtype.kind == "f":
                return wrap(make(name, a.node if a.path else a.storage.node))
            return pointwise(name, a)

        def binary(a: Any, b: Any) -> Symbol:
            if (
                type(a) is type(b) is Symbol
                and not (a.weak or b.weak)
                and a.trace is b.trace is trace
                and a.dtype is b.dtype
                and a.shape == b.shape
                and a.dtype.kind == "f"
            ):
                m = a.node if a.path else a.storage.node
                n = b.node if b.path else b.storage.node
                return wrap(make(name, m, n))
            return pointwise(name, a, b)

        return unary if name in ir.UNARY else binary

    def _pointwise(self, name: str, *args: Any) -> Symbol:
        nodes = self._alike(args)
        if nodes is not None:
            return self.wrap(self.table.make(name, *nodes))
        symbols = [self.lift(a) for a in args]
        if name in _COMPARISONS:
            symbols = [self._wide(s) for s in symbols]
        if name == "sigmoid" and symbols[0].dtype == BOOL:
            raise TypeError("numpy has no negative of a bool")
        weak = all(s.weak for s in symbols)
        kinds = tuple(_kind(s, weak) for s in symbols)
        *dtypes, out = loop_dtypes(name, kinds)
        if all(s.storage.narrow is None for s in symbols):  # integers that NumPy makes of bools
            dtypes = [I64 if d.kind in "iu" and d not in ir.DTYPES else d for d in dtypes]
        nodes = [self.cast(s, d) for s, d in zip(symbols, dtypes, strict=True)]
        shape = np.broadcast_shapes(*(n.shape for n in nodes))
        nodes = [self.spread_to(n, shape) for n in nodes]
        if dtypes[0] == BOOL and name in _ON_BOOL:
            name = _ON_BOOL[name]
        allowed = (ir.UNARY.get(name) or ir.BINARY[name])[0]
        if dtypes[0].kind not in allowed:
            return self._on_integers(name, nodes[0], shape)
        if name == "power" and dtypes[0].kind == "i" and not _natural(nodes[1]):
            raise EveryOTraceError(
                "an integer to an integer power that is not a non-negative constant, at "
                f"{self.trace.line()}: NumPy raises for negative exponents; convert the base to a "
                "floating dtype"
            )
        return self.wrap(self.table.make(name, *nodes), weak and out != BOOL)

    def _alike(self, args: tuple[Any, ...]) -> list[Node] | None:
        """The operands as nodes if nothing is to be decided: arrays of one shape and one floating
        dtype, and Python numbers, which take that dtype."""
        trace, first = self.trace, None
        for a in args:
            if type(a) is Symbol and not a.weak and a.trace is trace:
                if first is None:
                    first, shape, dtype = a, a.shape, a.dtype
                    if dtype.kind != "f":
                        return None
                elif a.dtype is not dtype or a.shape != shape:
                    return None
            elif type(a) is not float and type(a) is not int:
                return None
        if first is None:
            return None
        return [a.node if type(a) is Symbol else self._number(a, dtype, shape) for a in args]

    def _number(self, x: float, dtype: np.dtype, shape: tuple[int, ...]) -> Node:
        """A Python number in a floating dtype, everywhere in an array."""
        key = (type(x), x or repr(x), dtype, shape)  # 0, 0.0 and -0.0 are equal
        node = self.numbers.get(key)
        if node is None:
            node = self.numbers[key] = self.spread_to(self.table.const(x, dtype), shape)
        return node

    def _on_integers(self, name: str, node: Node, shape: tuple[int, ...]) -> Symbol:
        """Predicates and rounding of whole numbers, which NumPy answers without computing."""
        if name in ("isnan", "isinf", "isfinite"):
            return self.full(shape, name == "isfinite", BOOL)
        if name in ("floor", "ceil", "rint") or (name == "abs" and node.dtype == BOOL):
            return self.wrap(node)
        raise EveryOTraceError(
            f"{name} of {node.dtype} is not supported inside a compiled function, at "
            f"{self.trace.line()}"
        )

    def __getattr__(self, name: str) -> Any:
        if name in ir.UNARY or name in ir.BINARY:
            function = self._recorder(name)
            setattr(self, name, function)
            return function
        raise AttributeError(f"the namespace of a trace has no {name!r}")

    # ------------------------------------------------------------------ pointwise extras

    def square(self, x: Any) -> Symbol:
        s = self.lift(x)
        s = self.astype(s, I64) if s.dtype == BOOL else s
        return self._pointwise("multiply", s, s)

    def logical_not(self, x: Any) -> Symbol:
        return self.wrap(self.table.make("logical_not", self._truth(x)))

    def _logical(self, name: str, a: Any, b: Any) -> Symbol:
        nodes = [self._truth(a), self._truth(b)]
        shape = np.broadcast_shapes(*(n.shape for n in nodes))
        return self.wrap(self.table.make(name, *(self.spread_to(n, shape) for n in nodes)))

    def logical_and(self, a: Any, b: Any) -> Symbol:
        return self._logical("logical_and", a, b)

    def logical_or(self, a: Any, b: Any) -> Symbol:
        return self._logical("logical_or", a, b)

    def logical_xor(self, a: Any, b: Any) -> Symbol:
        return self._logical("logical_xor", a, b)

    def _truth(self, x: Any) -> Node:
        return self.cast(self.lift(x), BOOL)

    def where(self, condition: Any, a: Any, b: Any) -> Symbol:
        a, b = self.lift(a), self.lift(b)
        dtype = _promoted(a, b)
        nodes = [self._truth(condition), self.cast(a, dtype), self.cast(b, dtype)]
        shape = np.broadcast_shapes(*(n.shape for n in nodes))
        return self.wrap(self.table.make("where", *(self.spread_to(n, shape) for n in nodes)))

    def astype(self, x: Any, dtype: Any) -> Symbol:
        s = self.lift(x)
        dtype = np.dtype(dtype)
        if s.dtype == dtype and not s.weak:
            return s
        return self.wrap(self.cast(s, dtype))

    def copy(self, x: Any) -> Symbol:
        return self.wrap(self._own(x).node)

    def asarray(self, x: Any) -> Symbol:
        return self.lift(x)

    # ------------------------------------------------------------------ making arrays

    def full(self, shape: Any, value: Any, dtype: Any) -> Symbol:
        node = self.cast(self.lift(value), np.dtype(dtype))
        return self.wrap(self.spread_to(node, tuple(shape)))

    def zeros(self, shape: Any, dtype: Any) -> Symbol:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any) -> Symbol:
        return self.full(shape, 1, dtype)

    def iota(self, shape: tuple[int, ...], axis: int) -> Symbol:
        return self.wrap(self.table.make("iota", shape=tuple(shape), axis=axis))

    def random(self, state: Any, *, shape: tuple[int, ...], dtype: Any) -> Symbol:
        return self.wrap(
            self.table.make(
                "random", self.lift(state).node, shape=tuple(shape), dtype=np.dtype(dtype)
            )
        )

    # ------------------------------------------------------------------ views

    def view(self, node: Node, step: Step) -> Node:
        """One view step applied to a node."""
        name, value = step
        match name:
            case "reshape":
                return (
                    node if node.shape == value else self.table.make("reshape", node, shape=value)
                )
            case "transpose":
                return (
                    node
                    if value == tuple(range(len(value)))
                    else self.table.make("transpose", node, axes=value)
                )
            case "broadcast":
                return self.spread_to(node, value)
            case "slice":
                starts, steps, sizes = value
                whole = sizes == node.shape and all(
                    s == 1 or n <= 1 for s, n in zip(steps, sizes, strict=True)
                )
                return (
                    node
                    if whole
                    else self.table.make("slice", node, starts=starts, steps=steps, sizes=sizes)
                )
        raise AssertionError(name)

    def _viewed(self, s: Symbol, step: Step) -> Symbol:
        out = symbol(self.trace, s.storage, (*s.path, step))
        moved = any(k in ("transpose", "slice", "broadcast") for k, _ in s.path)
        if step[0] == "reshape" and moved and _without_ones(step[1]) != _without_ones(s.shape):
            s.storage.uncertain = True
        self.trace.note(out.node)
        return out

    def reshape(self, x: Any, shape: Any) -> Symbol:
        s = self.lift(x)
        shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if -1 in shape:
            known = math.prod(n for n in shape if n != -1)
            shape = tuple(s.size // known if n == -1 else n for n in shape)
        return self._viewed(s, ("reshape", shape))

    def transpose(self, x: Any, axes: Any = None) -> Symbol:
        s = self.lift(x)
        axes = tuple(reversed(range(s.ndim))) if axes is None else tuple(axes)
        return self._viewed(s, ("transpose", axes))

    def broadcast_to(self, x: Any, shape: Any) -> Symbol:
        return self._viewed(self.lift(x), ("broadcast", tuple(shape)))

    def windows(
        self, x: Any, *, axis: int, count: int, size: int, step: int, spacing: int
    ) -> Symbol:
        """Two axes instead of one: `count` windows of `size` elements. Only for op records, which
        never write through it."""
        where = {"axis": axis, "count": count, "size": size, "step": step, "spacing": spacing}
        return self.wrap(self.table.make("window", self._own(x).node, **where))

    def flip(self, x: Any, axis: Any) -> Symbol:
        s = self.lift(x)
        axes = (
            {a % s.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
            if axis is not None
            else set(range(s.ndim))
        )
        key = tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(s.ndim))
        return self.getitem(s, key)

    # ------------------------------------------------------------------ reductions and scans

    def _reduce(self, name: str, x: Any, axis: Any, keepdims: bool) -> Symbol:
        s = self._summed(x) if name in ("sum", "prod") else self._own(x)
        node = s.node
        axes = tuple(range(s.ndim)) if axis is None else tuple(
            sorted(a % s.ndim for a in ((axis,) if isinstance(axis, int) else axis)))  # fmt: skip
        if name in ("sum", "prod") and node.dtype.kind in "bi":
            node = self.cast(s, I64)
        if (
            name in ("max", "min")
            and math.prod(node.shape[a] for a in axes) == 0
            and node.size == 0
        ):
            if math.prod(n for i, n in enumerate(node.shape) if i not in axes):
                raise ValueError(
                    f"zero-size array to reduction operation {name} which has no identity"
                )
        kept = tuple(1 if i in axes else n for i, n in enumerate(node.shape))
        if axes:
            node = self.table.make(name, node, axes=axes)
        if keepdims:
            node = self.view(node, ("reshape", kept))
        return self.wrap(node)

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._reduce("sum", x, axis, keepdims)

    def prod(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._reduce("prod", x, axis, keepdims)

    def max(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._reduce("max", x, axis, keepdims)

    def min(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._reduce("min", x, axis, keepdims)

    def any(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._predicate("max", False, x, axis, keepdims)

    def all(self, x: Any, axis: Any = None, keepdims: bool = False) -> Symbol:
        return self._predicate("min", True, x, axis, keepdims)

    def _predicate(self, name: str, of_nothing: bool, x: Any, axis: Any, keepdims: bool) -> Symbol:
        s = self.wrap(self._truth(x))
        if s.size:
            return self._reduce(name, s, axis, keepdims)
        shape = np.any(np.empty(s.shape, bool), axis=axis, keepdims=keepdims).shape
        return self.full(shape, of_nothing, BOOL)

    def argmax(self, x: Any, axis: int | None = None) -> Symbol:
        return self._arg("max", x, axis)

    def argmin(self, x: Any, axis: int | None = None) -> Symbol:
        return self._arg("min", x, axis)

    def _arg(self, name: str, x: Any, axis: int | None) -> Symbol:
        """The first position that holds the extreme (or a NaN): the smallest index among the
        hits."""
        s = self._wide(self.lift(x))
        if axis is None:
            s, axis = self.reshape(s, (-1,)), 0
        axis %= s.ndim
        best = self._reduce(name, s, (axis,), True)
        hit = self.equal(s, best)
        if s.dtype.kind == "f":
            hit = self.logical_or(hit, self.isnan(s))
            hit = self.where(self.isnan(best), self.isnan(s), hit)
        index = self.where(hit, self.iota(s.shape, axis), s.shape[axis])
        return self._reduce("min", index, (axis,), False)

    def _last(self, s: Symbol, axis: int) -> tuple[Symbol, tuple[int, ...]]:
        order = (*(i for i in range(s.ndim) if i != axis), axis)
        return self.transpose(s, order), tuple(sorted(range(s.ndim), key=order.__getitem__))

    def _summed(self, x: Any) -> Symbol:
        """The operand of a sum or product; NumPy computes those of small signed integers in
        int64."""
        s = self.lift(x)
        return self._own(s) if s.dtype.kind == "u" else self._wide(s)

    def cumsum(self, x: Any, axis: int) -> Symbol:
        s = self._summed(x)
        if s.dtype.kind in "bi":
            s = self.astype(s, I64)
        moved, back = self._last(s, axis % s.ndim)
        return self.transpose(self.wrap(self.table.make("cumsum", moved.node)), back)

    def argsort(self, x: Any, *, axis: int) -> Symbol:
        s = self._wide(self.lift(x))
        moved, back = self._last(s, axis % s.ndim)
        return self.transpose(self.wrap(self.table.make("argsort", moved.node)), back)

    # ------------------------------------------------------------------ products

    def matmul(self, a: Any, b: Any) -> Symbol:
        a, b = self.lift(a), self.lift(b)
        if not a.shape or not b.shape:
            raise ValueError("matmul: input operand does not have enough dimensions")
        dtype = _promoted(a, b)
        left, right = self.cast(a, dtype), self.cast(b, dtype)
        row, column = len(left.shape) == 1, len(right.shape) == 1
        if row:
            left = self.view(left, ("reshape", (1, *left.shape)))
        if column:
            right = self.view(right, ("reshape", (*right.shape, 1)))
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(f"matmul: inner sizes differ, {left.shape[-1]} and {right.shape[-2]}")
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (
            self.spread_to(left, batch + left.shape[-2:]),
            self.spread_to(right, batch + right.shape[-2:]),
        )
        if dtype.kind == "f":
            out = self.table.make("matmul", left, right)
        else:
            out = self._whole_matmul(left, right, batch, dtype)
        shape = (*batch, *(() if row else out.shape[-2:-1]), *(() if column else out.shape[-1:]))
        return self.wrap(self.view(out, ("reshape", shape)))

    def _whole_matmul(
        self, left: Node, right: Node, batch: tuple[int, ...], dtype: np.dtype
    ) -> Node:
        """The product of integers or bools, as a sum over an axis of elementwise products."""
        m, k, n = *left.shape[-2:], right.shape[-1]
        wide = (*batch, m, k, n)
        left = self.spread_to(self.view(left, ("reshape", (*batch, m, k, 1))), wide)
        right = self.spread_to(self.view(right, ("reshape", (*batch, 1, k, n))), wide)
        axis = (len(batch) + 1,)
        if dtype == BOOL:
            if k == 0:
                return self.full((*batch, m, n), False, BOOL).node
            return self.table.make("max", self.table.make("logical_and", left, right), axes=axis)
        return self.table.make("sum", self.table.make("multiply", left, right), axes=axis)

    # ------------------------------------------------------------------ indexing

    def getitem(self, x: Any, key: Any) -> Symbol:
        s, parts = self._expanded(self.lift(x), key)
        s, arrays, gone = self._sliced(s, parts)
        if arrays:
            s = self._gather(self._own(s), arrays)
        if gone:
            s = self.reshape(s, tuple(n for i, n in enumerate(s.shape) if i not in gone))
        return s

    def _expanded(self, s: Symbol, key: Any) -> tuple[Symbol, list[Any]]:
        """The key with one entry per axis: Ellipsis filled, new axes made first."""
        parts = list(key) if isinstance(key, tuple) else [key]
        spent = sum(1 for k in parts if k is not None and k is not Ellipsis)
        if not any(k is Ellipsis for k in parts):
            parts.append(Ellipsis)
        at = next(i for i, k in enumerate(parts) if k is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (s.ndim - spent)
        if any(k is None for k in parts):
            sizes = iter(s.shape)
            s = self.reshape(s, tuple(1 if k is None else next(sizes) for k in parts))
            parts = [slice(None) if k is None else k for k in parts]
        return s, parts

    def _sliced(
        self, s: Symbol, parts: Sequence[Any]
    ) -> tuple[Symbol, dict[int, Any], tuple[int, ...]]:
        """The slices and ints of a key applied; what is left: index arrays by axis, axes to
        drop."""
        mixed = any(not isinstance(k, slice | int) for k in parts)
        starts, steps, sizes, arrays, gone = [], [], [], {}, []
        for axis, (k, n) in enumerate(zip(parts, s.shape, strict=True)):
            if isinstance(k, slice):
                start, stop, step = k.indices(n)
                size = len(range(start, stop, step))
                starts.append(start if size else 0)
                steps.append(step if size > 1 else 1)
                sizes.append(size)
            elif isinstance(k, int) and not mixed:
                starts.append(k + n if k < 0 else k)
                steps.append(1)
                sizes.append(1)
                gone.append(axis)
            else:
                arrays[axis] = k
                starts.append(0)
                steps.append(1)
                sizes.append(n)
        return (
            self._viewed(s, ("slice", (tuple(starts), tuple(steps), tuple(sizes)))),
            arrays,
            tuple(gone),
        )

    def _positions(
        self, shape: tuple[int, ...], arrays: dict[int, Any]
    ) -> tuple[Symbol, tuple[int, ...]]:
        """The index arrays as one index into the flattened indexed axes, and the shape they
        share."""
        index: Symbol | None = None
        for axis, k in arrays.items():
            i = self.astype(self.lift(k), I64)
            i = self.where(self.less(i, 0), self.add(i, shape[axis]), i)
            index = i if index is None else self.add(self.multiply(index, shape[axis]), i)
        assert index is not None
        common = np.broadcast_shapes(
            *(np.shape(k) if not hasattr(k, "shape") else k.shape for k in arrays.values())
        )
        return self.broadcast_to(index, common), common

    def _gather(self, s: Symbol, arrays: dict[int, Any]) -> Symbol:
        axes = list(arrays)
        rest = [i for i in range(s.ndim) if i not in arrays]
        index, common = self._positions(s.shape, arrays)
        rows = math.prod(s.shape[a] for a in axes)
        if rows == 0 and 0 not in common:
            raise IndexError("an index into an axis of size 0")
        # wrapped: the result is a copy, so no view of the memory of `s` comes of it
        table = self.transpose(self.wrap(s.node), (*axes, *rest))
        table = self.reshape(table, (rows, *(s.shape[i] for i in rest)))
        out = self.wrap(self.table.make("take", table.node, index.node)) if rows else self.full(
            (*common, *table.shape[1:]), 0, s.dtype)  # fmt: skip
        return self.transpose(out, _placement(axes, len(common), len(rest)))

    def put_add(self, shape: tuple[int, ...], key: Any, value: Any) -> Symbol:
        """Zeros of `shape` with `value` added at `key`: the adjoint of getitem."""
        v = self._own(value)
        target = self.zeros(shape, v.dtype)
        whole, parts = self._expanded(target, key)
        region, arrays, _ = self._sliced(whole, parts)
        if not arrays:
            return self._assembled(shape, whole.shape, region, self.reshape(v, region.shape))
        axes = list(arrays)
        rest = [i for i in range(region.ndim) if i not in arrays]
        index, common = self._positions(region.shape, arrays)
        order = _placement(axes, len(common), len(rest))
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        updates = self.transpose(self.broadcast_to(v, tuple(
            (*common, *(region.shape[i] for i in rest))[i] for i in order)), back)  # fmt: skip
        rows = math.prod(region.shape[a] for a in axes)
        if rows:
            sums = self.wrap(self.table.make("scatter_add", index.node, updates.node, rows=rows))
        else:
            sums = self.zeros((0, *(region.shape[i] for i in rest)), v.dtype)
        moved = self.reshape(sums, tuple(region.shape[i] for i in (*axes, *rest)))
        order = (*axes, *rest)
        placed = self.transpose(moved, tuple(sorted(range(region.ndim), key=order.__getitem__)))
        return self._assembled(shape, whole.shape, region, placed)

    def _assembled(
        self, shape: tuple[int, ...], whole: tuple[int, ...], region: Symbol, value: Symbol
    ) -> Symbol:
        """Zeros with `value` at the slice that `region` is of them."""
        starts, steps, sizes = region.path[-1][1]
        if sizes == whole and all(s == 1 for s in steps):
            return self.reshape(value, shape)
        base = self.zeros(whole, value.dtype)
        node = self.table.make("assemble", base.node, value.node, starts=(starts,), steps=(steps,))
        return self.reshape(self.wrap(node), shape)

    def put(self, x: Any, key: Any, value: Any) -> Symbol:
        """`x` with `value` stored at `key`, as new memory."""
        out = self.copy(x)
        self.trace.assign(out, key, value)
        return out

    def merge(self, *arrays: Any, axis: int) -> Symbol:
        """The arrays joined along an axis."""
        symbols = [self.lift(a) for a in arrays]
        dtype = functools.reduce(np.promote_types, (s.dtype for s in symbols))
        pieces = [self.cast(s, dtype) for s in symbols]
        total = sum(p.shape[axis] for p in pieces)
        shape = tuple(total if i == axis else n for i, n in enumerate(pieces[0].shape))
        starts, at = [], 0
        for p in pieces:
            starts.append(tuple(at if i == axis else 0 for i in range(len(shape))))
            at += p.shape[axis]
        base = self.full(shape, 0, dtype).node
        steps = ((1,) * len(shape),) * len(pieces)
        return self.wrap(
            self.table.make("assemble", base, *pieces, starts=tuple(starts), steps=steps)
        )

    def pick(self, x: Any, index: Any) -> Symbol:
        """One element of each row: a masked row sum, which fuses with whatever else reads the
        row."""
        s = self._own(x)
        return self._reduce(
            "sum", self.where(self._hot(index, s.shape), s, 0), (s.ndim - 1,), False
        )

    def spread(self, g: Any, index: Any, n: int) -> Symbol:
        """Rows of n zeros with `g` at the index."""
        s = self._own(g)
        shape = (*s.shape, n)
        return self.where(self._hot(index, shape), self.reshape(s, (*s.shape, 1)), 0)

    def _hot(self, index: Any, shape: tuple[int, ...]) -> Symbol:
        i = self.astype(self.lift(index), I64)
        return self.equal(self.iota(shape, len(shape) - 1), self.reshape(i, (*i.shape, 1)))

    # ------------------------------------------------------------------ checks

    def require(self, condition: Any, error: type[Exception], message: str) -> None:
        """Record that the call raises `error(message)` unless the 0-d `condition` holds."""
        ok = self._truth(condition)
        bad = self.table.make("logical_not", ok)
        self.trace.check(bad, error, message)


def _without_ones(shape: Sequence[int]) -> list[int]:
    """The sizes that a reshape must split or join; axes of size 1 come and go in a view."""
    return [n for n in shape if n != 1]


def _kind(s: Symbol, all_weak: bool) -> Any:
    """How an operand takes part in NumPy's resolution of dtypes."""
    if not s.weak or all_weak:
        return s.dtype
    return {"f": float, "i": int, "b": np.dtype(bool)}[s.dtype.kind]


def _promoted(a: Symbol, b: Symbol) -> np.dtype:
    """The common dtype of two operands, Python numbers weak."""
    kinds = tuple(_kind(s, a.weak and b.weak) for s in (a, b))
    return np.result_type(*(k(0) if isinstance(k, type) else k for k in kinds))


def _natural(node: Node) -> bool:
    """Whether an exponent is a constant that is not negative, or was a bool."""
    while node.op in ("reshape", "broadcast"):
        node = node.inputs[0]
    if node.op == "cast" and node.inputs[0].dtype == BOOL:
        return True
    return node.op == "const" and operator.index(node.param("value")) >= 0


def _placement(axes: Sequence[int], indexed: int, rest: int) -> tuple[int, ...]:
    """Where the axes of a gathered result go: (index axes, other axes) -> NumPy's order. Adjacent
    index arrays leave their axes in place, others come first."""
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if adjacent else 0
    return (
        *range(indexed, indexed + before),
        *range(indexed),
        *range(indexed + before, indexed + rest),
    )
