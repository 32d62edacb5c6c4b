"""Random programs of the graph IR, and what their results must be compared with.

`random_graph(seed, ops, mood)` grows a graph node by node and evaluates it on the way, so that a
step can look at the values it starts from. The moods differ in the numbers and in what is drawn:

- ``tame``: every op, values within ±100, operands kept away from poles and jumps. Whatever jumps
  (comparisons, floor, argsort, casts to integers) gets operands without rounding error only.
- ``exact``: NaN, infinities, -0.0 and extreme integers, but only ops that IEEE arithmetic or the
  integers determine to the last bit.
- ``wild``: the same numbers and every op. For the laws of passes, which keep all bits.

A smaller `ops` gives a prefix of the same program: that is how hypothesis shrinks a failure.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from everyo.compile import ir
from everyo.compile.interpret import evaluate, interpret
from everyo.compile.ir import BOOL, F32, F64, I32, I64, Graph, Node, Shape

SIZES = (0, 1, 2, 3, 8, 15, 17, 33)
SIZE_WEIGHTS = (1, 4, 5, 6, 4, 2, 4, 2)
ROUNDED = {*ir.UNARY} - {
    "negative", "abs", "sign", "sqrt", "floor", "ceil", "rint", "isnan", "isinf", "isfinite",
    "logical_not", "copy",
} | {"power", "arctan2", "sum", "prod", "cumsum", "scatter_add", "matmul"}  # fmt: skip
JUMPS = {"sign", "floor", "ceil", "rint", "floor_divide", "remainder", "argsort"}
WILD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 2.0, 1e-40, 1e30, -3.7)
Arrays = list[np.ndarray]


def random_graph(
    seed: int, ops: int = 14, mood: str = "tame", points: int = 600
) -> tuple[Graph, Arrays]:
    """A graph of about `ops` steps and the values of its inputs; no value has over `points`."""
    return Grower(seed, mood, points).grow(ops)


def programs(mood: str, ops: int = 14) -> st.SearchStrategy:
    """Cases of `random_graph`: they print as the call that makes them, and the graph."""
    return st.builds(Case, st.integers(0, 2**32 - 1), st.integers(1, ops), st.just(mood))


@dataclass(frozen=True)
class Case:
    seed: int
    ops: int
    mood: str

    def build(self) -> tuple[Graph, Arrays]:
        return random_graph(self.seed, self.ops, self.mood)

    def __repr__(self) -> str:
        call = f"random_graph({self.seed}, {self.ops}, {self.mood!r})"
        return f"{call}\n{self.build()[0]}\n"


# Comparing


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shape, dtype and bits, all NaNs being one."""
    if (a.shape, a.dtype) != (b.shape, b.dtype) or not np.array_equal(
        a, b, equal_nan=a.dtype.kind == "f"
    ):
        return False
    return a.dtype.kind != "f" or bool(((np.signbit(a) == np.signbit(b)) | np.isnan(a)).all())


def assert_same_bits(got: tuple[Arrays, Arrays], want: tuple[Arrays, Arrays], what: object) -> None:
    for kind, left, right in zip(("output", "write"), got, want, strict=True):
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert same_bits(a, b), f"{kind} {i}: {a!r}, expected {b!r}\n{what}"


def is_rounded(node: Node) -> bool:
    """Whether implementations may round the result of this node differently."""
    return node.op in ROUNDED and node.dtype.kind == "f"


def rounded_nodes(graph: Graph) -> set[Node]:
    """The nodes whose bits depend on how something was rounded."""
    out: set[Node] = set()
    for n in ir.walk(graph.roots):
        if is_rounded(n) or any(i in out for i in n.inputs):
            out.add(n)
    return out


def compare(graph: Graph, arrays: Arrays, got: tuple[Arrays, Arrays]) -> None:
    """Assert that outputs and writes `got` from an implementation are right.

    A result that no rounding reaches must have the interpreter's bits. For any other, `want` is the
    interpreter in float64, `rough` the interpreter in the graph's own dtypes, and the error may be
    8 times the largest of |rough - want| (NumPy in float32 is off as much, and ops differ by a few
    ulp) plus 32 eps of the largest result and of the largest rounded value anywhere in the graph: a
    sum that cancels keeps the rounding of its terms. eps is float32's if one of them is below.
    """
    rough = interpret(graph, arrays)
    want = interpret(graph, arrays, np.float64)
    rounded = rounded_nodes(graph)
    floats = tuple(n for n in rounded if n.dtype.kind == "f")
    values, _ = interpret(replace(graph, outputs=floats), arrays)
    eps = float(np.finfo(F32 if any(n.dtype == F32 for n in ir.walk(floats)) else F64).eps)
    noise = 32 * eps * max((float(np.abs(v).max(initial=0)) for v in values), default=0.0)
    roots = graph.outputs, [v for _, v in graph.writes]
    for kind, nodes, g, w, r in zip(("output", "write"), roots, got, want, rough, strict=True):
        for i, (node, a, b, c) in enumerate(zip(nodes, g, w, r, strict=True)):
            what = f"{kind} {i}, {node!r}: got\n{a!r}\nexpected\n{b!r}\n{graph}"
            if node not in rounded:
                assert same_bits(a, c), "bits differ, " + what
                continue
            assert (a.shape, a.dtype) == (c.shape, c.dtype), what
            scale = float(np.abs(b).max(initial=0))
            bound = 8 * float(np.abs(c - b).max(initial=0)) + 32 * eps * scale + noise
            error = float(np.abs(a - b).max(initial=0))
            assert error <= bound, f"error {error}, allowed {bound}, " + what


# Shrinking


def smallest(
    graph: Graph, arrays: Arrays, fails: Callable[[Graph, Arrays], bool]
) -> tuple[Graph, Arrays]:
    """A small program that still `fails`: roots are dropped and nodes become inputs, in turn."""
    while True:
        found = next((case for case in smaller(graph, arrays) if fails(*case)), None)
        if found is None:
            return graph, arrays
        graph, arrays = found


def smaller(graph: Graph, arrays: Arrays) -> Iterable[tuple[Graph, Arrays]]:
    for field in ("outputs", "writes", "checks"):
        roots = getattr(graph, field)
        for i in range(len(roots)):
            less = replace(graph, **{field: (*roots[:i], *roots[i + 1 :])})
            if less.roots:
                yield without_unused(less, arrays)
    for node in reversed(ir.walk(graph.roots)):
        if node.op not in ir.LEAVES and node not in graph.roots:
            yield cut(graph, arrays, node)


def cut(graph: Graph, arrays: Arrays, node: Node) -> tuple[Graph, Arrays]:
    """The program with `node` as one more input, of the value it has."""
    (value,), _ = interpret(Graph("", graph.inputs, (node,)), arrays)
    return rebuild(graph, arrays, {node: value})


def without_unused(graph: Graph, arrays: Arrays) -> tuple[Graph, Arrays]:
    return rebuild(graph, arrays, {})


def rebuild(graph: Graph, arrays: Arrays, given: dict[Node, np.ndarray]) -> tuple[Graph, Arrays]:
    """The program with `given` nodes as inputs, and the inputs that it still needs."""
    table, new, values = ir.Table(), {}, []
    known = dict(zip(graph.inputs, arrays, strict=True)) | given
    targets = [t for t, _ in graph.writes]
    stack = [*reversed(graph.roots), *targets]
    while stack:
        n = stack[-1]
        missing = [] if n in given else [i for i in n.inputs if i not in new]
        if missing:
            stack += missing
            continue
        stack.pop()
        if n in new:
            continue
        if n in known:
            strides = n.param("strides") if n.op == "input" else None
            new[n] = table.input(n.shape, n.dtype, strides)
            values.append(known[n])
        else:
            new[n] = table.make(n.op, *[new[i] for i in n.inputs], **dict(n.params))
    return replace(
        graph,
        inputs=tuple(table.inputs),
        outputs=tuple(new[o] for o in graph.outputs),
        writes=tuple((new[t], new[v]) for t, v in graph.writes),
        checks=tuple(ir.Check(new[c.bad], c.error, c.message) for c in graph.checks),
        lines={},
    ), values


# Building


class Skip(Exception):
    """This step does not apply here."""


class Builder:
    """A `Table` with NumPy's broadcasting and literals, for writing graphs by hand in tests."""

    def __init__(self) -> None:
        self.table = ir.Table()

    def make(self, op: str, *inputs: Node, **params: object) -> Node:
        return self.table.make(op, *inputs, **params)

    def input(self, shape: Shape, dtype: object = F32, strides: Shape | None = None) -> Node:
        return self.table.input(shape, dtype, strides)

    def op(self, name: str, *args: Node | float) -> Node:
        """A pointwise op; numbers take the dtype of the last node."""
        like = [a for a in args if isinstance(a, Node)][-1].dtype
        nodes = [a if isinstance(a, Node) else self.table.const(a, like) for a in args]
        shape = np.broadcast_shapes(*[n.shape for n in nodes])
        return self.make(name, *[self.to(n, shape) for n in nodes])

    def to(self, x: Node, shape: Shape) -> Node:
        """`x` broadcast to `shape`."""
        if x.ndim < len(shape):
            x = self.reshape(x, (1,) * (len(shape) - x.ndim) + x.shape)
        return x if x.shape == shape else self.make("broadcast", x, shape=shape)

    def reshape(self, x: Node, shape: Iterable[int]) -> Node:
        return self.make("reshape", x, shape=tuple(shape))

    def swap(self, x: Node) -> Node:
        """`x` with its last two axes exchanged."""
        axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        return self.make("transpose", x, axes=axes)

    def cast(self, x: Node, dtype: np.dtype) -> Node:
        return x if x.dtype == dtype else self.make("cast", x, dtype=dtype)

    def reduce(self, name: str, x: Node, axes: Iterable[int], keep: bool = False) -> Node:
        axes = tuple(sorted(axes))
        y = self.make(name, x, axes=axes)
        kept = (1 if i in axes else n for i, n in enumerate(x.shape))
        return self.reshape(y, kept) if keep else y

    def mean(self, x: Node, axes: Iterable[int], keep: bool = False) -> Node:
        axes = tuple(axes)
        count = math.prod(x.shape[a] for a in axes)
        return self.op("multiply", self.reduce("sum", x, axes, keep), 1 / count)

    def softmax(self, x: Node, axis: int = -1) -> Node:
        axis %= x.ndim
        e = self.op("exp", self.op("subtract", x, self.reduce("max", x, (axis,), keep=True)))
        return self.op("divide", e, self.reduce("sum", e, (axis,), keep=True))

    def layer_norm(self, x: Node, weight: Node, bias: Node, eps: float = 0.1) -> Node:
        centred = self.op("subtract", x, self.mean(x, (x.ndim - 1,), keep=True))
        var = self.mean(self.op("multiply", centred, centred), (x.ndim - 1,), keep=True)
        unit = self.op("divide", centred, self.op("sqrt", self.op("add", var, eps)))
        return self.op("add", self.op("multiply", unit, weight), bias)

    def pick(self, x: Node, label: Node) -> Node:
        """x[i, label[i]] as a masked row sum."""
        hit = self.op(
            "equal", self.iota(x.shape, x.ndim - 1), self.reshape(label, (*label.shape, 1))
        )
        return self.reduce("sum", self.op("where", hit, x, 0.0), (x.ndim - 1,))

    def iota(self, shape: Shape, axis: int) -> Node:
        return self.make("iota", shape=shape, axis=axis)

    def slice(self, x: Node, *boxes: tuple[int, int, int]) -> Node:
        """One (start, step, size) per axis."""
        starts, steps, sizes = zip(*boxes, strict=True)
        return self.make("slice", x, starts=starts, steps=steps, sizes=sizes)

    def adam(self, p: Node, g: Node, m: Node, v: Node, t: Node) -> tuple[Node, Node, Node]:
        m = self.op("add", self.op("multiply", m, 0.9), self.op("multiply", g, 1 - 0.9))
        v = self.op(
            "add",
            self.op("multiply", v, 0.99),
            self.op("multiply", self.op("multiply", g, g), 0.01),
        )
        unbiased_m = self.op("divide", m, self.op("subtract", 1.0, self.op("power", 0.9, t)))
        unbiased_v = self.op("divide", v, self.op("subtract", 1.0, self.op("power", 0.99, t)))
        step = self.op("divide", unbiased_m, self.op("add", self.op("sqrt", unbiased_v), 1e-3))
        return self.op("subtract", p, self.op("multiply", step, 0.01)), m, v

    def graph(self, *outputs: Node, name: str = "test", **rest: object) -> Graph:
        return Graph(name, tuple(self.table.inputs), outputs, **rest)


# Growing


class Grower(Builder):
    """Draws one random program."""

    def __init__(self, seed: int, mood: str, points: int) -> None:
        super().__init__()
        self.mood, self.points = mood, points
        self.draw = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.value: dict[Node, np.ndarray] = {}
        self.arrays: Arrays = []
        self.rounded: set[Node] = set()
        self.pool: list[Node] = []
        self.writes: dict[Node, Node] = {}
        self.checks: list[ir.Check] = []
        self.dims = self.draw.choices(SIZES, SIZE_WEIGHTS, k=3)

    def grow(self, ops: int) -> tuple[Graph, Arrays]:
        for _ in range(self.draw.randint(1, 3)):
            self.leaf(self.shape(), self.draw.choice((F32, F32, F64, I64, I32, BOOL)))
        steps = [getattr(self, name) for name, weight in STEPS.items() for _ in range(weight)]
        for _ in range(ops):
            step: Callable[[Node], Node] = self.draw.choice(steps)
            try:
                self.keep(step(self.draw.choice(self.pool[-6:])))
            except Skip:
                continue
        outputs = [
            self.pool[-1],
            *self.draw.sample(self.pool, min(len(self.pool), self.draw.randint(0, 3))),
        ]
        return self.graph(
            *outputs, name="random", writes=tuple(self.writes.items()), checks=tuple(self.checks)
        ), self.arrays

    def make(self, op: str, *inputs: Node, **params: object) -> Node:
        """Make and evaluate; refuse what the mood forbids."""
        floats = [i for i in inputs if i.dtype.kind == "f"]
        node = super().make(op, *inputs, **params)
        if node in self.value:
            return node
        jumps = op in JUMPS or (floats and node.dtype.kind != "f")
        if node.size > 8 * self.points:
            raise Skip
        if self.mood == "exact" and is_rounded(node):
            raise Skip
        if self.mood == "tame" and jumps and any(i in self.rounded for i in floats):
            raise Skip
        if is_rounded(node) or any(i in self.rounded for i in inputs):
            self.rounded.add(node)
        with np.errstate(all="ignore"):
            self.value[node] = evaluate(node, [self.of(i) for i in inputs])
        return node

    def op(self, name: str, *args: Node | float) -> Node:
        self.needs(
            broadcasts(*[a.shape for a in args if isinstance(a, Node)], points=8 * self.points)
        )
        return super().op(name, *args)

    def of(self, node: Node) -> np.ndarray:
        if node not in self.value:  # a literal of the table
            self.value[node] = evaluate(node, [])
        return self.value[node]

    def keep(self, node: Node) -> None:
        """Offer `node` to later steps, scaled down first if it has grown."""
        if node.size > self.points:
            return
        if self.mood == "tame" and node.dtype.kind == "f":
            peak = self.peak(node)
            if not math.isfinite(peak):
                return
            if peak > 100:
                node = self.op("multiply", node, 1 / peak)
        self.pool.append(node)

    # Drawing

    def peak(self, x: Node) -> float:
        return float(np.abs(self.of(x)).max(initial=0))

    def shape(self) -> Shape:
        shape = tuple(self.draw.choices(self.dims, k=self.draw.choice((0, 1, 1, 2, 2, 2, 3, 4))))
        while math.prod(shape) > self.points:
            shape = shape[1:]
        return shape

    def numbers(self, shape: Shape, dtype: np.dtype, below: int | None = None) -> np.ndarray:
        if dtype == BOOL:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind == "i":
            high = 9 if below is None else below
            x = self.rng.integers(0 if below else -9, max(high, 1), shape).astype(dtype)
            if self.mood != "tame" and below is None:
                ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, -1], dtype)
                x = np.where(self.rng.random(shape) < 0.2, self.rng.choice(ends, shape), x)
            return np.asarray(x)
        x = self.rng.standard_normal(shape).astype(dtype)
        if self.mood != "tame":
            odd = self.rng.choice(np.array(WILD_FLOATS, dtype), shape)
            x = np.where(self.rng.random(shape) < 0.3, odd, x)
        if self.draw.random() < 0.3:  # ties
            x = np.rint(x)
        return np.asarray(x)

    def leaf(self, shape: Shape, dtype: np.dtype, below: int | None = None) -> Node:
        """A new input, in one of the layouts that callers have."""
        if self.mood == "exact" and dtype.kind == "f" and self.draw.random() < 0.2:
            dtype = I64
        x = self.layout(shape, dtype, below)
        if below is None and self.draw.random() < 0.15:
            x = self.shared(shape, dtype, x)
        strides = None if x.flags.c_contiguous else tuple(s // dtype.itemsize for s in x.strides)
        node = self.input(shape, dtype, strides)
        self.arrays.append(x)
        self.value[node] = np.asarray(x, order="C")
        self.pool.append(node)
        return node

    def layout(self, shape: Shape, dtype: np.dtype, below: int | None) -> np.ndarray:
        layout = self.draw.choice(("C", "C", "C", "F", "reversed", "every second", "repeated"))
        if layout == "every second" and shape:
            wide = self.numbers(tuple(2 * n for n in shape), dtype, below)
            return wide[(slice(None, None, 2),) * len(shape)]
        axis = self.draw.randrange(len(shape)) if shape else 0
        if layout == "repeated" and shape:
            one = tuple(min(n, 1) if i == axis else n for i, n in enumerate(shape))
            return np.broadcast_to(self.numbers(one, dtype, below), shape)
        x = np.asarray(self.numbers(shape, dtype, below), order="F" if layout == "F" else "C")
        return np.flip(np.flip(x, axis).copy(), axis) if layout == "reversed" and shape else x

    def shared(self, shape: Shape, dtype: np.dtype, x: np.ndarray) -> np.ndarray:
        """A part of an array that is an input already, if there is one; else `x`."""
        fits = [
            a for a in self.arrays
            if a.dtype == dtype and len(a.shape) == len(shape) > 0
            and all(n <= m for n, m in zip(shape, a.shape, strict=True))
        ]  # fmt: skip
        if not fits:
            return x
        part = self.draw.choice(fits)[tuple(slice(n) for n in shape)]
        return np.flip(part, 0) if self.draw.random() < 0.3 else part

    def state(self, shape: Shape, dtype: np.dtype) -> Node:
        """A new input that may be written."""
        node = self.input(shape, dtype)
        self.arrays.append(np.asarray(np.abs(self.numbers(shape, dtype))))
        self.value[node] = self.arrays[-1]
        return node

    def other(self, x: Node) -> Node:
        """An operand that broadcasts with `x`: a known value, a literal or a new input."""
        y = self.draw.choice(self.fits(x))
        how = self.draw.random()
        if how < 0.25:
            y = self.literal(x.dtype)
        elif how < 0.35:
            y = self.leaf(
                tuple(self.draw.choice((1, n)) for n in x.shape[self.draw.randint(0, x.ndim) :]),
                x.dtype,
            )
        return self.as_dtype(y, x.dtype)

    def fits(self, x: Node) -> list[Node]:
        """The known values that broadcast with `x`."""
        return [x, *(p for p in self.pool if broadcasts(p.shape, x.shape, points=self.points))]

    def literal(self, dtype: np.dtype) -> Node:
        values = (
            (0, 1, -1, 2, 3) if dtype.kind == "i" else (0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0, 0.1)
        )
        return self.table.const(self.draw.choice(values), dtype)

    def as_dtype(self, x: Node, dtype: np.dtype) -> Node:
        """A cast that is defined: floats become integers where they are small."""
        if x.dtype.kind == "f" and dtype.kind == "i":
            x = self.op("where", self.op("less", self.op("abs", x), 1e6), x, 0.0)
        return self.cast(x, dtype)

    def as_float(self, x: Node) -> Node:
        return x if x.dtype.kind == "f" else self.as_dtype(x, self.draw.choice((F32, F32, F64)))

    def as_int(self, x: Node) -> Node:
        return x if x.dtype.kind == "i" else self.as_dtype(x, self.draw.choice((I32, I64, I64)))

    def as_bool(self, x: Node) -> Node:
        return x if x.dtype == BOOL else self.op("greater", x, self.literal(x.dtype))

    def axes(self, x: Node, some: bool = True) -> tuple[int, ...]:
        """Axes to reduce; where there is no neutral element, only those that have elements."""
        axes = [a for a in range(x.ndim) if some or x.shape[a]]
        if not axes:
            raise Skip
        return tuple(self.draw.sample(axes, self.draw.randint(1, len(axes))))

    def needs(self, condition: object) -> None:
        if not condition:
            raise Skip

    def away(self, x: Node) -> Node:
        """`x` away from zero, where that matters."""
        return x if self.mood != "tame" else self.op("add", self.op("abs", x), 0.5)

    def within(self, x: Node, bound: float) -> Node:
        """`x` scaled into ±bound, where that matters."""
        if self.mood != "tame" or self.peak(x) <= bound:
            return x
        return self.op("multiply", x, bound / self.peak(x) * 0.99)

    # Steps: a value to a value

    def unary(self, x: Node) -> Node:
        takes = {op: t for op, (t, _) in ir.UNARY.items() if x.dtype.kind in t}
        op = self.draw.choice(list(takes))
        if op in ("log", "log2", "log10", "log1p", "sqrt", "cbrt"):
            x = self.away(x)
        bounds = {"tan": 1.2, "arcsin": 0.9, "arccos": 0.9, "sin": 30, "cos": 30}
        if op in bounds or op in ("exp", "expm1", "sinh", "cosh"):
            x = self.within(x, bounds.get(op, 4))
        return self.op(op, x)

    def binary(self, x: Node) -> Node:
        op = self.draw.choice([op for op, (t, _) in ir.BINARY.items() if x.dtype.kind in t])
        y = self.other(x)
        if x.dtype.kind == "f" and op in ("divide", "floor_divide", "remainder", "arctan2"):
            y = self.away(y)
        if op == "power":
            return self.power(x, y)
        if self.draw.random() < 0.3:
            self.needs(
                x.dtype.kind == "i" or op not in ("divide", "floor_divide", "remainder", "arctan2")
            )
            x, y = y, x
        return self.unsigned_zero(op, self.op(op, x, y))

    def unsigned_zero(self, op: str, y: Node) -> Node:
        """NumPy does not say which zero is the larger: + 0.0 makes them one."""
        zeros = op in ("maximum", "minimum", "max", "min") and y.dtype.kind == "f"
        return self.op("add", y, 0.0) if zeros else y

    def power(self, x: Node, y: Node) -> Node:
        if x.dtype.kind == "i":
            return self.op("power", x, self.op("remainder", y, 4))
        self.needs(y.op != "const")
        return self.op("power", self.within(self.away(x), 5), self.within(y, 3))

    def compare(self, x: Node) -> Node:
        ops = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
        return self.op(self.draw.choice(ops), x, self.other(x))

    def where(self, x: Node) -> Node:
        c = self.as_bool(self.draw.choice(self.fits(x)))
        y = self.other(x)
        return self.op("where", c, x, y) if self.draw.random() < 0.5 else self.op("where", c, y, x)

    def cast_step(self, x: Node) -> Node:
        return self.as_dtype(x, self.draw.choice(ir.DTYPES))

    def identity(self, x: Node) -> Node:
        """What a simplification may take away, and what it must not."""
        x = self.as_float(x)
        forms = (
            ("multiply", x, 1.0), ("divide", x, 1.0), ("subtract", x, 0.0), ("add", x, 0.0),
            ("add", x, -0.0), ("subtract", 0.0, x), ("subtract", -0.0, x), ("multiply", x, -1.0),
            ("multiply", x, 0.0), ("subtract", x, x), ("divide", x, 4.0), ("divide", x, 3.0),
        )  # fmt: skip
        return self.op(*self.draw.choice(forms))

    def repeated(self, x: Node) -> Node:
        """Arithmetic on what is literal or repeated, and truth values with literals."""
        shape = tuple(self.draw.choice(self.dims) if n == 1 else n for n in x.shape)
        if self.draw.random() < 0.5:
            x = self.to(self.literal(x.dtype if x.dtype != BOOL else I64), x.shape)
        x = self.unary(self.to(x, shape))
        if x.dtype == BOOL:
            op = self.draw.choice(("logical_and", "logical_or", "logical_xor", "equal"))
            return self.op(op, x, self.draw.choice((True, False)))
        return self.op("add", x, self.literal(x.dtype))

    def reduce_step(self, x: Node) -> Node:
        op = self.draw.choice(("sum", "sum", "sum", "max", "min", "prod"))
        if x.dtype == BOOL and op in ("sum", "prod"):
            x = self.as_dtype(x, I64)
        axes = self.axes(x, op in ("sum", "prod"))
        if op == "prod":
            x = self.within(x, 1.0)
        y = self.unsigned_zero(op, self.reduce(op, x, axes, keep=self.draw.random() < 0.6))
        if y.ndim == x.ndim and x.dtype.kind != "b":
            how = self.draw.choice(("subtract", "multiply", "alone", "alone"))
            return y if how == "alone" else self.op(how, x, y)
        return y

    def reshape_step(self, x: Node) -> Node:
        shape = [x.size] if x.size or self.draw.random() < 0.5 else list(x.shape)
        factors = [d for d in self.dims if d > 1 and x.size % d == 0]
        if factors and self.draw.random() < 0.6:
            d = self.draw.choice(factors)
            shape = self.draw.choice(([x.size // d, d], [d, x.size // d], [1, x.size // d, 1, d]))
        return self.reshape(x, shape)

    def transpose_step(self, x: Node) -> Node:
        return self.make("transpose", x, axes=tuple(self.draw.sample(range(x.ndim), x.ndim)))

    def broadcast_step(self, x: Node) -> Node:
        shape = [
            n if n != 1 or self.draw.random() < 0.3 else self.draw.choice(self.dims)
            for n in x.shape
        ]
        if self.draw.random() < 0.5:
            shape.insert(0, self.draw.choice(self.dims))
        return self.to(x, tuple(shape))

    def slice_step(self, x: Node) -> Node:
        self.needs(x.ndim)
        return self.slice(x, *[self.range(n) for n in x.shape])

    def range(self, n: int) -> tuple[int, int, int]:
        """Start, step and size of a slice of an axis of n."""
        how = self.draw.choice(("all", "all", "some", "some", "back", "steps", "none"))
        if n == 0 or how == "none":
            return (0, 1, 0)
        start = self.draw.randrange(n)
        if how == "all":
            return (0, 1, n)
        if how == "some":
            return (start, 1, self.draw.randint(1, n - start))
        if how == "back":
            return (n - 1, -1, n) if self.draw.random() < 0.5 else (start, -1, start + 1)
        step = self.draw.choice((2, 3, -2))
        return (start, step, 1 + ((n - 1 - start) // step if step > 0 else start // -step))

    def matmul(self, x: Node) -> Node:
        x = self.within(self.as_float(x), 30)
        if x.ndim < 2:
            x = self.reshape(x, (1, x.size))
        y = self.swap(x)
        if self.draw.random() < 0.6:
            y = self.within(
                self.as_dtype(
                    self.leaf((x.shape[-1], self.draw.choice(self.dims)), x.dtype), x.dtype
                ),
                30,
            )
            y = self.to(y, (*x.shape[:-2], *y.shape))
        if self.draw.random() < 0.2:
            x, y = self.swap(y), self.swap(x)
        return self.make("matmul", x, y)

    def index(self, rows: int) -> Node:
        """An int64 index, now and then outside its table: it is clamped then."""
        shape = self.draw.choice(((), (self.draw.choice(self.dims),), (2, 3)))
        known = [p for p in self.pool if p.dtype == I64 and p.size <= 33]
        if known and self.draw.random() < 0.5:
            y = self.draw.choice(known)
            return y if self.draw.random() < 0.3 else self.op("remainder", y, rows)
        return self.leaf(shape, I64, below=rows + self.draw.choice((0, 0, 2)))

    def take(self, x: Node) -> Node:
        self.needs(x.ndim and x.shape[0])
        y = self.make("take", x, self.index(x.shape[0]))
        return self.unsigned_sum(y) if self.draw.random() < 0.3 else y

    def unsigned_sum(self, y: Node) -> Node:
        self.needs(y.ndim and y.dtype.kind in "if")
        return self.reduce("sum", y, (self.draw.randrange(y.ndim),))

    def scatter_add(self, x: Node) -> Node:
        x = self.as_int(x) if x.dtype == BOOL else x
        rows = self.draw.randint(1, 9)
        k = self.draw.randint(0, min(x.ndim, 2))
        index = self.leaf(x.shape[:k], I64, below=rows + self.draw.choice((0, 0, 2)))
        return self.make("scatter_add", index, x, rows=rows)

    def assemble(self, x: Node) -> Node:
        self.needs(x.ndim)
        base = x if self.draw.random() < 0.5 else self.to(self.literal(x.dtype), x.shape)
        pieces, starts, steps = [], [], []
        for _ in range(self.draw.randint(1, 2)):
            start, step, size = zip(*[self.range(n) for n in x.shape], strict=True)
            y = self.other(x)
            self.needs(broadcasts(y.shape, size, points=self.points) and len(y.shape) <= len(size))
            self.needs(np.broadcast_shapes(y.shape, size) == size)
            pieces.append(self.to(y, size))
            starts.append(start)
            steps.append(step)
        return self.make("assemble", base, *pieces, starts=tuple(starts), steps=tuple(steps))

    def concatenate(self, x: Node) -> Node:
        self.needs(x.ndim and x.size)
        shape = (2 * x.shape[0], *x.shape[1:])
        zero = (0,) * (x.ndim - 1)
        base = self.to(self.literal(x.dtype), shape)
        starts, steps = ((0, *zero), (x.shape[0], *zero)), ((1,) * x.ndim,) * 2
        return self.make(
            "assemble",
            base,
            x,
            self.to(self.op("abs", x) if x.dtype.kind != "b" else x, x.shape),
            starts=starts,
            steps=steps,
        )

    def cumsum(self, x: Node) -> Node:
        self.needs(x.ndim and x.dtype != BOOL)
        return self.make("cumsum", x)

    def argsort(self, x: Node) -> Node:
        self.needs(x.ndim)
        return self.make("argsort", x)

    def iota_step(self, x: Node) -> Node:
        self.needs(x.ndim)
        i = self.iota(x.shape, self.draw.randrange(x.ndim))
        causal = x.ndim == 2 and self.draw.random() < 0.5
        return self.op("less", self.iota(x.shape, 0), self.iota(x.shape, 1)) if causal else i

    def random_step(self, x: Node) -> Node:
        state = self.input((6,), I64)
        self.arrays.append(self.rng.integers(-(2**63), 2**63 - 1, 6))
        self.value[state] = self.arrays[-1]
        y = self.make("random", state, shape=x.shape, dtype=self.draw.choice((F32, F64)))
        first = self.op("equal", self.iota((6,), 0), 2)
        self.writes[state] = self.op("where", first, self.op("add", state, 1 + y.size // 4), state)
        if x.dtype != y.dtype or self.draw.random() < 0.5:
            return y
        return self.op("where", self.op("less", y, 0.5), x, 0.0)  # dropout

    def softmax_step(self, x: Node) -> Node:
        self.needs(x.ndim)
        axis = self.draw.randrange(x.ndim)
        self.needs(x.shape[axis])
        return self.softmax(self.within(self.as_float(x), 30), axis)

    def layer_norm_step(self, x: Node) -> Node:
        x = self.within(self.as_float(x), 30)
        self.needs(x.ndim and x.shape[-1])
        return self.layer_norm(
            x, self.leaf(x.shape[-1:], x.dtype), self.leaf(x.shape[-1:], x.dtype)
        )

    def pick_step(self, x: Node) -> Node:
        x = self.as_float(x)
        self.needs(x.ndim)
        return self.pick(x, self.leaf(x.shape[:-1], I64, below=x.shape[-1]))

    def cross_entropy(self, x: Node) -> Node:
        x = self.within(self.as_float(x), 30)
        self.needs(x.ndim == 2 and x.size)
        p = self.softmax(x)
        self.pool.append(
            self.op(
                "negative",
                self.mean(
                    self.op(
                        "log",
                        self.op(
                            "add", self.pick(p, self.leaf(x.shape[:1], I64, below=x.shape[1])), 1e-3
                        ),
                    ),
                    (0,),
                ),
            )
        )
        return self.op("multiply", p, 1 / x.shape[0])

    def symmetric(self, x: Node) -> Node:
        self.needs(x.ndim == 2 and x.shape[0] == x.shape[1] and x.dtype.kind in "if")
        return self.op("add", x, self.swap(x))

    def dense(self, x: Node) -> Node:
        """relu(x @ w + b)"""
        x = self.within(self.as_float(x), 30)
        self.needs(x.ndim == 2)
        w = self.leaf((x.shape[1], self.draw.choice(self.dims)), x.dtype)
        h = self.op(
            "add",
            self.make("matmul", x, self.as_dtype(w, x.dtype)),
            self.as_dtype(self.leaf(w.shape[1:], x.dtype), x.dtype),
        )
        return self.op("maximum", h, 0.0)

    def adam_step(self, g: Node) -> Node:
        """An optimizer update of a parameter with gradient `g`, written back."""
        g = self.within(self.as_float(g), 30)
        p, m, v, t = (self.state(s, g.dtype) for s in (g.shape, g.shape, g.shape, ()))
        self.arrays[-1] = self.value[t] = np.asarray(3.0, g.dtype)
        count = self.op("add", t, 1.0)
        new = self.adam(p, g, m, v, count)
        self.writes |= dict(zip((p, m, v, t), (*new, count), strict=True))
        return new[0]

    def write(self, x: Node) -> Node:
        """An input overwritten; its old value stays in the pool."""
        target = self.state(x.shape, x.dtype) if x.dtype != BOOL else None
        self.needs(target)
        self.pool.append(target)
        self.writes[target] = x
        return target

    def check(self, x: Node) -> Node:
        """A condition that holds: no value is NaN, or no index is outside."""
        bad = self.op("isnan", x) if x.dtype.kind == "f" else self.as_bool(x)
        if bad.ndim:
            self.needs(x.size)
            bad = self.reduce("max", bad, range(bad.ndim))
        if self.of(bad):
            bad = self.op("logical_not", bad)
        self.checks.append(ir.Check(bad, ValueError, f"check {len(self.checks)}"))
        return bad


STEPS = {
    "unary": 8, "binary": 7, "compare": 2, "where": 2, "cast_step": 2,
    "identity": 2, "repeated": 2, "reduce_step": 5,
    "reshape_step": 2, "transpose_step": 2, "broadcast_step": 2, "slice_step": 2, "matmul": 2,
    "take": 2, "scatter_add": 1, "assemble": 1, "concatenate": 1, "cumsum": 1, "argsort": 1,
    "iota_step": 1, "random_step": 1, "softmax_step": 2, "layer_norm_step": 1, "pick_step": 1,
    "cross_entropy": 1, "symmetric": 1, "dense": 1, "adam_step": 1, "write": 1, "check": 1,
}  # fmt: skip


def broadcasts(*shapes: Shape, points: int) -> bool:
    """Whether the shapes fit together, in at most so many points."""
    try:
        return math.prod(np.broadcast_shapes(*shapes)) <= points
    except ValueError:
        return False
