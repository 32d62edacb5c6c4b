"""The ground of the namespace of a trace: operands become symbols, results are wrapped, dtypes and
shapes are resolved as NumPy does; pointwise functions, new arrays and views."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.ir import BOOL, F64, I64, Node
from everyo.compile.lines import here
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


@functools.lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that NumPy gives to an op on these."""
    return np.broadcast_shapes(*shapes)


class Recorder:
    """Records the calls of one trace."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.table: ir.Table = trace.table
        self.lines: dict[Node, str] = trace.lines
        self.numbers: dict[tuple[Any, ...], Node] = {}  # see `_number`

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
            self.lines[node] = here(3)
        return holding(self.trace, node, weak)

    def _wide(self, s: Symbol) -> Symbol:
        """A narrow integer array as the int64 one that it is in the graph."""
        return s if s.storage.narrow is None else self.wrap(s.node)

    def _own(self, x: Any) -> Symbol:
        """`lift` for ops whose result would have a dtype that the graph does not know."""
        s = self.lift(x)
        if s.storage.narrow is not None:
            raise EveryOTraceError(
                f"an array of dtype {s.dtype} takes part in a computation at {here()}; "
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
                f"int64, float32, float64) at {here()}; convert with astype()"
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
        trace, pointwise = self.trace, self._pointwise
        new, known, lines = self.table.new, self.table.of(name), self.lines
        noted = self.table.noted
        takes, gives = ir.UNARY.get(name) or ir.BINARY[name]
        if "f" not in takes:
            return functools.partial(pointwise, name)
        truth = gives == "bool"

        def record(operands: tuple[Node, ...], of: Symbol) -> Symbol:
            node = known.get(operands)
            if node is None:
                node = new(name, operands, of.shape, BOOL if truth else of.dtype, operands[0].size)
                lines[node] = here(3)
            elif node.index >= noted and node not in lines:
                lines[node] = here(3)
            return holding(trace, node)

        def unary(a: Any) -> Symbol:
            if type(a) is Symbol and not a.weak and a.trace is trace and a.dtype.kind == "f":
                return record((a.whole or a.node,), a)
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
                return record((a.whole or a.node, b.whole or b.node), a)
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
        shape = broadcast_shapes(*(n.shape for n in nodes))
        nodes = [self.spread_to(n, shape) for n in nodes]
        if dtypes[0] == BOOL and name in _ON_BOOL:
            name = _ON_BOOL[name]
        allowed = (ir.UNARY.get(name) or ir.BINARY[name])[0]
        if dtypes[0].kind not in allowed:
            return self._on_integers(name, nodes[0], shape)
        if name == "power" and dtypes[0].kind == "i" and not _natural(nodes[1]):
            raise EveryOTraceError(
                "an integer to an integer power that is not a non-negative constant, at "
                f"{here()}: NumPy raises for negative exponents; convert the base to a "
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
            f"{name} of {node.dtype} is not supported inside a compiled function, at {here()}"
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
        shape = broadcast_shapes(*(n.shape for n in nodes))
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
        dtype = promoted(a, b)
        nodes = [self._truth(condition), self.cast(a, dtype), self.cast(b, dtype)]
        shape = broadcast_shapes(*(n.shape for n in nodes))
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


def _without_ones(shape: Sequence[int]) -> list[int]:
    """The sizes that a reshape must split or join; axes of size 1 come and go in a view."""
    return [n for n in shape if n != 1]


def _kind(s: Symbol, all_weak: bool) -> Any:
    """How an operand takes part in NumPy's resolution of dtypes."""
    if not s.weak or all_weak:
        return s.dtype
    return {"f": float, "i": int, "b": np.dtype(bool)}[s.dtype.kind]


def promoted(a: Symbol, b: Symbol) -> np.dtype:
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
