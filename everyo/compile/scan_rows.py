"""The rows of a `scan` node.

A loop of numbers is one kernel. A loop of arrays has a plan of its own for an iteration. If each
element is computed from the same element of all arrays, chunks of elements go through all
iterations on their own, and their values stay in the cache; else one iteration follows the other.
"""

from typing import TYPE_CHECKING

import numpy as np

from everyo.compile import native, scan_kernel, tape
from everyo.compile.control import Control
from everyo.compile.ir import LEAVES, POINTWISE, VIEWS, IRError, Node
from everyo.compile.program import Extent, Kernel, Share
from everyo.compile.scan import Scan
from everyo.compile.space import Layout, chain, contiguous, single, strided

if TYPE_CHECKING:
    from everyo.compile.rows import Plan

Source = Node | np.ndarray  # an operand, or a list of constants
LANE = 384  # elements of a chunk that goes through all iterations, at least
MOST_LANES = 64


def scan(plan: "Plan", n: Node) -> None:
    """Add the rows of a node to a plan."""
    found = Scan.of(dict(n.params))
    _numbers(plan, n) if found.scalar else _arrays(plan, n, found)


def _numbers(plan: "Plan", n: Node) -> None:
    words = scan_kernel.Words(n)
    table = np.zeros(words.size, np.int64)
    table[scan_kernel.COUNT] = count = words.scan.count
    for at, o, read in words.reads:
        item = o.dtype.itemsize
        if isinstance(o, np.ndarray):
            plan.literals.append(o)
            table[at : at + 2] = o.ctypes.data, item
            continue
        base, start, step = _element(o, plan.layout)
        plan.address(table, at, base, item * (start + step * read.start))
        if read.step:
            table[at + 1] = item * step * read.step
    for at, place in words.series:
        plan.address(table, at, n, n.dtype.itemsize * place)
    for at, o in words.leads:
        base, start, _ = _element(o, plan.layout)
        plan.address(table, at, base, o.dtype.itemsize * start)
    for at, o in words.numbers:
        table[at] = tape.literal_bits(o.param("value"), o.dtype)
    operations = count * len(words.scan.body.graph.order)
    name = f"scan of {count} iterations, {operations} operations"
    nodes = [*(chain(o)[0] for o in n.inputs), n]
    plan.row(name, scan_kernel.text(n), table, 1, 2.0 * operations, nodes, operations)


def _element(o: Node, layout: Layout) -> tuple[Node, int, int]:
    """The base of an operand with at most one dim, where it begins there, and its stride."""
    got = strided(o, layout)
    stride = None if got is None else single([pair for pairs in got[1] for pair in pairs])
    if got is None or stride is None:
        raise IRError(f"no single stride: {o}")
    return got[0], got[2], stride


def _arrays(plan: "Plan", n: Node, scan: Scan) -> None:
    for k, series in enumerate(scan.series):
        for i, operand in enumerate(series.lead, -len(series.lead)):
            o = n.inputs[operand]
            plan.copy(o, n, contiguous(o.shape), scan.place(k, i))
    inner = type(plan)(scan.body.graph, plan.jit, plan.keep)
    plan.nested += [inner, *inner.nested]
    lanes = _lanes(inner)
    work = sum(inner.works) * scan.count
    nodes = [*(chain(o)[0] for o in n.inputs), n]
    flops = scan.count * sum(row.flops for row in inner.kernels)
    name = f"scan of {scan.count} iterations, {len(inner.rows)} rows each"
    text = scan_kernel.LANES if lanes else scan_kernel.REPEAT
    table = _in_lanes(plan, n, scan, inner, lanes) if lanes else _in_turn(plan, n, scan, inner)
    plan.row(name, text, table, max(1, lanes), work, nodes, flops, tuple(inner.kernels))


def _moves(plan: "Plan", n: Node, scan: Scan) -> list[tuple[Source, int, int, bool]]:
    """How the arrays of an iteration move, its inputs, then its outputs: where they lie, the first
    element, the step, and whether they go back and forth."""
    out: list[tuple[Source, int, int, bool]] = []
    for i, what in enumerate((*scan.reads, *range(len(scan.series)))):
        source, start, step, turns = scan_kernel.move(scan, what)
        o: Source = n
        if source is not None:
            o = n.inputs[source] if source >= 0 else scan.constants(i)
        if isinstance(o, np.ndarray):
            plan.literals.append(o)
        out.append((o, start, step, turns))
    return out


def _put(plan: "Plan", table: np.ndarray, at: int, o: Source, start: int) -> int:
    """Put the address of an element of an array into a table; how many bytes one has."""
    item = o.dtype.itemsize
    if isinstance(o, np.ndarray):
        table[at] = o.ctypes.data + item * start
        return item
    got = strided(o, plan.layout)
    assert got is not None
    plan.address(table, at, got[0], item * (got[2] + start))
    return item


def _in_turn(plan: "Plan", n: Node, scan: Scan, inner: "Plan") -> np.ndarray:
    """The table of REPEAT."""
    control = Control(inner)
    control.words[native.DATA_AT] = -1
    plan.controls += [control, *inner.controls]
    plan.shared_ns += inner.shared_ns * scan.count
    moves, first = _moves(plan, n, scan), scan_kernel.ARRAYS
    table = np.zeros(first + 3 * len(moves), np.int64)
    table[:first] = (
        scan.count, plan.locate(native.EXECUTOR), control.address, control.words[native.ARRAYS],
        len(moves),
    )  # fmt: skip
    for i, (o, start, step, turns) in enumerate(moves):
        at = first + 3 * i
        item = _put(plan, table, at, o, start)
        table[at + 1 : at + 3] = item * step, turns
    return table


def _lanes(inner: "Plan") -> int:
    """Into how many chunks of elements the iterations can be cut; 0 if elements depend on others.

    Nodes of the full size are computed from the same element of others, whatever else is read is
    from outside; and all kernels cut what they do alike.
    """
    graph = inner.schedule.graph
    full = next((o for o in graph.outputs), None)
    if full is None or inner.nested or any(g.kind != "loop" for g in inner.schedule.groups):
        return 0
    for n in graph.order:
        computed = n.op not in LEAVES and n.op not in VIEWS
        if computed and (n.shape != full.shape or n.op not in POINTWISE or n.op == "take"):
            return 0
        if n.op in VIEWS and (chain(n)[0].op not in LEAVES or chain(n)[0].size == full.size):
            return 0
    shares = {_share(kernel) for kernel in inner.lowered.values()}
    if len(shares) != 1 or any(_keeps(kernel) for kernel in inner.lowered.values()):
        return 0
    ((total, _),) = shares
    return max(1, min(MOST_LANES, total, full.size // LANE))


def _share(kernel: Kernel) -> tuple[int, int]:
    """What the chunks of a kernel share, and the unit at which it is cut."""
    share = next((s for s in kernel.body if isinstance(s, Share)), None)
    if share is None:  # one row
        return 1, 1
    total = share.total
    if isinstance(total, str):
        extents = (s for s in kernel.body if isinstance(s, Extent))
        (slot,) = (s.slot for s in extents if s.name == total)
        total = kernel.slots[slot].elements
    return total, share.unit


def _keeps(kernel: Kernel) -> bool:
    """Whether chunks have memory of their own."""
    return bool(kernel.combines) or any(s.per_chunk for s in kernel.slots)


def _in_lanes(plan: "Plan", n: Node, scan: Scan, inner: "Plan", lanes: int) -> np.ndarray:
    """The table of LANES."""
    known = {t.ctypes.data: t for t in inner.tables}
    tables = [known[row[1]] for row in inner.rows]
    starts = 8 * np.cumsum([0, *(len(t) for t in tables)])
    copies = np.tile(np.concatenate(tables), (lanes, 1))
    kernels = np.array([(row[0], at) for row, at in zip(inner.rows, starts, strict=False)])
    plan.tables += [copies, kernels]
    moves, first = _moves(plan, n, scan), scan_kernel.MOVES
    table = np.zeros(first + 4 * len(inner.patches), np.int64)
    table[:first] = (
        scan.count, kernels.ctypes.data, len(kernels), copies.ctypes.data, starts[-1],
        len(inner.patches),
    )  # fmt: skip
    for i, (word, array, shift) in enumerate(inner.patches):
        k = next(k for k, t in enumerate(tables) if 0 <= word - t.ctypes.data < t.nbytes)
        o, start, step, turns = moves[array]
        at = first + 4 * i
        item = _put(plan, table, at + 1, o, start + shift // o.dtype.itemsize)
        table[at] = starts[k] + word - tables[k].ctypes.data
        table[at + 2 : at + 4] = item * step, turns
    return table
