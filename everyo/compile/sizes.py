"""Sizes and numbers become run-time values, so that kernels of other sizes are the same text.

A growing sequence then needs no new machine code per length, and layers of different width share
theirs. Literal stays what LLVM makes something of: small sizes, steps of the innermost loop, powers
of two. Everything else is read from the kernel's table once, before the rows.
"""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from everyo.compile.ir import F32, F64, I32, I64, require
from everyo.compile.program import (
    Address,
    Clamp,
    Counter,
    Digit,
    Divide,
    Extent,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Number,
    Share,
    Slot,
    Statement,
    Store,
    Value,
)

RUNTIME = 16  # known trip counts from here on make LLVM unroll first and then not vectorise
MOST_ROWS = 1 << 32  # division by multiplication is exact below
FREE = {"add", "subtract", "multiply", "divide"}  # a run-time operand costs these nothing
CHOICES = {"where", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
Indexed = TypeVar("Indexed", bound=Address | Counter | Load | Store)


def sized(kernel: Kernel) -> Kernel:
    """The kernel with its sizes and numbers in its table."""
    return _Sizes(kernel).kernel


def inverse(size: int) -> int:
    """The word whose product with x < MOST_ROWS has x // size in its upper half."""
    require(RUNTIME <= size < MOST_ROWS, "no division by multiplication for", size)
    return -(-(1 << 64) // size)


class _Sizes:
    """Rewrites statements and collects what must be read from the table before them."""

    def __init__(self, kernel: Kernel) -> None:
        self.slots = list(kernel.slots)
        self.head: list[Statement] = []
        self.known: dict[tuple[int, np.dtype], str] = {}
        for s in kernel.body:
            if isinstance(s, Extent):
                self.known[self.slots[s.slot].elements, I64] = s.name
        shares = [s.total for s in kernel.body if isinstance(s, Share)]
        rows = [self.slots_of(kernel, total) for total in shares]
        self.divides = all(r < MOST_ROWS for r in rows)
        own = [s for s in kernel.body if isinstance(s, Extent)]
        body = self.body([s for s in kernel.body if not isinstance(s, Extent)], "")
        for k, slot in enumerate(self.slots):
            if slot.per_chunk and slot.elements >= RUNTIME:
                step = self.slot(slot.elements * slot.dtype.itemsize)
                self.slots[k] = replace(slot, step=step)
        text = (*own, *self.head, *body)
        self.kernel = replace(kernel, slots=tuple(self.slots), body=text)

    @staticmethod
    def slots_of(kernel: Kernel, total: int | str) -> int:
        if isinstance(total, int):
            return total
        (extent,) = (s for s in kernel.body if isinstance(s, Extent) and s.name == total)
        return kernel.slots[extent.slot].elements

    # ------------------------------------------------------------------ the table

    def slot(self, word: int) -> int:
        """The table entry that holds a word."""
        for k, s in enumerate(self.slots):
            if s.what == "count" and s.elements == word:
                return k
        self.slots.append(Slot("count", None, I64, word))
        return len(self.slots) - 1

    def size(self, n: int) -> str:
        """The name of a size."""
        if (n, I64) not in self.known:
            k = self.slot(n)
            self.known[n, I64] = f"n_{k}"
            self.head.append(Extent(f"n_{k}", k))
        return self.known[n, I64]

    def large(self, n: int | str) -> int | str:
        return self.size(n) if isinstance(n, int) and abs(n) >= RUNTIME else n

    def number(self, v: Literal) -> str:
        """The name of a number; the table holds its bits."""
        word = int(v.value) if v.dtype.kind == "i" else bits(float(v.value), v.dtype)
        k = self.slot(word)
        name = f"k_{k}{'' if v.dtype in (F64, I64) else 's'}"
        if Number(name, k, v.dtype) not in self.head:
            self.head.append(Number(name, k, v.dtype))
        return name

    # ------------------------------------------------------------------ statements

    def body(self, body: list[Statement] | tuple[Statement, ...], loop: str) -> list[Statement]:
        """`loop` is the variable of the innermost loop around, if that is over elements."""
        return [t for s in body for t in self.statement(s, loop)]

    def statement(self, s: Statement, loop: str) -> list[Statement]:
        match s:
            case Share(total=int(total)):
                return [replace(s, total=self.size(total))]
            case Loop():
                inside = s.var if s.kind == "inner" else loop
                body = tuple(self.body(s.body, inside))
                start, stop = self.large(s.start), self.large(s.stop)
                return [replace(s, start=start, stop=stop, body=body)]
            case Address() | Counter() | Load() | Store():
                return [self.indexed(s, loop)]
            case Clamp():
                return [replace(s, size=self.large(s.size))]
            case Digit() if self.divides:
                return self.digit(s)
            case Let():
                args = tuple(self.value(s, i, bool(loop)) for i in range(len(s.args)))
                return [replace(s, args=args)]
        return [s]

    def indexed(self, s: Indexed, loop: str) -> Indexed:
        terms = tuple((v, step if v == loop else self.large(step)) for v, step in s.index.terms)
        return replace(s, index=Index(terms, self.large(s.index.offset)))

    def digit(self, s: Digit) -> list[Statement]:
        """Division by a run-time size, as multiplication by its inverse."""
        assert isinstance(s.divisor, int) and isinstance(s.size, int)
        if max(s.divisor, s.size) < RUNTIME:
            return [s]
        out: list[Statement] = []
        of = s.of
        if s.divisor > 1:
            name = f"{s.name}d" if s.size else s.name
            if s.divisor < RUNTIME:
                out.append(Digit(name, of, s.divisor, 0))
            else:
                out.append(Divide(name, "", of, "", self.size(inverse(s.divisor))))
            of = name
        if s.size >= RUNTIME:
            size = self.size(s.size)
            out.append(Divide(f"{s.name}q", s.name, of, size, self.size(inverse(s.size))))
        elif s.size:
            out.append(Digit(s.name, of, 1, s.size))
        return out

    def value(self, s: Let, i: int, inside: bool) -> Value:
        v = s.args[i]
        if not isinstance(v, Literal) or v.dtype not in (F32, F64, I32, I64):
            return v
        if s.op not in FREE | CHOICES or (s.op == "where" and i == 0):
            return v
        if v.dtype.kind == "i":
            return self.number(v) if abs(v.value) >= RUNTIME and s.op != "divide" else v
        return self.number(v) if varies(float(v.value), s.op == "divide" and inside) else v


def varies(v: float, divides: bool) -> bool:
    """Whether a number is read from the table: not if LLVM knows a shortcut for it."""
    if not math.isfinite(v):
        return False
    part, exponent = math.frexp(v)
    if abs(part) == 0.5:  # a power of two: divisions by it are products
        return not divides and abs(exponent - 1) >= 4
    return v != 0


def bits(v: float, dtype: np.dtype) -> int:
    """The bits of a float as the word of a table."""
    return int(np.array(v, dtype).view(I32 if dtype == F32 else I64)[()])
