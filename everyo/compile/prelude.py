"""What the text of a kernel may name, native: typed pointers, loads and stores, casts, helpers.

Loads and stores of the first SCOPES slots carry alias scopes: different slots of a kernel never
overlap, so LLVM vectorises without run-time checks. `plain` has the same names in plain Python.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from everyo.compile import intrinsics, math, microkernel, tiles
from everyo.compile.atomics import ATOMICS
from everyo.compile.blas import BLAS
from everyo.compile.half import HALF, f16, from_f16
from everyo.compile.intrinsics import Word, where
from everyo.compile.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from everyo.compile.wrapping import WRAPPING

KERNEL = types.void(
    types.CPointer(types.int64), types.int64, types.int64
)  # pointers, chunk, chunks
TYPES = {
    "f16": HALF, "f32": types.float32, "f64": types.float64, "i32": types.int32, "i64": types.int64,
    "u64": types.uint64, "b8": types.boolean,
}  # fmt: skip
SCOPES = 64
WORDS = re.compile(r"[A-Za-z_]\w*")
ACCESS = re.compile(r"(ld|st)(\d+)")


def scope(text: str) -> dict[str, Any]:
    """The global names that a kernel's text uses."""
    names = {}
    for word in set(WORDS.findall(text)):
        match = ACCESS.fullmatch(word)
        if match:
            names[word] = (_load if match[1] == "ld" else _store)(int(match[2]))
        elif word in NAMES:
            names[word] = NAMES[word]
        elif word in math.FUNCTIONS:
            names[word] = math.FUNCTIONS[word]
        else:
            shape = tiles.named(word)
            if shape is not None:
                names[word] = _on_tiles(*shape)
    return names


def _pointer(kind: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            return builder.inttoptr(args[0], context.get_data_type(kind).as_pointer())

        return types.CPointer(kind)(types.int64), codegen

    return pointer


def _tag(module: ir.Module, instruction: Any, slot: int) -> None:
    """Mark an access as one of its slot and of no other."""
    if slot >= SCOPES:
        return
    tags = module.__dict__.setdefault("everyo_tags", {})
    if slot not in tags:
        domain = module.add_metadata(["everyo"])
        scopes = [module.add_metadata([f"slot{k}", domain]) for k in range(SCOPES)]
        others = module.add_metadata([s for k, s in enumerate(scopes) if k != slot])
        tags[slot] = module.add_metadata([scopes[slot]]), others
    mine, others = tags[slot]
    instruction.set_metadata("alias.scope", mine)
    instruction.set_metadata("noalias", others)


def _load(slot: int) -> Callable[..., Any]:
    if slot not in _LOADS:

        @intrinsic
        def load(typing: Any, pointer: Any, index: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
                value = builder.load(builder.gep(args[0], [args[1]]))
                _tag(builder.module, value, slot)
                return context.data_model_manager[signature.return_type].from_data(builder, value)

            return pointer.dtype(pointer, types.uintp), codegen

        _LOADS[slot] = load
    return _LOADS[slot]


def _store(slot: int) -> Callable[..., Any]:
    if slot not in _STORES:

        @intrinsic
        def store(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
                data = context.data_model_manager[pointer.dtype].as_data(builder, args[2])
                _tag(builder.module, builder.store(data, builder.gep(args[0], [args[1]])), slot)
                return context.get_dummy_value()

            return types.void(pointer, types.uintp, pointer.dtype), codegen

        _STORES[slot] = store
    return _STORES[slot]


_on_tiles = cache(microkernel.function)
_LOADS: dict[int, Any] = {}
_STORES: dict[int, Any] = {}


@intrinsic
def pair_add(typing: Any, total: Any, error: Any, x: Any) -> Any:
    """Add x to the sum total + error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        total, error, x = (Word(builder, a) for a in args)
        s = total + x
        back = s - total
        error = error + ((total - (s - back)) + (x - back))
        return context.make_tuple(builder, signature.return_type, [s.value, error.value])

    return types.UniTuple(types.float64, 2)(*[types.float64] * 3), codegen


@intrinsic
def pair_total(typing: Any, total: Any, error: Any) -> Any:
    """The sum; an infinite or undefined error belongs to a total that is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        total, error = (Word(builder, a) for a in args)
        return where(abs(error) < float("inf"), total + error, total).value

    return types.float64(types.float64, types.float64), codegen


@intrinsic
def mulhi(typing: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a product of two words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def philox(typing: Any, k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """The four words of a counter under a key, see `everyo.compile.philox`."""
    word = ir.IntType(64)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> ir.Value:
        low, half = ir.Constant(word, 2**32 - 1), ir.Constant(word, 32)

        def product(x: Any, factor: int) -> tuple[Any, Any]:
            """Upper and lower word; by halves, as vectors have no wider product."""
            right, left = (ir.Constant(word, f) for f in (factor & 0xFFFFFFFF, factor >> 32))
            x0, x1 = b.and_(x, low), b.lshr(x, half)
            inner = b.mul(x0, left)
            middle = b.add(b.lshr(b.mul(x0, right), half), b.and_(inner, low))
            middle = b.add(middle, b.mul(x1, right))  # below 2**64
            upper = b.add(b.mul(x1, left), b.lshr(inner, half))
            return b.add(upper, b.lshr(middle, half)), b.mul(x, ir.Constant(word, factor))

        keys, c = list(args[:2]), list(args[2:])
        for _ in range(ROUNDS):
            first, second = product(c[0], MULTIPLIERS[0]), product(c[2], MULTIPLIERS[1])
            c = [
                b.xor(b.xor(second[0], c[1]), keys[0]), second[1],
                b.xor(b.xor(first[0], c[3]), keys[1]), first[1],
            ]  # fmt: skip
            keys = [b.add(k, ir.Constant(word, s)) for k, s in zip(keys, KEY_STEPS, strict=True)]
        return context.make_tuple(b, signature.return_type, c)

    return types.UniTuple(types.uint64, 4)(*[types.uint64] * 6), codegen


def _bits(kind: Any, number: ir.Type) -> Callable[..., Any]:
    @intrinsic
    def bits(typing: Any, word: Any) -> Any:
        """The float whose bits are the lower ones of a word."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            width = ir.IntType(32 if number == ir.FloatType() else 64)
            word = builder.trunc(args[0], width) if width.width == 32 else args[0]
            return builder.bitcast(word, number)

        return kind(types.int64), codegen

    return bits


@intrinsic
def peek(typing: Any, address: Any) -> Any:
    """The int64 at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def poke(typing: Any, address: Any, value: Any) -> Any:
    """Store an int64 at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _kernel(builder: Any, address: ir.Value) -> ir.Value:
    """The kernel at an address, to be called."""
    word = ir.IntType(64)
    kind = ir.FunctionType(ir.VoidType(), [word.as_pointer(), word, word])
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def call(typing: Any, address: Any, pointers: Any, chunk: Any, chunks: Any) -> Any:
    """Run the kernel at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        table = builder.inttoptr(args[1], ir.IntType(64).as_pointer())
        builder.call(_kernel(builder, args[0]), [table, *args[2:]])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def call_with(
    typing: Any, address: Any, chunk: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any,
    h: Any, i: Any, j: Any, k: Any,
) -> Any:  # fmt: skip
    """Run the kernel at an address with a table of these words, which lies on the stack."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        word = ir.IntType(64)
        with builder.goto_entry_block():
            table = builder.alloca(ir.ArrayType(word, len(args) - 2))
        zero = ir.Constant(word, 0)
        for place, value in enumerate(args[2:]):
            builder.store(value, builder.gep(table, [zero, ir.Constant(word, place)]))
        start = builder.gep(table, [zero, zero])
        builder.call(_kernel(builder, args[0]), [start, args[1], zero])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 13), codegen


def _gemm(number: ir.Type, integer: ir.Type) -> Callable[..., Any]:
    """cblas_?gemm by address, row-major, alpha 1 and beta 0: (function, turn a, turn b, m, n, k,
    a, lead a, b, lead b, c, lead c)."""

    @intrinsic
    def gemm(
        typing: Any,
        f: Any,
        ta: Any,
        tb: Any,
        m: Any,
        n: Any,
        k: Any,
        a: Any,
        la: Any,
        b: Any,
        lb: Any,
        c: Any,
        lc: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, x: Any) -> ir.Value:
            word, enum = ir.IntType(64), ir.IntType(32)
            kinds = (
                [enum] * 3
                + [integer] * 3
                + [number, word, integer, word, integer, number, word, integer]
            )
            function = ir.FunctionType(ir.VoidType(), kinds)
            values = [ir.Constant(enum, 101), *x[1:6], ir.Constant(number, 1.0), *x[6:10]]
            values += [ir.Constant(number, 0.0), *x[10:]]
            cut = [
                builder.trunc(v, t) if v.type != t else v
                for v, t in zip(values, kinds, strict=True)
            ]
            builder.call(builder.inttoptr(x[0], function.as_pointer()), cut)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), codegen

    return gemm


INTEGER = ir.IntType(64) if BLAS is None or BLAS.wide else ir.IntType(32)
NAMES: dict[str, Any] = {
    **ATOMICS, **WRAPPING,
    "np": np, "usz": np.uintp, "f32": np.float32, "f64": np.float64, "i32": np.int32,
    "i64": np.int64, "u64": np.uint64, "b8": np.bool_, "pair_add": pair_add,
    "pair_total": pair_total, "mulhi": mulhi, "philox": philox, "peek": peek, "poke": poke,
    "call": call, "call_with": call_with, "abreast": range,
    "gemm_f32": _gemm(ir.FloatType(), INTEGER), "gemm_f64": _gemm(ir.DoubleType(), INTEGER),
    "bits_f32": _bits(types.float32, ir.FloatType()),
    "bits_f64": _bits(types.float64, ir.DoubleType()),
    **{f"p_{name}": _pointer(kind) for name, kind in TYPES.items()},
    "f16": f16, "from_f16": from_f16, "radd": intrinsics.radd, "rmul": intrinsics.rmul,
    "fmax": intrinsics.fmax,
    "fmin": intrinsics.fmin, "select": intrinsics.select, "narrow": intrinsics.narrow,
}  # fmt: skip
