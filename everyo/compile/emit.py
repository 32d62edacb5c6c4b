"""Loop program -> the text of one kernel, for the CPU: a Python function of typed arithmetic.

A printer is a set of spellings. Another target subclasses `Printer` and respells the loops, the
chunk's share and the pointers; values, indices and folds are the same everywhere. The names the
text uses come from a prelude (`prelude` native, `plain` in Python).
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from everyo.compile.ir import BOOL, F16, F32, F64, I32, require
from everyo.compile.program import (
    KINDS,
    Address,
    Clamp,
    Counter,
    Digit,
    Divide,
    Extent,
    Finish,
    Fold,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Number,
    Share,
    Start,
    Statement,
    Store,
    Value,
)

HEAD = "def kernel(P, chunk, chunks):"
SYMBOLS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "equal": "==", "not_equal": "!=",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "logical_and": "&", "logical_or": "|", "logical_xor": "^",
}  # fmt: skip
# What the symbols above do not say for bool operands.
LOGIC = {
    "equal": "not ({0} ^ {1})", "not_equal": "{0} ^ {1}", "less": "(not {0}) & {1}",
    "less_equal": "(not {0}) | {1}", "greater": "{0} & (not {1})",
    "greater_equal": "{0} | (not {1})", "maximum": "{0} | {1}", "minimum": "{0} & {1}",
    "logical_not": "not {0}",
}  # fmt: skip
INTEGER = {
    "add": "wadd({0}, {1})", "subtract": "wsub({0}, {1})", "multiply": "wmul({0}, {1})",
    "negative": "wneg({0})", "maximum": "max({0}, {1})", "minimum": "min({0}, {1})",
}  # fmt: skip
FLOAT = {
    "maximum": "fmax({0}, {1})", "minimum": "fmin({0}, {1})", "negative": "-{0}", "abs": "abs({0})",
    "isnan": "{0} != {0}", "isinf": "abs({0}) == {inf}", "isfinite": "abs({0}) < {inf}",
}  # fmt: skip
FREE = {"add": "radd({0}, {1})", "multiply": "rmul({0}, {1})"}


def emit(kernel: Kernel) -> str:
    """The text of a kernel for the CPU."""
    return Printer().kernel(kernel)


def literal(value: bool | int | float, dtype: np.dtype) -> str:
    """A typed constant: an untyped one would be computed with in float64."""
    text = repr(value)
    if dtype.kind == "f" and not math.isfinite(value):
        text = "np.nan" if math.isnan(value) else "np.inf" if value > 0 else "-np.inf"
    return f"{KINDS[dtype]}({text})"


def expression(op: str, args: list[str], of: np.dtype, dtype: np.dtype) -> str:
    """op(args) as text, for operands of dtype `of`."""
    kind = KINDS[of]
    if op == "where":
        return f"select({', '.join(args)})"
    if op == "narrow":
        return f"narrow({args[0]})"
    if op == "cast" and of == F16:
        return f"from_f16({args[0]})"
    if op == "cast":
        return (
            f"{args[0]} != {literal(of.type(0).item(), of)}"
            if dtype == BOOL
            else f"{KINDS[dtype]}({args[0]})"
        )
    table = LOGIC if of == BOOL else FLOAT if of.kind == "f" else INTEGER
    if op in table:
        text = table[op].format(*args, inf=literal(math.inf, of) if of.kind == "f" else "")
    elif op in SYMBOLS:
        text = f"{args[0]} {SYMBOLS[op]} {args[1]}"
    else:
        return f"{op}_{kind}({', '.join(args)})"
    return f"i32({text})" if of == I32 == dtype else text  # int32 widens to int64


class Printer:
    """The CPU: rows are a `for` loop, a chunk is a contiguous share of them."""

    def kernel(self, kernel: Kernel) -> str:
        self.slots = kernel.slots
        lines = [*self.pointers(), *self.body(kernel.body)]
        return "\n".join([HEAD, *(f"    {line}" for line in lines)]) + "\n"

    def pointers(self) -> Iterator[str]:
        for k, slot in enumerate(self.slots):
            if slot.what != "count":
                step = f"P[{slot.step}]" if slot.step else slot.elements * slot.dtype.itemsize
                shift = f" + chunk * {step}" if slot.per_chunk else ""
                yield f"p{k} = p_{KINDS[slot.dtype]}(P[{k}]{shift})"

    def body(self, body: Iterable[Statement]) -> Iterator[str]:
        for s in body:
            yield from self.statement(s)

    def value(self, v: Value) -> str:
        return literal(v.value, v.dtype) if isinstance(v, Literal) else v

    def bound(self, b: int | str) -> str:
        return f"usz({b})" if isinstance(b, int) else b

    def index(self, index: Index) -> str:
        terms = [v if s == 1 else f"{v} * {self.bound(s)}" for v, s in index.terms]
        return " + ".join(terms + [self.bound(index.offset)] * (index.offset != 0 or not terms))

    def statement(self, s: Statement) -> Iterator[str]:
        match s:
            case Let():
                args = [self.value(a) for a in s.args]
                yield f"{s.name} = {expression(s.op, args, s.of, s.dtype)}"
            case Counter():
                yield f"{s.name} = {KINDS[s.dtype]}({self.index(s.index)})"
            case Load():
                yield f"{s.name} = ld{s.slot}(p{s.slot}, {self.index(s.index)})"
            case Store():
                yield f"st{s.slot}(p{s.slot}, {self.index(s.index)}, {self.value(s.value)})"
            case Fold():
                yield from self.fold(s)
            case Start():
                yield f"{s.name} = {self.value(s.value)}"
                if s.pair:
                    yield f"{s.name}e = {self.value(s.value)}"
            case Finish():
                yield f"{s.name} = pair_total({s.pair}, {s.pair}e)"
            case Address():
                yield f"{s.name} = {self.index(s.index)}"
            case Digit():
                text = s.of if s.divisor == 1 else f"{s.of} // usz({s.divisor})"
                yield f"{s.name} = {text}" + (f" % usz({s.size})" if s.size else "")
            case Divide():
                yield f"{s.name} = usz(mulhi(u64({s.of}), u64({s.inverse})))"
                if s.rest:
                    yield f"{s.rest} = {s.of} - {s.name} * {s.size}"
            case Clamp():
                last = s.size - 1 if isinstance(s.size, int) else f"{s.size} - usz(1)"
                yield f"{s.name} = usz(max(i64(0), min({self.value(s.value)}, i64({last}))))"
            case Number():
                kind = KINDS[s.dtype]
                yield f"{s.name} = {'bits_' if s.dtype.kind == 'f' else ''}{kind}(P[{s.slot}])"
            case Extent():
                yield f"{s.name} = usz(P[{s.slot}])"
            case Share():
                yield from self.share(s)
            case Loop():
                yield from self.loop(s)

    def fold(self, s: Fold) -> Iterator[str]:
        args = [s.name, self.value(s.value)]
        if s.how == "pair":
            require(s.op == "add" and s.dtype == F64, "no pair for", s)
            yield f"{s.name}, {s.name}e = pair_add({s.name}, {s.name}e, {args[1]})"
        elif s.how == "free" and s.dtype in (F32, F64) and s.op in FREE:
            yield f"{s.name} = {FREE[s.op].format(*args)}"
        else:
            yield f"{s.name} = {expression(s.op, args, s.dtype, s.dtype)}"

    def share(self, s: Share) -> Iterator[str]:
        units = f"{self.bound(s.total)} // usz({s.unit})" if s.unit > 1 else self.bound(s.total)
        times = f" * usz({s.unit})" if s.unit > 1 else ""
        yield f"{s.low} = {units} * usz(chunk) // usz(chunks){times}"
        yield f"{s.high} = {units} * usz(chunk + 1) // usz(chunks){times}"
        if s.unit > 1:
            yield f"{s.high} = {self.bound(s.total)} if chunk + 1 == chunks else {s.high}"

    def loop(self, s: Loop) -> Iterator[str]:
        step = f", usz({s.step})" if s.end else ""
        walk = "abreast" if s.abreast else "range"
        yield f"for {s.var} in {walk}({self.bound(s.start)}, {self.bound(s.stop)}{step}):"
        if s.end:
            yield f"    {s.end} = min({s.var} + usz({s.step}), {self.bound(s.stop)})"
        for line in self.body(s.body):
            yield f"    {line}"
