"""Programs with exchanges: a graph in stages, between which Python functions run.

An `exchange` node stands for what a function of the host makes of a flat array, e.g. its mean over
all processes. The graph is cut at these nodes: a stage computes what needs no exchange still to
come, hands over what later stages read, and the functions run before the next stage. Checks are
made as early as they can be; what the graph writes is written by the last stage.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.compile.ir import LEAVES, VIEWS, Check, Graph, Node, Table, walk

Exchange = Callable[[np.ndarray], np.ndarray]

EXCHANGES: list[Exchange] = []  # by the number that a node carries


def register(function: Exchange) -> int:
    """The number of a function: flat array -> array of the same size and dtype."""
    EXCHANGES.append(function)
    return len(EXCHANGES) - 1


def exchange(trace: Any, flat: Any, number: int) -> Any:
    """What function `number` makes of a flat traced array. Every call is a node of its own."""
    xp, table = trace.xp, trace.table
    made = table.make("exchange", xp.lift(flat).node, host=number, call=table.exchanges)
    table.exchanges += 1
    return xp.wrap(made)


def has_exchanges(graph: Graph) -> bool:
    """Whether a graph needs stages."""
    return any(n.op == "exchange" for n in graph.order)


@dataclass(frozen=True, eq=False)
class Stage:
    """One program. Its inputs are those of the whole graph and then `cuts`, values of earlier
    stages; it returns `made`, on which the `exchanges` run."""

    program: Any
    cuts: tuple[Node, ...]
    made: tuple[Node, ...]
    exchanges: tuple[Node, ...]


class Staged:
    """The stages of a graph, called like one program."""

    data_at = -1  # there is no straight form of a call

    def __init__(self, graph: Graph, make: Callable[[Graph], Any]) -> None:
        self.graph = graph
        self.lock = threading.RLock()
        self.stages = _stages(graph, make)
        programs = [stage.program for stage in self.stages]
        self.kernels = tuple(row for p in programs for row in p.kernels)
        self.arena_bytes = sum(p.arena_bytes for p in programs)
        self.schedule = programs[0].schedule  # what `explain` draws: all until the first exchange

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        return self._run(arrays, lambda stage, given: stage.program(given))

    def _run(
        self, arrays: Sequence[Any], run: Callable[[Stage, list[Any]], list[Any]]
    ) -> list[Any]:
        """`run` on every stage, with the exchanges in between; what the last one returns."""
        values: dict[Node, Any] = {}
        outputs: list[Any] = []
        for stage in self.stages:
            outputs = run(stage, [*arrays, *(values[n] for n in stage.cuts)])
            values.update(zip(stage.made, outputs, strict=True))
            for node in stage.exchanges:
                values[node] = EXCHANGES[node.param("host")](values[node.inputs[0]])
        return outputs

    def source(self) -> str:
        """The text of every distinct kernel, stage by stage."""
        return "\n".join(stage.program.source() for stage in self.stages)

    def profile(self, arrays: Sequence[Any]) -> list[float]:
        """Median seconds of each row. The exchanges run once, in every process that takes part."""
        seconds: list[float] = []

        def measured(stage: Stage, given: list[Any]) -> list[Any]:
            seconds.extend(stage.program.profile(given))
            if stage is self.stages[-1]:
                return [None] * len(stage.made)  # nothing is written
            return stage.program(given)

        self._run(arrays, measured)
        return seconds


def _stages(graph: Graph, make: Callable[[Graph], Any]) -> tuple[Stage, ...]:
    order = walk((*graph.inputs, *graph.roots))
    level: dict[Node, int] = {}  # how many exchanges lie below a node, one after the other
    for n in order:
        below = max((level[i] for i in n.inputs), default=0)
        level[n] = below + (n.op == "exchange")
    last = max(level.values())
    checks = [[c for c in graph.checks if level[c.bad] == k] for k in range(last + 1)]
    final = [*graph.outputs, *(v for _, v in graph.writes)]
    wanted: list[dict[Node, None]] = [{} for _ in range(last)]  # what a stage hands over
    cuts: list[dict[Node, None]] = [{} for _ in range(last + 1)]
    everywhere: set[Node] = set()  # leaves and views of them: no stage has to hand them over
    for n in order:
        if n.op in LEAVES or (n.op in VIEWS and everywhere.issuperset(n.inputs)):
            everywhere.add(n)

    def read(n: Node, stage: int) -> None:
        """A stage reads a value: its own, a leaf, or one that an earlier one must hand over."""
        if n in everywhere or (level[n] == stage and n.op != "exchange"):
            return
        cuts[stage][n] = None
        if n.op != "exchange":
            wanted[level[n]][n] = None

    for n in (*final, *(c.bad for c in checks[last])):
        read(n, last)
    for k in range(last):
        for c in checks[k]:
            read(c.bad, k)
    for n in order:
        if n.op == "exchange":
            wanted[level[n] - 1][n.inputs[0]] = None
        else:
            for i in n.inputs:
                read(i, level[n])
    built = []
    for k in range(last + 1):
        made = tuple(wanted[k]) if k < last else graph.outputs
        writes = graph.writes if k == last else ()
        part = _part(graph, order, tuple(cuts[k]), made, writes, checks[k])
        after = [n for n in order if n.op == "exchange" and level[n] == k + 1]
        built.append(Stage(make(part), tuple(cuts[k]), made, tuple(after)))
    return tuple(built)


def _part(
    graph: Graph,
    order: Sequence[Node],
    cuts: Sequence[Node],
    made: Sequence[Node],
    writes: Sequence[tuple[Node, Node]],
    checks: Sequence[Check],
) -> Graph:
    """The graph that computes `made`, with `cuts` as further inputs."""
    table, new = Table(), dict[Node, Node]()
    for n in graph.inputs:
        new[n] = table.input(n.shape, n.dtype, n.param("strides"))
    for n in cuts:
        new[n] = table.input(n.shape, n.dtype)
    goals = [*made, *(v for _, v in writes), *(c.bad for c in checks)]
    needed = _needed(goals, set(new))
    for n in order:
        if n in needed and n not in new:
            new[n] = table.make(n.op, *(new[i] for i in n.inputs), **dict(n.params))
    return Graph(
        graph.name,
        tuple(table.inputs),
        tuple(new[n] for n in made),
        tuple((new[t], new[v]) for t, v in writes),
        tuple(Check(new[c.bad], c.error, c.message) for c in checks),
    )


def _needed(goals: Sequence[Node], given: set[Node]) -> set[Node]:
    """Every node below the goals, not going below those that are given."""
    found: set[Node] = set()
    stack = list(goals)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            if n not in given:
                stack += n.inputs
    return found
