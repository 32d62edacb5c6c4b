"""Half precision in kernels: 16 bits in memory, the float32 of their value in registers.

Loads and stores convert exactly; only `f16(x)`, the cast, rounds. The conversions are arithmetic on
integers that fills vectors on any machine, whether or not it has instructions for halves.
"""

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.extending import intrinsic

from everyo.compile.intrinsics import BIT, DOUBLE, FLOAT, I32, Word, copysign, where

I16 = ir.IntType(16)
SMALLEST = 2.0**-14  # the smallest half with a full significand
LARGEST = 65504.0
DROPPED = 13  # bits of a float32 significand that a half does not have
ODD = 1 << DROPPED  # the last bit that is kept
INFINITE = 0x7C00  # as a half
QUIET = 0x7E00  # NaN


class Half(types.Type):
    """The Numba type of a half."""

    def __init__(self) -> None:
        super().__init__(name="everyo_half")


HALF = Half()


@register_default(Half)
class _HalfModel(models.PrimitiveModel):
    """A float in registers, 16 bits in memory."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOAT)

    def get_data_type(self) -> ir.Type:
        return I16

    def as_data(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return to_bits(Word(builder, value)).value

    def from_data(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return from_bits(Word(builder, value)).value


@intrinsic
def f16(typing: Any, x: Any) -> Any:
    """A number rounded to a half, ties to even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        word = Word(builder, args[0])
        if word.type == BIT:
            word = word.cast(I32).cast(FLOAT)
        elif not word.is_float:
            word = word.cast(DOUBLE)
        return rounded(word).value

    return HALF(x), codegen


@intrinsic
def from_f16(typing: Any, x: Any) -> Any:
    """The float32 of a half, which is what a register holds already."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return args[0]

    return types.float32(HALF), codegen


def rounded(x: Word) -> Word:
    """The nearest number that a half can hold, ties to even, as a float32."""
    if x.type == DOUBLE:
        x = to_odd(x)
    size = abs(x)
    bits = size.bits()
    normal = ((bits + (ODD // 2 - 1) + ((bits >> DROPPED) & 1)) & -ODD).float()
    small = (size + 0.5) - 0.5  # from 0.5 on, float32 has the digits of the smallest halves
    near = where(size < SMALLEST, small, normal)
    near = where(near > LARGEST, math.inf, near)
    return copysign(where(size == size, near, size), x)


def to_odd(x: Word) -> Word:
    """float64 -> float32, towards zero, and where that is inexact the last bit set: rounding the
    result once more is like rounding x."""
    near = x.cast(FLOAT)
    back = near.cast(DOUBLE)
    cut = where(abs(back) > abs(x), near.bits() - 1, near.bits())
    return (cut | (back != x).cast(I32)).float()


def to_bits(x: Word) -> Word:
    """The 16 bits of a float32 that a half can hold."""
    size = abs(x)
    normal = (size.bits() >> DROPPED) - ((127 - 15) << 10)
    small = (size + 0.5).bits() - 0x3F000000  # less the bits of 0.5
    finite = where(size < SMALLEST, small, normal)
    beyond = where(size == size, finite.like(INFINITE), QUIET)
    return (where(size <= LARGEST, finite, beyond) | ((x.bits() >> 16) & 0x8000)).cast(I16)


def from_bits(h: Word) -> Word:
    """The float32 of 16 bits."""
    wide = h.cast(I32)
    size = (wide & 0x7FFF) << DROPPED
    finite = (size.float() * 2.0**112).bits()  # exact, for the smallest too
    held = where(size < (INFINITE << DROPPED), finite, size | 0x7F800000)
    return (held | ((wide & 0x8000) << 16)).float()
