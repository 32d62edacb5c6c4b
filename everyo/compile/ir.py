"""The graph IR: interned nodes, their inference rules, printing and checking.

A `Graph` says *what* is computed. Nodes are made by a `Table`, one per trace, which interns them on
(op, inputs, params): identity is equality, and common subexpressions never exist. All operands of a
pointwise node have the node's shape and one dtype; broadcasts and casts are nodes of their own, so
no pass ever asks how two shapes combine. Every walk uses an explicit stack.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from everyo.compile.scan import Scan

BOOL, I32, I64, F16, F32, F64 = map(
    np.dtype, ("bool", "int32", "int64", "float16", "float32", "float64")
)
DTYPES = (BOOL, I32, I64, F16, F32, F64)
Shape = tuple[int, ...]

# Pointwise ops by the dtypes they take ("b" bool, "i" integers, "f" floats) and what they give
# ("same", "bool"). The names are NumPy's, and so is the meaning, dtype by dtype.
UNARY = {
    "negative": ("if", "same"), "abs": ("if", "same"), "sign": ("if", "same"),
    "exp": ("f", "same"), "expm1": ("f", "same"), "log": ("f", "same"), "log1p": ("f", "same"),
    "log2": ("f", "same"), "log10": ("f", "same"), "sqrt": ("f", "same"), "cbrt": ("f", "same"),
    "sin": ("f", "same"), "cos": ("f", "same"), "tan": ("f", "same"), "arcsin": ("f", "same"),
    "arccos": ("f", "same"), "arctan": ("f", "same"), "sinh": ("f", "same"), "cosh": ("f", "same"),
    "tanh": ("f", "same"), "erf": ("f", "same"), "sigmoid": ("f", "same"),
    "floor": ("f", "same"), "ceil": ("f", "same"), "rint": ("f", "same"),
    "isnan": ("f", "bool"), "isinf": ("f", "bool"), "isfinite": ("f", "bool"),
    "logical_not": ("b", "bool"), "copy": ("bif", "same"),
}  # fmt: skip
BINARY = {
    "add": ("if", "same"), "subtract": ("if", "same"), "multiply": ("if", "same"),
    "divide": ("f", "same"), "power": ("if", "same"), "arctan2": ("f", "same"),
    "floor_divide": ("if", "same"), "remainder": ("if", "same"),
    "maximum": ("bif", "same"), "minimum": ("bif", "same"),
    "logical_and": ("b", "bool"), "logical_or": ("b", "bool"), "logical_xor": ("b", "bool"),
    "equal": ("bif", "bool"), "not_equal": ("bif", "bool"), "less": ("bif", "bool"),
    "less_equal": ("bif", "bool"), "greater": ("bif", "bool"), "greater_equal": ("bif", "bool"),
}  # fmt: skip
POINTWISE = {*UNARY, *BINARY, "where", "cast", "take"}
VIEWS = {"reshape", "transpose", "broadcast", "slice", "window"}
PARTS = {"slice", "window"}  # views that have no meaning within one iteration space
REDUCTIONS = {"sum": "if", "prod": "if", "max": "bif", "min": "bif"}
LEAVES = {"input", "const", "iota"}
OPAQUE = {"matmul", "scatter_add", "assemble", "cumsum", "argsort", "random", "scan"}
OPS = {*POINTWISE, *VIEWS, *REDUCTIONS, *LEAVES, *OPAQUE, "exchange"}


@dataclass(eq=False, slots=True)
class Node:
    """One value, never changed once it is made. `index` is its place in the order of tracing;
    `unsigned` is set once it is known that no element is -0.0, see `sums.unsigned`."""

    op: str
    inputs: tuple["Node", ...]
    params: tuple[tuple[str, Any], ...]
    shape: Shape
    dtype: np.dtype
    index: int
    size: int
    unsigned: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def param(self, name: str) -> Any:
        return dict(self.params)[name]

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}{list(self.shape)} #{self.index}>"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on values: if the 0-d bool `bad` is true, the call raises `error(message)`."""

    bad: Node
    error: type[Exception]
    message: str


@dataclass(frozen=True, eq=False)
class Graph:
    """`outputs` are returned; each (input, value) of `writes` is stored over the old contents of
    that input after everything has been computed and every check has passed."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    writes: tuple[tuple[Node, Node], ...] = ()
    checks: tuple[Check, ...] = ()
    lines: dict[Node, str] = field(default_factory=dict)  # node -> "file:line" of the user's code

    @property
    def roots(self) -> tuple[Node, ...]:
        return (*self.outputs, *(v for _, v in self.writes), *(c.bad for c in self.checks))

    @cached_property
    def order(self) -> list[Node]:
        """The inputs and every node that is used, as they were traced: operands first."""
        found = {*self.inputs, *self.roots}
        stack = list(found)
        while stack:
            for n in stack.pop().inputs:
                if n not in found:
                    found.add(n)
                    stack.append(n)
        return sorted(found, key=attrgetter("index"))

    def __str__(self) -> str:
        return show(self)


def walk(roots: Iterable[Node]) -> list[Node]:
    """Every node below the roots, operands first."""
    order: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(reversed(tuple(roots)))
    while stack:
        node = stack[-1]
        if node in seen:  # what is below it is done
            order[stack.pop()] = None
        else:
            seen.add(node)
            stack += [i for i in reversed(node.inputs) if i not in seen]
    return list(order)


def _exact(value: Any) -> tuple[Any, ...]:
    """A parameter as part of a key: 1, True and 1.0 differ, 0.0 and -0.0 too, and dtypes by their
    type."""
    return (type(value),) if isinstance(value, np.dtype) else (type(value), repr(value))


_NEW = object.__new__


class Table:
    """Makes the nodes of one trace. Two calls with equal arguments give the same node.

    Indices count from `first`, so that a table can add nodes to a graph of another one.
    """

    def __init__(self, first: int = 0) -> None:
        self.indices = itertools.count(first)
        self.plain: dict[str, dict[tuple[Node, ...], Node]] = {}  # without parameters, by op
        self.nodes: dict[tuple, Node] = {}  # the others
        self.lines: dict[Node, str] = {}  # node -> "file:line" of the user's code
        self.noted = 0  # nodes below this index have got their lines in an earlier trace
        self.inputs: list[Node] = []
        self.exchanges = 0  # how many this trace has asked for; each is a node of its own

    def renewed(self) -> "Table":
        """The table for another trace of the same function: what is made again is the very node."""
        table = Table()
        table.indices, table.plain = self.indices, self.plain
        table.nodes, table.lines, table.noted = self.nodes, self.lines, self.count
        return table

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.nodes) + sum(map(len, self.plain.values()))

    def of(self, op: str) -> dict[tuple[Node, ...], Node]:
        """The nodes of an op without parameters, by their inputs."""
        return self.plain.setdefault(op, {})

    def make(self, op: str, *inputs: Node, **params: Any) -> Node:
        """The node `op(*inputs, **params)`; its shape and dtype are inferred."""
        if not params:
            node = self.of(op).get(inputs)
            if node is None:
                shape, dtype = infer(op, inputs, params)
                node = self.new(op, inputs, shape, dtype, math.prod(shape))
            return node
        items = tuple(sorted(params.items()) if len(params) > 1 else params.items())
        key = (op, inputs, tuple([(k, *_exact(v)) for k, v in items]))
        node = self.nodes.get(key)
        if node is None:
            shape, dtype = infer(op, inputs, params)
            node = Node(op, inputs, items, shape, dtype, next(self.indices), math.prod(shape))
            self.nodes[key] = node
        return node

    def new(
        self, op: str, inputs: tuple[Node, ...], shape: Shape, dtype: np.dtype, size: int
    ) -> Node:
        """A node without parameters that is not there yet, of the shape and dtype that `infer`
        gives it."""
        node: Node = _NEW(Node)  # without __init__, which would double the cost
        node.op = op
        node.inputs = inputs
        node.params = ()
        node.shape = shape
        node.dtype = dtype
        node.index = next(self.indices)
        node.size = size
        node.unsigned = False
        self.plain[op][inputs] = node
        return node

    def again(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """The op of a node, usually of another table, on `inputs`."""
        return self.make(node.op, *inputs, **dict(node.params))

    def input(self, shape: Shape, dtype: Any, strides: Shape | None = None) -> Node:
        """A new input. `strides` in elements; None is C order."""
        node = self.make(
            "input", index=len(self.inputs), shape=tuple(shape), dtype=np.dtype(dtype),
            strides=None if strides is None else tuple(strides),
        )  # fmt: skip
        self.inputs.append(node)
        return node

    def const(self, value: Any, dtype: Any) -> Node:
        """A 0-d literal of the given dtype."""
        with np.errstate(over="ignore"):
            value = np.dtype(dtype).type(value)
        return self.make("const", value=value.item(), dtype=np.dtype(dtype))


class IRError(AssertionError):
    """A node or graph that breaks the rules of the IR: always a bug of the compiler, never of the
    user."""


def require(condition: Any, *what: Any) -> None:
    if not condition:
        raise IRError(" ".join(map(str, what)))


def kind(dtype: np.dtype) -> str:
    return dtype.kind


def _pointwise(op: str, inputs: tuple[Node, ...], takes: str, gives: str) -> tuple[Shape, np.dtype]:
    """`infer` of the ops in UNARY and BINARY: operands of one shape and dtype."""
    n = 1 if op in UNARY else 2
    if len(inputs) != n:
        raise IRError(f"{op} takes {n} operands, got {len(inputs)}")
    shape, dtype = inputs[0].shape, inputs[0].dtype
    if n == 2 and (inputs[1].shape != shape or inputs[1].dtype != dtype):
        raise IRError(f"{op} operands differ: {inputs}")
    if dtype.kind not in takes:
        raise IRError(f"{op} does not take {dtype}")
    return shape, BOOL if gives == "bool" else dtype


def infer(op: str, inputs: tuple[Node, ...], params: dict[str, Any]) -> tuple[Shape, np.dtype]:
    """Shape and dtype of a node from its operands: the typing rules of the IR."""
    rule = UNARY.get(op) or BINARY.get(op)
    if rule is not None:
        return _pointwise(op, inputs, *rule)
    p, shapes, dtypes = params, [i.shape for i in inputs], [i.dtype for i in inputs]

    def arity(n: int) -> None:
        require(len(inputs) == n, op, "takes", n, "operands, got", len(inputs))

    match op:
        case "input":
            require(p["strides"] is None or len(p["strides"]) == len(p["shape"]), "strides", p)
            require(p["dtype"] in DTYPES, "dtype", p["dtype"])
            return p["shape"], p["dtype"]
        case "const":
            require(p["dtype"] in DTYPES, "dtype", p["dtype"])
            return (), p["dtype"]
        case "iota":  # the index along `axis`
            require(0 <= p["axis"] < len(p["shape"]), "axis", p)
            return p["shape"], I64
        case "where":
            arity(3)
            require(
                dtypes[0] == BOOL and dtypes[1] == dtypes[2] and len(set(shapes)) == 1, op, inputs
            )
            return shapes[0], dtypes[1]
        case "cast":
            arity(1)
            require(p["dtype"] in DTYPES and p["dtype"] != dtypes[0], "cast to", p["dtype"])
            return shapes[0], p["dtype"]
        case (
            "take"
        ):  # table (n, *rest), index int64 (*k) -> (*k, *rest); an index outside [0, n) is clamped
            arity(2)
            require(dtypes[1] == I64 and len(shapes[0]) >= 1, op, inputs)
            return (*shapes[1], *shapes[0][1:]), dtypes[0]
        case "reshape":
            arity(1)
            require(math.prod(p["shape"]) == inputs[0].size, op, inputs, p)
            return p["shape"], dtypes[0]
        case "transpose":
            arity(1)
            require(sorted(p["axes"]) == list(range(len(shapes[0]))), op, inputs, p)
            return tuple(shapes[0][a] for a in p["axes"]), dtypes[0]
        case "broadcast":  # same rank; axes of size 1 are repeated
            arity(1)
            new = p["shape"]
            require(len(new) == len(shapes[0]), op, inputs, p)
            require(
                all(s == n or s == 1 for s, n in zip(shapes[0], new, strict=True)), op, inputs, p
            )
            return new, dtypes[0]
        case "slice":  # per axis: start, step (nonzero, may be negative), size
            arity(1)
            for n, a, s, k in zip(shapes[0], p["starts"], p["steps"], p["sizes"], strict=True):
                last = a + (k - 1) * s
                require(k == 0 or (s and 0 <= a < n and 0 <= last < n), op, inputs, p)
            return p["sizes"], dtypes[0]
        case (
            "window"
        ):  # an axis becomes two: windows, `step` apart, of `size` elements, `spacing` apart
            arity(1)
            axis, n, k = p["axis"], p["count"], p["size"]
            require(0 <= axis < len(shapes[0]) and n > 0 and k > 0, op, inputs, p)
            require(p["step"] > 0 and p["spacing"] > 0, op, inputs, p)
            last = (n - 1) * p["step"] + (k - 1) * p["spacing"]
            require(last < shapes[0][axis], op, inputs, p)
            return (*shapes[0][:axis], n, k, *shapes[0][axis + 1 :]), dtypes[0]
        case "sum" | "prod" | "max" | "min":  # reduced axes disappear; at least one axis
            arity(1)
            axes = p["axes"]
            require(dtypes[0].kind in REDUCTIONS[op], op, "does not take", dtypes[0])
            require(
                axes
                and list(axes) == sorted(set(axes))
                and 0 <= axes[0]
                and axes[-1] < len(shapes[0]),
                op,
                p,
            )
            return tuple(s for i, s in enumerate(shapes[0]) if i not in axes), dtypes[0]
        case "matmul":  # (*batch, m, k) @ (*batch, k, n), equal batches, floats
            arity(2)
            a, b = shapes
            require(dtypes[0] == dtypes[1] and dtypes[0].kind == "f", op, inputs)
            require(len(a) == len(b) >= 2 and a[:-2] == b[:-2] and a[-1] == b[-2], op, inputs)
            return (*a[:-1], b[-1]), dtypes[0]
        case (
            "scatter_add"
        ):  # index int64 (*k), updates (*k, *rest) -> (rows, *rest), repeated rows add up
            arity(2)
            k = len(shapes[0])
            require(dtypes[0] == I64 and shapes[1][:k] == shapes[0], op, inputs)
            require(dtypes[1].kind in "if", op, inputs)
            return (p["rows"], *shapes[1][k:]), dtypes[1]
        case (
            "assemble"
        ):  # base with pieces written over it, in order; piece i at base[starts_i :: steps_i]
            require(
                len(inputs) >= 2 and len(p["starts"]) == len(p["steps"]) == len(inputs) - 1, op, p
            )
            require(len(set(dtypes)) == 1, op, inputs)
            for piece, start, step in zip(shapes[1:], p["starts"], p["steps"], strict=True):
                for n, a, s, k in zip(shapes[0], start, step, piece, strict=True):
                    last = a + (k - 1) * s
                    require(k == 0 or (s and 0 <= a < n and 0 <= last < n), op, inputs, p)
            return shapes[0], dtypes[0]
        case "cumsum":  # along the last axis
            arity(1)
            require(dtypes[0].kind in "if" and shapes[0], op, inputs)
            return shapes[0], dtypes[0]
        case (
            "argsort"
        ):  # stable, ascending along the last axis, NaN last, as numpy.argsort(kind="stable")
            arity(1)
            require(shapes[0], op, inputs)
            return shapes[0], I64
        case (
            "random"
        ):  # state int64 (6,): Philox key (2) and counter (4) -> uniform [0, 1), see core/random.py
            arity(1)
            require(dtypes[0] == I64 and shapes[0] == (6,), op, inputs)
            require(p["dtype"] in (F32, F64), op, p)
            return p["shape"], p["dtype"]
        case "scan":  # iterations of a body, see scan.py
            scan = Scan.of(p)
            require(p["dtype"] in DTYPES, op, p["dtype"])
            require({o.dtype for o in scan.body.graph.outputs} <= {p["dtype"]}, op, "outputs of", p)
            for fault in scan.faults([i.size for i in inputs]):
                raise IRError(f"scan: {fault}")
            return (scan.size,), p["dtype"]
        case "exchange":  # what function number `host` makes of a flat array, see staged.py
            arity(1)
            require(len(shapes[0]) == 1, op, inputs)
            return shapes[0], dtypes[0]
    raise IRError(f"unknown op {op!r}")


def check(graph: Graph) -> None:
    """Re-infer every node; raise `IRError` on the first that does not hold."""
    order = walk(graph.roots)
    inputs = set(graph.inputs)
    for n in order:
        require(
            infer(n.op, n.inputs, dict(n.params)) == (n.shape, n.dtype), "inference differs:", n
        )
        require(n.op != "input" or n in inputs, "input not listed:", n)
    for target, value in graph.writes:
        require(target.op == "input" and target in inputs, "write to", target)
        require((target.shape, target.dtype) == (value.shape, value.dtype), "write", target, value)
    require(len({t for t, _ in graph.writes}) == len(graph.writes), "an input is written twice")
    for c in graph.checks:
        require(c.bad.shape == () and c.bad.dtype == BOOL, "check", c.bad)


def show(graph: Graph) -> str:
    """The graph as text, one node a line; names are made here and exist nowhere else."""
    order = walk((*graph.inputs, *graph.roots))
    names = {n: f"%{i}" for i, n in enumerate(order)}
    lines = [f"graph {graph.name}:"]
    for n in order:
        params = ", ".join(
            f"{k}={v.name if isinstance(v, np.dtype) else v}" for k, v in n.params
            if v is not None
            and not (k == "shape" and n.op in ("input", "iota", "random", "reshape", "broadcast"))
        )  # fmt: skip
        args = ", ".join([names[i] for i in n.inputs] + ([params] if params else []))
        where = graph.lines.get(n)
        text = f"  {names[n]}: {n.dtype.name}[{','.join(map(str, n.shape))}] = {n.op}({args})"
        lines.append(f"{text}   # {where}" if where else text)
    lines += [f"  write {names[t]} <- {names[v]}" for t, v in graph.writes]
    lines += [f"  check {names[c.bad]}: {c.error.__name__}: {c.message}" for c in graph.checks]
    lines.append(f"  return {', '.join(names[o] for o in graph.outputs)}")
    return "\n".join(lines)
