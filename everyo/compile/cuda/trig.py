"""sin, cos and tan of float32 without float64.

The argument is reduced as on the CPU, to 64 bits of a turn; these become an angle in two floats,
and the polynomials work as they do for float64: with what the rounded angle lacks beside it.
"""

from everyo.compile.intrinsics import FLOAT, I64, Word, mad, where
from everyo.compile.math_trig import finish, quarter, sign_bit, sine_cosine

# pi/2 / 2**64: a float32 and the rest
UNIT = (float.fromhex("0x1.921fb6p-64"), float.fromhex("-0x1.777a5cp-89"))


def radians(turns: Word, rest: Word | None) -> tuple[Word, Word]:
    """What these 64 bits of turns have beyond the nearest quarter, in radians: a float32, and what
    that lacks."""
    quarters = turns << 2
    high = quarters.cast(FLOAT)
    # Rounding to 24 bits lost this much; where it rounded up to 2**63 the difference wraps around.
    back = Word(high.builder, high.builder.fptosi((high * 0.5).value, I64)) << 1
    low = (quarters - back).cast(FLOAT)
    r = high * UNIT[0]
    lost = mad(high, UNIT[0], -r) + mad(low, UNIT[0], high * UNIT[1])
    s = r + lost
    return s, (r - s) + lost


def sin(x: Word) -> Word:
    r, lost, odd, sign = quarter(x, 0, FLOAT, radians)
    s, c, _, _ = sine_cosine(r, lost, 32)
    return finish(where(odd, c, s), sign ^ sign_bit(x), x)


def cos(x: Word) -> Word:
    r, lost, odd, sign = quarter(x, 1, FLOAT, radians)
    s, c, _, _ = sine_cosine(r, lost, 32)
    return finish(where(odd, c, s), sign, x)


def tan(x: Word) -> Word:
    r, lost, odd, _ = quarter(x, 0, FLOAT, radians)
    s, c, s_low, c_low = sine_cosine(r, lost, 32)
    over, under = where(odd, -c, s), where(odd, s, c)
    over_low, under_low = where(odd, -c_low, s_low), where(odd, s_low, c_low)
    q = over / under
    y = q + (mad(-q, under, over) + (over_low - q * under_low)) / under
    return finish(y, sign_bit(x), x)
