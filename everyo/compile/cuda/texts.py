"""Kernels with a text of their own: the opaque ops, the meeting of partial results, products.

Each function gives the text of a kernel with its sizes baked in. The language is that of the
generated kernels; a thread works on what its number `i` says, unless a comment says otherwise.
"""

import math
from collections.abc import Sequence

import numpy as np

from everyo.compile.cuda.heads import Text
from everyo.compile.cuda.lower import THREADS, WARP, power_of_two
from everyo.compile.cuda.printer import DevicePrinter
from everyo.compile.cuda.statements import Across, DeviceKernel
from everyo.compile.emit import expression, literal
from everyo.compile.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from everyo.compile.program import FOLDS, KINDS, first

NONE: frozenset[int] = frozenset()
NUMBER = "    i = u32(block * u32({threads}) + u32(cuda.threadIdx.x))\n"


def each(count: int, params: Sequence[str], body: str) -> Text:
    """A kernel with one thread for each of `count` things."""
    threads = min(THREADS, max(WARP, -(-count // WARP) * WARP))
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    text = f"{NUMBER.format(threads=threads)}    if i < u32({count}):\n{lines}"
    return kernel(text, params, max(1, -(-count // threads)), threads)


def kernel(body: str, params: Sequence[str], blocks: int, threads: int) -> Text:
    """A kernel whose parameters are p0, p1, ..."""
    return Text(body, tuple(f"p{k}" for k in range(len(params))), tuple(params), blocks, threads)


def combine(op: str, dtype: np.dtype, size: int, teams: int, pair: bool) -> Text:
    """p0 (teams, words, size) folds into p1 (size): a team per element, its lanes share the
    teams."""
    kind, fold = KINDS[dtype], FOLDS[op]
    team = min(WARP, power_of_two(teams))
    threads = min(THREADS, max(WARP, power_of_two(team * size)))
    per = threads // team
    words = 2 if pair else 1
    printer = DevicePrinter(
        DeviceKernel((), (), team, threads, 1, 1, NONE, frozenset(), NONE, (), 0.0)
    )
    start = literal(first(op, dtype).value, dtype)
    lines = [
        *printer.places(),
        f"if chunk < u32({size}):",
        f"    t = {start}",
        *([f"    te = {start}"] if pair else []),
        "    j = lane",
        f"    while j < u32({teams}):",
        f"        k = u64(j) * u64({words * size}) + chunk",
        *([
            f"        t, te = pair_join(t, te, ld(p0, k), ld(p0, k + u64({size})))",
        ] if pair else [
            "        v = ld(p0, k)",
            f"        t = {expression(fold, ['t', 'v'], dtype, dtype)}",
        ]),
        f"        j = u32(j + u32({team}))",
        *(f"    {line}" for line in printer.across(Across("t", fold, dtype, pair))),
        *(["    t = pair_total(t, te)"] if pair else []),
        "    if lane == u32(0):" if team > 1 else "    if True:",
        f"        st(p1, chunk, {kind}(t))",
    ]  # fmt: skip
    body = "".join(f"    {line}\n" for line in lines)
    kinds = (f"{kind}*", f"{kind}*")
    return kernel(body, kinds, -(-size // per), threads)


def copy(
    dtype: np.dtype, axes: Sequence[tuple[int, int, int]], value: bool | int | float | None
) -> Text:
    """p0 to p1 over axes (size, stride in p0, stride in p1), outermost first; or a value to p1."""
    kind, count = KINDS[dtype], math.prod(size for size, _, _ in axes)
    lines, rest, source, target = [], "i", [], []
    below = count
    for k, (size, a, b) in enumerate(axes):
        below //= size
        digit = rest if below == 1 else f"{rest} // u32({below})"
        lines.append(f"x{k} = u32({digit}" + (f" % u32({size}))" if k else ")"))
        source += [f"x{k} * u64({a})"] if a else []
        target += [f"x{k} * u64({b})"] if b else []
    got = f"ld(p0, {' + '.join(source) or 'u64(0)'})" if value is None else literal(value, dtype)
    lines.append(f"st(p1, {' + '.join(target) or 'u64(0)'}, {got})")
    return each(count, (f"{kind}*", f"{kind}*"), "\n".join(lines))


def ranks(dtype: np.dtype, rows: int, n: int) -> Text:
    """Stable argsort of short rows: an element goes where it ranks. p0 keys, p1 result."""
    kind = KINDS[dtype]
    body = f"""
base, mine = u64(i // u32({n})) * u64({n}), u32(i % u32({n}))
x = ld(p0, base + mine)
rank, j = u32(0), u32(0)
while j < u32({n}):
    y = ld(p0, base + j)
    if {before(dtype, "y", "x")} or (j < mine and not ({before(dtype, "x", "y")})):
        rank = u32(rank + u32(1))
    j = u32(j + u32(1))
st(p1, base + rank, i64(mine))
"""
    return each(rows * n, (f"{kind}*", "i64*"), body)


def before(dtype: np.dtype, a: str, b: str) -> str:
    """Whether a sorts strictly before b; NaN comes last."""
    less = expression("less", [a, b], dtype, dtype)
    return f"(({less}) or ({b} != {b} and {a} == {a}))" if dtype.kind == "f" else f"({less})"


def runs(rows: int, n: int) -> Text:
    """The order before sorting: 0, 1, 2 … in every row of p0."""
    return each(rows * n, ("i64*",), f"st(p0, i, i64(i % u32({n})))")


def merge(dtype: np.dtype, rows: int, n: int, width: int) -> Text:
    """One round of a stable merge sort: sorted runs of `width` meet in pairs. p0 keys, p1 the order
    so far, p2 the next. An element finds its place in the other run by bisection."""
    kind = KINDS[dtype]
    body = f"""
base, at = u64(i // u32({n})) * u64({n}), u32(i % u32({n}))
start = u32(at // u32({2 * width}) * u32({2 * width}))
middle = u32(min(start + u32({width}), u32({n})))
end = u32(min(start + u32({2 * width}), u32({n})))
mine = ld(p1, base + at)
x = ld(p0, base + u64(mine))
left = at < middle
low, high = middle, end
if not left:
    low, high = start, middle
first = low
while low < high:
    half = u32((low + high) // u32(2))
    y = ld(p0, base + u64(ld(p1, base + half)))
    ahead = {before(dtype, "y", "x")}
    if not left:
        ahead = not ({before(dtype, "x", "y")})
    if ahead:
        low = u32(half + u32(1))
    else:
        high = half
place = u32(at + (low - first))
if not left:
    place = u32(start + (low - first) + (at - middle))
st(p2, base + place, mine)
"""
    return each(rows * n, (f"{kind}*", "i64*", "i64*"), body)


def clamped(count: int, rows: int) -> Text:
    """Indices of p0 brought within [0, rows), to p1."""
    return each(count, ("i64*", "i64*"), f"st(p1, i, max(i64(0), min(ld(p0, i), i64({rows - 1}))))")


def scatter(dtype: np.dtype, count: int, width: int) -> Text:
    """The sums of sorted runs. p0 rows by position, p1 positions sorted by row, p2 updates, p3
    result: the thread at the start of a run adds up one column of it, in order."""
    kind, pair = KINDS[dtype], dtype.kind == "f"
    add = (
        "t, te = pair_add(t, te, x)"
        if pair
        else f"t = {expression('add', ['t', 'x'], dtype, dtype)}"
    )
    body = f"""
k, c = u32(i // u32({width})), u32(i % u32({width}))
row = ld(p0, u64(ld(p1, k)))
opens = k == u32(0)
if not opens:
    opens = ld(p0, u64(ld(p1, u32(k - u32(1))))) != row
if opens:
    t, te = {kind}(0), {kind}(0)
    while k < u32({count}):
        at = u64(ld(p1, k))
        if ld(p0, at) != row:
            break
        x = ld(p2, at * u64({width}) + c)
        {add}
        k = u32(k + u32(1))
    st(p3, u64(row) * u64({width}) + c, {"pair_total(t, te)" if pair else "t"})
"""
    return each(count * width, ("i64*", "i64*", f"{kind}*", f"{kind}*"), body)


def cumsum(dtype: np.dtype, rows: int, n: int) -> Text:
    """p0 to p1, a block per row: each thread sums its share, the shares are summed in order, and
    each thread goes over its share again."""
    kind, pair = KINDS[dtype], dtype.kind == "f"
    threads = min(THREADS, max(WARP, power_of_two(-(-n // 4))))
    share = -(-n // threads)
    plain = expression("add", ["t", "x"], dtype, dtype)
    add = "t, te = pair_add(t, te, x)" if pair else f"t = {plain}"
    total = "pair_total(t, te)" if pair else "t"
    join = (
        "t, te = pair_join(t, te, ld(w, j), ld(we, j))"
        if pair
        else f"x = ld(w, j)\n        t = {plain}"
    )
    body = f"""    w = cuda.shared.array({threads}, t_{kind})
    we = cuda.shared.array({threads}, t_{kind})
    me = u32(cuda.threadIdx.x)
    base = u64(block) * u64({n})
    low = u32(min(me * u32({share}), u32({n})))
    high = u32(min(low + u32({share}), u32({n})))
    t, te = {kind}(0), {kind}(0)
    k = low
    while k < high:
        x = ld(p0, base + k)
        {add}
        k = u32(k + u32(1))
    st(w, me, t)
    st(we, me, te)
    cuda.syncthreads()
    t, te = {kind}(0), {kind}(0)
    j = u32(0)
    while j < me:
        {join}
        j = u32(j + u32(1))
    k = low
    while k < high:
        x = ld(p0, base + k)
        {add}
        st(p1, base + k, {total})
        k = u32(k + u32(1))
"""
    return kernel(body, (f"{kind}*", f"{kind}*"), rows, threads)


def random(dtype: np.dtype, count: int) -> Text:
    """Philox4x64-10, see core/random.py. p0 state (key, counter), p1 result."""
    kind, narrow = KINDS[dtype], dtype.itemsize == 4
    keep, lows = (24, (8, 40)) if narrow else (53, (11,))
    drawn = [f"(c{k} >> u64({low})) & u64({2**keep - 1})" for k in range(4) for low in lows]
    stores = "\n".join(
        f"if at + u64({k}) < u64({count}):\n"
        f"    st(p1, at + u64({k}), {kind}(i64({x})) * {kind}({2.0**-keep!r}))"
        for k, x in enumerate(drawn)
    )
    body = f"""
k0, k1 = ld(p0, u64(0)), ld(p0, u64(1))
more = u64(u64(i) + u64(1))
c0 = u64(ld(p0, u64(2)) + more)
carry = u64(c0 < more)
c1 = u64(ld(p0, u64(3)) + carry)
carry = u64(c1 < carry)
c2 = u64(ld(p0, u64(4)) + carry)
carry = u64(c2 < carry)
c3 = u64(ld(p0, u64(5)) + carry)
turn = u32(0)
while turn < u32({ROUNDS}):
    h0, l0 = mulhi(u64({MULTIPLIERS[0]}), c0), u64({MULTIPLIERS[0]}) * c0
    h1, l1 = mulhi(u64({MULTIPLIERS[1]}), c2), u64({MULTIPLIERS[1]}) * c2
    c0, c1, c2, c3 = u64(h1) ^ c1 ^ k0, l1, u64(h0) ^ c3 ^ k1, l0
    k0 = k0 + u64({KEY_STEPS[0]})
    k1 = k1 + u64({KEY_STEPS[1]})
    turn = u32(turn + u32(1))
at = u64(i) * u64({len(drawn)})
{stores}
"""
    return each(-(-count // len(drawn)), ("u64*", f"{kind}*"), body)
