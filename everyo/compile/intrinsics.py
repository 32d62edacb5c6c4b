"""Functions that become LLVM instructions in the kernel that calls them.

`Word` is an LLVM value while code is being generated: Python operators on it emit instructions, and
numbers take the type of the Word beside them. So a scalar function is written as ordinary Python
over Words, once for every precision, and `define` makes a Numba intrinsic of it: calling one costs
no compilation of its own, and the kernel's loop sees straight-line code. No instruction carries a
fast-math flag, except where a name below says so.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Union

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

Operand = Union["Word", int, float]
FLOAT, DOUBLE, BIT = ir.FloatType(), ir.DoubleType(), ir.IntType(1)
I32, I64 = ir.IntType(32), ir.IntType(64)


class Word:
    """A scalar LLVM value. Comparisons of floats are ordered, so false for NaN, except `!=`.

    Shifts are logical and `<`, `>` on integers signed; division of integers truncates.
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("builder", "value")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def is_float(self) -> bool:
        return self.type in (FLOAT, DOUBLE)

    @property
    def width(self) -> int:
        return {FLOAT: 32, DOUBLE: 64}.get(self.type) or self.type.width

    def like(self, number: Operand) -> "Word":
        """The number as a constant of this word's type."""
        if isinstance(number, Word):
            assert number.type == self.type, f"{number.type} beside {self.type}"
            return number
        if self.type == FLOAT:
            number = struct.unpack("f", struct.pack("f", number))[0]
        return Word(self.builder, ir.Constant(self.type, number))

    def _emit(self, floats: str, integers: str, other: Operand, swap: bool = False) -> "Word":
        a, b = self.value, self.like(other).value
        emit = getattr(self.builder, floats if self.is_float else integers)
        return Word(self.builder, emit(b, a) if swap else emit(a, b))

    def _compare(self, sign: str, other: Operand) -> "Word":
        b = self.builder
        compare = b.icmp_signed if not self.is_float else b.fcmp_ordered
        if self.is_float and sign == "!=":
            compare = b.fcmp_unordered
        return Word(b, compare(sign, self.value, self.like(other).value))

    def __add__(self, other: Operand) -> "Word":
        return self._emit("fadd", "add", other)

    def __sub__(self, other: Operand) -> "Word":
        return self._emit("fsub", "sub", other)

    def __rsub__(self, other: Operand) -> "Word":
        return self._emit("fsub", "sub", other, swap=True)

    def __mul__(self, other: Operand) -> "Word":
        return self._emit("fmul", "mul", other)

    def __truediv__(self, other: Operand) -> "Word":
        return self._emit("fdiv", "sdiv", other)

    def __rtruediv__(self, other: Operand) -> "Word":
        return self._emit("fdiv", "sdiv", other, swap=True)

    def __mod__(self, other: Operand) -> "Word":
        assert not self.is_float, "the remainder of floats would be a call of a library"
        return Word(self.builder, self.builder.srem(self.value, self.like(other).value))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Word":
        return Word(self.builder, self.builder.fneg(self.value)) if self.is_float else 0 - self

    def __abs__(self) -> "Word":
        return intrinsic_call("llvm.fabs", self)

    def __and__(self, other: Operand) -> "Word":
        return Word(self.builder, self.builder.and_(self.value, self.like(other).value))

    def __or__(self, other: Operand) -> "Word":
        return Word(self.builder, self.builder.or_(self.value, self.like(other).value))

    def __xor__(self, other: Operand) -> "Word":
        return Word(self.builder, self.builder.xor(self.value, self.like(other).value))

    def __lshift__(self, other: Operand) -> "Word":
        return Word(self.builder, self.builder.shl(self.value, self.like(other).value))

    def __rshift__(self, other: Operand) -> "Word":
        return Word(self.builder, self.builder.lshr(self.value, self.like(other).value))

    def __invert__(self) -> "Word":
        return self ^ -1

    def __lt__(self, other: Operand) -> "Word":
        return self._compare("<", other)

    def __le__(self, other: Operand) -> "Word":
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> "Word":
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> "Word":
        return self._compare(">=", other)

    def __eq__(self, other: Operand) -> "Word":  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: Operand) -> "Word":  # type: ignore[override]
        return self._compare("!=", other)

    def below(self, other: Operand) -> "Word":
        """Whether this integer is less than the other, both without a sign."""
        b = self.builder
        return Word(b, b.icmp_unsigned("<", self.value, self.like(other).value))

    def bits(self) -> "Word":
        """The bit pattern of a float."""
        return Word(self.builder, self.builder.bitcast(self.value, ir.IntType(self.width)))

    def float(self) -> "Word":
        """The float that has this bit pattern."""
        kind = FLOAT if self.width == 32 else DOUBLE
        return Word(self.builder, self.builder.bitcast(self.value, kind))

    def cast(self, kind: ir.Type) -> "Word":
        """The same number in another type: wider or narrower float, float of a signed integer,
        integer cut to fewer bits or extended with zeros."""
        b, v = self.builder, self.value
        if kind == self.type:
            return self
        if self.is_float:
            return Word(b, b.fpext(v, kind) if kind == DOUBLE else b.fptrunc(v, kind))
        if kind in (FLOAT, DOUBLE):
            return Word(b, b.sitofp(v, kind))
        return Word(b, b.trunc(v, kind) if kind.width < self.width else b.zext(v, kind))


def where(condition: Word, a: Operand, b: Operand) -> Word:
    """An LLVM select of two values, both computed; at least one of them is a Word."""
    word = a if isinstance(a, Word) else b
    assert isinstance(word, Word), f"select of the numbers {a} and {b}"
    a, b = word.like(a), word.like(b)
    return Word(word.builder, word.builder.select(condition.value, a.value, b.value))


def intrinsic_call(name: str, *args: Word, flags: Sequence[str] = ()) -> Word:
    """A call of the LLVM intrinsic whose operands and result all have one type."""
    builder, kind = args[0].builder, args[0].type
    function = builder.module.declare_intrinsic(
        name, [kind], ir.FunctionType(kind, [kind] * len(args))
    )
    return Word(builder, builder.call(function, [a.value for a in args], fastmath=tuple(flags)))


def mad(a: Operand, b: Operand, c: Operand) -> Word:
    """a * b + c, rounded once where the machine has such an instruction and twice elsewhere."""
    word = next(w for w in (a, b, c) if isinstance(w, Word))
    return intrinsic_call("llvm.fmuladd", word.like(a), word.like(b), word.like(c))


def copysign(a: Word, b: Word) -> Word:
    return intrinsic_call("llvm.copysign", a, b)


def floor(x: Word) -> Word:
    return intrinsic_call("llvm.floor", x)


def funnel(a: Word, b: Word, shift: Word) -> Word:
    """The upper half of the two integers side by side, shifted left by less than a width."""
    return intrinsic_call("llvm.fshl", a, b, shift)


def loop(
    going: Callable[..., Word], step: Callable[..., tuple[Word, ...]], *state: Word
) -> tuple[Word, ...]:
    """while going(*state): state = step(*state)"""
    builder = state[0].builder
    entry = builder.block
    head, body, end = (builder.append_basic_block(n) for n in ("while", "step", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    phis = [builder.phi(w.type) for w in state]
    now = tuple(Word(builder, p) for p in phis)
    builder.cbranch(going(*now).value, body, end)
    builder.position_at_end(body)
    following = step(*now)
    for phi, before, after in zip(phis, state, following, strict=True):
        phi.add_incoming(before.value, entry)
        phi.add_incoming(after.value, builder.block)
    builder.branch(head)
    builder.position_at_end(end)
    return now


def polynomial(x: Word, coefficients: Sequence[float]) -> Word:
    """The polynomial with these coefficients, constant term first, by Horner's rule."""
    p = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        p = mad(p, x, c)
    return p


def define(emit: Callable[..., Word], signature: Any) -> Any:
    """The Numba intrinsic of this signature (one or two arguments) that emits `emit(*words)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return emit(*(Word(builder, a) for a in args)).value

    def unary(context: Any, a: Any) -> Any:
        return signature, codegen

    def binary(context: Any, a: Any, b: Any) -> Any:
        return signature, codegen

    return intrinsic(named(emit, unary if len(signature.args) == 1 else binary))


def same(emit: Callable[[Word, Word], Word]) -> Any:
    """The intrinsic T(T, T) for every T."""

    def typing(context: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
            return emit(Word(builder, args[0]), Word(builder, args[1])).value

        return a(a, a), codegen

    return intrinsic(named(emit, typing))


def named(source: Callable, function: Callable) -> Callable:
    function.__name__ = function.__qualname__ = source.__name__
    function.__doc__ = source.__doc__
    return function


@intrinsic
def select(typing: Any, c: Any, a: Any, b: Any) -> Any:
    """a where c holds, else b; both are computed, so loops with it still fill vectors."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return builder.select(*args)

    return a(types.boolean, a, a), codegen


@same
def fmax(a: Word, b: Word) -> Word:
    """The larger one; NaN if either is. The sign of a zero is left open: three times as fast."""
    if a.is_float:
        return intrinsic_call("llvm.maximum", a, b, flags=["nsz"])
    return a | b if a.type == BIT else where(a > b, a, b)


@same
def fmin(a: Word, b: Word) -> Word:
    """The smaller one; NaN if either is."""
    if a.is_float:
        return intrinsic_call("llvm.minimum", a, b, flags=["nsz"])
    return a & b if a.type == BIT else where(a < b, a, b)


@same
def radd(a: Word, b: Word) -> Word:
    """An addition that may be reassociated: the accumulation of a sum, and nothing else."""
    if not a.is_float:
        return a + b
    return Word(a.builder, a.builder.fadd(a.value, b.value, flags=("reassoc", "nsz")))


@same
def rmul(a: Word, b: Word) -> Word:
    """A multiplication that may be reassociated: the accumulation of a product."""
    if not a.is_float:
        return a * b
    return Word(a.builder, a.builder.fmul(a.value, b.value, flags=("reassoc", "nsz")))


def clamped(x: Word) -> Word:
    """int64 -> int32, clamped to [-1, 2**31 - 1]: comparing it with an index in [0, 2**31 - 1)
    gives what comparing x gives."""
    x = where(x < -1, -1, x)
    return where(x > 2**31 - 1, 2**31 - 1, x).cast(I32)


narrow = define(clamped, types.int32(types.int64))
