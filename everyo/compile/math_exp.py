"""Exponentials and logarithms, over `Word`s of either precision.

The argument is brought into a short range by bit tricks, a polynomial does the rest, and selects
put in what neither gives. `mad` rounds once or twice, depending on the machine; everything whose
rounding matters is written with plain operations. The coefficients are our own minimax fits, lowest
order first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from everyo.compile.intrinsics import (
    Word,
    copysign,
    mad,
    polynomial,
    where,
)

INF, NAN = math.inf, math.nan
PER_LOG2, PER_LOG10 = 1 / math.log(2.0), 1 / math.log(10.0)

# e**r = 1 + r + r*r*q(r) for |r| <= log(2)/2
EXP = {
    32: (0.5, 0.1666655, 4.1666858e-2, 8.365814e-3, 1.3897095e-3),
    64: (
        0.5, 0.16666666666666602, 0.04166666666662645, 0.008333333333389816, 0.0013888888918048004,
        0.00019841269702858329, 2.4801519284193464e-05, 2.755743367957565e-06,
        2.7621110876490453e-07, 2.5042386760979873e-08,
    ),
}  # fmt: skip
# log(1 + f) = f - f*f/2 + f**3*q(f) for sqrt(1/2) <= 1 + f <= sqrt(2)
LOG = (
    0.3333333, -0.2500082, 0.20001242, -0.16623403, 0.14201553, -0.13159697, 0.127625, -7.636314e-2,
)  # fmt: skip
# 2*atanh(s) = 2*s + s*z*q(z), z = s*s, for the same range of (1 + s)/(1 - s)
ATANH = (
    0.6666666666666734, 0.3999999999941664, 0.2857142874212918, 0.2222219858279114,
    0.18183564607842587, 0.15314025573180545, 0.14796359402734405,
)  # fmt: skip
# y*coth(y) = q(z), z = y*y, for |y| < 0.258
COTH = {
    32: (1.0, 0.3333294, -2.2029001e-2),
    64: (
        1.0, 0.33333333333333319, -0.022222222222178717, 0.0021164021121345357,
        -0.00021164001916655934, 2.1373407550145939e-05, -2.1150080654573278e-06,
    ),
}  # fmt: skip
# sinh(x) = x + x*z*q(z) for |x| < 1
SINH = {
    32: (0.16666667, 8.3333105e-3, 1.9842896e-4, 2.7822132e-6),
    64: (
        0.16666666666666669, 0.008333333333332912, 0.0001984126984159341, 2.7557319106755775e-06,
        2.505213099918033e-08, 1.6056659089142298e-10, 7.77660459609073e-13,
    ),
}  # fmt: skip
# erf(x) = x + x*q(z) for |x| < 1
ERF = {
    32: (
        0.12837917, -0.37612626, 0.11283579, -2.6853347e-2, 5.187162e-3, -7.997853e-4, 7.806904e-5,
    ),
    64: (
        0.12837916709551256, -0.37612638903183354, 0.1128379167093744, -0.026866170642031534,
        0.00522397759724214, -0.0008548325503991115, 0.00012055280886941407,
        -1.4924469481781757e-05, 1.6444150949830016e-06, -1.6183625501059852e-07,
        1.3613506906134843e-08, -7.598845437081336e-10,
    ),
}  # fmt: skip
# -log(1 - erf(x)) for 1 <= x <= 4 (float32), 6 (float64)
ERFC = {
    32: (
        3.4131086e-4, 1.12709, 0.63814366, 0.10310766, -2.1838453e-2, 2.947749e-3, -1.8638858e-4,
    ),
    64: (
        5.025809820233939e-07, 1.1283740919555612, 0.6366436174727442, 0.10270346752465015,
        -0.018990229828396776, -0.0004105600253986284, 0.0019158749171493583,
        -0.0007705899079431163, 0.0001350178828764623, 2.0282246372445594e-05,
        -2.2828391910957154e-05, 8.668907218725811e-06, -2.1360764225217443e-06,
        3.733719843935509e-07, -4.643163429748007e-08, 3.935023385938816e-09,
        -2.0453738942542215e-10, 4.929651576358996e-12,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    """What the algorithms need to know about a precision."""

    digits: int  # bits of the mantissa that are stored
    bias: int  # of the exponent
    log2: tuple[float, float]  # log(2): a part that any exponent multiplies exactly, and the rest
    log10: tuple[float, float]  # log10(2), the same way
    overflow: float  # exp of it is infinite
    underflow: float  # exp below it is 0

    @property
    def one(self) -> int:
        """The bits of 1.0, also the bits of the exponent that 2**0 has."""
        return self.bias << self.digits

    @property
    def exponent(self) -> int:
        """The bits of the exponent: those of infinity."""
        return (2 * self.bias + 1) << self.digits

    @property
    def shifter(self) -> float:
        """Adding it rounds to an integer and leaves that in the low bits."""
        return 1.5 * 2.0**self.digits


FORMATS = {
    32: Format(
        23, 127, (0.693145751953125, 1.4286068203094173e-06),
        (0.301025390625, 4.605038981195214e-06), 89.0, -103.98,
    ),
    64: Format(
        52, 1023, (0.6931471805601177, -1.7239444525614835e-13),
        (0.3010299956640665, -8.532344317057107e-14), 710.0, -745.14,
    ),
}  # fmt: skip


# Exponentials


def reduce_exp(x: Word) -> tuple[Word, Word, Word]:
    """n, r, t with x = n*log(2) + r, |r| <= log(2)/2 and the integer n in the low bits of t."""
    form = FORMATS[x.width]
    t = mad(x, PER_LOG2, form.shifter)
    n = t - form.shifter
    return n, mad(n, -form.log2[1], mad(n, -form.log2[0], x)), t.bits()


def power_of_two(n: Word) -> Word:
    """2**n as a float for an integer n, given in the low bits, whose power is a normal number."""
    form = FORMATS[n.width]
    return ((n << form.digits) + form.one).float()


def scale(p: Word, n: Word) -> Word:
    """p * 2**n for any n that the exponents of a result and twice its negative span. The power is
    multiplied in two halves, so that a subnormal or infinite product is rounded once."""
    half = n >> 1  # n is padded with zeros on the left: its halves add up modulo the exponent
    return p * power_of_two(half) * power_of_two(n - half)


def head(x: Word) -> Word:
    """The first half of the mantissa, 26 bits or 12: products of two such are exact."""
    return (x.bits() & -(1 << (FORMATS[x.width].digits + 2) // 2)).float()


def exp_polynomial(r: Word) -> Word:
    return polynomial(r, (1.0, 1.0, *EXP[r.width]))


def exp_below(x: Word) -> Word:
    """exp for arguments that cannot overflow."""
    # Below `underflow` the result is a selected 0: to multiply down to it would pass subnormals.
    zero = x < FORMATS[x.width].underflow
    _, r, n = reduce_exp(where(zero, 0.0, x))
    return where(zero, 0.0, scale(exp_polynomial(r), n))


def exp(x: Word) -> Word:
    top = FORMATS[x.width].overflow
    return exp_below(where(x > top, top, x))


def expm1(x: Word) -> Word:
    form = FORMATS[x.width]
    low = -0.75 * form.digits
    y = where(x > form.overflow, form.overflow, x)
    y = where(y < low, low, y)
    n, r, bits = reduce_exp(y)
    # What rounding r lost: the result has the size of r.
    lost = mad(n, -form.log2[1], mad(n, -form.log2[0], y) - r)
    tail = mad(polynomial(r, EXP[x.width]), r * r, lost)
    # Half the result, (2**n*(1 + r + tail) - 1)/2, as 2**n itself may overflow.
    s = power_of_two(bits - 1)
    half = mad(s, tail, mad(s, r, s - 0.5))
    return where(abs(x) < 2.0 ** -(form.digits + 2), x, half + half)


def half_exp(x: Word) -> Word:
    """exp(x)/2 for x >= 0, without an overflow before the result's own."""
    top = FORMATS[x.width].overflow + 1
    _, r, n = reduce_exp(where(x > top, top, x))
    return scale(exp_polynomial(r), n - 1)


def sinh(x: Word) -> Word:
    a = abs(x)
    z = a * a
    e = half_exp(a)
    small = mad(a * z, polynomial(z, SINH[x.width]), a)
    return copysign(where(a < 1.0, small, e - 0.25 / e), x)


def cosh(x: Word) -> Word:
    e = half_exp(abs(x))
    return e + 0.25 / e


def tanh(x: Word) -> Word:
    form = FORMATS[x.width]
    a = abs(x)
    top = 0.4 * form.digits  # tanh of it rounds to 1
    c = where(a > top, top, a)
    # c = n*log(2)/2 + y. A new n starts with its largest error; the first one does so where tanh
    # passes 1/4, for an ulp is large just above a power of 2. Six bits below n put the step there;
    # in the place of n stands the exponent of 2**(n-1). n is small: log(2)/2 needs no second part.
    shifter = form.shifter * 2.0**-6 + (form.bias - 1)
    t = mad(c, 2.0 * PER_LOG2, shifter + 0.25).bits() & -64
    y = mad(t.float() - shifter, -0.5 * math.log(2.0), c)
    half = (t << form.digits - 6).float() - 0.5  # (2**n - 1)/2
    q = polynomial(y * y, COTH[x.width])
    # exp(2y) = (q + y)/(q - y), and tanh = s/(s + 2) with s = exp(2c) - 1, here times q - y
    s = mad(half, q + y, y)
    return copysign(s / (s + (q - y)), x)


def sigmoid(x: Word) -> Word:
    e = exp_below(-abs(x))
    # e*(1 - t) and 1 - t, which have fewer roundings than e/(1 + e) and 1/(1 + e).
    n = where(x < 0.0, e, 1.0)
    return mad(-n, e / (e + 1.0), n)


def erf(x: Word) -> Word:
    a = abs(x)
    top = {32: 4.0, 64: 6.0}[x.width]  # erf of it rounds to 1
    _, r, n = reduce_exp(-polynomial(where(a > top, top, a), ERFC[x.width]))
    large = 1.0 - exp_polynomial(r) * power_of_two(n)
    small = mad(a, polynomial(a * a, ERF[x.width]), a)
    return copysign(where(a < 1.0, small, large), x)


# Logarithms


def split(x: Word) -> tuple[Word, Word, Word]:
    """k, m, e with x = m * 2**k, sqrt(1/2) <= m < sqrt(2), k as a float and e = (k + bias) in place
    as the bits of an exponent; of a positive number."""
    form = FORMATS[x.width]
    tiny = x < 2.0 ** (1 - form.bias)
    bits = where(tiny, x * 2.0**form.digits, x).bits()
    root = x.like(0.5**0.5).bits()
    e = bits - root + form.one
    k = ((e >> form.digits) | x.like(2.0**form.digits).bits()).float()
    offset = 2.0**form.digits + form.bias
    e = e & form.exponent
    return k - where(tiny, k.like(offset + form.digits), offset), (bits - e + form.one).float(), e


def log_tail(f: Word) -> Word:
    """log(1 + f) - f for sqrt(1/2) <= 1 + f <= sqrt(2)."""
    if f.width == 32:
        return f * f * polynomial(f, (-0.5, *LOG))
    s, h = f / (f + 2.0), f * f * 0.5
    z = s * s
    return mad(s, mad(z, polynomial(z, ATANH), h), -h)


def log_edges(y: Word, x: Word) -> Word:
    """y where x is positive and finite, and the logarithm of x elsewhere."""
    return where(x < 0.0, NAN, where(x == 0.0, -INF, where(x < INF, y, x)))


def log(x: Word) -> Word:
    k, m, _ = split(x)
    f, (high, low) = m - 1.0, FORMATS[x.width].log2
    return log_edges(mad(k, high, f + mad(k, low, log_tail(f))), x)


def log1p(x: Word) -> Word:
    form = FORMATS[x.width]
    u = x + 1.0
    k, m, e = split(u)
    # f = (1 + x)*2**-k - 1 rounded once, not from the rounded sum; far out, where the power could
    # underflow, the sum is as good.
    s = (2 * form.one - e).float()
    f = where(k > float(form.digits), m - 1.0, x * s + (s - 1.0))
    y = mad(k, form.log2[0], f + mad(k, form.log2[1], log_tail(f)))
    return where(x == 0.0, x, log_edges(y, u))


def log2(x: Word) -> Word:
    k, m, _ = split(x)
    f = m - 1.0
    return log_edges(k + (f + log_rest(f, 0.4426950408889634074, PER_LOG2)), x)


def log10(x: Word) -> Word:
    k, m, _ = split(x)
    f, (high, low) = m - 1.0, FORMATS[x.width].log10
    rest = mad(k, low, log_rest(f, -0.06570551809674817235, PER_LOG10))
    return log_edges(mad(k, high, mad(f, 0.5, rest)), x)


def log_rest(f: Word, over: float, unit: float) -> Word:
    """log(1 + f)*unit less f times a short number near the unit, which it exceeds by `over`."""
    return mad(f, over, log_tail(f) * unit)


FUNCTIONS: tuple[Callable[..., Word], ...] = (
    exp, expm1, sinh, cosh, tanh, sigmoid, erf, log, log1p, log2, log10,
)  # fmt: skip
