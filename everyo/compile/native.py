"""Kernels with run-time tables: the opaque ops, the executor, and what surrounds them.

Each is a text in the language of the generated kernels, so it has a native and a plain body too.
The comment above a text says what its table P holds; strides are in elements.
"""

from string import Template
from textwrap import indent

import numpy as np

from everyo.compile.emit import HEAD, expression
from everyo.compile.ir import BOOL, Node
from everyo.compile.pool import BUSY, RUNNING, SHARE
from everyo.compile.program import FOLDS, KINDS, wide

# executor: where its table has what
PROGRAM, FIRST, GUARD, LAST, PATCHES, PATCH_COUNT, ARRAYS, ARRAY_COUNT = range(8)
FLAGS, FLAG_COUNT, SPANS, SPAN_COUNT, ORDER, DATA_AT, STATUS, OBJECTS, POOL, CONTROL_SIZE = range(
    8, 18
)
FINE, OVERLAP, FAILED = 0, -1, 1  # STATUS: FAILED + i when check i fails

# P: the control table. Reads the arrays' addresses, looks for overlap, patches the tables, runs.
EXECUTOR = f"""{HEAD}
    P[{STATUS}] = {FINE}
    arrays = P[{ARRAYS}]
    if P[{DATA_AT}] >= 0:
        for i in range(P[{ARRAY_COUNT}]):
            poke(arrays + i * 8, peek(peek(P[{OBJECTS}] + i * 8) + P[{DATA_AT}]))
    spans, order, n = P[{SPANS}], P[{ORDER}], P[{SPAN_COUNT}]
    for i in range(1, n):
        mine = peek(order + i * 8)
        start = peek(arrays + mine * 8) + peek(spans + mine * 24)
        j = i - 1
        while j >= 0:
            other = peek(order + j * 8)
            if peek(arrays + other * 8) + peek(spans + other * 24) <= start:
                break
            poke(order + (j + 1) * 8, other)
            j -= 1
        poke(order + (j + 1) * 8, mine)
    end, written_end = i64(0), i64(0)
    for i in range(n):
        k = peek(order + i * 8)
        low = peek(arrays + k * 8) + peek(spans + k * 24)
        high = peek(arrays + k * 8) + peek(spans + k * 24 + 8)
        written = peek(spans + k * 24 + 16)
        if high > low and (low < written_end or (written != 0 and low < end)):
            P[{STATUS}] = {OVERLAP}
            return
        end = max(end, high)
        if written != 0:
            written_end = max(written_end, high)
    patches = P[{PATCHES}]
    for i in range(P[{PATCH_COUNT}]):
        at = patches + i * 24
        poke(peek(at), peek(arrays + peek(at + 8) * 8) + peek(at + 16))
    program, pool = P[{PROGRAM}], P[{POOL}]
    if pool != 0:
        atomic_add(pool + {RUNNING}, 1)
    for stage in range(2):
        for r in range(P[{FIRST} + stage], P[{GUARD} + stage]):
            at = program + r * 32
            function, table, n, shared = peek(at), peek(at + 8), peek(at + 16), peek(at + 24)
            if pool != 0 and shared != 0 and atomic_claim(pool + {BUSY}, 0, 1):
{SHARE}
            else:
                for c in range(n):
                    call(function, table, c, n)
        if stage == 0:
            for i in range(P[{FLAG_COUNT}]):
                if P[{STATUS}] == {FINE} and ld0(p_b8(peek(P[{FLAGS}] + i * 8)), usz(0)):
                    P[{STATUS}] = {FAILED} + i
        if P[{STATUS}] != {FINE}:
            break
    if pool != 0:
        atomic_add(pool + {RUNNING}, -1)
"""

# P: partial results, result, elements, chunks
COMBINE = Template(f"""{HEAD}
    s, d = p_$partial(P[0]), p_$kind(P[1])
    n, k = usz(P[2]), usz(P[3])
    for i in range(usz(0), n):
        t = $wide(ld0(s, i))
        for j in range(usz(1), k):
            v = $wide(ld0(s, i + j * n))
            t = $fold
        st1(d, i, $kind(t))
""")

# P: source, target, outer axes, rows, inner size, its two strides; per outer axis from the
# innermost: size, stride in the source, stride in the target
COPY = Template(f"""{HEAD}
    s, d = p_$kind(P[0]), p_$kind(P[1])
    rank, rows, n = usz(P[2]), usz(P[3]), usz(P[4])
    a, b = usz(P[5]), usz(P[6])
    for r in range(rows * usz(chunk) // usz(chunks), rows * usz(chunk + 1) // usz(chunks)):
        rest, i, j = r, usz(0), usz(0)
        for k in range(usz(0), rank):
            at = usz(7) + usz(3) * k
            size = usz(P[at])
            x = rest % size
            rest = rest // size
            i = i + x * usz(P[at + usz(1)])
            j = j + x * usz(P[at + usz(2)])
        for c in range(usz(0), n):
            st1(d, j + c * b, ld0(s, i + c * a))
""")

# P: indices, updates, result, rows, number of indices, elements per row
SCATTER = Template(f"""{HEAD}
    ids, g, d = p_i64(P[0]), p_$kind(P[1]), p_$kind(P[2])
    rows, n, width = usz(P[3]), usz(P[4]), usz(P[5])
    last = i64(P[3]) - i64(1)
    for i in range(usz(0), rows * width):
        st2(d, i, $kind(0))
    for r in range(usz(0), n):
        row = usz(max(i64(0), min(ld0(ids, r), last))) * width
        for c in range(usz(0), width):
            x, y = ld2(d, row + c), ld1(g, r * width + c)
            st2(d, row + c, $sum)
""")

# P: source, result, rows, elements per row
CUMSUM = Template(f"""{HEAD}
    s, d = p_$kind(P[0]), p_$kind(P[1])
    rows, n = usz(P[2]), usz(P[3])
    for r in range(rows * usz(chunk) // usz(chunks), rows * usz(chunk + 1) // usz(chunks)):
        x = $wide(0)
        for c in range(usz(0), n):
            y = $wide(ld0(s, r * n + c))
            x = $sum
            st1(d, r * n + c, $kind(x))
""")

# P: keys, result, scratch of a row, rows, elements per row. Merges runs of 1, 2, 4 …
ARGSORT = Template(f"""{HEAD}
    s, d, t = p_$kind(P[0]), p_i64(P[1]), p_i64(P[2])
    rows, n = usz(P[3]), usz(P[4])
    for r in range(usz(0), rows):
        base = r * n
        for i in range(usz(0), n):
            st1(d, base + i, i64(i))
        width = usz(1)
        while width < n:
            low = usz(0)
            while low < n:
                middle, high = min(low + width, n), min(low + width + width, n)
                i, j = low, middle
                for k in range(low, high):
                    right = i == middle
                    if i < middle and j < high:
                        x = ld0(s, base + usz(ld1(d, base + j)))
                        y = ld0(s, base + usz(ld1(d, base + i)))
                        right = $less
                    if right:
                        st2(t, k, ld1(d, base + j))
                        j = j + usz(1)
                    else:
                        st2(t, k, ld1(d, base + i))
                        i = i + usz(1)
                low = high
            for k in range(usz(0), n):
                st1(d, base + k, ld2(t, k))
            width = width + width
""")

# P: state (key, counter), result, elements. `$per` numbers per count; the last chunk draws the few
# of a count that is not used up.
_COUNT = """\
    more = u64(b) + u64(1)
    c0 = ld0(s, usz(2)) + more
    carry = u64(c0 < more)
    c1 = ld0(s, usz(3)) + carry
    carry = u64(c1 < carry)
    c2 = ld0(s, usz(4)) + carry
    carry = u64(c2 < carry)
    c3 = ld0(s, usz(5)) + carry
    c0, c1, c2, c3 = philox(ld0(s, usz(0)), ld0(s, usz(1)), c0, c1, c2, c3)
    i = usz($per) * b
"""
RANDOM = Template(f"""{HEAD}
    s, d, n = p_u64(P[0]), p_$kind(P[1]), usz(P[2])
    full = n // usz($per)
    for b in range(full * usz(chunk) // usz(chunks), full * usz(chunk + 1) // usz(chunks)):
{indent(_COUNT, "    ")}$all
    b = full
    if chunk + 1 == chunks and b * usz($per) < n:
{indent(_COUNT, "    ")}$some
""")

# Products. P: address of the BLAS function, transposition flags, m, n, k, A, its leading dimension,
# B, its, C, its, sizes of two batch loops, two strides each of A, B and C for these, strides of A
# and C per row, of B and C per column (all in bytes), whether chunks are slices of the columns (or
# rows), and the multiple at which slices are cut.
(
    BLAS, TURN_A, TURN_B, M, N, K, A, LEAD_A, B, LEAD_B, C, LEAD_C, OUTER, INNER, BATCH_A, _,
    BATCH_B, _, BATCH_C, _, ROW_A, ROW_C, COLUMN_B, COLUMN_C, BY_COLUMNS, UNIT, PRODUCT_SIZE,
) = range(27)  # fmt: skip
NO_TURN, TURN = 111, 112

_PRODUCT = f"""{HEAD}
    batches, first, last = P[{OUTER}] * P[{INNER}], i64(0), i64(1)
    row, m, column, n, unit = i64(0), P[{M}], i64(0), P[{N}], P[{UNIT}]
    if batches > 1:
        first, last = batches * chunk // chunks, batches * (chunk + 1) // chunks
    elif P[{BY_COLUMNS}]:
        column = P[{N}] // unit * chunk // chunks * unit
        if chunk + 1 < chunks:
            n = P[{N}] // unit * (chunk + 1) // chunks * unit
        n = n - column
    else:
        row = P[{M}] // unit * chunk // chunks * unit
        if chunk + 1 < chunks:
            m = P[{M}] // unit * (chunk + 1) // chunks * unit
        m = m - row
    for i in range(first, last):
        x, y = i // P[{INNER}], i % P[{INNER}]
        a = P[{A}] + x * P[{BATCH_A}] + y * P[{BATCH_A + 1}] + row * P[{ROW_A}]
        b = P[{B}] + x * P[{BATCH_B}] + y * P[{BATCH_B + 1}] + column * P[{COLUMN_B}]
        c = P[{C}] + x * P[{BATCH_C}] + y * P[{BATCH_C + 1}]
        c = c + row * P[{ROW_C}] + column * P[{COLUMN_C}]
"""
BLAS_PRODUCT = Template(f"""{_PRODUCT}\
        gemm_$kind(P[{BLAS}], P[{TURN_A}], P[{TURN_B}], m, n, P[{K}], a, P[{LEAD_A}],
                   b, P[{LEAD_B}], c, P[{LEAD_C}])
""")


def combine_text(n: Node, partial: np.dtype) -> str:
    w = wide(n.op, n.dtype)
    fold = expression(FOLDS[n.op], ["t", "v"], w, w)
    return COMBINE.substitute(partial=KINDS[partial], wide=KINDS[w], kind=KINDS[n.dtype], fold=fold)


def copy_text(dtype: np.dtype) -> str:
    return COPY.substitute(kind=KINDS[dtype])


def opaque_text(n: Node) -> str:
    """The kernel of a scatter_add, cumsum, argsort or random."""
    dtype = n.inputs[0].dtype if n.op == "argsort" else n.dtype
    kind = KINDS[dtype]
    match n.op:
        case "scatter_add":
            return SCATTER.substitute(kind=kind, sum=expression("add", ["x", "y"], dtype, dtype))
        case "cumsum":
            w = wide("sum", dtype)
            return CUMSUM.substitute(
                kind=kind, wide=KINDS[w], sum=expression("add", ["x", "y"], w, w)
            )
        case "argsort":
            less = expression("less", ["x", "y"], dtype, BOOL)
            if dtype.kind == "f":  # NaN comes last
                less = f"({less}) or (y != y and x == x)"
            return ARGSORT.substitute(kind=kind, less=less)
        case "random":
            words = [f"c{i}" for i in range(4)]
            if dtype.itemsize == 8:
                drawn = [f"f64({w} >> u64(11)) * f64({2.0**-53!r})" for w in words]
            else:
                drawn = [
                    f"f32(({w} >> u64({low})) & u64({0xFFFFFF})) * f32({2.0**-24!r})"
                    for w in words
                    for low in (8, 40)
                ]
            stores = [f"st1(d, i + usz({k}), {x})" for k, x in enumerate(drawn)]
            some = [f"if i + usz({k}) < n:\n    {store}" for k, store in enumerate(stores)]
            return RANDOM.substitute(
                kind=kind,
                per=len(drawn),
                all=indent("\n".join(stores), " " * 8),
                some=indent("\n".join(some), " " * 8),
            )
    raise KeyError(n.op)
