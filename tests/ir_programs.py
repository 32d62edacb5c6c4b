"""Random programs of the graph IR, and what their results must be compared with.

`random_graph(seed, ops, mood)` grows a graph node by node and evaluates it on the way, so that a
step can look at the values it starts from. The moods differ in the numbers and in what is drawn:

- ``tame``: every op, values within ±100, operands kept away from poles and jumps. Whatever jumps
  (comparisons, floor, argsort, casts to integers) gets operands without rounding error only.
- ``exact``: NaN, infinities, -0.0 and extreme integers, but only ops that IEEE arithmetic or the
  integers determine to the last bit.
- ``odd``: NaN, infinities and zeros of both signs in every op; what jumps is kept as in ``tame``.
- ``wild``: the numbers of ``exact`` and every op. For the laws of passes, which keep all bits.

A smaller `ops` gives a prefix of the same program: that is how hypothesis shrinks a failure.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from ir_compare import Arrays
from ir_drawer import Drawer, Skip, broadcasts

from everyo.compile import ir
from everyo.compile.ir import BOOL, F16, F32, F64, I32, I64, Graph, Node


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


class Grower(Drawer):
    """Grows one random program."""

    def grow(self, ops: int) -> tuple[Graph, Arrays]:
        for _ in range(self.draw.randint(1, 3)):
            self.leaf(
                self.shape(),
                self.draw.choice((F32, F32, F32, F64, F64, F16, I64, I64, I32, I32, BOOL, BOOL)),
            )
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
        y = self.op(self.draw.choice(ops), x, self.other(x))
        return self.op("logical_not", y) if self.draw.random() < 0.3 else y

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

    def window_step(self, x: Node) -> Node:
        axes = [i for i, n in enumerate(x.shape) if n]
        self.needs(axes)
        axis = self.draw.choice(axes)
        size, spacing = self.draw.randint(1, 3), self.draw.randint(1, 2)
        step = self.draw.randint(1, 3)
        left = x.shape[axis] - 1 - (size - 1) * spacing
        self.needs(left >= 0)
        count = self.draw.randint(1, left // step + 1)
        return self.make("window", x, axis=axis, count=count, size=size, step=step, spacing=spacing)

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
        """x and others of its shape along an axis, one after the other or in turns."""
        self.needs(x.ndim and x.size)
        axis, count = self.draw.randrange(x.ndim), self.draw.randint(2, 3)
        pieces = [x]
        for _ in range(count - 1):
            y = self.other(x)
            if y.shape != x.shape or self.draw.random() < 0.3:
                y = self.to(self.op("abs", x) if x.dtype.kind != "b" else x, x.shape)
            pieces.append(y)
        n, turns = x.shape[axis], self.draw.random() < 0.2
        base = self.to(self.literal(x.dtype), (*x.shape[:axis], count * n, *x.shape[axis + 1 :]))
        self.needs(base.size <= self.points)
        along = [i if turns else i * n for i in range(count)]
        starts = tuple(tuple(at if d == axis else 0 for d in range(x.ndim)) for at in along)
        step = tuple(count if turns and d == axis else 1 for d in range(x.ndim))
        return self.make("assemble", base, *pieces, starts=starts, steps=(step,) * count)

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

    def attention(self, x: Node) -> Node:
        """Causal self-attention of (T, D) with keys that are scaled queries."""
        x = self.within(self.as_float(x), 5)
        self.needs(x.ndim == 2 and x.size)
        heads = self.draw.choice([h for h in (1, 2, 3, 4) if x.shape[1] % h == 0])
        split = self.reshape(x, (x.shape[0], heads, x.shape[1] // heads))
        q = self.make("transpose", split, axes=(1, 0, 2))
        k = self.op("multiply", q, 0.5)
        scores = self.make("matmul", q, self.swap(k))
        past = self.op("less_equal", self.iota(scores.shape, 2), self.iota(scores.shape, 1))
        p = self.softmax(self.op("where", past, scores, -60.0))
        self.pool.append(p)
        y = self.make("transpose", self.make("matmul", p, q), axes=(1, 0, 2))
        return self.reshape(y, x.shape)

    def batch_norm(self, x: Node) -> Node:
        x = self.within(self.as_float(x), 10)
        self.needs(x.ndim >= 2 and x.size)
        axes = tuple(a for a in range(x.ndim) if a != 1)
        centred = self.op("subtract", x, self.mean(x, axes, keep=True))
        var = self.mean(self.op("multiply", centred, centred), axes, keep=True)
        self.pool.append(self.reshape(var, (x.shape[1],)))
        return self.op("divide", centred, self.op("sqrt", self.op("add", var, 0.1)))

    def gates(self, x: Node) -> Node:
        """Two halves of a value, each through a function of its own."""
        x = self.within(self.as_float(x), 5)
        self.needs(x.ndim and x.shape[-1] > 1)
        z = self.op("add", x, self.literal(x.dtype))
        half = x.shape[-1] // 2
        whole = [(0, 1, n) for n in x.shape[:-1]]
        left, right = (self.slice(z, *whole, (start, 1, half)) for start in (0, half))
        return self.op("multiply", self.op("sigmoid", left), self.op("tanh", right))

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
        """An input overwritten, with what may depend on it; its old value stays in the pool."""
        targets = [t for t in self.table.inputs if self.may_write(t, x)]
        if targets and self.draw.random() < 0.8:
            target = self.draw.choice(targets)
        else:
            self.needs(x.dtype != BOOL)
            target = self.state(x.shape, x.dtype)
        self.writes[target] = x
        return target

    def may_write(self, target: Node, x: Node) -> bool:
        """Whether `x` fits, and no element of the target's memory is written twice."""
        array = self.arrays[target.param("index")]
        return (
            (target.shape, target.dtype) == (x.shape, x.dtype)
            and target not in self.writes
            and all(s or n < 2 for s, n in zip(array.strides, array.shape, strict=True))
            and not any(np.shares_memory(array, self.arrays[t.param("index")]) for t in self.writes)
        )

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
    "reshape_step": 2, "transpose_step": 2, "broadcast_step": 2, "slice_step": 2, "window_step": 2,
    "matmul": 2, "take": 2, "scatter_add": 1, "assemble": 1, "concatenate": 2, "cumsum": 1,
    "argsort": 1, "iota_step": 1, "random_step": 1, "softmax_step": 2, "layer_norm_step": 1,
    "pick_step": 1,
    "cross_entropy": 1, "attention": 1, "batch_norm": 1, "gates": 1,
    "symmetric": 1, "dense": 1, "adam_step": 1, "write": 2, "check": 1,
}  # fmt: skip
