"""The loop program: one kernel as frozen statements, printable and checked.

A kernel gets a table of slots and its chunk, `(P, chunk, chunks)`. Values have dtypes; indices are
sums of `variable * stride`. Printers of the targets turn this into text; only the spelling of the
loops and of the chunk's share differs between them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from everyo.compile import ir
from everyo.compile.ir import BOOL, F32, F64, Node, require

FOLDS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
KINDS = {
    ir.BOOL: "b8", ir.I32: "i32", ir.I64: "i64", ir.F16: "f16", ir.F32: "f32", ir.F64: "f64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Literal:
    """A typed constant."""

    value: bool | int | float
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{KINDS[self.dtype]}({self.value!r})"


Value = str | Literal


@dataclass(frozen=True, slots=True)
class Index:
    """offset + sum of variable * stride; strides and offset are numbers or names of sizes."""

    terms: tuple[tuple[str, int | str], ...] = ()
    offset: int | str = 0

    def __str__(self) -> str:
        terms = [f"{v}*{s}" if s != 1 else v for v, s in self.terms]
        return " + ".join(terms + [str(self.offset)] * (self.offset != 0 or not terms))


@dataclass(frozen=True, slots=True)
class Let:
    """name = op(args); `of` is the dtype of the operands, `dtype` that of the result."""

    name: str
    op: str
    args: tuple[Value, ...]
    of: np.dtype
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.name}: {KINDS[self.dtype]} = {self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Counter:
    """name = an index as a value: int64, or int32 beside what `narrow` gave."""

    name: str
    index: Index
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.name}: {KINDS[self.dtype]} = {self.index}"


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    slot: int
    index: Index

    def __str__(self) -> str:
        return f"{self.name} = slot{self.slot}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Store:
    slot: int
    index: Index
    value: Value

    def __str__(self) -> str:
        return f"slot{self.slot}[{self.index}] = {self.value}"


@dataclass(frozen=True, slots=True)
class Fold:
    """name = op(name, value); `name` is an accumulator.

    `how`: "free" may be reordered, "strict" not, "pair" keeps a second word of precision.
    """

    name: str
    op: str
    value: Value
    dtype: np.dtype
    how: str

    def __str__(self) -> str:
        return f"{self.name} = {self.op} {self.how} {self.name}, {self.value}"


@dataclass(frozen=True, slots=True)
class Start:
    """An accumulator and its first value; `pair` if it has a second word."""

    name: str
    value: Literal
    pair: bool = False

    def __str__(self) -> str:
        return f"{self.name} := {self.value}{' pair' if self.pair else ''}"


@dataclass(frozen=True, slots=True)
class Finish:
    """name = the sum that a pair accumulator holds."""

    name: str
    pair: str

    def __str__(self) -> str:
        return f"{self.name} = total {self.pair}"


@dataclass(frozen=True, slots=True)
class Address:
    """name = index: the part of an address that is known once per row."""

    name: str
    index: Index

    def __str__(self) -> str:
        return f"{self.name} = {self.index}"


@dataclass(frozen=True, slots=True)
class Digit:
    """name = of // divisor % size; a size of 0 takes no remainder."""

    name: str
    of: str
    divisor: int
    size: int

    def __str__(self) -> str:
        return f"{self.name} = {self.of} // {self.divisor}" + (
            f" % {self.size}" if self.size else ""
        )


@dataclass(frozen=True, slots=True)
class Divide:
    """name = of // size, rest = of % size, by the inverse of a size (see `sizes.inverse`); both may
    be left out."""

    name: str
    rest: str
    of: str
    size: str
    inverse: str

    def __str__(self) -> str:
        rest = f"; {self.rest} = {self.of} - {self.name} * {self.size}" if self.rest else ""
        return f"{self.name} = {self.of} by {self.inverse}{rest}"


@dataclass(frozen=True, slots=True)
class Clamp:
    """name = an int64 value as an index within [0, size)."""

    name: str
    value: Value
    size: int | str

    def __str__(self) -> str:
        return f"{self.name} = clamp({self.value}, {self.size})"


@dataclass(frozen=True, slots=True)
class Number:
    """name = a number of the table; of a float it holds the bits."""

    name: str
    slot: int
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.name} = {KINDS[self.dtype]} in slot{self.slot}"


@dataclass(frozen=True, slots=True)
class Extent:
    """name = a size that is known at run time only."""

    name: str
    slot: int

    def __str__(self) -> str:
        return f"{self.name} = slot{self.slot}"


@dataclass(frozen=True, slots=True)
class Share:
    """low, high = what this chunk does of `total`, cut at multiples of `unit`."""

    low: str
    high: str
    total: int | str
    unit: int

    def __str__(self) -> str:
        return f"{self.low}, {self.high} = share({self.total}, {self.unit})"


@dataclass(frozen=True, slots=True)
class Loop:
    """for var in range(start, stop); with `step` > 1 the loop is over blocks, up to `end`.

    `kind`: "grid" iterations are independent but for accumulators, "block" and "inner" are serial.
    `abreast`: long and full of arithmetic, so that several vectors belong side by side.
    """

    var: str
    start: int | str
    stop: int | str
    body: tuple["Statement", ...]
    kind: str = "inner"
    step: int = 1  # above 0
    end: str = ""
    abreast: bool = False

    def __str__(self) -> str:
        step = f" step {self.step} to {self.end}" if self.end else ""
        return f"{self.kind} {self.var} in {self.start}..{self.stop}{step}:"


Statement = (
    Let
    | Counter
    | Load
    | Store
    | Fold
    | Start
    | Finish
    | Address
    | Digit
    | Divide
    | Clamp
    | Number
    | Extent
    | Share
    | Loop
)


@dataclass(frozen=True)
class Slot:
    """One entry of a kernel's table.

    what: "array" (of a node), "partial" and "scratch" (`elements` per chunk), "count" (`elements`
    is the word itself). `step` is the slot that holds the bytes per chunk, if one does.
    """

    what: str
    node: Node | None
    dtype: np.dtype
    elements: int = 0
    step: int | None = None

    @property
    def per_chunk(self) -> bool:
        return self.what in ("partial", "scratch")


@dataclass(frozen=True)
class Combine:
    """The chunks' partial results of slot `partial` (wide) fold into the value of `node`."""

    partial: int
    node: Node


@dataclass(frozen=True, eq=False)
class Kernel:
    slots: tuple[Slot, ...]
    body: tuple[Statement, ...]
    chunks: int
    combines: tuple[Combine, ...]
    work: float  # estimated nanoseconds

    def __str__(self) -> str:
        head = [
            f"slot{i}: {s.what} {KINDS[s.dtype]} {s.elements or ''}"
            for i, s in enumerate(self.slots)
        ]
        return "\n".join([*head, *_lines(self.body, 0)])


def accesses(kernel: Kernel) -> list[int]:
    """The array slots that a kernel reads and those that it writes; one that it does both with
    comes twice."""
    found: set[tuple[bool, int]] = set()
    stack = list(kernel.body)
    while stack:
        s = stack.pop()
        if isinstance(s, Loop):
            stack += s.body
        elif isinstance(s, Load | Store) and kernel.slots[s.slot].what == "array":
            found.add((isinstance(s, Store), s.slot))
    return [slot for _, slot in sorted(found)]


def first(op: str, dtype: np.dtype) -> Literal:
    """What a fold starts from."""
    if op in ("sum", "prod"):
        return Literal(dtype.type(op == "prod").item(), dtype)
    if dtype == BOOL:
        return Literal(op == "min", dtype)
    if dtype.kind == "f":
        return Literal(-math.inf if op == "max" else math.inf, dtype)
    limits = np.iinfo(dtype)
    return Literal(int(limits.min if op == "max" else limits.max), dtype)


def wide(op: str, dtype: np.dtype) -> np.dtype:
    """The dtype in which partial results of a fold meet."""
    return F64 if op == "sum" and dtype == F32 else dtype


def paired(op: str, dtype: np.dtype) -> bool:
    """Whether partial results meet in two words: float64 has nothing wider."""
    return op == "sum" and dtype == F64


def _lines(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    for s in body:
        yield "    " * depth + str(s)
        if isinstance(s, Loop):
            yield from _lines(s.body, depth + 1)


def check(kernel: Kernel) -> None:
    """Raise `IRError` if a name is unknown or assigned twice, or a slot or dtype does not fit."""
    _Checker(kernel).body(kernel.body, {})


class _Checker:
    """Walks a kernel with the dtypes of the names in scope; indices have dtype None."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def body(self, body: tuple[Statement, ...], names: dict[str, np.dtype | None]) -> None:
        for s in body:
            self.statement(s, names)

    def new(self, names: dict, name: str, dtype: np.dtype | None, what: Statement) -> None:
        require(name not in names, "assigned twice:", name, "by", what)
        names[name] = dtype

    def index(self, index: Index, names: dict, what: Statement) -> None:
        strides = [x for _, x in index.terms if isinstance(x, str)]
        offset = [index.offset] if isinstance(index.offset, str) else []
        for name in [*(v for v, _ in index.terms), *strides, *offset]:
            require(name in names and names[name] is None, "not an index:", name, "in", what)

    def dtype(self, value: Value, names: dict, what: Statement) -> np.dtype | None:
        if isinstance(value, Literal):
            return value.dtype
        require(value in names, "unknown name:", value, "in", what)
        return names[value]

    def slot(self, k: int, whats: tuple[str, ...], what: Statement) -> Slot:
        require(0 <= k < len(self.kernel.slots), "no slot", k, "for", what)
        require(self.kernel.slots[k].what in whats, "wrong slot", k, "for", what)
        return self.kernel.slots[k]

    def statement(self, s: Statement, names: dict[str, np.dtype | None]) -> None:
        memory = ("array", "partial", "scratch")
        match s:
            case Let():
                kinds = [self.dtype(a, names, s) for a in s.args]
                first = 1 if s.op == "where" else 0
                require(all(k == s.of for k in kinds[first:]), "operands", kinds, "of", s)
                self.new(names, s.name, s.dtype, s)
            case Counter():
                self.index(s.index, names, s)
                self.new(names, s.name, s.dtype, s)
            case Load():
                self.index(s.index, names, s)
                self.new(names, s.name, self.slot(s.slot, memory, s).dtype, s)
            case Store():
                self.index(s.index, names, s)
                same = self.slot(s.slot, memory, s).dtype == self.dtype(s.value, names, s)
                require(same, "dtype of", s)
            case Fold():
                require(names.get(s.name) == s.dtype, "no such accumulator:", s)
                require(self.dtype(s.value, names, s) == s.dtype, "dtype of", s)
            case Start():  # an accumulator may start again
                require(names.get(s.name, s.value.dtype) == s.value.dtype, "dtype of", s)
                names[s.name] = s.value.dtype
            case Finish():
                self.new(names, s.name, self.dtype(s.pair, names, s), s)
            case Address():
                self.index(s.index, names, s)
                self.new(names, s.name, None, s)
            case Digit():
                require(s.of in names and names[s.of] is None, "not an index:", s)
                self.new(names, s.name, None, s)
            case Divide():
                needed = [s.of, s.inverse, s.size] if s.rest else [s.of, s.inverse]
                for name in needed:
                    require(name in names and names[name] is None, "not an index:", name, "in", s)
                self.new(names, s.name, None, s)
                if s.rest:
                    self.new(names, s.rest, None, s)
            case Clamp():
                require(self.dtype(s.value, names, s) == ir.I64, "dtype of", s)
                self.new(names, s.name, None, s)
            case Number():
                self.slot(s.slot, ("count",), s)
                self.new(names, s.name, s.dtype, s)
            case Extent():
                self.slot(s.slot, ("count",), s)
                self.new(names, s.name, None, s)
            case Share():
                self.new(names, s.low, None, s)
                self.new(names, s.high, None, s)
            case Loop():
                for bound in (s.start, s.stop):
                    known = isinstance(bound, int) or (bound in names and names[bound] is None)
                    require(known, "bound", bound, "of", s)
                inner = dict(names)
                self.new(inner, s.var, None, s)
                if s.end:
                    self.new(inner, s.end, None, s)
                self.body(s.body, inner)
