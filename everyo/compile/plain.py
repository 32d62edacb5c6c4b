"""The prelude in plain Python and NumPy scalars: the same kernel text runs un-jitted.

A kernel gets real addresses here too, so tests run the text itself, on tiny shapes. Every access
checks that it stays within the memory of the call, every store that the value has its slot's type.
"""

import bisect
import ctypes
import itertools
import math
import operator
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from everyo.compile import interpret, tiles
from everyo.compile.philox import philox

CTYPES: dict[str, tuple[Any, Any]] = {
    "f32": (ctypes.c_float, np.float32), "f64": (ctypes.c_double, np.float64),
    "i32": (ctypes.c_int32, np.int32), "i64": (ctypes.c_int64, np.int64),
    "u64": (ctypes.c_uint64, np.uint64), "b8": (ctypes.c_bool, np.bool_),
    "f16": (ctypes.c_uint16, np.float16),
}  # fmt: skip
WORDS = re.compile(r"[A-Za-z_]\w*")
ACCESS = re.compile(r"(ld|st)\d+")


def scope(text: str) -> dict[str, Any]:
    """The global names that a kernel's text uses."""
    names = {}
    for word in set(WORDS.findall(text)):
        op, _, kind = word.rpartition("_")
        if ACCESS.fullmatch(word):
            names[word] = load if word.startswith("ld") else store
        elif word in NAMES:
            names[word] = NAMES[word]
        elif kind in CTYPES and (op in OWN or hasattr(np, op)):
            names[word] = _scalar_function(op, kind)
        else:
            shape = tiles.named(word)
            if shape is not None:
                names[word] = _on_tiles(*shape)
    return names


class Memory:
    """The address ranges that kernels may touch."""

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.highs: list[int] = []

    def allow(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Allow these ranges and no others; those that touch count as one."""
        self.lows, self.highs = [], []
        for low, high in sorted(ranges):
            if self.highs and low <= self.highs[-1]:
                self.highs[-1] = max(self.highs[-1], high)
            else:
                self.lows.append(low)
                self.highs.append(high)

    def check(self, address: int, size: int) -> None:
        k = bisect.bisect_right(self.lows, address) - 1
        if k < 0 or address + size > self.highs[k]:
            raise IndexError(f"address {address:#x} lies outside the memory of the call")


MEMORY = Memory()


class Pointer:
    """A typed address."""

    def __init__(self, address: int, kind: str) -> None:
        ctype, self.type = CTYPES[kind]
        self.address, self.size = int(address), ctypes.sizeof(ctype)
        self.data = ctypes.cast(self.address, ctypes.POINTER(ctype))


def load(p: Pointer, i: int) -> Any:
    MEMORY.check(p.address + int(i) * p.size, p.size)
    value = p.data[i]
    return np.uint16(value).view(np.float16) if p.type is np.float16 else p.type(value)


def store(p: Pointer, i: int, value: Any) -> None:
    MEMORY.check(p.address + int(i) * p.size, p.size)
    boolean = p.type is np.bool_ and isinstance(value, bool)
    if not boolean and type(value) is not p.type:
        raise TypeError(f"{type(value)} stored as {p.type}")
    if p.type is np.float16:
        value = value.view(np.uint16)
    p.data[i] = value if boolean else value.item()


def radd(a: Any, b: Any) -> Any:
    return a + b


def rmul(a: Any, b: Any) -> Any:
    return a * b


def fmax(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def fmin(a: Any, b: Any) -> Any:
    return np.minimum(a, b)


def select(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


def from_f16(x: Any) -> Any:
    return np.float32(x)


def bits_f32(word: Any) -> Any:
    return np.int64(word).astype(np.int32).view(np.float32)


def bits_f64(word: Any) -> Any:
    return np.int64(word).view(np.float64)


def narrow(x: Any) -> Any:
    return np.int32(min(max(int(x), -1), 2**31 - 1))


def pair_add(total: Any, error: Any, x: Any) -> tuple[Any, Any]:
    """Add x to the sum total + error."""
    s = total + x
    back = s - total
    return s, error + ((total - (s - back)) + (x - back))


def pair_total(total: Any, error: Any) -> Any:
    return total + error if math.isfinite(error) else total


def mulhi(a: Any, b: Any) -> Any:
    """The upper 64 bits of a product of two words."""
    return np.uint64((int(a) * int(b)) >> 64)


def words(address: int) -> Any:
    """The int64 words from an address on."""
    return ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int64))


def peek(address: int) -> int:
    return words(address)[0]


def poke(address: int, value: int) -> None:
    words(address)[0] = value


FUNCTIONS: weakref.WeakValueDictionary[int, Callable[..., None]] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def enter(kernel: Callable[..., None]) -> int:
    """The address of a kernel, for as long as it lives."""
    address = next(_NUMBERS)
    FUNCTIONS[address] = kernel
    return address


def call(function: int, pointers: int, chunk: int, chunks: int) -> None:
    FUNCTIONS[function](words(pointers), chunk, chunks)


def _on_tiles(what: str, kind: str, shape: tiles.Tile) -> Callable[..., None]:
    """See `microkernel`."""

    def turn(b: int, cb: int, to: int) -> None:
        for i, j in itertools.product(range(shape.lanes), repeat=2):
            column = Pointer(b + words(cb)[i], kind)
            store(Pointer(to, kind), j * shape.width + i, load(column, j))

    def tile(
        a: int, ra: int, ka: int, b: int, lead: int, depth: int, c: int, rc: int, first: Any,
        columns: int = shape.width,
    ) -> None:  # fmt: skip
        right = [Pointer(b + d * lead, kind) for d in range(depth)]
        totals = []
        for r in range(shape.rows):
            left = [load(Pointer(a + words(ra)[r] + words(ka)[d], kind), 0) for d in range(depth)]
            out = Pointer(c + words(rc)[r], kind)
            for j in range(columns):
                total = out.type(0)
                for x, row in zip(left, right, strict=True):
                    total = total + x * load(row, j)
                totals.append((out, j, total if first else load(out, j) + total))
        for out, j, total in totals:
            store(out, j, total)

    return turn if what == "turn" else tile


def call_with(function: int, chunk: int, *given: int) -> None:
    table = (ctypes.c_int64 * len(given))(*given)
    FUNCTIONS[function](table, chunk, 0)


def _cast(kind: str) -> Callable[[Any], Any]:
    scalar = np.dtype(CTYPES[kind][1])

    def cast(x: Any) -> Any:
        if scalar.kind in "iu" and type(x) is int:  # an index or a literal: the low bits
            return np.array(x % 2**64, np.uint64).astype(scalar)[()]
        return np.asarray(x).astype(scalar)[()]

    return cast


def _pointer(kind: str) -> Callable[[int], Pointer]:
    return lambda address: Pointer(address, kind)


def _scalar_function(op: str, kind: str) -> Callable[..., Any]:
    """NumPy's own function, rounded to the dtype of the kernel."""
    function, scalar = OWN.get(op) or getattr(np, op), CTYPES[kind][1]

    def apply(*args: Any) -> Any:
        return np.asarray(function(*map(np.asarray, args))).astype(scalar)[()]

    return apply


WRAPPING: dict[str, Callable[..., Any]] = {
    "wadd": operator.add, "wsub": operator.sub, "wmul": operator.mul, "wneg": operator.neg,
}  # fmt: skip
OWN = {"erf": interpret.erf, "sigmoid": interpret.sigmoid}
HELPERS = (
    radd,
    rmul,
    fmax,
    fmin,
    select,
    bits_f32,
    bits_f64,
    from_f16,
    narrow,
    pair_add,
    pair_total,
    mulhi,
    philox,
    peek,
    poke,
    call,
    call_with,
)
NAMES: dict[str, Any] = {
    "np": np, "usz": int, "abreast": range, **WRAPPING, **{f.__name__: f for f in HELPERS},
    **{kind: _cast(kind) for kind in CTYPES}, **{f"p_{kind}": _pointer(kind) for kind in CTYPES},
}  # fmt: skip
