"""What the text of a device kernel may name: pointers, vectors, lanes, casts, and the math.

The scalar functions are those of the CPU, the same emitters over `Word`s: `DeviceBuilder` spells
the few LLVM instructions that NVVM lacks. Where the CPU's float32 version goes through float64,
which is slow on a GPU, there is one of our own (`trig`) or libdevice's.
"""

import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, libdevice, types
from numba.cuda.extending import intrinsic

from everyo.compile import intrinsics, math
from everyo.compile.cuda import trig
from everyo.compile.intrinsics import FLOAT, Word, intrinsic_call, where

KINDS = {
    "f16": types.float16, "f32": types.float32, "f64": types.float64, "i32": types.int32,
    "i64": types.int64,
    "u32": types.uint32, "u64": types.uint64, "b8": types.boolean,
}  # fmt: skip
WORDS = re.compile(r"[A-Za-z_]\w*")
BYTES = 16  # of the widest access
GLOBAL = 1  # the address space of LLVM's pointers to global memory


def scope(text: str) -> dict[str, Any]:
    """The global names that a kernel's text uses."""
    names: dict[str, Any] = {}
    for word in set(WORDS.findall(text)):
        if word in NAMES:
            names[word] = NAMES[word]
        elif word in FUNCTIONS:
            names[word] = FUNCTIONS[word]
        elif match := re.fullmatch(r"(ld|st)(\d+)", word):
            names[word] = (_vector_load if match[1] == "ld" else _vector_store)(int(match[2]))
    return names


# -- instructions that NVVM lacks


class DeviceBuilder:
    """An LLVM builder for NVVM: everything as usual, but for what its LLVM does not know."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.module = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def fneg(self, value: ir.Value) -> ir.Value:
        return self._builder.fsub(ir.Constant(value.type, -0.0), value)

    def declare_intrinsic(self, name: str, kinds: Sequence[Any], function: Any) -> Any:
        spelling = SPELLINGS.get(name)
        if spelling is not None:
            return lambda args: spelling(self._builder, *args)
        name = {"llvm.fmuladd": "llvm.fma"}.get(name, name)
        return self._builder.module.declare_intrinsic(name, kinds, function)

    def call(self, function: Any, args: Sequence[ir.Value], **flags: Any) -> ir.Value:
        if isinstance(function, ir.Function):
            return self._builder.call(function, args)
        return function(args)


def _assembly(single: str, double: str) -> Callable[..., ir.Value]:
    """A PTX instruction, for both precisions."""

    def spell(builder: Any, *args: ir.Value) -> ir.Value:
        kind = args[0].type
        text, letter = (single, "f") if kind == FLOAT else (double, "d")
        places = ", ".join(f"${i}" for i in range(len(args) + 1))
        function = ir.FunctionType(kind, [kind] * len(args))
        constraint = ",".join([f"={letter}", *[letter] * len(args)])
        return builder.asm(function, f"{text} {places};", constraint, list(args), False)

    return spell


def _extreme(name: str, sign: str) -> Callable[..., ir.Value]:
    """The larger or smaller one; NaN if either is."""
    single = _assembly(f"{name}.NaN.f32", "")

    def spell(builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        if a.type == FLOAT:
            return single(builder, a, b)
        x, y = Word(builder, a), Word(builder, b)
        first = x > y if sign == ">" else x < y
        return where(x != x, x, where(first, x, y)).value

    return spell


def _magnitude(builder: Any, a: ir.Value) -> ir.Value:
    x = Word(builder, a)
    return (x.bits() & ((1 << (x.width - 1)) - 1)).float().value


SPELLINGS: dict[str, Callable[..., ir.Value]] = {
    "llvm.fabs": _magnitude, "llvm.rint": _assembly("cvt.rni.f32.f32", "cvt.rni.f64.f64"),
    "llvm.maximum": _extreme("max", ">"), "llvm.minimum": _extreme("min", "<"),
}  # fmt: skip


def define(emit: Callable[..., Word], signature: Any) -> Any:
    """The device intrinsic of this signature that emits `emit(*words)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        device = DeviceBuilder(builder)
        return emit(*(Word(device, a) for a in args)).value

    def unary(context: Any, a: Any) -> Any:
        return signature, codegen

    def binary(context: Any, a: Any, b: Any) -> Any:
        return signature, codegen

    made = unary if len(signature.args) == 1 else binary
    return intrinsic(made)


def same(emit: Callable[[Word, Word], Word]) -> Any:
    """The device intrinsic T(T, T) for every T."""

    def typing(context: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            device = DeviceBuilder(builder)
            return emit(*(Word(device, x) for x in args)).value

        return a(a, a), codegen

    return intrinsic(typing)


# -- memory


def _element(context: Any, builder: Any, kind: Any, where: ir.Value, index: ir.Value) -> ir.Value:
    """The address of an element of a pointer or of an array in shared memory."""
    if isinstance(kind, types.Array):
        where = context.make_array(kind)(context, builder, where).data
    index = builder.zext(index, ir.IntType(64)) if index.type.width < 64 else index
    return builder.gep(where, [index])


@intrinsic
def ld(typing: Any, pointer: Any, index: Any) -> Any:
    """The element of a pointer at an unsigned index."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        value = builder.load(_element(context, builder, pointer, *args))
        return context.data_model_manager[pointer.dtype].from_data(builder, value)

    return pointer.dtype(pointer, index), codegen


@intrinsic
def st(typing: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Store an element."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        data = context.data_model_manager[pointer.dtype].as_data(builder, args[2])
        builder.store(data, _element(context, builder, pointer, *args[:2]))
        return context.get_dummy_value()

    return types.void(pointer, index, pointer.dtype), codegen


@intrinsic
def at(typing: Any, pointer: Any, index: Any) -> Any:
    """The pointer to an element; of an array in shared memory too."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return _element(context, builder, pointer, *args)

    return types.CPointer(pointer.dtype)(pointer, index), codegen


@intrinsic
def pointer(typing: Any, kind: Any, address: Any) -> Any:
    """The pointer to numbers in global memory at an address."""
    made = types.CPointer(kind.instance_type)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        generic = context.get_value_type(made)
        there = builder.inttoptr(args[1], ir.PointerType(generic.pointee, GLOBAL))
        return builder.addrspacecast(there, generic)

    return made(kind, address), codegen


def _vector_load(count: int) -> Any:
    if count not in _LOADS:

        @intrinsic
        def load(typing: Any, pointer: Any, index: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
                start = _element(context, builder, pointer, *args)
                model = context.data_model_manager[pointer.dtype]
                values = []
                for at, kind, align in _pieces(context, builder, pointer.dtype, start, count):
                    vector = builder.load(at, align=align)
                    for k in range(kind.count):
                        lane = ir.Constant(ir.IntType(32), k)
                        value = builder.extract_element(vector, lane)
                        values.append(model.from_data(builder, value))
                return context.make_tuple(builder, signature.return_type, values)

            return types.UniTuple(pointer.dtype, count)(pointer, index), codegen

        _LOADS[count] = load
    return _LOADS[count]


def _vector_store(count: int) -> Any:
    if count not in _STORES:

        @intrinsic
        def store(typing: Any, pointer: Any, index: Any, values: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
                start = _element(context, builder, pointer, *args[:2])
                model = context.data_model_manager[pointer.dtype]
                parts = cgutils.unpack_tuple(builder, args[2], count)
                parts = [model.as_data(builder, p) for p in parts]
                done = 0
                for at, kind, align in _pieces(context, builder, pointer.dtype, start, count):
                    vector = ir.Constant(kind, ir.Undefined)
                    for k in range(kind.count):
                        lane = ir.Constant(ir.IntType(32), k)
                        vector = builder.insert_element(vector, parts[done + k], lane)
                    builder.store(vector, at, align=align)
                    done += kind.count
                return context.get_dummy_value()

            return types.void(pointer, index, types.UniTuple(pointer.dtype, count)), codegen

        _STORES[count] = store
    return _STORES[count]


def _pieces(context: Any, builder: Any, dtype: Any, start: ir.Value, count: int) -> Any:
    """A vector of `count` elements as accesses of at most 16 bytes: address, type, alignment."""
    kind = context.get_data_type(dtype)
    size = context.get_abi_sizeof(kind)
    each = min(count, BYTES // size)
    vector = ir.VectorType(kind, each)
    for k in range(0, count, each):
        place = builder.gep(start, [ir.Constant(ir.IntType(64), k)])
        yield builder.bitcast(place, vector.as_pointer()), vector, each * size


_LOADS: dict[int, Any] = {}
_STORES: dict[int, Any] = {}


# -- values


@intrinsic
def select(typing: Any, c: Any, a: Any, b: Any) -> Any:
    """a where c holds, else b; both are computed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.select(*args)

    return a(types.boolean, a, a), codegen


@intrinsic
def pair_add(typing: Any, total: Any, error: Any, x: Any) -> Any:
    """Add x to the sum total + error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        t, e, v = (Word(builder, a) for a in args)
        s, lost = _two_sum(t, v)
        return context.make_tuple(builder, signature.return_type, [s.value, (e + lost).value])

    return types.UniTuple(total, 2)(total, total, total), codegen


@intrinsic
def pair_join(typing: Any, a: Any, low: Any, b: Any, other: Any) -> Any:
    """The sum of two sums of two words each; the same whichever comes first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        x, e, y, f = (Word(builder, v) for v in args)
        s, lost = _two_sum(x, y)
        return context.make_tuple(builder, signature.return_type, [s.value, ((e + f) + lost).value])

    return types.UniTuple(a, 2)(a, a, a, a), codegen


def _two_sum(a: Word, b: Word) -> tuple[Word, Word]:
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


@intrinsic
def pair_total(typing: Any, total: Any, error: Any) -> Any:
    """The sum; an infinite or undefined error belongs to a total that is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        device = DeviceBuilder(builder)
        t, e = Word(device, args[0]), Word(device, args[1])
        return where(abs(e) < float("inf"), t + e, t).value

    return total(total, total), codegen


def _with_fmod(emit: Callable[..., Word]) -> Callable[..., Word]:
    """floor_divide or remainder of float32 from libdevice's fmod, which needs no float64."""

    def float32(x: Word, y: Word) -> Word:
        builder = x.builder._builder
        kind = ir.FunctionType(FLOAT, [FLOAT, FLOAT])
        fmod = cgutils.get_or_insert_function(builder.module, kind, "__nv_fmodf")
        return emit(x, y, Word(x.builder, builder.call(fmod, [x.value, y.value])))

    return float32


def _functions() -> dict[str, Any]:
    found = {}
    for table, kinds in (
        (math.FLOAT_FUNCTIONS, math.FLOATS),
        (math.NUMBER_FUNCTIONS, math.NUMBERS),
    ):
        for name, emit in table.items():
            for suffix, kind in kinds.items():
                own = OWN.get((name, suffix), emit)
                if isinstance(own, str):
                    found[f"{name}_{suffix}"] = getattr(libdevice, own)
                    continue
                args = (kind, kind) if name in math.BINARY else (kind,)
                found[f"{name}_{suffix}"] = define(own, kind(*args))
    return found


OWN: dict[tuple[str, str], Any] = {
    ("sin", "f32"): trig.sin, ("cos", "f32"): trig.cos, ("tan", "f32"): trig.tan,
    ("power", "f32"): "powf",
    ("floor_divide", "f32"): _with_fmod(math.floor_divide),
    ("remainder", "f32"): _with_fmod(math.remainder),
}  # fmt: skip


@intrinsic
def mad(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        device = DeviceBuilder(builder)
        return intrinsics.mad(*(Word(device, x) for x in args)).value

    return a(a, a, a), codegen


@intrinsic
def wneg(typing: Any, a: Any) -> Any:
    """-a for integers, wrapping around."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.neg(args[0])

    return a(a), codegen


FUNCTIONS = _functions()
NAMES: dict[str, Any] = {
    **KINDS, **{f"t_{name}": kind for name, kind in KINDS.items()},
    "np": np, "cuda": cuda, "from_f16": types.float32, "mulhi": libdevice.umul64hi, "ld": ld,
    "st": st, "at": at, "pointer": pointer,
    "wadd": same(operator.add), "wsub": same(operator.sub), "wmul": same(operator.mul),
    "wneg": wneg, "mad_f32": mad, "mad_f64": mad,
    "select": select, "pair_add": pair_add, "pair_join": pair_join, "pair_total": pair_total,
    "narrow": define(intrinsics.clamped, types.int32(types.int64)),
    "fmax": same(partial(intrinsic_call, "llvm.maximum")),
    "fmin": same(partial(intrinsic_call, "llvm.minimum")),
}  # fmt: skip
