"""The pointwise ops that ONNX lacks, written with those it has.

Each method takes and returns names of values and is called like the op of the IR. Where the obvious
formula would lose digits or NaNs, another is used.
"""

import math
from typing import Any

import numpy as np


class Scalars:
    """The pointwise ops that ONNX lacks, in terms of those it has, for operands of one dtype."""

    def __init__(self, emit: Any, dtype: np.dtype) -> None:
        self.emit, self.dtype = emit, dtype

    def number(self, value: float) -> str:
        return self.emit.constant(value, self.dtype)

    def not_equal(self, a: str, b: str) -> str:
        return self.emit("Not", self.emit("Equal", a, b))

    def isfinite(self, x: str) -> str:
        return self.emit("Not", self.emit("Or", self.emit("IsNaN", x), self.emit("IsInf", x)))

    def sign(self, x: str) -> str:
        found = self.emit("Sign", x)
        return found if self.dtype.kind != "f" else self._nan_of(found, x)

    def _nan_of(self, found: str, *operands: str) -> str:
        """`found`, but NaN where an operand is."""
        for x in operands:
            found = self.emit("Where", self.emit("IsNaN", x), x, found)
        return found

    def maximum(self, a: str, b: str) -> str:
        return self.emit("Max", a, b)

    def minimum(self, a: str, b: str) -> str:
        return self.emit("Min", a, b)

    def expm1(self, x: str) -> str:
        """tanh(x / 2) * (exp(x) + 1), which is exact near 0."""
        half = self.emit("Tanh", self.emit("Mul", x, self.number(0.5)))
        return self.emit("Mul", half, self.emit("Add", self.emit("Exp", x), self.number(1)))

    def log1p(self, x: str) -> str:
        """log(u) * x / (u - 1) with u = 1 + x, which is exact near 0."""
        emit, one = self.emit, self.number(1)
        u = emit("Add", x, one)
        logarithm = emit("Log", u)
        small = emit("Div", emit("Mul", logarithm, x), emit("Sub", u, one))
        found = emit("Where", emit("Greater", x, one), logarithm, small)
        return emit("Where", emit("Equal", u, one), x, found)

    def log2(self, x: str) -> str:
        return self.emit("Mul", self.emit("Log", x), self.number(1 / math.log(2)))

    def log10(self, x: str) -> str:
        return self.emit("Mul", self.emit("Log", x), self.number(1 / math.log(10)))

    def cbrt(self, x: str) -> str:
        root = self.emit("Pow", self.emit("Abs", x), self.number(1 / 3))
        return self.emit("Mul", self.sign(x), root)

    def arctan2(self, y: str, x: str) -> str:
        """The angle from that of (|x|, |y|), by quadrant; the signs of zeros count."""
        emit, zero = self.emit, self.number(0)
        angle = emit("Atan", emit("Div", emit("Abs", y), emit("Abs", x)))
        origin = emit("And", emit("Equal", y, zero), emit("Equal", x, zero))
        corner = emit("And", emit("IsInf", y), emit("IsInf", x))
        angle = emit("Where", origin, zero, angle)
        angle = emit("Where", corner, self.number(math.pi / 4), angle)
        turned = emit("Sub", self.number(math.pi), angle)
        angle = emit("Where", self._negative(x), turned, angle)
        return emit("Where", self._negative(y), emit("Neg", angle), angle)

    def _negative(self, x: str) -> str:
        """Whether the sign bit is set: 1 / -0 is negative."""
        zero = self.number(0)
        sign = self.emit("Where", self.emit("Equal", x, zero), self.emit("Reciprocal", x), x)
        return self.emit("Less", sign, zero)

    def remainder(self, a: str, b: str) -> str:
        emit = self.emit
        if self.dtype.kind != "f":
            zero = emit("Equal", b, self.number(0))
            safe = emit("Where", zero, self.number(1), b)
            return emit("Where", zero, self.number(0), emit("Mod", a, safe))
        r = emit("Mod", a, b, fmod=1)
        zero = self.number(0)
        apart = emit("Xor", emit("Less", r, zero), emit("Less", b, zero))
        moved = emit("And", emit("Not", emit("Equal", r, zero)), apart)
        return emit("Where", moved, emit("Add", r, b), r)

    def floor_divide(self, a: str, b: str) -> str:
        emit, zero = self.emit, self.number(0)
        by_zero = emit("Equal", b, zero)
        rest = emit("Sub", a, self.remainder(a, b))
        if self.dtype.kind == "f":
            whole = emit("Round", emit("Div", rest, b))
            return emit("Where", by_zero, emit("Div", a, b), whole)
        safe = emit("Where", by_zero, self.number(1), b)
        return emit("Where", by_zero, zero, emit("Div", rest, safe))
