"""What the arithmetic instructions of PTX compute, on arrays with one element per thread.

`execute(op, kind, args)` gives the result of an instruction from its operands. Every operand has
the type that the instruction names; the result is stored by its size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.compile.cuda.ptx import TYPES, PTXError

Array = Any
ROUND = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
WIDE: dict[Any, Any] = {
    np.int16: np.int32, np.uint16: np.uint32, np.int32: np.int64, np.uint32: np.uint64,
}  # fmt: skip
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
LOGIC: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def bits(a: Array, dtype: Any) -> Array:
    """The same bits as another type; a narrower or wider integer is cut or extended."""
    dtype = np.dtype(dtype)
    a = np.asarray(a)
    if a.dtype == dtype:
        return a
    if a.dtype == np.bool_ or dtype == np.bool_ or a.dtype.itemsize != dtype.itemsize:
        return a.astype(dtype)
    return a.view(dtype)


def execute(op: Sequence[str], args: Sequence[Array]) -> Array:
    """The result of an arithmetic instruction; the operands have the type of its last part."""
    name, kind = op[0], TYPES[op[-1]]
    function = TABLE.get(name)
    if function is None:
        raise PTXError(f"no instruction {'.'.join(op)}")
    return function(op, kind, *args)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if a.dtype == np.float32:
        wide = a.astype(np.float64) * b.astype(np.float64)  # exact
        return _odd_sum(wide, c.astype(np.float64)).astype(np.float32)
    p, e = _product(a, b)
    s, t = _sum(p, c)
    plain = a * b + c
    exact = s + (t + e)
    return np.where(np.isfinite(exact) & (np.abs(p) < 1e290) & (np.abs(p) > 1e-250), exact, plain)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd, so that rounding it again to float32 rounds only once."""
    s, lost = _sum(a, b)
    even = (s.view(np.int64) & 1) == 0
    away = even & (lost != 0) & np.isfinite(s) & np.isfinite(lost)
    return np.where(away, np.nextafter(s, np.where(lost > 0, np.inf, -np.inf)), s)


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and what was lost."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and what was lost, by splitting both factors in half."""
    p = a * b
    a1, b1 = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
    a2, b2 = a - a1, b - b1
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def _mad(op: Sequence[str], kind: Any, a: Array, b: Array, c: Array) -> Array:
    if np.dtype(kind).kind == "f":
        return fma(a, b, c)
    return _multiply(op, kind, a, b) + c


def _multiply(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    if "wide" in op:
        return a.astype(WIDE[kind]) * b.astype(WIDE[kind])
    if "hi" in op:
        return _high(kind, a, b)
    return a * b


def _high(kind: Any, a: Array, b: Array) -> Array:
    """The upper half of a product of integers."""
    if kind in WIDE:
        half = 8 * np.dtype(kind).itemsize
        return ((a.astype(WIDE[kind]) * b.astype(WIDE[kind])) >> half).astype(kind)
    if kind is np.uint64:
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
        middle = a1 * b0 + (a0 * b0 >> shift)
        cross = a0 * b1 + (middle & low)
        return a1 * b1 + (middle >> shift) + (cross >> shift)
    unsigned = _high(np.uint64, a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    return unsigned - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


def _divide(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    if np.dtype(kind).kind == "f":
        return a / b
    if (np.asarray(b) == 0).any():
        raise PTXError(f"integer division by zero: {'.'.join(op)}")
    q = np.floor_divide(a, b)
    return (
        q + ((a % b != 0) & ((a < 0) ^ (b < 0))).astype(kind) if np.dtype(kind).kind == "i" else q
    )


def _remainder(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    if (np.asarray(b) == 0).any():
        raise PTXError(f"integer remainder by zero: {'.'.join(op)}")
    return np.fmod(a, b)


def _extreme(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    keep_nan = "NaN" in op or np.dtype(kind).kind != "f"
    table = (np.maximum, np.fmax) if op[0] == "max" else (np.minimum, np.fmin)
    return table[0 if keep_nan else 1](a, b)


def _shift(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    width = 8 * np.dtype(kind).itemsize
    count = np.asarray(b)
    near = np.minimum(count, width - 1).astype(kind)
    if op[0] == "shl":
        return np.where(count >= width, kind(0), a << near)
    return a >> near if np.dtype(kind).kind == "i" else np.where(count >= width, kind(0), a >> near)


def _funnel(op: Sequence[str], kind: Any, low: Array, high: Array, count: Array) -> Array:
    """32 bits of the 64 of (high, low): the upper ones after a left shift, or the lower ones."""
    n = np.minimum(count, 32) if "clamp" in op else count & np.uint32(31)
    both = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    n = n.astype(np.uint64)
    moved = (both << n) >> np.uint64(32) if "l" in op else both >> n
    return (moved & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _negate(op: Sequence[str], kind: Any, a: Array) -> Array:
    return -a if np.dtype(kind).kind == "f" else ~a + kind(1)


def _not(op: Sequence[str], kind: Any, a: Array) -> Array:
    return ~a


def _logic(op: Sequence[str], kind: Any, a: Array, b: Array) -> Array:
    return LOGIC[op[0]](a, b)


def _three(op: Sequence[str], kind: Any, a: Array, b: Array, c: Array, table: Array) -> Array:
    """lop3: any function of three bits, given by the table of its eight results."""
    out = np.zeros_like(a)
    for i in range(8):
        if int(table) >> i & 1:
            parts = (x if i >> k & 1 else ~x for x, k in ((a, 2), (b, 1), (c, 0)))
            first, second, third = parts
            out = out | (first & second & third)
    return out


def _dot(op: Sequence[str], kind: Any, a: Array, b: Array, c: Array) -> Array:
    """c + the products of the two halves (dp2a) or four bytes (dp4a) of a with bytes of b."""
    count = 2 if op[0] == "dp2a" else 4
    start = 2 if "hi" in op else 0  # of the bytes
    total = np.asarray(c).astype(np.int64)
    for i in range(count):
        total = total + _part(a, 32 // count, i, op[-2]) * _part(b, 8, start + i, op[-1])
    return total.astype(kind)


def _part(word: Array, size: int, i: int, kind: str) -> Array:
    """The i-th so many bits of a word, as a number of this kind of sign."""
    part = np.asarray(word).astype(np.int64) >> (size * i) & ((1 << size) - 1)
    return part - ((part >> (size - 1)) << size) if kind[0] == "s" else part


def _insert(op: Sequence[str], kind: Any, a: Array, b: Array, start: Array, length: Array) -> Array:
    """bfi: the low bits of a, put over those of b from `start` on."""
    width = 8 * np.dtype(kind).itemsize
    at, count = int(start), min(int(length), width - int(start))
    mask = ((1 << count) - 1) << at
    return (b & kind(~mask & (2**width - 1))) | ((a << kind(at)) & kind(mask))


def _count(op: Sequence[str], kind: Any, a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def _leading(op: Sequence[str], kind: Any, a: Array) -> Array:
    width = 8 * np.dtype(kind).itemsize
    return np.array([width - int(x).bit_length() for x in np.ravel(a)], np.uint32)


def compare(op: Sequence[str], a: Array, b: Array) -> Array:
    """setp: ordered comparisons are false for NaN, those with a u true."""
    sign = op[1]
    if a.dtype.kind != "f":
        return COMPARE[sign](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if sign in ("num", "nan"):
        return unordered if sign == "nan" else ~unordered
    if sign.endswith("u"):
        return COMPARE[sign[:-1]](a, b) | unordered
    return COMPARE[sign](a, b) & ~unordered


def convert(op: Sequence[str], a: Array) -> Array:
    """cvt: to the next to last type from the last; floats to integers saturate, NaN gives 0."""
    target, source = TYPES[op[-2]], TYPES[op[-1]]
    to, of = np.dtype(target), np.dtype(source)
    rounding = next((ROUND[p] for p in op if p in ROUND), None)
    if of.kind != "f":
        return np.asarray(a).astype(target)
    if rounding is not None:
        a = rounding(a)
    if to.kind == "f":
        return a.astype(target)
    limits = np.iinfo(target)
    wide = np.asarray(a).astype(np.float64)
    inside = (wide > float(limits.min) - 1) & (wide < float(limits.max))
    whole: Any = np.where(inside, wide, 0).astype(target)
    whole = np.where(wide >= float(limits.max), target(limits.max), whole)
    return np.where(wide <= float(limits.min), target(limits.min), whole).astype(target)


def _rounded(function: Callable[[Array], Array]) -> Callable[..., Array]:
    """A function that the machine approximates, here rounded from float64."""

    def apply(op: Sequence[str], kind: Any, a: Array) -> Array:
        return np.asarray(function(np.asarray(a).astype(np.float64))).astype(kind)

    return apply


TABLE: dict[str, Callable[..., Array]] = {
    "add": lambda op, kind, a, b: a + b, "sub": lambda op, kind, a, b: a - b, "mul": _multiply,
    "fma": _mad, "mad": _mad, "div": _divide, "rem": _remainder, "neg": _negate, "not": _not,
    "abs": lambda op, kind, a: np.abs(a), "min": _extreme, "max": _extreme, "and": _logic,
    "or": _logic, "xor": _logic, "shl": _shift, "shr": _shift, "shf": _funnel, "lop3": _three,
    "rcp": lambda op, kind, a: (1.0 / a).astype(kind),
    "sqrt": lambda op, kind, a: np.sqrt(a),
    "rsqrt": _rounded(lambda a: 1 / np.sqrt(a)), "ex2": _rounded(np.exp2),
    "lg2": _rounded(np.log2), "sin": _rounded(np.sin), "cos": _rounded(np.cos),
    "tanh": _rounded(np.tanh), "copysign": lambda op, kind, a, b: np.copysign(b, a),
    "bfi": _insert, "dp2a": _dot, "dp4a": _dot, "popc": _count, "clz": _leading,
}  # fmt: skip
