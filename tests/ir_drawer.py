"""What random programs are drawn from: sizes, layouts, numbers, operands and their domains."""

import math
import random

import numpy as np
from ir_builder import Builder
from ir_compare import Arrays, is_rounded

from everyo.compile import ir
from everyo.compile.interpret import evaluate
from everyo.compile.ir import BOOL, F32, F64, I32, I64, Node, Shape

SIZES = (0, 1, 2, 3, 8, 15, 17, 33)
SIZE_WEIGHTS = (1, 4, 5, 6, 4, 2, 4, 2)
JUMPS = {"sign", "floor", "ceil", "rint", "floor_divide", "remainder", "argsort"}
ODD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 3.0)
WILD_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 2.0, 1e-40, 1e30, -3.7)


class Skip(Exception):
    """This step does not apply here."""


class Drawer(Builder):
    """Makes nodes and knows their values; draws inputs, operands and parameters."""

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
        if self.mood in ("tame", "odd") and jumps and any(i in self.rounded for i in floats):
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
            values = ODD_FLOATS if self.mood == "odd" else WILD_FLOATS
            with np.errstate(over="ignore"):  # in float16
                odd = self.rng.choice(np.array(values).astype(dtype), shape)
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
            small = self.op("less", self.op("abs", x), 1e4)
            x = self.op("where", small, x, 0.0)
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


def broadcasts(*shapes: Shape, points: int) -> bool:
    """Whether the shapes fit together, in at most so many points."""
    try:
        return math.prod(np.broadcast_shapes(*shapes)) <= points
    except ValueError:
        return False
