"""Indexing of the namespace of a trace: slices are views, index arrays become `take`."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.compile.ir import I64
from everyo.compile.reductions import Reductions
from everyo.compile.symbol import Symbol


class Indexing(Reductions):
    """What picks and puts parts of arrays."""

    def getitem(self, x: Any, key: Any) -> Symbol:
        s, parts = self._expanded(self.lift(x), key)
        s, arrays, gone = self._sliced(s, parts)
        if arrays:
            s = self._gather(self._own(s), arrays)
        if gone:
            s = self.reshape(s, tuple(n for i, n in enumerate(s.shape) if i not in gone))
        return s

    def flip(self, x: Any, axis: Any) -> Symbol:
        s = self.lift(x)
        axes = (
            {a % s.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
            if axis is not None
            else set(range(s.ndim))
        )
        key = tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(s.ndim))
        return self.getitem(s, key)

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
