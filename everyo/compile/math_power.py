"""Roots and powers, over `Word`s of either precision.

The coefficients are our own minimax fits, lowest order first.
"""

from collections.abc import Callable

from everyo.compile.intrinsics import (
    DOUBLE,
    FLOAT,
    Word,
    copysign,
    floor,
    intrinsic_call,
    mad,
    polynomial,
    where,
)
from everyo.compile.math_exp import FORMATS, INF, NAN, head, power_of_two, scale, split

# 2**w for |w| <= 1/2, in float64: for float32 results and for float64 results
EXP2 = {
    32: (
        1.0, 0.6931472028575494, 0.24022647913304684, 0.05550332465074641, 0.009618437320460235,
        0.001339887706450839, 0.00015353385120528827,
    ),
    64: (
        1.0, 0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.009618129107602066,
        0.0013333558146534396, 0.00015403530447924177, 1.525273366355029e-05,
        1.3215439531266256e-06, 1.0178141253187736e-07, 7.073103459063695e-09,
        4.4424113731987233e-10,
    ),
}  # fmt: skip
# 3*atanh(s) = s*(3 + z + z*z*q(z)), to the precision that float64 power needs
ATANH_FINE = (
    0.6000000000000338, 0.4285714285514948, 0.33333333779843893, 0.27272676556227804,
    0.23080135635940466, 0.1988523772811915, 0.19794363352417005,
)  # fmt: skip
# log2(1 + f) = f*q(f), in float64, to the precision that float32 power needs
LOG2 = (
    1.4426950408687054, -0.7213475204998127, 0.480898359132473, -0.36067371221827305,
    0.28853748832755005, -0.24045196840843533, 0.20616946618884888, -0.18031543602511813,
    0.15884721782429703, -0.14310095240643061, 0.1443386685875575, -0.14275539703651804,
    0.0778450242241218,
)  # fmt: skip
# x**(-1/3) for sqrt(1/2) <= x <= sqrt(2), to be refined
CUBE_ROOT = (1.5581534, -0.76722663, 0.20967123)


def sqrt(x: Word) -> Word:
    return intrinsic_call("llvm.sqrt", x)


def cbrt(x: Word) -> Word:
    a, shifter = abs(x), FORMATS[x.width].shifter
    k, m, _ = split(a)
    t = mad(k, 1 / 3, shifter)
    rest = k - (t - shifter) * 3.0  # -1, 0 or 1

    def of_rest(below: float, middle: float, above: float) -> Word:
        return where(rest < -0.5, below, where(rest > 0.5, x.like(above), middle))

    w = polynomial(m, CUBE_ROOT) * of_rest(2 ** (1 / 3), 1.0, 0.5 ** (1 / 3))
    m = m * of_rest(0.5, 1.0, 2.0)
    for _ in range(1 if x.width == 32 else 2):  # w -> m**(-1/3), each time with thrice the digits
        e = 1.0 - m * w * w * w
        w = w + w * e * mad(e, 2 / 9, 1 / 3)
    square = w * w
    y = m * square
    y = y - mad(y * y, y, -m) * (square * (1 / 3))
    y = copysign(y * power_of_two(t.bits()), x)
    return where((x == 0.0) | ~(a < INF), x, y)


def power(x: Word, y: Word) -> Word:
    a = abs(x)
    # Beyond this exponent every base but 1 gives 0 or infinity.
    far = where(y > 2.0**70, 2.0**70, where(y < -(2.0**70), -(2.0**70), y))
    r = power_f32(a, far) if x.width == 32 else power_f64(a, far)
    infinite = a == INF
    # A base of 0 or infinity: 0 or infinity, whichever the sign of the exponent asks for.
    r = where((a == 0.0) | infinite, where((y > 0.0) ^ infinite, r.like(0.0), INF), r)
    whole = floor(y) == y
    half = y * 0.5
    odd = whole & (floor(half) != half)
    negative = x.bits() < 0
    r = where(negative & odd, -r, r)
    r = where((x < 0.0) & ~infinite & ~whole, NAN, r)
    r = where((x != x) | (y != y), x + y, r)
    return where((y == 0.0) | (x == 1.0), 1.0, r)


def power_f32(a: Word, y: Word) -> Word:
    """a**y for positive finite a, through float64."""
    k, m, _ = split(a)
    f = (m - 1.0).cast(DOUBLE)
    p = mad(f, polynomial(f, LOG2), k.cast(DOUBLE)) * y.cast(DOUBLE)
    p = where(p > 200.0, 200.0, p)
    p = where(p < -200.0, -200.0, p)
    t = p + FORMATS[64].shifter
    w = p - (t - FORMATS[64].shifter)
    return (polynomial(w, EXP2[32]) * power_of_two(t.bits())).cast(FLOAT)


def power_f64(a: Word, y: Word) -> Word:
    """a**y for positive finite a.

    log2(a) = k + 2/(3*log(2)) * s*(3 + z + z*z*q(z)), s = (m - 1)/(m + 1), z = s*s, to 68 bits:
    every factor is a head and a rest, x1 + x2 for x, so that products of heads are exact."""
    k, m, _ = split(a)
    u, v = m + 1.0, m - 1.0
    inverse = 1.0 / u
    s = v * inverse
    s1, u1 = head(s), head(u)
    s2 = ((v - s1 * u1) - s1 * (m - (u1 - 1.0))) * inverse
    z1 = s1 * s1
    z2 = s2 * (s1 + s)
    z = s * s
    tail = mad(z * z, polynomial(z, ATANH_FINE), z2)
    t1 = head(z1 + 3.0 + tail)
    t2 = tail - ((t1 - 3.0) - z1)
    p = s1 * t1
    rest = s2 * t1 + t2 * s
    p1 = head(p + rest)
    p2 = rest - (p1 - p)
    c1, c2 = 0.9617967009544373, -7.028461650952758e-09  # 2/(3*log(2))
    l1 = p1 * c1
    l2 = p1 * c2 + p2 * (c1 + c2)
    g1 = head(k + (l1 + l2))
    g2 = l2 - ((g1 - k) - l1)
    # The exponent y*log2(a) = e1 + e2, e1 exactly, and 2 to it.
    y1 = head(y)
    e1, e2 = y1 * g1, (y - y1) * g1 + y * g2
    top = 1100.0
    over, under = e1 > top, e1 < -top
    e1 = where(over, top, where(under, -top, e1))
    e2 = where(over | under, 0.0, e2)
    t = (e1 + e2) + FORMATS[64].shifter
    w = (e1 - (t - FORMATS[64].shifter)) + e2
    return scale(polynomial(w, EXP2[64]), t.bits())


FUNCTIONS: tuple[Callable[..., Word], ...] = (sqrt, cbrt)
