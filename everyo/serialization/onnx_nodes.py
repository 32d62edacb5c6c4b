"""The graph of a model in the operators of ONNX.

Each op of the IR becomes one operator or a few. Operands that are only repeated along an axis are
passed as they are, since ONNX broadcasts like NumPy; they are expanded only where an operator would
see the difference. Sizes that depend on the batch are computed from the shape of the input.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.interpret import evaluate
from everyo.exceptions import EveryOSerializationError
from everyo.serialization.onnx_graph import ONE, ModelGraph, Size, Sizes, Value
from everyo.serialization.onnx_scalars import Scalars
from everyo.serialization.onnx_windows import convolution, convolved

LEAST = np.iinfo(np.int64).min  # as the end of a backward slice: up to the first element
AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "ReduceProd": 18}  # since opset
SCATTER_ADDS = 16  # ScatterND can add since this opset

DIRECT = {
    "negative": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan",
    "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "floor": "Floor", "ceil": "Ceil", "rint": "Round", "isnan": "IsNaN", "isinf": "IsInf",
    "logical_not": "Not", "copy": "Identity", "add": "Add", "subtract": "Sub", "multiply": "Mul",
    "divide": "Div", "power": "Pow", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "where": "Where",
}  # fmt: skip
ON_BOOL = {"maximum": "Or", "minimum": "And"}
REDUCE = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


@dataclass(frozen=True)
class Ref:
    """A value in the ONNX graph: its name, its shape (1 where it is to be repeated along an axis)
    and, if it is a constant, its value."""

    name: str
    shape: Sizes
    constant: np.ndarray | None = None


class Emitter:
    """Writes the nodes and initializers of one graph."""

    def __init__(self, graph: ModelGraph, opset: int, input_name: str, output_name: str) -> None:
        import onnx

        self.onnx = onnx
        self.graph, self.opset = graph, opset
        self.input_name, self.output_name = input_name, output_name
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.used = {input_name, output_name}
        self.refs: list[Ref] = []
        self.constants: dict[tuple, str] = {}
        self.batch: str | None = None
        for value in graph.values:
            self.refs.append(self._value(value))
        self("Identity", self._whole(self.refs[-1], graph.values[-1].shape), output=output_name)
        self._prune()

    # ------------------------------------------------------------------ writing

    def __call__(
        self, kind: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Write a node; the name of its result."""
        name = output or self._unused(f"{kind}_{len(self.nodes)}")
        self.nodes.append(
            self.onnx.helper.make_node(
                kind, list(inputs), [name], name=f"node_{name}", **attributes
            )
        )
        return name

    def _unused(self, wanted: str) -> str:
        name, n = wanted, 0
        while name in self.used:
            n += 1
            name = f"{wanted}_{n}"
        self.used.add(name)
        return name

    def _stored(self, name: str, array: np.ndarray) -> str:
        name = self._unused(name)
        self.initializers.append(
            self.onnx.numpy_helper.from_array(np.array(array, order="C"), name)
        )
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        """The name of an initializer with this value; equal ones are stored once."""
        array = np.asarray(array, dtype)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._stored("constant", array)
        return self.constants[key]

    def integers(self, sizes: Sequence[Size]) -> str:
        """A 1-d int64 value with these numbers."""
        if all(s.fixed for s in sizes):
            return self.constant([s.more for s in sizes], np.int64)
        return self("Concat", *map(self._integer, sizes), axis=0)

    def _integer(self, size: Size) -> str:
        if size.fixed:
            return self.constant([size.more], np.int64)
        if self.batch is None:
            self.batch = self(
                "Gather", self("Shape", self.input_name), self.constant([0], np.int64)
            )
        name = self.batch
        if size.each != 1:
            name = self("Mul", name, self.constant([size.each], np.int64))
        return self("Add", name, self.constant([size.more], np.int64)) if size.more else name

    def _kind(self, dtype: np.dtype) -> int:
        return self.onnx.helper.np_dtype_to_tensor_dtype(dtype)

    def cast(self, name: str, dtype: Any) -> str:
        """The value in another dtype."""
        return self("Cast", name, to=self._kind(np.dtype(dtype)))

    def _prune(self) -> None:
        """Drop what the output does not need."""
        needed = {self.output_name}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.initializers = [i for i in self.initializers if i.name in needed]

    # ------------------------------------------------------------------ values

    def _value(self, v: Value) -> Ref:
        op, node = v.node.op, v.node
        args = [self.refs[i] for i in v.inputs]
        if op == "input":
            return self._input(v)
        if op == "const":
            return self._constant(np.asarray(node.param("value"), node.dtype))
        if op == "iota":
            return self._iota(v)
        if op in ir.UNARY or op in ir.BINARY or op in ("where", "cast"):
            return self._pointwise(v, args)
        if op == "reshape" and all(s == ONE for s in args[0].shape):
            return self._reshaped_one(v, args[0])
        if op == "broadcast":
            return args[0]
        if op == "transpose":
            return self._transposed(v, args[0])
        if op == "matmul":
            return self._matmul(v, args)
        write: Callable[[Value, list[str]], str] | None = getattr(self, f"_{op}", None)
        if op in REDUCE:
            write = self._reduction
        if write is None:
            raise EveryOSerializationError(f"{op} has no counterpart in ONNX")
        whole = [
            self._whole(ref, self.graph.values[i].shape)
            for ref, i in zip(args, v.inputs, strict=True)
        ]
        return Ref(write(v, whole), v.shape)

    def _input(self, v: Value) -> Ref:
        at = len(self.refs)
        if at == self.graph.argument:
            return Ref(self.input_name, v.shape)
        name, array = self.graph.arrays[at]
        array = np.asarray(array, v.node.dtype)
        return Ref(self._stored(name, array), tuple(Size(0, n) for n in array.shape))

    def _constant(self, array: np.ndarray) -> Ref:
        return Ref(self.constant(array), tuple(Size(0, n) for n in array.shape), array)

    def _whole(self, ref: Ref, shape: Sizes) -> str:
        """The value with nothing left to repeat."""
        return ref.name if ref.shape == shape else self("Expand", ref.name, self.integers(shape))

    def _iota(self, v: Value) -> Ref:
        axis = int(v.params["axis"].more)
        size, rank = v.shape[axis], len(v.shape)
        shape = tuple(size if i == axis else ONE for i in range(rank))
        if size.fixed:
            column = np.arange(size.more).reshape([s.more for s in shape])
            return self._constant(column)
        end = self("Squeeze", self._integer(size), self.constant([0], np.int64))
        numbers = self("Range", self.constant(0, np.int64), end, self.constant(1, np.int64))
        return Ref(self._to_shape(numbers, shape), shape)

    def _reshaped_one(self, v: Value, ref: Ref) -> Ref:
        """A single element in another rank: it stays one element."""
        shape = (ONE,) * len(v.shape)
        if ref.constant is not None:
            return self._constant(ref.constant.reshape((1,) * len(v.shape)))
        return Ref(self._to_shape(ref.name, shape), shape)

    def _to_shape(self, name: str, shape: Sizes) -> str:
        open_sizes = [s for s in shape if not s.fixed]
        if any(s == Size(0, 0) for s in shape):
            raise EveryOSerializationError(
                f"an array of shape {_text(shape)} is empty; ONNX reads 0 as another size"
            )
        if len(open_sizes) == 1:  # -1: whatever is left
            return self("Reshape", name, self.constant(
                [s.more if s.fixed else -1 for s in shape], np.int64))  # fmt: skip
        return self("Reshape", name, self.integers(shape))

    def _reshape(self, v: Value, args: list[str]) -> str:
        return self._to_shape(args[0], v.shape)

    def _transposed(self, v: Value, ref: Ref) -> Ref:
        axes = [a.more for a in v.params["axes"]]
        name = self("Transpose", ref.name, perm=axes)
        return Ref(name, tuple(ref.shape[a] for a in axes))

    def _matmul(self, v: Value, args: list[Ref]) -> Ref:
        """Batch axes broadcast in ONNX too; the last two must be whole."""
        names = []
        for ref, i in zip(args, v.inputs, strict=True):
            full = self.graph.values[i].shape
            names.append(self._whole(ref, (*ref.shape[:-2], *full[-2:])))
        found = convolution(self.graph.values, self.refs, v)
        if found is not None and len(args[1].shape) == len(v.shape):
            image = self._whole(self.refs[found.image], self.graph.values[found.image].shape)
            return Ref(convolved(self, image, names[1], found, v), v.shape)
        batch = _broadcast([ref.shape[:-2] for ref in args])
        return Ref(self("MatMul", *names), (*batch, *v.shape[-2:]))

    def _slice(self, v: Value, args: list[str]) -> str:
        source = self.graph.values[v.inputs[0]].shape
        starts, ends, axes, steps = [], [], [], []
        given = zip(v.params["starts"], v.params["steps"], v.shape, source, strict=True)
        for axis, (start, step, size, n) in enumerate(given):
            if size == n and step == ONE:
                continue
            end = Size(start.each + step.more * size.each, start.more + step.more * size.more)
            starts.append(start)
            ends.append(Size(0, LEAST) if end.fixed and end.more < 0 else end)
            axes.append(Size(0, axis))
            steps.append(step)
        if any(not s.fixed for s in steps):
            raise EveryOSerializationError("a slice whose step depends on the batch")
        if not axes:
            return args[0]
        return self("Slice", args[0], *map(self.integers, (starts, ends, axes, steps)))

    def _window(self, v: Value, args: list[str]) -> str:
        """A gather by a matrix of positions, which takes the place of the axis."""
        given = {name: v.params[name] for name in ("axis", "count", "size", "step", "spacing")}
        if any(not s.fixed for s in given.values()):
            raise EveryOSerializationError("windows whose number depends on the batch")
        axis, count, size, step, spacing = (s.more for s in given.values())
        places = np.arange(count)[:, None] * step + np.arange(size) * spacing
        return self("Gather", args[0], self.constant(places, np.int64), axis=axis)

    def _reduction(self, v: Value, args: list[str]) -> str:
        kind, dtype = REDUCE[v.node.op], v.node.dtype
        axes = [a.more for a in v.params["axes"]]
        name = self.cast(args[0], np.int32) if dtype == ir.BOOL else args[0]
        if self.opset >= AXES_AS_INPUT[kind]:
            name = self(kind, name, self.constant(axes, np.int64), keepdims=0)
        else:
            name = self(kind, name, axes=axes, keepdims=0)
        return self.cast(name, bool) if dtype == ir.BOOL else name

    def _take(self, v: Value, args: list[str]) -> str:
        return self("Gather", *args, axis=0)

    def _cumsum(self, v: Value, args: list[str]) -> str:
        return self("CumSum", args[0], self.constant(len(v.shape) - 1, np.int64))

    def _argsort(self, v: Value, args: list[str]) -> str:
        """TopK takes equal elements in order, as a stable sort does."""
        name = self._unused(f"TopK_{len(self.nodes)}")
        count = self._integer(v.shape[-1])
        values = self._unused(f"{name}_values")
        self.nodes.append(
            self.onnx.helper.make_node(
                "TopK", [args[0], count], [values, name], name=f"node_{name}", axis=-1, largest=0
            )
        )
        return name

    def _scatter_add(self, v: Value, args: list[str]) -> str:
        if self.opset < SCATTER_ADDS:
            raise EveryOSerializationError(
                f"sums at indices need opset {SCATTER_ADDS} or newer, got {self.opset}"
            )
        zeros = self("Expand", self.constant(0, v.node.dtype), self.integers(v.shape))
        index = self("Unsqueeze", args[0], self.constant([-1], np.int64))
        return self("ScatterND", zeros, index, args[1], reduction="add")

    def _random(self, v: Value, args: list[str]) -> str:
        raise EveryOSerializationError(
            "the model draws random numbers in evaluation mode; an ONNX file would draw others"
        )

    def _assemble(self, v: Value, args: list[str]) -> str:
        base, *pieces = args
        values = [self.graph.values[i] for i in v.inputs]
        axis = _joined_axis(v, values[1:])
        if axis is not None:
            return pieces[0] if len(pieces) == 1 else self("Concat", *pieces, axis=axis)
        fill = self.refs[v.inputs[0]].constant
        steps = v.params["steps"]
        if fill is not None and fill.size == 1 and len(pieces) == 1 and _all_ones(steps):
            return self._padded(v, values[1].shape, pieces[0], fill.reshape(()))
        for piece, value, start, step in zip(
            pieces, values[1:], v.params["starts"], steps, strict=True
        ):
            base = self._scattered(v.shape, base, piece, value.shape, start, step)
        return base

    def _padded(self, v: Value, inner: Sizes, piece: str, fill: np.ndarray) -> str:
        before = v.params["starts"][0]
        after = [
            Size(n.each - s.each - k.each, n.more - s.more - k.more)
            for n, s, k in zip(v.shape, before, inner, strict=True)
        ]
        pads = self.integers([*before, *after])
        if v.node.dtype == ir.BOOL:  # not every runtime pads bools
            name = self("Pad", self.cast(piece, np.int32), pads, self.constant(fill, np.int32))
            return self.cast(name, bool)
        return self("Pad", piece, pads, self.constant(fill))

    def _scattered(
        self, shape: Sizes, base: str, piece: str, inner: Sizes, starts: Sizes, steps: Sizes
    ) -> str:
        """`base` with a piece over it: at positions in all axes but the first, if that is whole,
        else in all of them."""
        lead = 1 if inner and inner[0] == shape[0] and steps[0] == ONE else 0
        rest = (*shape[lead:], *inner[lead:], *starts[lead:], *steps[lead:])
        if any(not s.fixed for s in rest):
            raise EveryOSerializationError("a write at positions that depend on the batch")
        numbers = [
            [s.more + i * k.more for i in range(n.more)]
            for s, k, n in zip(starts[lead:], steps[lead:], inner[lead:], strict=True)
        ]
        grid = np.meshgrid(*numbers, indexing="ij") if numbers else []
        flat = np.ravel_multi_index(grid, [s.more for s in shape[lead:]]).reshape(1, -1)
        first = shape[0] if lead else ONE
        columns = Size(0, math.prod(s.more for s in shape[lead:]))
        width = Size(0, flat.size)
        index = self.constant(flat, np.int64)
        if first != ONE:
            index = self("Expand", index, self.integers([first, width]))
        flattened = self._to_shape(base, (first, columns))
        updates = self._to_shape(piece, (first, width))
        out = self("ScatterElements", flattened, index, updates, axis=1)
        return self._to_shape(out, shape)

    # ------------------------------------------------------------------ pointwise

    def _pointwise(self, v: Value, args: list[Ref]) -> Ref:
        shape = _broadcast([ref.shape for ref in args])
        constants = [ref.constant for ref in args if ref.constant is not None]
        if len(constants) == len(args):
            with np.errstate(all="ignore"):
                return self._constant(evaluate(v.node, constants))
        names = [ref.name for ref in args]
        return Ref(self._scalar(v.node, names), shape)

    def _scalar(self, node: ir.Node, args: list[str]) -> str:
        """One pointwise op."""
        op, dtype = node.op, node.inputs[0].dtype
        if op == "cast":
            return self.cast(args[0], node.dtype)
        if op == "where" and node.dtype == ir.BOOL:
            c, a, b = args
            return self("Or", self("And", c, a), self("And", self("Not", c), b))
        if dtype == ir.BOOL and op in ON_BOOL:
            return self(ON_BOOL[op], *args)
        if dtype == ir.BOOL and op in ("less", "less_equal", "greater", "greater_equal"):
            args = [self.cast(a, np.int32) for a in args]
        if op in DIRECT:
            return self(DIRECT[op], *args)
        return getattr(Scalars(self, dtype), op)(*args)


def _broadcast(shapes: Sequence[Sizes]) -> Sizes:
    """The shape of a broadcast of shapes of one rank."""
    return tuple(next((s for s in sizes if s != ONE), ONE) for sizes in zip(*shapes, strict=True))


def _all_ones(steps: Sequence[Sizes]) -> bool:
    return all(s == ONE for step in steps for s in step)


def _joined_axis(v: Value, pieces: Sequence[Value]) -> int | None:
    """The axis along which the pieces, side by side, are the whole; None if they are not."""
    if not _all_ones(v.params["steps"]):
        return None
    starts = v.params["starts"]
    for axis, total in enumerate(v.shape):
        at = Size(0, 0)
        for start, piece in zip(starts, pieces, strict=True):
            others = [
                s == Size(0, 0) and n == m
                for i, (s, n, m) in enumerate(zip(start, piece.shape, v.shape, strict=True))
                if i != axis
            ]
            if not all(others) or start[axis] != at:
                break
            at = Size(at.each + piece.shape[axis].each, at.more + piece.shape[axis].more)
        else:
            if at == total:
                return axis
    return None


def _text(shape: Sizes) -> str:
    return f"({', '.join(map(str, shape))})"


def model_proto(
    graph: ModelGraph, *, opset: int, ir_version: int, names: tuple[str, str], title: str, by: str
) -> Any:
    """The ONNX model of a graph; `names` are those of its input and its output."""
    import onnx

    emitter = Emitter(graph, opset, *names)
    output = graph.values[-1]

    def info(name: str, shape: Sizes, dtype: np.dtype) -> Any:
        sizes = [s.more if s.fixed else str(s) for s in shape]
        kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return onnx.helper.make_tensor_value_info(name, kind, sizes)

    proto = onnx.helper.make_graph(
        emitter.nodes,
        title,
        [info(names[0], graph.shape, graph.dtype)],
        [info(names[1], output.shape, output.node.dtype)],
        emitter.initializers,
    )
    return onnx.helper.make_model(
        proto,
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=ir_version,
        producer_name="everyo",
        producer_version=by,
    )
