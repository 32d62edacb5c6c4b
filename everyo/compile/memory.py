"""Where values live: outputs and written inputs directly if that is safe, else in one arena.

A written value may go straight into its input only if nothing can still need the old contents: no
later group reads them, no check is still open, and a group that reads and writes the input does so
element by element. Everything else gets bytes in the arena; lives that do not overlap share them.
"""

from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from everyo.compile.fuse import Schedule
from everyo.compile.ir import Graph, Node
from everyo.compile.legalize import Legal
from everyo.compile.space import Layout, chain, contiguous, spread, stored

if TYPE_CHECKING:
    from everyo.compile.launches import Runs

ALIGN = 64


@dataclass(frozen=True, eq=False)
class Homes:
    """`direct`: value -> the input it is written into at once. `late`: copied there at the end.

    `reads` says after which group a value or an input is dead; groups up to `guard` (inclusive)
    must have run before the checks are read. `settled`: the outputs that no failing check leaves
    half written, as nothing of them is written before.
    """

    direct: dict[Node, Node]
    late: tuple[tuple[Node, Node], ...]
    reads: dict[Node, int]
    guard: int
    settled: frozenset[int]


def homes(schedule: Schedule) -> Homes:
    graph = schedule.graph
    reads: dict[Node, int] = {}
    made: dict[Node, int] = {}
    for step, g in enumerate(schedule.groups):
        reads |= {chain(o)[0]: step for n in g.nodes for o in n.inputs}
        made |= dict.fromkeys(g.stores, step)
    guard = max((made[chain(c.bad)[0]] for c in graph.checks), default=-1)
    direct: dict[Node, Node] = {}
    late = []
    for target, value in graph.writes:
        base = chain(value)[0]
        step = made[base]
        safe = step > guard and reads.get(target, -1) <= step
        if safe and _in_place(schedule, step, base, target, reads):
            direct[base] = target
        else:
            late.append((target, value))
    settled = (i for i, o in enumerate(graph.outputs) if made.get(chain(o)[0], -1) > guard)
    return Homes(direct, tuple(late), reads, guard, frozenset(settled))


def strides_in(legal: Legal, value: Node, target: Node) -> list[int]:
    """Strides of a value that is written into the target, which has its shape or is contiguous."""
    return legal.layout(target) if value.shape == target.shape else contiguous(value.shape)


def layout_in(legal: Legal, homes: Homes) -> Layout:
    """The strides of values where they live."""
    direct = homes.direct
    return lambda n: strides_in(legal, n, direct[n]) if n in direct else legal.layout(n)


def arrays(graph: Graph, homes: Homes) -> dict[Node, int]:
    """The values that live in arrays of the call, by position among inputs and outputs."""
    inputs = {n: i for i, n in enumerate(graph.inputs)}
    found = dict(inputs)
    for i, o in enumerate(graph.outputs):
        if o.size:
            found[chain(o)[0]] = len(inputs) + i
    return found | {value: inputs[target] for value, target in homes.direct.items()}


def _in_place(
    schedule: Schedule, step: int, value: Node, target: Node, reads: dict[Node, int]
) -> bool:
    """Whether the group of this step can write the value over the target while it runs."""
    group = schedule.groups[step]
    layout, s = schedule.legal.layout, group.space
    flat = layout(target) == contiguous(target.shape)
    if not flat and (s is None or value in s.reduced or reads.get(value, step) > step):
        return False  # others would look for it in C order
    used = any(chain(o)[0] is target for n in group.nodes for o in n.inputs)
    if s is None or not used:
        return not used
    if value in s.reduced and value not in s.rows:
        return True  # the chunks' partial results meet after the kernel
    consumed = {chain(o)[0] for n in group.nodes for o in n.inputs}
    if s.rows & consumed:
        return False  # a later loop of the row might read the old value again
    if s.axes(value) not in (s.domain, s.domain - s.inner):
        return False  # it would be updated more than once
    place = _places(s.dims[value], strides_in(schedule.legal, value, target))
    return all(
        a.offset == 0 and {x: st for d in a.dims for x, st in spread(d) if st} == place
        for o, a in s.loads.items()
        if a.base is target
    ) and s.leaf_set(s.dims[value]) == frozenset(place)


def _places(dims: list, strides: list[int]) -> dict:
    return {x: st for d, s in zip(dims, strides, strict=True) for x, st in stored(d, s)}


@dataclass(frozen=True)
class Request:
    """Bytes that something needs from its first to its last row."""

    name: Hashable
    size: int
    first: int
    last: int


def stored_values(schedule: Schedule, homes: Homes, elsewhere: Container[Node]) -> list[Request]:
    """What the stored values need that live nowhere else: memory from the group that
    makes them to the last that reads them. What lies in another value lives as long as that."""
    end = len(schedule.groups)
    kept = {chain(v)[0] for _, v in homes.late}
    flags = {chain(c.bad)[0] for c in schedule.graph.checks}
    spans: dict[Node, tuple[int, int]] = {}
    for step, g in enumerate(schedule.groups):
        for n in g.stores:
            last = end if n in kept else max(step, homes.reads.get(n, step))
            last = max(last, homes.guard) if n in flags else last
            root, _ = schedule.legal.home(n)
            first, longest = spans.get(root, (step, last))
            spans[root] = first, max(last, longest)
    return [Request(n, n.nbytes, *span) for n, span in spans.items() if n not in elsewhere]


def in_runs(requests: Iterable[Request], runs: "Runs") -> Iterator[Request]:
    """Requests by run: all groups of one are at work at the same time."""
    for r in requests:
        last = runs.last[r.last] if r.last < len(runs.last) else r.last
        yield Request(r.name, r.size, runs.first[r.first], last)


def place(requests: Iterable[Request]) -> tuple[dict[Hashable, int], int]:
    """Offsets and the bytes of the whole arena: largest first, lowest free offset."""
    order = sorted(requests, key=lambda r: -r.size)
    taken = np.empty((4, len(order)), np.int64)  # begin, end, first, last, by rising begin
    offsets: dict[Hashable, int] = {}
    total = 0
    for count, r in enumerate(order):
        size = -(-max(r.size, 1) // ALIGN) * ALIGN
        begin, end, first, last = taken[:, :count]
        alive = (first <= r.last) & (r.first <= last)
        free = np.maximum.accumulate(np.concatenate(([0], end[alive])))  # before each, and at last
        fits = np.flatnonzero(begin[alive] - free[:-1] >= size)
        at = int(free[fits[0]] if fits.size else free[-1])
        k = int(np.searchsorted(begin, at, "right"))
        taken[:, k + 1 : count + 1] = taken[:, k:count].copy()
        taken[:, k] = at, at + size, r.first, r.last
        offsets[r.name] = at
        total = max(total, at + size)
    return offsets, total
