"""Long graphs of scalars: a tape of operations walked by one function, instead of kernels.

A kernel per few scalar operations would mean thousands of lines of source. Where a graph has many
values of one element, they are cut into tapes: words that one precompiled function walks. Its
operations are put in an order in which equal ones follow each other, so that a tape is a list of
runs. Every value has a slot of 8 bytes, numbered as they are computed; an operand is how far back
its slot lies. Arithmetic is done in place; anything else calls a small function of its own, one per
operation and dtype, whatever the graph.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from everyo.compile.emit import HEAD, expression
from everyo.compile.ir import F32, F64, POINTWISE, UNARY, Node
from everyo.compile.program import KINDS
from everyo.compile.space import Layout, chain, strided

LENGTH = 128  # fewer scalar operations than this are cheaper as kernels
SLOT = 8  # bytes

# A run is a word with its code, the words per operation and how many operations it has, then their
# words. The results of a run lie one after the other; a word has two operands.
CALL, LITERAL = 0, 1  # CALL: the function comes first; LITERAL: the words are the results
_INLINE = ("add", "subtract", "multiply", "divide", "negative")
_CODES = {(op, d): 2 + i for i, (d, op) in enumerate((d, o) for d in (F32, F64) for o in _INLINE)}
_LOW = (1 << 32) - 1

Kind = tuple[str, np.dtype, np.dtype]  # an operation: op, dtype of the first operand, of the result


def partition(compute: Sequence[Node], checked: set[Node]) -> dict[Node, tuple[int, bool]]:
    """The nodes that go on a tape, with the tape's name.

    Scalars of one depth, that is with as many changes between scalars and arrays below them, form a
    tape: no path leads from it through others back into it. What the checks need stays apart, since
    state may only be written after them.
    """
    fit = {n for n in compute if n.size == 1 and n.op in POINTWISE and n.op != "take"}
    if len(fit) < LENGTH:
        return {}
    depth: dict[Node, int] = {}
    tapes: dict[tuple[int, bool], list[Node]] = {}
    for n in compute:
        mine, most = n in fit, 0
        for o in n.inputs:
            base = o if o in depth else chain(o)[0]
            if base in depth:
                below = depth[base] + ((base in fit) != mine)
                most = below if below > most else most
        depth[n] = most
        if mine:
            tapes.setdefault((most, n in checked), []).append(n)
    return {n: name for name, nodes in tapes.items() if len(nodes) >= LENGTH for n in nodes}


@dataclass
class Tape:
    """The words, and what must still be put into them: (place, node, shift) addresses in memory,
    shift in bytes, and (place, text) functions. `slots` is how many values it holds."""

    words: list[int] = field(default_factory=list)
    addresses: list[tuple[int, Node, int]] = field(default_factory=list)
    functions: list[tuple[int, str]] = field(default_factory=list)
    slots: int = 0

    def run(self, code: int, width: int, count: int, text: str = "") -> None:
        """Begin a run; `text` is the function of a CALL."""
        self.words.append(code | width << 8 | count << 16)
        if text:
            self.functions.append((len(self.words), text))
            self.words.append(0)


Element = tuple[Node, int]  # of a value outside: its base, and which element


class _Writer:
    """Writes a tape: literals and values from outside, the operations, what leaves it."""

    def __init__(self, nodes: Sequence[Node], stores: Sequence[Node], layout: Layout) -> None:
        self.tape, self.layout = Tape(), layout
        self.own = set(nodes)
        self.place: dict[object, int] = {}  # of own nodes, elements and literals
        self.bits: dict[object, int] = {}  # of operands that are literals
        self.elements: dict[Node, object] = {}  # operand -> its element or literal
        operands = {n: [o if o in self.own else self._outside(o) for o in n.inputs] for n in nodes}
        self._given()
        for kind, run in runs(operands):
            self._operations(kind, run, operands)
        self._results(stores)

    def _outside(self, o: Node) -> object:
        """What an operand is: a node of the tape below views, an element, or a literal."""
        if o not in self.elements:
            base = chain(o)[0]
            if base in self.own:
                self.elements[o] = base
            elif base.op in ("const", "iota"):
                value = base.param("value") if base.op == "const" else offset_of(o, self.layout)
                self.elements[o] = key = (o.dtype, literal_bits(value, o.dtype))
                self.bits[key] = key[1]
            else:
                self.elements[o] = (base, offset_of(o, self.layout))
        return self.elements[o]

    def _slot(self, key: object) -> None:
        self.place[key] = self.tape.slots
        self.tape.slots += 1

    def _given(self) -> None:
        """Runs that fetch what the operations read from outside."""
        if self.bits:
            self.tape.run(LITERAL, 1, len(self.bits))
            for key, word in self.bits.items():
                self.tape.words.append(word)
                self._slot(key)
        by_dtype: dict[np.dtype, dict[Element, None]] = {}
        for o, key in self.elements.items():
            if isinstance(key, tuple) and key not in self.bits:
                by_dtype.setdefault(o.dtype, {})[key] = None
        for dtype, elements in by_dtype.items():
            self.tape.run(CALL, 1, len(elements), load_text(dtype))
            for base, at in elements:
                self.tape.addresses.append((len(self.tape.words), base, at * dtype.itemsize))
                self.tape.words.append(0)
                self._slot((base, at))

    def _operations(self, kind: Kind, run: list[Node], operands: dict[Node, list]) -> None:
        tape, place, code = self.tape, self.place, code_of(kind)
        count = len(run[0].inputs)
        tape.run(code, (count + 1) // 2, len(run), call_text(kind, count) if code == CALL else "")
        slot = tape.slots
        for n in run:
            back = [SLOT * (slot - place[key]) for key in operands[n]]
            tape.words.append(back[0] if count == 1 else back[0] | back[1] << 32)
            if count == 3:
                tape.words.append(back[2])
            place[n] = slot
            slot += 1
        tape.slots = slot

    def _results(self, stores: Sequence[Node]) -> None:
        """Runs that store what leaves the tape."""
        end = self.tape.slots
        for dtype in dict.fromkeys(n.dtype for n in stores):
            leaving = [n for n in stores if n.dtype == dtype]
            self.tape.run(CALL, 2, len(leaving), store_text(dtype))
            for n in leaving:
                self.tape.addresses.append((len(self.tape.words), n, 0))
                self.tape.words += [0, SLOT * (end - self.place[n])]
            end += len(leaving)


def write(nodes: Sequence[Node], stores: Sequence[Node], layout: Layout) -> Tape:
    """The tape of the nodes, which stores some of them in memory at its end."""
    return _Writer(nodes, stores, layout).tape


def runs(operands: dict[Node, list]) -> list[tuple[Kind, list[Node]]]:
    """The nodes in runs of one operation, operands first: of all that could follow, the operation
    that most nodes wait for, as long as there are any."""
    readers: dict[Node, list[Node]] = {n: [] for n in operands}
    waits: dict[Node, int] = {}
    ready: dict[Kind, deque[Node]] = {}
    kinds: dict[Node, Kind] = {}
    for n, keys in operands.items():
        waits[n] = 0
        for key in keys:
            if key in readers:
                readers[key].append(n)
                waits[n] += 1
        kinds[n] = kind = (n.op, n.inputs[0].dtype, n.dtype)
        line = ready.setdefault(kind, deque())
        if not waits[n]:
            line.append(n)
    out: list[tuple[Kind, list[Node]]] = []
    lines, left = list(ready.values()), len(operands)
    while left:
        line = max(lines, key=len)
        run: list[Node] = []
        while line:
            n = line.popleft()
            run.append(n)
            for reader in readers[n]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready[kinds[reader]].append(reader)
        out.append((kinds[run[0]], run))
        left -= len(run)
    return out


def offset_of(o: Node, layout: Layout) -> int:
    """The element of its base that an operand of one element is; of an iota its value."""
    base = chain(o)[0]
    if base.size == 1:
        return 0
    got = strided(o, layout)
    assert got is not None
    return got[2]


def code_of(kind: Kind) -> int:
    """How the tape does an operation itself, or CALL."""
    op, of, _ = kind
    return _CODES.get((op, of), CALL)


def _operands(kinds: Sequence[str]) -> list[str]:
    """What reads the operands of an operation whose words are w and v."""
    shifts = [f" & {_LOW}", " >> 32"] if len(kinds) > 1 else [""]
    back = [f"(w{shift})" for shift in shifts] + ["v"]
    return [f"ld0(p_{k}(out - {b}), usz(0))" for k, b in zip(kinds, back, strict=False)]


# The functions of CALL. P: the words of a run; `chunk` is where results go, `chunks` how many
# operations there are.


def load_text(dtype: np.dtype) -> str:
    """Fetches values; the words are their addresses."""
    kind = KINDS[dtype]
    return f"""{HEAD}
    out = chunk
    for i in range(chunks):
        st0(p_{kind}(out), usz(0), ld1(p_{kind}(P[i]), usz(0)))
        out += {SLOT}
"""


def store_text(dtype: np.dtype) -> str:
    """Stores values; their words are an address and how far back they lie."""
    kind = KINDS[dtype]
    return f"""{HEAD}
    at = usz(0)
    for i in range(chunks):
        st0(p_{kind}(P[at]), usz(0), ld1(p_{kind}(chunk - P[at + usz(1)]), usz(0)))
        at += usz(2)
"""


def call_text(kind: Kind, count: int) -> str:
    """An operation of some operands that the tape does not do itself."""
    op, of, dtype = kind
    of = dtype if op == "where" else of
    kinds = ["b8" if op == "where" else KINDS[of], *[KINDS[of]] * (count - 1)]
    names = [f"x{i}" for i in range(count)]
    reads = [f"        {x} = {read}" for x, read in zip(names, _operands(kinds), strict=True)]
    value = "x0" if op == "copy" else expression(op, names, of, dtype)
    width = (count + 1) // 2
    lines = [
        HEAD, "    out, at = chunk, usz(0)", "    for i in range(chunks):", "        w = P[at]",
        *["        v = P[at + usz(1)]"] * (width - 1), f"        at += usz({width})", *reads,
        f"        st0(p_{KINDS[dtype]}(out), usz(0), {value})", f"        out += {SLOT}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _walker() -> str:
    """P: address of the words, how many there are, where the slots begin."""
    lines = [
        HEAD, "    at, out = P[0], P[2]", f"    end = at + {SLOT} * P[1]", "    while at < end:",
        "        head = peek(at)", "        code, n = head & 255, head >> 16",
        f"        at += {SLOT}", f"        stop = at + {SLOT} * (head >> 8 & 255) * n",
        f"        if code == {CALL}:", f"            call(peek(at), at + {SLOT}, out, n)",
        f"            at, out = stop + {SLOT}, out + {SLOT} * n",
    ]  # fmt: skip
    statements = {LITERAL: "poke(out, w)"}
    for (op, dtype), code in _CODES.items():
        kind = KINDS[dtype]
        value = expression(op, _operands([kind] * (1 if op in UNARY else 2)), dtype, dtype)
        statements[code] = f"st0(p_{kind}(out), usz(0), {value})"
    for code, statement in statements.items():
        lines += [
            f"        elif code == {code}:", "            while at < stop:",
            "                w = peek(at)", f"                {statement}",
            f"                at += {SLOT}", f"                out += {SLOT}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


WALKER = _walker()


def literal_bits(value: object, dtype: np.dtype) -> int:
    """A constant as the contents of an 8-byte slot."""
    slot = np.zeros(1, np.int64)
    slot.view(np.uint8)[: dtype.itemsize] = np.frombuffer(dtype.type(value).tobytes(), np.uint8)
    return int(slot[0])
