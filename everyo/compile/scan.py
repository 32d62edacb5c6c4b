"""What a `scan` node repeats: a body, what each iteration reads, and which values are kept.

The body is a graph without checks and writes. Its inputs are, in this order, the `reads`: parts of
an operand that move on by a fixed step, or what an output of the body was some iterations ago. The
result of the node is one flat array. For each output of the body it holds a series of blocks: the
values that are read from before the first iteration (its `lead`), then those of all iterations. Of
an output that is only wanted one iteration later, or at the end, two blocks or one take turns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from everyo.compile.ir import Graph, Node

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """What begins at element start + i * step of an operand in C order, in iteration i. The input
    of the body says which shape it has, and strides. Operand -1 is the first of the lists of
    constants, -2 the second, and so on."""

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
    lists: tuple[tuple[bool | int | float, ...], ...] = ()  # constants of all iterations

    @classmethod
    def of(cls, params: dict[str, Any]) -> "Scan":
        return cls(**{name: params[name] for name in cls.__dataclass_fields__})

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a node but for its dtype."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def constants(self, i: int) -> np.ndarray:
        """What input i of the body reads of a list, for all iterations."""
        read = self.reads[i]
        assert isinstance(read, Read) and read.operand < 0
        return np.array(self.lists[-1 - read.operand], self.body.graph.inputs[i].dtype)

    @cached_property
    def sizes(self) -> list[int]:
        """Elements of the blocks of each output."""
        return [o.size for o in self.body.graph.outputs]

    def blocks(self, output: int) -> int:
        """How many blocks an output has."""
        s = self.series[output]
        return len(s.lead) + self.count if s.kept else 1 + len(s.lead)

    @cached_property
    def firsts(self) -> list[int]:
        """Where the blocks of each output begin."""
        sizes = [self.blocks(k) * size for k, size in enumerate(self.sizes)]
        return [0, *accumulate(sizes)][: len(sizes)]

    @property
    def size(self) -> int:
        """Elements of the result."""
        return sum(self.blocks(k) * size for k, size in enumerate(self.sizes))

    def place(self, output: int, iteration: int) -> int:
        """Where in the result the value of an iteration is while it is wanted; iterations before
        the first count from -1 down."""
        block = len(self.series[output].lead) + iteration
        return self.firsts[output] + self.sizes[output] * (block % self.blocks(output))

    @property
    def scalar(self) -> bool:
        """Whether an iteration is a few operations on numbers."""
        return not any(n.shape for n in self.body.graph.order)

    def faults(self, sizes: Sequence[int]) -> Iterator[str]:
        """What does not fit together, for operands of these sizes."""
        graph = self.body.graph
        if len(graph.inputs) != len(self.reads) or len(graph.outputs) != len(self.series):
            yield "the body has other inputs or outputs"
        if graph.writes or graph.checks or self.count < 1:
            yield "the body writes or checks, or never runs"
        for n, read in zip(graph.inputs, self.reads, strict=False):
            if isinstance(read, Past):
                series = self.series[read.output]
                if not 1 <= read.distance <= len(series.lead):
                    yield f"{read} goes further back than {series}"
                if graph.outputs[read.output].shape != n.shape:
                    yield f"{read} has another shape"
            else:
                low, high = extent(n.shape, strides_of(n))
                ends = read.start, read.start + (self.count - 1) * read.step
                listed = read.operand < 0
                size = len(self.lists[-1 - read.operand]) if listed else sizes[read.operand]
                if min(ends) + low < 0 or max(ends) + high >= size:
                    yield f"{read} leaves its operand"
        for series, size in zip(self.series, self.sizes, strict=False):
            if len(series.lead) > 1 and not series.kept:
                yield f"{series} goes far back but is not kept"
            if not all(0 <= k < len(sizes) and sizes[k] == size for k in series.lead):
                yield f"{series} begins with what has another size"


def strides_of(n: "Node") -> Shape:
    """The strides of an input of a body, in elements."""
    strides = n.param("strides")
    if strides is not None:
        return strides
    return tuple(prod(n.shape[i + 1 :]) for i in range(n.ndim))


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest distance of an element from the first one."""
    ends = [(k - 1) * s for k, s in zip(shape, strides, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
