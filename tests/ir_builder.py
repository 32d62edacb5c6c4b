"""Graphs written by hand: a `Table` with NumPy's broadcasting, literals and a few composites."""

import math
from collections.abc import Iterable

import numpy as np

from everyo.compile import ir
from everyo.compile.ir import F32, Graph, Node, Shape


class Builder:
    """Makes the nodes of one graph."""

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
