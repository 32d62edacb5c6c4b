"""The innermost part of a product: one tile of the result, in vector registers, as LLVM code.

For each step of depth the tile multiplies one number per row of A, at any place, with a row of B.
The loop holds nothing but loads and multiply-adds. `edge` is the same for the last columns: what is
beyond them is masked out, never read and never written.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from everyo.compile.tiles import Tile

I32, I64 = ir.IntType(32), ir.IntType(64)
NUMBERS = {"f32": (ir.FloatType(), 4), "f64": (ir.DoubleType(), 8)}


def function(what: str, kind: str, shape: Tile) -> Callable[..., Any]:
    """The function of a name of `tiles.named`."""
    return turn(kind, shape) if what == "turn" else tile(kind, shape, what == "edge")


def turn(kind: str, shape: Tile) -> Callable[..., Any]:
    """Transpose a square of as many numbers as a vector has: columns of B, whose elements lie side
    by side, become rows of a packed panel.

    Arguments: address of B, table of places of its columns, address in the panel.
    """

    @intrinsic
    def turn(typing: Any, b: Any, cb: Any, to: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            _Emitter(builder, kind, shape, None).turn(*args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), codegen

    return turn


def tile(kind: str, shape: Tile, edge: bool) -> Callable[..., Any]:
    """C[i, j] (+)= the sum over d of A[i, d] * B[d, j], for a tile of the result.

    Arguments: address of A, tables of places of its rows and columns, address of B, bytes between
    its rows, depth, address of C, table of places of its rows, whether C is overwritten; of an
    edge how many columns there are.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        _Emitter(builder, kind, shape, args[9] if edge else None).emit(*args[:9])
        return context.get_dummy_value()

    words = [types.int64] * 8
    signature = types.void(*words, types.boolean, *[types.int64] * edge)

    def whole(
        typing: Any, a: Any, ra: Any, ka: Any, b: Any, lead: Any, depth: Any, c: Any, rc: Any,
        first: Any,
    ) -> Any:  # fmt: skip
        return signature, codegen

    def masked(
        typing: Any, a: Any, ra: Any, ka: Any, b: Any, lead: Any, depth: Any, c: Any, rc: Any,
        first: Any, columns: Any,
    ) -> Any:  # fmt: skip
        return signature, codegen

    return intrinsic(masked if edge else whole)


class _Emitter:
    def __init__(
        self, builder: ir.IRBuilder, kind: str, shape: Tile, columns: ir.Value | None
    ) -> None:
        self.builder, self.shape = builder, shape
        self.number, self.size = NUMBERS[kind]
        self.vector = ir.VectorType(self.number, shape.lanes)
        self.suffix = f"v{shape.lanes}{kind}"
        self.masks = None if columns is None else [self.mask(columns, v) for v in self.vectors]

    @property
    def vectors(self) -> range:
        return range(self.shape.vectors)

    def emit(
        self, a: ir.Value, ra: ir.Value, ka: ir.Value, b: ir.Value, lead: ir.Value,
        depth: ir.Value, c: ir.Value, rc: ir.Value, first: ir.Value,
    ) -> None:  # fmt: skip
        builder, rows = self.builder, range(self.shape.rows)
        places = [builder.add(a, self.word(ra, ir.Constant(I64, r))) for r in rows]
        entry, loop, after = (
            builder.block, builder.append_basic_block("depth"), builder.append_basic_block("done")
        )  # fmt: skip
        builder.branch(loop)
        builder.position_at_end(loop)
        step, at = builder.phi(I64), builder.phi(I64)
        sums = [[builder.phi(self.vector) for _ in self.vectors] for _ in rows]
        across = self.word(ka, step)
        right = [self.load(at, v) for v in self.vectors]
        new = []
        for place, row in zip(places, sums, strict=True):
            left = self.repeated(builder.add(place, across))
            new.append([self.mad(left, y, z) for y, z in zip(right, row, strict=True)])
        following = builder.add(step, ir.Constant(I64, 1))
        for phi, start, value in (
            (step, ir.Constant(I64, 0), following), (at, b, builder.add(at, lead)),
            *((z, ir.Constant(self.vector, None), w)
              for row, out in zip(sums, new, strict=True) for z, w in zip(row, out, strict=True)),
        ):  # fmt: skip
            phi.add_incoming(start, entry)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        self.finish(new, [builder.add(c, self.word(rc, ir.Constant(I64, r))) for r in rows], first)

    def finish(self, sums: list[list[ir.Value]], places: list[ir.Value], first: ir.Value) -> None:
        """Store the sums, or add them to what is there. All is read before anything is written, as
        the last rows of a product may be one row several times."""
        builder = self.builder
        fresh, more, end = (builder.append_basic_block(n) for n in ("fresh", "more", "stored"))
        builder.cbranch(first, fresh, more)
        builder.position_at_end(fresh)
        self.store(sums, places)
        builder.branch(end)
        builder.position_at_end(more)
        old = [[self.load(p, v) for v in self.vectors] for p in places]
        total = [
            [builder.fadd(x, y) for x, y in zip(row, new, strict=True)]
            for row, new in zip(old, sums, strict=True)
        ]
        self.store(total, places)
        builder.branch(end)
        builder.position_at_end(end)

    def turn(self, b: ir.Value, cb: ir.Value, to: ir.Value) -> None:
        """Rows i and i + half interleave, as often as it takes until each row was a column."""
        builder, lanes = self.builder, self.shape.lanes
        places = [builder.add(b, self.word(cb, ir.Constant(I64, i))) for i in range(lanes)]
        rows = [self.load(place, 0) for place in places]
        half = lanes // 2
        kind = ir.VectorType(I32, lanes)
        pairs = [i // 2 + lanes * (i % 2) for i in range(lanes)]
        low, high = ir.Constant(kind, pairs), ir.Constant(kind, [p + half for p in pairs])
        for _ in range(lanes.bit_length() - 1):
            rows = [
                builder.shuffle_vector(rows[i], rows[i + half], order)
                for i in range(half)
                for order in (low, high)
            ]
        for i, row in enumerate(rows):
            place = builder.add(to, ir.Constant(I64, i * self.shape.width * self.size))
            builder.store(row, self.pointer(place, 0, self.vector), align=self.size)

    # ------------------------------------------------------------------ instructions

    def word(self, table: ir.Value, index: ir.Value) -> ir.Value:
        pointer = self.builder.inttoptr(table, I64.as_pointer())
        return self.builder.load(self.builder.gep(pointer, [index]))

    def pointer(self, address: ir.Value, v: int, kind: ir.Type) -> ir.Value:
        moved = self.builder.add(address, ir.Constant(I64, v * self.shape.lanes * self.size))
        return self.builder.inttoptr(moved, kind.as_pointer())

    def mask(self, columns: ir.Value, v: int) -> ir.Value:
        """Which lanes of vector v are columns of the result."""
        lanes = self.shape.lanes
        kind = ir.VectorType(I32, lanes)
        count = self.splat(self.builder.trunc(columns, I32), kind)
        here = ir.Constant(kind, [v * lanes + i for i in range(lanes)])
        return self.builder.icmp_signed("<", here, count)

    def splat(self, value: ir.Value, kind: ir.VectorType) -> ir.Value:
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(nothing, value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, kind.count), None)
        return self.builder.shuffle_vector(one, nothing, zeros)

    def repeated(self, address: ir.Value) -> ir.Value:
        pointer = self.builder.inttoptr(address, self.number.as_pointer())
        return self.splat(self.builder.load(pointer, align=self.size), self.vector)

    def function(self, name: str, result: ir.Type, kinds: list[ir.Type]) -> Any:
        known = self.builder.module.globals.get(name)
        kind = ir.FunctionType(result, kinds)
        return known or ir.Function(self.builder.module, kind, name)

    def mad(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        kinds: list[ir.Type] = [self.vector] * 3
        mad = self.function(f"llvm.fmuladd.{self.suffix}", self.vector, kinds)
        return self.builder.call(mad, [x, y, z])

    def load(self, address: ir.Value, v: int) -> ir.Value:
        pointer = self.pointer(address, v, self.vector)
        if self.masks is None:
            return self.builder.load(pointer, align=self.size)
        kinds = [pointer.type, I32, self.masks[v].type, self.vector]
        load = self.function(f"llvm.masked.load.{self.suffix}.p0", self.vector, kinds)
        align, zero = ir.Constant(I32, self.size), ir.Constant(self.vector, None)
        return self.builder.call(load, [pointer, align, self.masks[v], zero])

    def store(self, values: list[list[ir.Value]], places: list[ir.Value]) -> None:
        for row, place in zip(values, places, strict=True):
            for v, value in enumerate(row):
                pointer = self.pointer(place, v, self.vector)
                if self.masks is None:
                    self.builder.store(value, pointer, align=self.size)
                else:
                    kinds = [self.vector, pointer.type, I32, self.masks[v].type]
                    store = self.function(
                        f"llvm.masked.store.{self.suffix}.p0", ir.VoidType(), kinds
                    )
                    align = ir.Constant(I32, self.size)
                    self.builder.call(store, [value, pointer, align, self.masks[v]])
