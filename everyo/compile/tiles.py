"""Our own matrix product: tiles of the result in vector registers, operands read where they lie.

An element (i, j) of an operand may be anywhere, as long as its place is a sum of one number for i
and one for j: a transposed matrix, a slice, the windows of an image. Two tables hold these numbers,
so nothing is copied before a product. Each element of the result is one chain of multiplications
and additions along the depth, cut into blocks of DEPTH whose results are added in order. It does
not depend on tiles, chunks or threads, so neither do the bits.
"""

import platform
import re
from dataclasses import dataclass
from functools import cache

from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

DEPTH = 256  # of a block
BLOCK = 48  # tiles of rows that share a packed panel
ROWS = {32: {1: 8, 2: 8, 3: 8, 4: 6}, 16: {1: 8, 2: 6, 3: 4}}  # by registers and vectors of a row
FEW = (1, 2, 4)  # rows of the tiles of low products
LOADS, LATENCY, OVERHEAD = 1.5, 4, 20  # per step; steps of a multiplication; steps of a tile
NAME = re.compile(r"(tile|edge|turn)_(f32|f64)_(\d+)_(\d+)_(\d+)")  # of what computes a tile


@dataclass(frozen=True)
class Tile:
    """`rows` x `vectors` vectors of `lanes` numbers, all in registers."""

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{self.rows}_{self.vectors}_{self.lanes}"


def named(word: str) -> tuple[str, str, Tile] | None:
    """What a function on tiles does, its dtype and its tile; None if it is another function."""
    found = NAME.fullmatch(word)
    if found is None:
        return None
    what, kind, *sizes = found.groups()
    return what, kind, Tile(*map(int, sizes))


@cache
def registers() -> tuple[int, int]:
    """The bytes of a vector register of this machine, and how many there are."""
    features = _multiarray_umath.__cpu_features__
    if features.get("AVX512F"):
        return 64, 32
    if features.get("AVX"):
        return 32, 16
    return 16, 32 if platform.machine().lower() in ("aarch64", "arm64") else 16


def tile(m: int, n: int, k: int, itemsize: int) -> Tile:
    """The tile for a product (m, k) @ (k, n): the quickest, by the steps that it takes."""
    size, count = registers()
    lanes = size // itemsize
    while 16 < lanes * itemsize and 2 * n <= lanes:
        lanes //= 2
    shapes = [
        Tile(rows, vectors, lanes)
        for vectors, most in ROWS[count].items()
        for rows in (*FEW, most)
        if rows <= most
    ]

    def steps(t: Tile) -> float:
        loads = (t.rows + t.vectors + 1) / LOADS
        depth = max(t.rows * t.vectors, loads, LATENCY)
        return -(-m // t.rows) * -(-n // t.width) * (k * depth + OVERHEAD)

    return min(shapes, key=steps)


def own_limit() -> int:
    """Bytes of numbers multiplied up to which our own product is at least as fast as a BLAS, other
    programs beside it or not.
    Measured where vectors have 64 bytes; elsewhere only what calling BLAS costs counts."""
    return 1 << (28 if registers()[0] == 64 else 18)


def packed(shape: Tile, itemsize: int) -> int:
    """The bytes of a packed panel."""
    return DEPTH * shape.width * itemsize
