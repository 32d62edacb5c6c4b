"""The texts of our own matrix product: what walks over its tiles, and panels of tiles.

One kernel serves all shapes: it shares the work, packs what of B must be packed, and calls the
function of panels with a table on the stack. That function knows one tile, see `microkernel`.
"""

from string import Template

from everyo.compile.emit import HEAD
from everyo.compile.ir import Node
from everyo.compile.program import KINDS
from everyo.compile.tiles import Tile

# P: A, B, C; tables of the places, in bytes, of A's rows and columns, B's rows and columns, and C's
# rows; bytes between B's rows (if its columns lie side by side); m, n, k; sizes of two batch loops,
# two strides each of A, B and C for these; scratch of a packed panel (0: B is read where it lies)
# and its bytes per chunk; whether the elements of a column of B lie side by side, and whether
# chunks share the columns (or rows); the function of panels, rows, columns and lanes of its tiles,
# rows that share a packed panel, depth of a block. Tables of rows end with as many copies of the
# last as fill a tile.
(
    A, B, C, ROWS_A, COLUMNS_A, ROWS_B, COLUMNS_B, ROWS_C, LEAD_B, M, N, K, OUTER, INNER, BATCH_A,
    _, BATCH_B, _, BATCH_C, _, PACK, PACK_STEP, TURN_B, BY_COLUMNS, PANEL, HEIGHT, WIDTH, LANES,
    SHARED, DEEP, SIZE,
) = range(31)  # fmt: skip
MULTIPLY, TURN = 0, 1  # what a panel does

PRODUCT = Template(f"""{HEAD}
    batches, first, last = P[{OUTER}] * P[{INNER}], i64(0), i64(1)
    low, high, left, right = i64(0), P[{M}], i64(0), P[{N}]
    height, width, lanes, deep = P[{HEIGHT}], P[{WIDTH}], P[{LANES}], P[{DEEP}]
    if batches > 1:
        first, last = batches * chunk // chunks, batches * (chunk + 1) // chunks
    elif P[{BY_COLUMNS}]:
        units = (right + width - 1) // width
        left = units * chunk // chunks * width
        right = min(right, units * (chunk + 1) // chunks * width)
    else:
        units = (high + height - 1) // height
        low = units * chunk // chunks * height
        high = min(high, units * (chunk + 1) // chunks * height)
    pack = P[{PACK}] + chunk * P[{PACK_STEP}]
    for i in range(first, last):
        x, y = i // P[{INNER}], i % P[{INNER}]
        a = P[{A}] + x * P[{BATCH_A}] + y * P[{BATCH_A + 1}]
        b = P[{B}] + x * P[{BATCH_B}] + y * P[{BATCH_B + 1}]
        c = P[{C}] + x * P[{BATCH_C}] + y * P[{BATCH_C + 1}]
        k = i64(0)
        while k < P[{K}]:
            depth = min(P[{K}] - k, deep)
            ka, rb = P[{COLUMNS_A}] + k * 8, P[{ROWS_B}] + k * 8
            top = low
            while top < high:
                count, j = min(P[{SHARED}], high - top), left
                ra, rc = P[{ROWS_A}] + top * 8, P[{ROWS_C}] + top * 8
                while j < right:
                    wide = min(right - j, width)
                    at, lead = b + j * $item + k * P[{LEAD_B}], P[{LEAD_B}]
                    if P[{PACK}] != 0:
                        at, lead, cb = pack, width * $item, P[{COLUMNS_B}] + j * 8
                        turned = depth // lanes * lanes
                        squares = wide // lanes * lanes if P[{TURN_B}] != 0 else i64(0)
                        call_with(P[{PANEL}], {TURN}, b + k * $item, cb, pack, squares, turned,
                                  0, 0, 0, 0, 0, 0)
                        for s in range(i64(0), wide):
                            to, v = pack + s * $item, b + peek(cb + s * 8)
                            for d in range(turned if s < squares else i64(0), depth):
                                w = ld0(p_$kind(v + peek(rb + d * 8)), usz(0))
                                st1(p_$kind(to + d * lead), usz(0), w)
                    call_with(P[{PANEL}], {MULTIPLY}, a, ra, ka, at, lead, depth, c + j * $item,
                              rc, k, wide, count)
                    j += width
                top += count
            k += depth
""")

# One panel. P, to multiply: A, tables of its rows and columns, B, bytes between its rows, depth, C,
# table of its rows, whether to add to C, columns, rows. To turn: B, table of its columns, the
# packed panel, columns and depth in whole squares.
PANELS = Template(f"""{HEAD}
    if chunk == {TURN}:
        for s in range(i64(0), P[3], $lanes):
            for d in range(i64(0), P[4], $lanes):
                to = P[2] + s * $item + d * ($width * $item)
                turn_$tile(P[0] + d * $item, P[1] + s * 8, to)
    elif P[9] == $width:
        for r in range(i64(0), P[10], $rows):
            tile_$tile(P[0], P[1] + r * 8, P[2], P[3], P[4], P[5], P[6], P[7] + r * 8, P[8] == 0)
    else:
        for r in range(i64(0), P[10], $rows):
            edge_$tile(P[0], P[1] + r * 8, P[2], P[3], P[4], P[5], P[6], P[7] + r * 8, P[8] == 0,
                       P[9])
""")


def text(n: Node) -> str:
    """The kernel of a product: one for all shapes."""
    return PRODUCT.substitute(kind=KINDS[n.dtype], item=n.dtype.itemsize)


def panel(n: Node, shape: Tile) -> str:
    """The function of panels of a product with such tiles."""
    return PANELS.substitute(
        tile=f"{KINDS[n.dtype]}_{shape}", item=n.dtype.itemsize, rows=shape.rows,
        width=shape.width, lanes=shape.lanes,
    )  # fmt: skip
