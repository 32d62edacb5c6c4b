"""Long graphs of scalars: a tape of operations walked by one function, instead of kernels.

A kernel per few scalar operations would mean thousands of lines of source. Where a graph has many
values of one element, they are cut into tapes: lists of words (code, operands, result) that one
precompiled function walks. Arithmetic is done in place; anything else calls a small function of its
own, one per operation and dtype, whatever the graph.
"""

from collections.abc import Sequence

import numpy as np

from everyo.compile.emit import HEAD, expression
from everyo.compile.ir import BOOL, F32, F64, POINTWISE, Node
from everyo.compile.program import KINDS
from everyo.compile.space import Layout, chain, strided

LENGTH = 128  # fewer scalar operations than this are cheaper as kernels
WORDS = 5  # code, three operands, result: addresses
CALL = 0  # code: call the function at operand 1 with the table at operand 2

_INLINE = (
    "add", "subtract", "multiply", "divide", "negative", "copy", "maximum", "minimum", "greater",
    "less", "equal",
)  # fmt: skip
CODES = {
    (op, dtype): 1 + i
    for i, (dtype, op) in enumerate((d, op) for d in (F32, F64) for op in (*_INLINE, "where"))
}  # fmt: skip
CAST_UP, CAST_DOWN = len(CODES) + 1, len(CODES) + 2
_TYPES = {F32: "f32", F64: "f64"}


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
                most = max(most, depth[base] + ((base in fit) != mine))
        depth[n] = most
        if mine:
            tapes.setdefault((most, n in checked), []).append(n)
    return {n: name for name, nodes in tapes.items() if len(nodes) >= LENGTH for n in nodes}


def offset_of(o: Node, layout: Layout) -> int:
    """The element of its base that an operand of one element is."""
    base = chain(o)[0]
    if base.size == 1:
        return 0
    got = strided(o, layout)
    assert got is not None
    return got[2]


def code_of(n: Node) -> int:
    """How the tape does an operation itself, or CALL."""
    kinds = {o.dtype for o in n.inputs}
    if n.op == "cast":
        return {(F32, F64): CAST_UP, (F64, F32): CAST_DOWN}.get((n.inputs[0].dtype, n.dtype), CALL)
    if n.op == "where":
        return CODES.get((n.op, n.dtype), CALL)
    return CODES.get((n.op, n.inputs[0].dtype), CALL) if len(kinds) == 1 else CALL


def call_text(n: Node) -> str:
    """The function of an operation that the tape does not do itself. P: operands, result."""
    args = [f"x{i}" for i in range(len(n.inputs))]
    of = n.inputs[1].dtype if n.op == "where" else n.inputs[0].dtype
    lines = [HEAD]
    for i, (x, o) in enumerate(zip(args, n.inputs, strict=True)):
        lines.append(f"    {x} = ld{i}(p_{KINDS[o.dtype]}(P[{i}]), usz(0))")
    k = len(args)
    value = args[0] if n.op == "copy" else expression(n.op, args, of, n.dtype)
    lines.append(f"    st{k}(p_{KINDS[n.dtype]}(P[{k}]), usz(0), {value})")
    return "\n".join(lines) + "\n"


def _walker() -> str:
    """P: address of the words, how many entries."""
    lines = [
        HEAD, "    at = P[0]", f"    end = at + P[1] * {8 * WORDS}", "    while at < end:",
        "        code, a, b, c, out = peek(at), peek(at + 8), peek(at + 16), peek(at + 24), "
        "peek(at + 32)",
        f"        at += {8 * WORDS}", f"        if code == {CALL}:", "            call(a, b, 0, 1)",
    ]  # fmt: skip
    for (op, dtype), code in CODES.items():
        kind = _TYPES[dtype]
        load = f"ld0(p_{kind}({{}}), usz(0))"
        lines.append(f"        elif code == {code}:")
        result = "b8" if op in ("greater", "less", "equal") else kind
        if op == "where":
            value = f"select(ld0(p_b8(a), usz(0)), {load.format('b')}, {load.format('c')})"
        elif op == "copy":
            value = load.format("a")
        else:
            args = [load.format("a"), load.format("b")][: 1 if op == "negative" else 2]
            value = expression(op, args, dtype, BOOL if result == "b8" else dtype)
        lines.append(f"            st0(p_{result}(out), usz(0), {value})")
    for code, source, target in ((CAST_UP, "f32", "f64"), (CAST_DOWN, "f64", "f32")):
        lines.append(f"        elif code == {code}:")
        lines.append(
            f"            st0(p_{target}(out), usz(0), {target}(ld0(p_{source}(a), usz(0))))"
        )
    return "\n".join(lines) + "\n"


WALKER = _walker()


def literal_bits(value: object, dtype: np.dtype) -> int:
    """A constant as the contents of an 8-byte slot."""
    slot = np.zeros(1, np.int64)
    slot.view(np.uint8)[: dtype.itemsize] = np.frombuffer(dtype.type(value).tobytes(), np.uint8)
    return int(slot[0])
