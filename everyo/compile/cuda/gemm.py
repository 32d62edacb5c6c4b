"""Our own product kernel, for where cuBLAS is not: tiles in shared memory, small tiles in
registers.

A block computes a tile of the result; each of its threads a square of it, in registers. Per step it
fetches a slice of both operands into shared memory, where rows of the slice lie side by side, so
that threads read them 16 bytes at a time. Sizes and strides are baked in.
"""

import math

from everyo.compile.cuda import texts
from everyo.compile.cuda.heads import Text
from everyo.compile.cuda.runtime import Gemm
from everyo.compile.program import KINDS

LARGE = (128, 128, 8, 8)  # rows, columns and depth of a tile, and the side of a thread's square
MIDDLE = (64, 64, 8, 4)
SMALL = (16, 16, 16, 1)


def tile(p: Gemm) -> tuple[int, int, int, int]:
    """The tile for a product: large ones only where there are enough of them for every block."""
    batches = math.prod(size for size, _ in p.loops)
    for shape in (LARGE, MIDDLE):
        blocks = batches * -(-p.m // shape[0]) * -(-p.n // shape[1])
        if blocks >= 64 and p.k >= 16 and p.dtype.itemsize == 4:
            return shape
    return MIDDLE if p.m > 32 and p.n > 32 and p.dtype.itemsize == 4 else SMALL


def kernel(p: Gemm, shape: tuple[int, int, int, int] | None = None) -> Text:
    """The kernel of a product. p0, p1, p2: a, b, c."""
    rows, columns, depth, side = shape or tile(p)
    kind = KINDS[p.dtype]
    across = columns // side
    threads = rows // side * across
    down, over = -(-p.m // rows), -(-p.n // columns)
    batches = math.prod(size for size, _ in p.loops)
    (_, far), (inner, near) = p.loops
    step_a = (1, p.lead_a) if p.turn_a else (p.lead_a, 1)
    step_b = (1, p.lead_b) if p.turn_b else (p.lead_b, 1)
    vector = 4 if side % 4 == 0 else 1
    lines = [
        f"sa = cuda.shared.array({rows * depth}, t_{kind}, alignment=16)",
        f"sb = cuda.shared.array({columns * depth}, t_{kind}, alignment=16)",
        "me = u32(cuda.threadIdx.x)",
        f"batch, tile = u32(block // u32({down * over})), u32(block % u32({down * over}))",
        f"row, column = u32(tile // u32({over}) * u32({rows})), u32(tile % u32({over}) * "
        f"u32({columns}))",
        f"far, near = u32(batch // u32({inner})), u32(batch % u32({inner}))",
        *(f"o{x} = far * u64({far[i]}) + near * u64({near[i]})" for i, x in enumerate("abc")),
        f"y, x = u32(me // u32({across}) * u32({side})), u32(me % u32({across}) * u32({side}))",
        *(f"t{i}_{j} = {kind}(0)" for i in range(side) for j in range(side)),
        "k = u32(0)",
        f"while k < u32({p.k}):",
        *_fetch("sa", "p0", "oa", "row", p.m, p.k, rows, depth, threads, step_a, kind),
        *_fetch("sb", "p1", "ob", "column", p.n, p.k, columns, depth, threads, step_b[::-1], kind),
        "    cuda.syncthreads()",
        "    q = u32(0)",
        f"    while q < u32({depth}):",
        *_row("a", "sa", f"q * u32({rows}) + y", side, vector),
        *_row("b", "sb", f"q * u32({columns}) + x", side, vector),
        *(
            f"        t{i}_{j} = mad_{kind}(a{i}, b{j}, t{i}_{j})"
            for i in range(side)
            for j in range(side)
        ),
        "        q = u32(q + u32(1))",
        "    cuda.syncthreads()",
        f"    k = u32(k + u32({depth}))",
        "y, x = u32(row + y), u32(column + x)",
    ]
    for i in range(side):
        lines.append(f"if y + u32({i}) < u32({p.m}):")
        lines.append(f"    at = oc + (y + u64({i})) * u64({p.lead_c}) + x")
        for j in range(side):
            lines.append(f"    if x + u32({j}) < u32({p.n}):")
            lines.append(f"        st(p2, at + u64({j}), t{i}_{j})")
    body = "".join(f"    {line}\n" for line in lines)
    return texts.kernel(body, (f"{kind}*",) * 3, batches * down * over, threads)


def _fetch(
    shared: str, pointer: str, offset: str, first: str, count: int, deep: int, wide: int,
    depth: int, threads: int, steps: tuple[int, int], kind: str,
) -> list[str]:  # fmt: skip
    """A slice of an operand to shared memory, by depth first. Neighbouring threads read what lies
    side by side; what is outside of the operand is 0."""
    along, inward = steps
    by_depth = inward == 1
    size = depth if by_depth else wide
    inner, outer = ("e", "f") if by_depth else ("f", "e")
    total = wide * depth
    return [
        "    g = me",
        f"    while g < u32({total}):",
        f"        {inner}, {outer} = u32(g % u32({size})), u32(g // u32({size}))",
        f"        v = {kind}(0)",
        f"        if {first} + f < u32({count}) and k + e < u32({deep}):",
        f"            v = ld({pointer}, {offset} + ({first} + f) * u64({along}) + (k + e) * "
        f"u64({inward}))",
        f"        st({shared}, e * u32({wide}) + f, v)",
        f"        g = u32(g + u32({threads}))",
    ]


def _row(name: str, shared: str, at: str, side: int, vector: int) -> list[str]:
    """The values of a thread from one row of a slice."""
    out = []
    for i in range(0, side, vector):
        names = ", ".join(f"{name}{i + j}" for j in range(vector))
        load = f"ld{vector}" if vector > 1 else "ld"
        out.append(f"        {names} = {load}({shared}, {at} + u32({i}))")
    return out
