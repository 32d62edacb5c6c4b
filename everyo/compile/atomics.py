"""Words that several threads share: atomic loads, stores, additions and exchanges, as intrinsics.

Addresses are integers. Everything is sequentially consistent: these run a few times per launch.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

_WORD = ir.IntType(64)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def atomic_load(typing: Any, address: Any) -> Any:
    """The word at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typing: Any, address: Any, value: Any) -> Any:
    """Set the word at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at an address; the word before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_claim(typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set the word at an address to `value` if it is `expected`; whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that this is a waiting loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        triple = builder.module.triple
        if triple.startswith(("x86_64", "amd64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        elif triple.startswith(("aarch64", "arm64")):
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            hint = builder.module.declare_intrinsic("llvm.aarch64.hint", (), kind)
            builder.call(hint, [ir.Constant(ir.IntType(32), 1)])
        return context.get_dummy_value()

    return types.void(), codegen


ATOMICS = {f.__name__: f for f in (atomic_load, atomic_store, atomic_add, atomic_claim, pause)}
