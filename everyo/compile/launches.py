"""Which rows run together: independent ones as a single launch over (row, chunk) pairs.

Groups that follow each other and do not touch each other's results form a run: the updates of all
parameters, the two gradients of a product, the projections of attention. Values that die or are
born within a run must not share bytes, so a run counts as one step of the memory plan.
"""

from dataclasses import dataclass
from itertools import pairwise

from everyo.compile.emit import HEAD
from everyo.compile.fuse import Group, Schedule
from everyo.compile.ir import Node
from everyo.compile.memory import Homes
from everyo.compile.space import chain

TOGETHER = {"loop", "matmul"}  # groups of one row before their combines; others have rows in order
LONGEST = 64  # groups of a run: each chunk looks its row up

# A launch of several rows. P: address of rows as in the program, the chunk of the launch is a chunk
# of one of them.
PAIRS = f"""{HEAD}
    at, c = P[0], i64(chunk)
    while c >= peek(at + 16):
        c = c - peek(at + 16)
        at += 32
    call(peek(at), peek(at + 8), c, peek(at + 16))
"""


@dataclass(frozen=True)
class Runs:
    """For each group the first and the last group of its run."""

    first: tuple[int, ...]
    last: tuple[int, ...]


def runs(schedule: Schedule, homes: Homes) -> Runs:
    """Cut the schedule into runs; none goes across the point where checks are read."""
    starts: list[int] = []
    stored: set[Node] = set()
    read: set[Node] = set()
    for step, g in enumerate(schedule.groups):
        mine = {chain(o)[0] for n in g.nodes for o in n.inputs}
        written = set(g.stores) | {homes.direct[n] for n in g.stores if n in homes.direct}
        fits = (
            starts
            and _joins(g) and _joins(schedule.groups[starts[-1]])
            and step - starts[-1] < LONGEST
            and step - 1 != homes.guard
            and not mine & stored and not written & read and not written & stored
        )  # fmt: skip
        if not fits:
            starts.append(step)
            stored, read = set(), set()
        stored |= written
        read |= mine
    bounds = [*starts, len(schedule.groups)]
    spans = [(a, b - 1) for a, b in pairwise(bounds) for _ in range(a, b)]
    return Runs(tuple(a for a, _ in spans), tuple(b for _, b in spans))


def _joins(g: Group) -> bool:
    return g.kind in TOGETHER
