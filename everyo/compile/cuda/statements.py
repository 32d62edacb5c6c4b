"""The statements that a loop program for a GPU has besides those of `program`, and its kernel."""

from dataclasses import dataclass

import numpy as np

from everyo.compile.program import Combine, Slot, Statement


@dataclass(frozen=True, slots=True)
class Spread:
    """A loop whose iterations the lanes of a team share; over="grid": all threads of all teams.

    With `vector` > 1 a lane takes so many neighbours at a time; `last` is the innermost index, that
    differs between them. `tail`: the count need not be a multiple."""

    var: str
    stop: int | str
    body: tuple["DeviceStatement", ...]
    over: str = "lanes"
    vector: int = 1
    last: str = ""
    tail: bool = False

    def __str__(self) -> str:
        return f"{self.over} {self.var} in 0..{self.stop} by {self.vector}:"


@dataclass(frozen=True, slots=True)
class Rows:
    """for r in the rows of this team."""

    var: str
    stop: int
    body: tuple["DeviceStatement", ...]

    def __str__(self) -> str:
        return f"rows {self.var} in 0..{self.stop}:"


@dataclass(frozen=True, slots=True)
class Across:
    """Fold an accumulator over the lanes of the team; all of them get the result."""

    name: str
    op: str
    dtype: np.dtype
    pair: bool

    def __str__(self) -> str:
        return f"{self.name} = {self.op} across lanes"


@dataclass(frozen=True, slots=True)
class Once:
    """Only the first lane of the team does this; `alone`: only that of the first team."""

    body: tuple["DeviceStatement", ...]
    alone: bool = False

    def __str__(self) -> str:
        return "first lane:"


@dataclass(frozen=True, slots=True)
class First:
    """Only where all of these indices are 0: what does not depend on them is stored once."""

    indices: tuple[str, ...]
    body: tuple["DeviceStatement", ...]

    def __str__(self) -> str:
        return f"if {' and '.join(f'{i} = 0' for i in self.indices)}:"


@dataclass(frozen=True, slots=True)
class Sync:
    """A barrier for the team."""

    def __str__(self) -> str:
        return "barrier"


@dataclass(frozen=True, slots=True)
class Leave:
    """Teams from this number on have nothing to do, not even to read."""

    teams: int

    def __str__(self) -> str:
        return f"only {self.teams} teams"


DeviceStatement = Statement | Spread | Rows | Across | Once | First | Sync | Leave


@dataclass(frozen=True, eq=False)
class DeviceKernel:
    """A kernel for a grid of `blocks` of `threads`, `team` of which work together.

    `chunks` counts the teams; `vectors` lists the slots that are read or written 16 bytes at a time
    and must be aligned to that, `loose` the parts of addresses that are no multiples of a vector;
    `shared` are the slots that lie in shared memory."""

    slots: tuple[Slot, ...]
    body: tuple[DeviceStatement, ...]
    team: int
    threads: int
    blocks: int
    vector: int
    vectors: frozenset[int]
    loose: frozenset[str]
    shared: frozenset[int]
    combines: tuple[Combine, ...]
    work: float

    @property
    def chunks(self) -> int:
        return self.blocks * (self.threads // self.team)
