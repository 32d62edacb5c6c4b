"""sin, cos, tan and their inverses, over `Word`s of either precision.

An argument of any size is reduced exactly and without a branch. With x = m * 2**e and the bits of
1/(2*pi) as one long number, the turns in x modulo 1 are m times the window of that number that
begins at bit e: whole turns fall off the top of an integer product. The window is found by selects.

The coefficients are our own minimax fits, lowest order first.
"""

from collections.abc import Callable
from math import pi

from llvmlite import ir

from everyo.compile.intrinsics import (
    DOUBLE,
    I64,
    Word,
    copysign,
    funnel,
    intrinsic_call,
    mad,
    polynomial,
    where,
)
from everyo.compile.math_exp import FORMATS, INF, NAN, head

TOP = 1 << 63
Angle = Callable[[Word, Word | None], tuple[Word, Word | None]]

# The first 1280 binary digits of 1/(2*pi) after the point.
TURNS = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef1586dc91b8e909374b8"
    "01924bba827464873f877ac72c4a69cfba208d7d4baed1213a671c09ad17df904e64758e60d4ce7d"
    "272117e2ef7e4a0ec7fe25fff7816603fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b"
    "5d49eeb1faf97c5ecf41ce7de294a4ba9afed7ec47e357421580cc11bf1edaeafc33ef0826bd0d87",
    16,
)
# pi/2 and pi/4, rounded, and the rest
HALF_PI = {32: (1.5707963705062866, -4.371139000186243e-08), 64: (pi / 2, 6.123233995736766e-17)}
# sin(x) = x + x*z*q(z) and cos(x) = 1 - z/2 + z*z*q(z), z = x*x, for |x| <= 1
SIN = {
    32: (-0.16666667, 8.333354e-3, -1.9842385e-4, 2.7262981e-6),
    64: (
        -0.16666666666666666, 0.008333333333333106, -0.00019841269841080233, 2.755731914882703e-06,
        -2.505209241667006e-08, 1.605717548745497e-10, -7.533604070577758e-13,
    ),
}  # fmt: skip
COS = {
    32: (4.1666575e-2, -1.3884697e-3, 2.4201614e-5),
    64: (
        0.041666666666666664, -0.0013888888888888514, 2.480158730135513e-05, -2.755731915059538e-07,
        2.0876743972081834e-09, -1.1469433514582998e-11, 4.709160437384621e-14,
    ),
}  # fmt: skip
# arctan(x) = x + x*z*q(z) for |x| <= 0.66
ATAN = {
    32: (-0.3333322, 0.19994801, -0.14204416, 0.10510996, -6.7264184e-2, 2.480506e-2),
    64: (
        -0.33333333333333237, 0.1999999999997667, -0.14285714283726444, 0.11111111025197665,
        -0.09090906876099891, 0.0769227040215146, -0.06666232884979778, 0.05878736952761101,
        -0.052410377280239444, 0.04661119600866954, -0.040029582852161676, 0.031102558094982573,
        -0.019677496093275817, 0.008623599656972753, -0.0018942468933762075,
    ),
}  # fmt: skip
# arcsin(x) = x + x*z*q(z) for |x| <= 0.5
ASIN = {
    32: (0.16666752, 7.4953094e-2, 4.5469154e-2, 2.4184741e-2, 4.21584e-2),
    64: (
        0.16666666666665408, 0.07500000000337141, 0.04464285682822033, 0.030381959141388016,
        0.022371757949816776, 0.017359706140987474, 0.01388522357744467, 0.012169277620007874,
        0.006527741246866688, 0.01952877434446606, -0.016224864823553523, 0.03191257519910989,
    ),
}  # fmt: skip


def words(digits: int, count: int) -> list[int]:
    """`digits` zeros and then the bits of 1/(2*pi), cut into words of 64 bits."""
    return [(TURNS >> (1280 + digits - 64 * (i + 1))) & (2**64 - 1) for i in range(count)]


def fraction(a: Word) -> tuple[Word, Word | None]:
    """The turns in a modulo 1, in 64 bits for a float32 and 128 for a float64, of a >= 1."""
    form = FORMATS[a.width]
    bits = a.bits()
    m = (bits & ((1 << form.digits) - 1)) | (1 << form.digits)
    e = (bits >> form.digits) - form.bias
    return fraction_f32(m, e) if a.width == 32 else fraction_f64(m, e)


def fraction_f32(m: Word, e: Word) -> tuple[Word, None]:
    m, e = m.cast(I64), e.cast(I64)
    k = words(23, 4)
    far = (e & 64) != 0
    a, b, c = (where(far, e.like(k[i + 1]), e.like(k[i])) for i in range(3))
    return m * funnel(a, b, e) + (m * (funnel(b, c, e) >> 32) >> 32), None


def fraction_f64(m: Word, e: Word) -> tuple[Word, Word]:
    window = [e.like(w) for w in words(52, 19)]
    for bit in (3, 2, 1, 0):
        far = (e & (64 << bit)) != 0
        step = 1 << bit
        window = [where(far, window[i + step], window[i]) for i in range(len(window) - step)]
    a, b, c = (funnel(window[i], window[i + 1], e) for i in range(3))
    mask = 2**32 - 1
    m0, m1, b0, b1, c0, c1 = m & mask, m >> 32, b & mask, b >> 32, c & mask, c >> 32
    # m*b to 128 bits, in 32-bit digits; of m*c the upper 64, or 1 less, and of m*a the lower.
    low = m0 * b0
    middle = m0 * b1 + (low >> 32)
    cross = m1 * b0 + (middle & mask)
    high = m1 * b1 + (middle >> 32) + (cross >> 32) + m * a
    low = (cross << 32) | (low & mask)
    last = m1 * c1 + (m0 * c1 >> 32) + (m1 * c0 >> 32)
    total = low + last
    carry = total.below(low).cast(I64)
    return high + carry, total


def quarter(
    x: Word, ahead: int, kind: ir.Type, angle: Angle | None = None
) -> tuple[Word, Word | None, Word, Word]:
    """r, lost, odd, sign of |x| + ahead quarter turns: less n of them, r + lost remains, r of the
    given type and |r| <= pi/4 or r = |x| < 1; n is odd or not, and its second bit is a sign bit.
    `angle` makes r and lost of the turns, by default `radians`."""
    a = abs(x)
    near = a < 1.0
    turns, rest = fraction(a)
    r, lost = (angle or radians)(turns, rest)
    n = ((turns + ((ahead << 62) + (1 << 61))) >> 62).cast(x.bits().type)
    n = where(near, ahead, n)
    if lost is not None:
        lost = where(near, 0.0, lost)
    sign = (n & 2) << (x.width - 2)
    return where(near, a.cast(kind), r.cast(kind)), lost, (n & 1) == 1, sign


def radians(turns: Word, rest: Word | None) -> tuple[Word, Word | None]:
    """What these 64 or 128 bits of turns have beyond the nearest quarter, in radians: a float64,
    and with 128 bits what that lacks."""
    if rest is None:
        return (turns << 2).cast(DOUBLE) * (pi / 2 / 2**64), None
    turns = ((turns + (1 << 61)) & ((1 << 62) - 1)) - (1 << 61)
    # In floats it is a + b1 + b2. a has 26 bits, to nearest, so that b has all digits where a is 0;
    # a and b1 times a head of pi are exact.
    first = (turns + (1 << 35)) & -(1 << 36)
    second = (((turns - first) << 16) | (rest >> 48)).cast(DOUBLE) * 2.0**-16
    third = (rest & ((1 << 48) - 1)).cast(DOUBLE)
    a, b1 = first.cast(DOUBLE), head(mad(third, 2.0**-64, second))
    b2 = mad(third, 2.0**-64, second - b1)
    pi1, pi2, unit = 3.1415926814079285, -2.7818135228334233e-08, 2.0**-63
    large, small = a * (pi1 * unit), b1 * (pi1 * unit)
    both = large + small
    tail = mad(a + b1, pi2 * unit, b2 * (pi * unit)) + ((large - both) + small)
    r = both + tail
    return r, (both - r) + tail


def sine_cosine(r: Word, lost: Word | None, width: int) -> tuple[Word, Word, Word, Word]:
    """sin and cos of r + lost for |r| <= 1, as a result of that width needs them, and what those
    two lack: nothing without `lost`."""
    z = r * r
    cube, p, q = r * z, polynomial(z, SIN[width]), COS[width]
    if lost is None:
        return mad(cube, p, r), polynomial(z, (1.0, -0.5, *q)), r.like(0.0), r.like(0.0)
    half = z * 0.5
    c = 1.0 - half
    s_tail = mad(cube, p, lost * c)
    c_tail = mad(z * z, polynomial(z, q), ((1.0 - c) - half) - r * lost)
    sine, cosine = r + s_tail, c + c_tail
    return sine, cosine, (r - sine) + s_tail, (c - cosine) + c_tail


def finish(y: Word, sign: Word, x: Word) -> Word:
    """y with its sign flipped by a sign bit, and NaN for an infinite x."""
    return where(abs(x) < INF, (y.bits() ^ sign).float(), NAN)


def sign_bit(x: Word) -> Word:
    return x.bits() & (1 << (x.width - 1))


def sin(x: Word) -> Word:
    r, lost, odd, sign = quarter(x, 0, x.type)
    s, c, _, _ = sine_cosine(r, lost, x.width)
    return finish(where(odd, c, s), sign ^ sign_bit(x), x)


def cos(x: Word) -> Word:
    r, lost, odd, sign = quarter(x, 1, x.type)
    s, c, _, _ = sine_cosine(r, lost, x.width)
    return finish(where(odd, c, s), sign, x)


def tan(x: Word) -> Word:
    # The quotient of two rounded values would be off by more than 2 ulp: in float32 both are
    # float64, in float64 what they lack corrects it.
    r, lost, odd, _ = quarter(x, 0, DOUBLE)
    s, c, s_low, c_low = sine_cosine(r, lost, x.width)
    over, under = where(odd, -c, s), where(odd, s, c)
    y = over / under
    if lost is not None:
        y = y + (where(odd, -c_low, s_low) - y * where(odd, s_low, c_low)) / under
    return finish(y.cast(x.type), sign_bit(x), x)


def arcsin(x: Word) -> Word:
    a = abs(x)
    large, s, s_high, s_low, p = arc(a)
    high, low = HALF_PI[x.width]
    rest = (s * p * 2.0 - (low - s_low * 2.0)) - (high / 2 - s_high * 2.0)
    return copysign(where(large, high / 2 - rest, mad(a, p, a)), x)


def arccos(x: Word) -> Word:
    large, s, s_high, s_low, p = arc(abs(x))
    high, low = HALF_PI[x.width]
    right = (s_high + mad(s, p, s_low)) * 2.0
    left = high * 2 - (s + mad(s, p, -low)) * 2.0
    return where(large, where(x < 0.0, left, right), high - (x - (low - x * p)))


def arc(a: Word) -> tuple[Word, Word, Word, Word, Word]:
    """Whether a > 0.5, s = sqrt((1 - a)/2), its two parts, and p; s + s*p = arcsin(s) is half the
    arccosine of a. Where a <= 0.5, p belongs to a itself: arcsin(a) = a + a*p."""
    large = a > 0.5
    z = where(large, (1.0 - a) * 0.5, a * a)
    s = intrinsic_call("llvm.sqrt", z)
    s_high = head(s)
    s_low = (z - s_high * s_high) / (s + (s_high + 1e-30))  # not 0/0 for a = 1
    return large, s, s_high, s_low, z * polynomial(z, ASIN[a.width])


def arctan(x: Word) -> Word:
    return arctan2(x, x.like(1.0))


def arctan2(y: Word, x: Word) -> Word:
    up, along = abs(y), abs(x)
    steep = up > along
    a, b = where(steep, along, up), where(steep, up, along)
    endless = (up == INF) & (along == INF)
    a, b = where(endless, x.like(1.0), a), where(endless, x.like(1.0), b)
    # arctan(a/b) is pi/4 + arctan((a - b)/(a + b)) above 0.66; both are scaled, so that the sum
    # does not overflow and neither is subnormal.
    scale = where(b > 1.0, x.like(0.5), 2.0**60)
    a1, b1 = a * scale, b * scale
    mid = a1 > b1 * 0.66
    over = where(mid, a1 - b1, a)
    under = where(mid, a1 + b1, where(b == 0.0, 1.0, b))
    t = over / under
    z = t * t
    angle = mad(t * z, polynomial(z, ATAN[x.width]), t)
    # The result is an eighth of a turn n times, plus or minus the angle.
    back = x.bits() < 0
    n = where(mid, t.like(1.0), 0.0)
    n = where(steep, 2.0 - n, n)
    n = where(back, 4.0 - n, n)
    angle = where(steep ^ back, -angle, angle)
    high, low = HALF_PI[x.width]
    return copysign(mad(n, high / 2, mad(n, low / 2, angle)), y)


FUNCTIONS: tuple[Callable[..., Word], ...] = (sin, cos, tan, arcsin, arccos, arctan, arctan2)
