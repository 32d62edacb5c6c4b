"""What a `scan` node repeats: a body, what each iteration reads, and which values are kept.

The body is a graph without checks and writes. Its inputs are, in this order, the `reads`: elements
of an operand that move on by a fixed step, or what an output of the body was some iterations ago.
The result of the node is one flat array. For each output of the body it holds a series: the values
that are read from before the first iteration (its `lead`), then those of all iterations. Of an
output that is only wanted one iteration later, or at the end, just the last value is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyo.compile.ir import Graph

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Element start + i * step of an operand in C order, in iteration i."""

    operand: int
    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Past:
    """The value of an output `distance` iterations ago, at least one."""

    output: int
    distance: int


@dataclass(frozen=True, slots=True)
class Series:
    """What is kept of an output: its values in the operands `lead`, which come before the first
    iteration, and those of all iterations; or, if not `kept`, the last value alone."""

    lead: tuple[int, ...]
    kept: bool


class Body:
    """The graph of one iteration. Equal texts are equal bodies."""

    def __init__(self, graph: "Graph") -> None:
        self.graph = graph

    @cached_property
    def text(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class Scan:
    """The parameters of a `scan` node."""

    body: Body
    count: int
    reads: tuple[Read | Past, ...]
    series: tuple[Series, ...]

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Scan":
        return cls(params["body"], params["count"], params["reads"], params["series"])

    @property
    def places(self) -> list[int]:
        """For each output where its value of iteration 0 is in the result, or its last one."""
        places, at = [], 0
        for s in self.series:
            places.append(at + len(s.lead) if s.kept else at)
            at += len(s.lead) + self.count if s.kept else 1
        return places

    @property
    def size(self) -> int:
        """Elements of the result."""
        return sum(len(s.lead) + self.count if s.kept else 1 for s in self.series)

    def place(self, output: int, iteration: int) -> int:
        """Where in the result an output of an iteration is."""
        if not self.series[output].kept:
            assert iteration == self.count - 1
            return self.places[output]
        return self.places[output] + iteration

    def faults(self, sizes: Sequence[int]) -> Iterator[str]:
        """What does not fit together, for operands of these sizes."""
        graph = self.body.graph
        if len(graph.inputs) != len(self.reads) or len(graph.outputs) != len(self.series):
            yield "the body has other inputs or outputs"
        if graph.writes or graph.checks or self.count < 1:
            yield "the body writes or checks, or never runs"
        for n in (*graph.inputs, *graph.outputs):
            if n.shape:
                yield f"{n} is no single number"
        for read in self.reads:
            if isinstance(read, Past):
                series = self.series[read.output]
                if not 1 <= read.distance <= len(series.lead):
                    yield f"{read} goes further back than {series}"
                if read.distance > 1 and not series.kept:
                    yield f"{read} of a series that is not kept"
            else:
                last = read.start + (self.count - 1) * read.step
                if not (0 <= read.start < sizes[read.operand] and 0 <= last < sizes[read.operand]):
                    yield f"{read} leaves its operand"
        for series in self.series:
            if not all(0 <= k < len(sizes) and sizes[k] == 1 for k in series.lead):
                yield f"{series} begins with what is no single number"
