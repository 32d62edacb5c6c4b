"""The text of a kernel: a body, and a head that says which blocks run it on what.

A body speaks of its parameters and of `block` and `blocks`: the number of a block and how many
there are. Alone, these are the grid's. In a table, one launch runs many rows, each with arguments
and blocks of its own: the head finds the row of a block by bisection. The text does not depend on
how many rows there are, so that one kernel updates the parameters of every network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ALONE = """def kernel({names}):
    block, blocks = u32(cuda.blockIdx.x), u32(cuda.gridDim.x)
"""
# A row of the table: its first block, then its arguments. After the last row: the number of blocks.
TABLE = """def kernel(table, rows):
    own, low, high = u64(u32(cuda.blockIdx.x)), u32(0), u32(rows)
    while high > low + u32(1):
        half = u32((low + high) // u32(2))
        if ld(table, u64(half) * u64({width})) <= own:
            low = half
        else:
            high = half
    row = u64(low) * u64({width})
    block = u32(own - ld(table, row))
    blocks = u32(ld(table, row + u64({width})) - ld(table, row))
"""
TABLE_PARAMS = ("u64*", "u64")


@dataclass(frozen=True)
class Text:
    """The body of a kernel, its parameters and their kinds ("f32*" a pointer, "u64" a number), and
    its grid."""

    body: str
    names: tuple[str, ...]
    params: tuple[str, ...]
    blocks: int
    threads: int

    @property
    def text(self) -> str:
        """The kernel as a launch of its own."""
        return ALONE.format(names=", ".join(self.names)) + self.body

    @property
    def in_table(self) -> str:
        """The kernel for the rows of a table."""
        lines = [TABLE.format(width=1 + len(self.names))]
        for i, (name, kind) in enumerate(zip(self.names, self.params, strict=True)):
            word = f"ld(table, row + u64({1 + i}))"
            value = f"pointer(t_{kind[:-1]}, {word})" if kind.endswith("*") else word
            lines.append(f"    {name} = {value}\n")
        return "".join(lines) + self.body


def table(texts: Sequence[Text]) -> list[int]:
    """The first block of every row, and the number of blocks."""
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + text.blocks)
    return starts
