"""Reductions, scans and products of the namespace of a trace."""

import math
from typing import Any

import numpy as np

from everyo.compile.ir import BOOL, I64, Node
from everyo.compile.recorder import Recorder, promoted
from everyo.compile.symbol import Symbol


class Reductions(Recorder):
    """What folds axes."""

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
        dtype = promoted(a, b)
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
