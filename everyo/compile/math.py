"""The scalar functions that kernels inline, by the name of the op and the type: `exp_f32`, …

Each is a Numba intrinsic, written once over `Word`s for every type it has: bit tricks, selects and
polynomials, without branches, tables or calls, so that a loop around it fills vectors. Floating
results are within 2 ulp of the true value for every argument, subnormal ones too; zeros, infinities
and NaN are NumPy's, and so are the integers. Only integer power and the remainders of floats loop.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from everyo.compile import math_exp, math_power, math_trig
from everyo.compile.intrinsics import (
    DOUBLE,
    Word,
    copysign,
    define,
    floor,
    intrinsic_call,
    loop,
    where,
)
from everyo.compile.math_exp import FORMATS, INF, NAN, head


def magnitude(x: Word) -> Word:
    return abs(x) if x.is_float else where(x < 0, -x, x)


def sign(x: Word) -> Word:
    """-1, 0 or 1; NaN for NaN. The sign of -0.0 is 0.0, as NumPy has it."""
    one, zero = (1.0, 0.0) if x.is_float else (1, 0)
    s = where(x > zero, one, where(x < zero, -one, x))
    return where(x == zero, zero, s)


def ceil(x: Word) -> Word:
    return intrinsic_call("llvm.ceil", x)


def rint(x: Word) -> Word:
    return intrinsic_call("llvm.rint", x)


def fmod(x: Word, y: Word) -> Word:
    """x - trunc(x/y)*y, exactly, for float64: long division, 26 bits of the quotient at a time."""
    a, b = abs(x), abs(y)
    valid = (a < INF) & (b > 0.0)  # neither is NaN then
    a, b = where(valid, a, 0.0), where(valid, b, 1.0)
    # Where the quotient overflows, first by b*2**1400 and b*2**700: the remainder stays the same.
    shift = 2.0**700
    far = where(b < 2.0**-400, b * shift, b) * shift

    def step(r: Word, d: Word) -> tuple[Word, Word]:
        high = head(d)
        q = r / d
        short = q < 2.0**26
        unit = where(short, 1.0, (q.bits() & FORMATS[64].exponent).float() * 2.0**-25)
        q = where(short, floor(q), head(q))
        r = (r - q * high) - q * (d - high)  # both products and both differences are exact
        r = where(r < 0.0, r + unit * d, r)  # where the division had rounded q up
        nearer = d * (1 / shift)
        return r, where(r < d, where(nearer > b, nearer, b), d)

    r, _ = loop(lambda r, d: r >= b, step, a, where(a / b < 2.0**1000, b, far))
    return where(valid, copysign(r, x), NAN)


def fmod_of(x: Word, y: Word) -> Word:
    return fmod(x.cast(DOUBLE), y.cast(DOUBLE)).cast(x.type) if x.width == 32 else fmod(x, y)


def remainder(x: Word, y: Word, m: Word | None = None) -> Word:
    """The remainder that has the sign of y; 0 for an integer y of 0. `m` is fmod(x, y) if known."""
    if x.is_float:
        m = fmod_of(x, y) if m is None else m
        moved = where((m < 0.0) ^ (y < 0.0), m + y, m)
        return where((m == 0.0) & (y != 0.0), copysign(m, y), moved)
    safe, direct = divisor(y)
    m = x % safe
    m = where((m != 0) & ((m ^ safe) < 0), m + safe, m)
    return where(direct, 0, m)


def floor_divide(x: Word, y: Word, m: Word | None = None) -> Word:
    """The quotient rounded down; 0 for an integer y of 0. `m` is fmod(x, y) if known."""
    if x.is_float:
        m = fmod_of(x, y) if m is None else m
        q = (x - m) / y
        q = where((m != 0.0) & ((m < 0.0) ^ (y < 0.0)), q - 1.0, q)
        whole = floor(q)
        whole = where(q - whole > 0.5, whole + 1.0, whole)
        whole = where(q == 0.0, copysign(q.like(0.0), x / y), whole)
        return where(y == 0.0, x / y, whole)
    safe, direct = divisor(y)
    q, m = x / safe, x % safe
    q = where((m != 0) & ((m ^ safe) < 0), q - 1, q)
    return where(direct, -(x & y), q)  # y is 0 or -1


def divisor(y: Word) -> tuple[Word, Word]:
    """y, or 1 where a division would trap (by 0, and the least integer by -1), and whether so."""
    direct = (y == 0) | (y == -1)
    return where(direct, 1, y), direct


def power(x: Word, y: Word) -> Word:
    if x.is_float:
        return math_power.power(x, y)

    def step(result: Word, base: Word, rest: Word) -> tuple[Word, Word, Word]:
        odd = (rest & 1) == 1
        return where(odd, result * base, result), base * base, rest >> 1

    return loop(lambda result, base, rest: rest != 0, step, x.like(1), x, y)[0]


ROUNDING: tuple[Callable[..., Word], ...] = (floor, ceil, rint)
FLOAT_FUNCTIONS = {
    f.__name__: f
    for f in (*ROUNDING, *math_exp.FUNCTIONS, *math_power.FUNCTIONS, *math_trig.FUNCTIONS)
}
NUMBER_FUNCTIONS: dict[str, Callable[..., Word]] = {
    "abs": magnitude, "sign": sign, "power": power, "floor_divide": floor_divide,
    "remainder": remainder,
}  # fmt: skip
BINARY = {"power", "arctan2", "floor_divide", "remainder"}
FLOATS: dict[str, Any] = {"f32": types.float32, "f64": types.float64}
NUMBERS = FLOATS | {"i32": types.int32, "i64": types.int64}


def build() -> dict[str, Any]:
    found = {}
    for functions, kinds in ((FLOAT_FUNCTIONS, FLOATS), (NUMBER_FUNCTIONS, NUMBERS)):
        for name, emit in functions.items():
            for suffix, kind in kinds.items():
                args = (kind, kind) if name in BINARY else (kind,)
                found[f"{name}_{suffix}"] = define(emit, kind(*args))
    return found


FUNCTIONS = build()
globals().update(FUNCTIONS)
