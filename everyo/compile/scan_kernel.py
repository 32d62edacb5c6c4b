"""The kernels of `scan` nodes: a loop over the rows of a program, or over operations on numbers.

An iteration of arrays is a program of its own, whose arrays move on from one iteration to the next.
An iteration of numbers is text in the one kernel. What an output was one iteration ago stays in a
register there; what lies further back, and what another kernel made, is read from memory. Numbers
that stand in the body are words of the table, so loops that differ in them, in their length, or in
where their operands lie have one text.
"""

from collections.abc import Iterator

import numpy as np

from everyo.compile.emit import HEAD, expression, literal
from everyo.compile.ir import BOOL, VIEWS, Node, walk
from everyo.compile.program import KINDS
from everyo.compile.scan import Past, Read, Scan

# P: iterations, the executor, the control table of the program of an iteration, where its arrays'
# addresses go, and how many there are; then of each array the first address, the step in bytes, and
# whether it goes back and forth.
ARRAYS = 5
REPEAT = f"""{HEAD}
    count, executor, control, arrays, n = P[0], P[1], P[2], P[3], P[4]
    for k in range(n):
        poke(arrays + k * 8, P[{ARRAYS} + k * 3])
    for i in range(count):
        call(executor, control, 0, 1)
        for k in range(n):
            step = P[{ARRAYS + 1} + k * 3]
            if P[{ARRAYS + 2} + k * 3] != 0 and i % 2 == 1:
                step = -step
            at = arrays + k * 8
            poke(at, peek(at) + step)
"""

# The same where a chunk of an iteration needs nothing of other chunks: each goes through all
# iterations, with tables of its own. P: iterations, the kernels (function, where its table begins),
# how many, the tables, their bytes, how many addresses move; then of each where in the tables it
# is, the first address, the step, and whether it goes back and forth.
MOVES = 6
LANES = f"""{HEAD}
    count, kernels, rows, n = P[0], P[1], P[2], P[5]
    tables = P[3] + P[4] * chunk
    for k in range(n):
        poke(tables + P[{MOVES} + k * 4], P[{MOVES + 1} + k * 4])
    for i in range(count):
        for r in range(rows):
            at = kernels + r * 16
            call(peek(at), tables + peek(at + 8), chunk, chunks)
        for k in range(n):
            step = P[{MOVES + 2} + k * 4]
            if P[{MOVES + 3} + k * 4] != 0 and i % 2 == 1:
                step = -step
            at = tables + P[{MOVES} + k * 4]
            poke(at, peek(at) + step)
"""

COUNT = 0  # the first word of the table; the others are in the order of `Words`


def move(scan: Scan, what: Read | Past | int) -> tuple[int | None, int, int, bool]:
    """How an input of the body moves, or an output: its operand, or None for the result itself,
    the first element, the step, and whether it goes back and forth between two blocks."""
    if isinstance(what, Read):
        return what.operand, what.start, what.step, False
    output, first = (what, 0) if isinstance(what, int) else (what.output, -what.distance)
    start = scan.place(output, first)
    turns = not scan.series[output].kept
    return None, start, scan.place(output, first + 1) - start, turns


class Words:
    """What a table holds: addresses of elements of operands, addresses of series, steps in bytes,
    bits of numbers. The kernel and the plan both ask this for the place of each."""

    def __init__(self, node: Node) -> None:
        self.scan = scan = Scan.of(dict(node.params))
        self.item = node.dtype.itemsize
        # place, operand or list of constants; the step comes next
        self.reads: list[tuple[int, Node | np.ndarray, Read]] = []
        self.series: list[tuple[int, int]] = []  # place, offset in the result
        self.leads: list[tuple[int, Node]] = []
        self.numbers: list[tuple[int, Node]] = []
        self.size = 1
        for i, read in enumerate(scan.reads):
            if isinstance(read, Read):
                listed = read.operand < 0
                source = scan.constants(i) if listed else node.inputs[read.operand]
                self.reads.append((self._take(1 + (read.step != 0)), source, read))
        for k, s in enumerate(scan.series):
            self.series.append((self._take(1), scan.place(k, 0 if s.kept else scan.count - 1)))
        for s in scan.series:
            for k in s.lead:
                self.leads.append((self._take(1), node.inputs[k]))
        for n in walk(scan.body.graph.roots):
            if n.op == "const":
                self.numbers.append((self._take(1), n))

    def _take(self, count: int) -> int:
        self.size += count
        return self.size - count


def text(node: Node) -> str:
    """The kernel of a node."""
    return "\n".join([HEAD, *(f"    {line}" for line in _Text(node).lines())]) + "\n"


class _Text:
    def __init__(self, node: Node) -> None:
        self.words = Words(node)
        self.scan, self.body = self.words.scan, self.words.scan.body.graph
        self.dtype, self.kind = node.dtype, KINDS[node.dtype]
        self.names: dict[Node, str] = {}  # of nodes of the body
        self.steps: list[str] = []

    def lines(self) -> Iterator[str]:
        yield from (f"s{k} = P[{place}]" for k, (place, _) in enumerate(self.words.series))
        yield from self._numbers()
        inside: list[str] = []
        yield from self._reads(inside)
        yield from self._leads()
        yield f"for i in range(P[{COUNT}]):"
        yield from (f"    {line}" for line in (*inside, *self._iteration()))
        for k, s in enumerate(self.scan.series):
            if not s.kept:
                yield f"st0(p_{self.kind}(s{k}), usz(0), y{k})"

    def _numbers(self) -> Iterator[str]:
        for place, n in self.words.numbers:
            self.names[n] = f"k{place}"
            yield f"k{place} = {_number(n.dtype, place)}"

    def _reads(self, inside: list[str]) -> Iterator[str]:
        """What is read before the loop; what is read in each iteration goes `inside`."""
        moving = iter(self.words.reads)
        for i, (n, read) in enumerate(zip(self.body.inputs, self.scan.reads, strict=True)):
            self.names[n] = f"x{i}"
            if isinstance(read, Past):
                if read.distance == 1:
                    self.names[n] = f"y{read.output}"
                else:
                    back = f"s{read.output} - {read.distance * self.words.item}"
                    inside.append(f"x{i} = ld0(p_{self.kind}({back}), usz(0))")
                continue
            place, operand, _ = next(moving)
            kind = KINDS[operand.dtype]
            if read.step:
                yield f"a{i} = P[{place}]"
                inside.append(f"x{i} = ld1(p_{kind}(a{i}), usz(0))")
                self.steps.append(f"a{i} += P[{place + 1}]")
            else:
                yield f"x{i} = ld1(p_{kind}(P[{place}]), usz(0))"

    def _leads(self) -> Iterator[str]:
        """Series begin with their leads; the last of them is what was one iteration ago."""
        leads = iter(self.words.leads)
        for k, s in enumerate(self.scan.series):
            yield f"y{k} = {literal(self.dtype.type(0).item(), self.dtype)}"
            for back in range(len(s.lead), 0, -1):
                at, operand = next(leads)
                yield f"y{k} = ld1(p_{KINDS[operand.dtype]}(P[{at}]), usz(0))"
                if s.kept:
                    at_start = f"p_{self.kind}(s{k} - {back * self.words.item})"
                    yield f"st0({at_start}, usz(0), y{k})"

    def _iteration(self) -> Iterator[str]:
        for i, n in enumerate(walk(self.body.roots)):
            if n in self.names:
                continue
            args = [self.names[o] for o in n.inputs]
            if n.op in VIEWS or n.op == "copy":
                self.names[n] = args[0]
                continue
            self.names[n] = f"v{i}"
            yield f"v{i} = {expression(n.op, args, n.inputs[-1].dtype, n.dtype)}"
        values = [self.names[o] for o in self.body.outputs]
        yield from (f"z{k} = {value}" for k, value in enumerate(values))
        for k, s in enumerate(self.scan.series):
            yield f"y{k} = z{k}"
            if s.kept:
                yield f"st0(p_{self.kind}(s{k}), usz(0), y{k})"
                yield f"s{k} += {self.words.item}"
        yield from self.steps


def _number(dtype: np.dtype, place: int) -> str:
    """A word of the table as a number."""
    if dtype == BOOL:
        return f"P[{place}] != 0"
    return f"{'bits_' * (dtype.kind == 'f')}{KINDS[dtype]}(P[{place}])"
