"""The values of a kernel as statements: loads, index arithmetic, ops, each made where it is known.

A value is asked for by a loop of a row (a phase). It is made once, at its level; one that an
earlier phase kept is reloaded, any other of an earlier phase is made again.
"""

import math
from collections.abc import Mapping

import numpy as np

from everyo.compile.ir import I32, I64, Node
from everyo.compile.nest import Map, Nest, moving
from everyo.compile.program import (
    Address,
    Clamp,
    Counter,
    Digit,
    Index,
    Let,
    Literal,
    Load,
    Slot,
    Statement,
    Value,
)
from everyo.compile.space import chain

COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


class Values:
    """Statements that make values, on demand and once where they are known: per chunk, per row, or
    per element of the current loop. A new loop starts with `new_loop`."""

    def __init__(self, nest: Nest, direct: Mapping[Node, Node]) -> None:
        self.nest, self.space, self.direct = nest, nest.space, direct
        self.slots: list[Slot] = []
        self.positions: dict[tuple, int] = {}
        self.names = 0
        self.heads: dict[Index, str] = {}
        self.digits: dict[int, Digit] = {}
        self.chunk_known: dict = {}
        self.chunk_lines: list[Statement] = []
        self.row_known: dict = {}
        self.new_loop()

    def new_loop(self) -> None:
        """Rows keep what they know; what is added to them comes before this loop."""
        self.row_lines: list[Statement] = []
        self.loop_known: dict = {}
        self.loop_lines: list[Statement] = []

    def name(self, letter: str = "v") -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def slot(
        self, what: str, node: Node | None, dtype: np.dtype, elements: int = 0, key: object = None
    ) -> int:
        if node is not None and what == "array":
            node = self.direct.get(node, node)
        where = (what, key or node)
        if where not in self.positions:
            self.positions[where] = len(self.slots)
            self.slots.append(Slot(what, node, dtype, elements))
        return self.positions[where]

    def index(self, m: Map, offset: int, level: int) -> Index:
        """Where a value lies; an address that is known once per row gets a name of its own."""
        terms = [(i, m[r.leaf]) for i, r in enumerate(self.nest.outer) if m.get(r.leaf)]
        runs = all(
            m.get(a.leaf, 0) == m.get(b.leaf, 0) * b.size
            for a, b in zip(self.nest.outer, self.nest.outer[1:], strict=False)
        )
        if len(self.nest.outer) == 1 or (terms and runs):
            row = tuple(("r", stride) for _, stride in terms[-1:])
        else:
            row = tuple((self._digit(i), stride) for i, stride in terms)
        if level < 2:
            return Index(row, offset)
        if row and (len(row) > 1 or offset or row[0][1] != 1):
            head = Index(row, offset)
            if head not in self.heads:
                self.heads[head] = self.name("h")
                self.row_lines.append(Address(self.heads[head], head))
            row, offset = ((self.heads[head], 1),), 0
        inner = tuple((f"c{i}", m[r.leaf]) for i, r in enumerate(self.nest.inner) if m.get(r.leaf))
        return Index(row + inner, offset)

    def _digit(self, i: int) -> str:
        """The i-th outer index."""
        below = math.prod(r.size for r in self.nest.outer[i + 1 :])
        self.digits[i] = Digit(f"o{i}", "r", below, self.nest.outer[i].size if i else 0)
        return f"o{i}"

    def scratch_map(self) -> Map:
        m, step = {}, 1
        for r in reversed(self.nest.inner):
            m[r.leaf] = step
            step *= r.size
        return m

    def _known(self, level: int) -> dict:
        return (self.chunk_known, self.row_known, self.loop_known)[level]

    def _lines(self, level: int) -> list[Statement]:
        return (self.chunk_lines, self.row_lines, self.loop_lines)[level]

    def _load(self, o: Node, level: int) -> str:
        known = self._known(level)
        if o not in known:
            a = self.space.loads[o]
            index = self.index(moving(self.nest.access[o]), a.offset, level)
            known[o] = name = self.name()
            if a.base.op == "iota":
                self._lines(level).append(Counter(name, index, I64))
            else:
                k = self.slot("array", a.base, a.base.dtype)
                self._lines(level).append(Load(name, k, index))
        return known[o]

    def get(self, o: Node, phase: int) -> Value:
        """The value of an operand (of the group or loaded) within loop `phase`."""
        base = chain(o)[0]
        if base.op == "const":
            return Literal(base.param("value"), base.dtype)
        if base not in self.nest.inside:
            return self._load(o, self.nest.operand_level(o))
        level = self.nest.level[base]
        known = self._known(level)
        if base not in known:
            known[base] = self._value(base, level, phase)
        return known[base]

    def _value(self, n: Node, level: int, phase: int) -> Value:
        lines = self._lines(level)
        if level == 2 and self.nest.phase[n] < phase and n in self.nest.kept:
            name = self.name()
            if n in self.nest.group.stores:
                k, m = self.slot("array", n, n.dtype), self.nest.value[n]
            else:
                k, m = self.slot("scratch", n, n.dtype, self.nest.width), self.scratch_map()
            lines.append(Load(name, k, self.index(m, 0, 2)))
            return name
        if n.op == "copy":
            return self.get(n.inputs[0], phase)
        if n.op == "take":
            return self._take(n, level, phase)
        args = tuple(self.get(i, phase) for i in n.inputs)
        of = n.inputs[-1].dtype
        if n.op in COMPARISONS and of == I64 and level == 2:
            args, of = self._short(n, args)
        name = self.name()
        lines.append(Let(name, n.op, args, of, n.dtype))
        return name

    def _take(self, n: Node, level: int, phase: int) -> str:
        table, index = n.inputs
        a = self.space.loads[n]
        i, low = self.get(index, phase), self.nest.operand_level(index)
        known = self._known(low)
        if ("row", i, table.shape[0]) not in known:
            known["row", i, table.shape[0]] = row = self.name("k")
            self._lines(low).append(Clamp(row, i, table.shape[0]))
        row = known["row", i, table.shape[0]]
        at = self.index(moving(self.nest.access[n]), a.offset, level)
        name, k = self.name(), self.slot("array", a.base, n.dtype)
        self._lines(level).append(Load(name, k, Index(((row, a.row), *at.terms), at.offset)))
        return name

    def _short(self, n: Node, args: tuple[Value, ...]) -> tuple[tuple[Value, ...], np.dtype]:
        """An index compared with what is known per row: in 32 bits, so that it fills a vector."""
        counts = [chain(o)[0].op == "iota" and self.nest.operand_level(o) == 2 for o in n.inputs]
        if counts[0] == counts[1]:
            return args, I64
        o, other = n.inputs if counts[0] else n.inputs[::-1]
        if self.nest.operand_level(other) == 2 or chain(o)[0].size >= 2**31 - 1:
            return args, I64
        index = self.index(moving(self.nest.access[o]), self.space.loads[o].offset, 2)
        key, v = ("count", o), args[counts.index(False)]
        if key not in self.loop_known:
            self.loop_known[key] = name = self.name()
            self.loop_lines.append(Counter(name, index, I32))
        short = self._narrow(v, self.nest.operand_level(other))
        pair = (self.loop_known[key], short)
        return (pair if counts[0] else pair[::-1]), I32

    def _narrow(self, v: Value, level: int) -> Value:
        if isinstance(v, Literal):
            return Literal(min(max(v.value, -1), 2**31 - 1), I32)
        known = self._known(level)
        if ("narrow", v) not in known:
            known["narrow", v] = name = self.name()
            self._lines(level).append(Let(name, "narrow", (v,), I64, I32))
        return known["narrow", v]

    def cast(self, v: Value, of: np.dtype, to: np.dtype, lines: list[Statement]) -> Value:
        if of == to:
            return v
        name = self.name()
        lines.append(Let(name, "cast", (v,), of, to))
        return name
