"""Our own matrix product: within the error that theory allows for every size, layout and dtype, and
the same bits whatever the tiles, slices and threads are."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ir_builder import Builder

import everyo as eo
from everyo.compile import cpu, products, rows, tiles
from everyo.compile.ir import F32, F64, Graph, Node

SIDES = [1, 2, 3, 5, 7, 13, 16, 31, 47, 64, 65, 97]
MACHINES = [(64, 32), (32, 16), (16, 32), (16, 16)]  # bytes of a vector, registers
Arrays = list[np.ndarray]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No BLAS: all products are our own."""
    monkeypatch.setattr(rows, "BLAS", None)


@dataclass(frozen=True)
class Laid:
    """How an operand (m, k) lies."""

    name: str

    def operand(self, b: Builder, array: np.ndarray) -> tuple[Node, np.ndarray]:
        """An input and its array, such that the operand has the values of `array`."""
        m, k = array.shape
        match self.name:
            case "rows":
                return b.input((m, k), array.dtype), array.copy()
            case "columns":
                turned = array.T.copy()
                return b.swap(b.input((k, m), array.dtype)), turned
            case "slice":
                wide = np.full((2 * m + 1, k + 3), np.nan, array.dtype)
                wide[1::2, 2 : k + 2] = array
                x = b.input(wide.shape, array.dtype)
                return b.slice(x, (1, 2, m), (2, 1, k)), wide
        raise AssertionError(self.name)


LAYOUTS = [Laid(name) for name in ("rows", "columns", "slice")]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a sum of k products, each rounded, may be off: k roundings of the sum of sizes, and one
    per block."""
    k = a.shape[-1]
    u = np.finfo(a.dtype).eps / 2
    terms = k + math.ceil(k / tiles.DEPTH)
    return 1.01 * terms * u * (np.abs(a.astype("f8")) @ np.abs(b.astype("f8")))


def sizes() -> list[tuple[int, int, int]]:
    """Sides up to the edges of tiles, next to each other and mixed."""
    mixed = np.random.default_rng(0).choice(SIDES, (24, 3)).tolist()
    edges = [
        (t.rows + i, t.width + j, 9)
        for machine in MACHINES[:2]
        for t in [tiles.Tile(tiles.ROWS[machine[1]][v], v, machine[0] // 4) for v in (1, 2, 3)]
        for i, j in ((-1, 1), (0, 0), (1, -1))
    ]
    depths = [(3, 5, tiles.DEPTH + d) for d in (-1, 0, 1)] + [(9, 33, 3 * tiles.DEPTH + 1)]
    return [*map(tuple, mixed), *edges, *depths]


def product(
    m: int, n: int, k: int, dtype: Any, left: Laid, right: Laid, seed: int = 0
) -> tuple[Graph, Arrays, np.ndarray, np.ndarray]:
    b = Builder()
    x, y = numbers((m, k), dtype, seed), numbers((k, n), dtype, seed + 1)
    one, first = left.operand(b, x)
    two, second = right.operand(b, y)
    return b.graph(b.make("matmul", one, two)), [first, second], x, y


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("left", LAYOUTS, ids=lambda x: x.name)
@pytest.mark.parametrize("right", LAYOUTS, ids=lambda x: x.name)
def test_products_are_off_by_no_more_than_theory_allows(
    dtype: np.dtype, left: Laid, right: Laid, alone: None
) -> None:
    for m, n, k in sizes():
        graph, arrays, x, y = product(m, n, k, dtype, left, right)
        (got,) = cpu.Program(graph)(arrays)
        exact = x.astype("f8") @ y.astype("f8") if dtype == F32 else exactly(x, y)
        assert (np.abs(got - exact) <= bound(x, y)).all(), (m, n, k)


def exactly(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The product, each element rounded once."""
    wide = np.longdouble if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps else np.float64
    return (x.astype(wide)[:, :, None] * y.astype(wide)).sum(1).astype("f8")


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("right", LAYOUTS, ids=lambda x: x.name)
def test_the_bits_do_not_depend_on_tiles(
    machine: tuple[int, int], right: Laid, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for m, n, k in ((1, 70, 300), (3, 5, 40), (17, 9, 33), (50, 130, 70)):
        graph, arrays, *_ = product(m, n, k, F32, LAYOUTS[0], right)
        (want,) = cpu.Program(graph)(arrays)
        with monkeypatch.context() as patch:
            patch.setattr(tiles, "registers", lambda: machine)
            (got,) = cpu.Program(graph)(arrays)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("m, n, k", [(70, 40, 300), (9, 400, 30), (64, 64, 64)])
def test_the_bits_do_not_depend_on_slices_or_threads(
    m: int, n: int, k: int, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PARALLEL_NS", 0)
    found = []
    before = eo.get_num_threads()
    try:
        for flops, right in itertools.product((1e12, 1e5, 1), LAYOUTS[:2]):
            monkeypatch.setattr(products, "CHUNK_FLOPS", flops)
            graph, arrays, *_ = product(m, n, k, F32, LAYOUTS[0], right)
            kernel = cpu.Program(graph)
            assert (kernel.kernels[0].chunks > 1) == (flops < m * n * k)
            for threads in range(1, 5):
                eo.set_num_threads(threads)
                found.append(kernel(arrays)[0])
    finally:
        eo.set_num_threads(before)
    assert all(np.array_equal(f, found[0]) for f in found)


def test_a_row_is_the_same_alone_and_in_a_batch(alone: None) -> None:
    x, y = numbers((37, 45), "f4", 0), numbers((45, 21), "f4", 1)
    b = Builder()
    (whole,) = cpu.Program(b.graph(b.make("matmul", b.input((37, 45)), b.input((45, 21)))))([x, y])
    for i in (0, 5, 36):
        b = Builder()
        row = b.make("matmul", b.input((1, 45)), b.input((45, 21)))
        (one,) = cpu.Program(b.graph(row))([x[i : i + 1], y])
        np.testing.assert_array_equal(one[0], whole[i])


def test_nan_and_infinity_stay_in_their_rows_and_columns(alone: None) -> None:
    x, y = numbers((9, 20), "f4", 0), numbers((20, 19), "f4", 1)
    x[3, 4], x[8, 0], y[7, 18] = np.nan, np.inf, np.inf
    b = Builder()
    (got,) = cpu.Program(b.graph(b.make("matmul", b.input((9, 20)), b.input((20, 19)))))([x, y])
    with np.errstate(invalid="ignore"):
        want = x.astype("f8") @ y.astype("f8")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("jit", [True, False])
def test_batches_of_any_order_are_products(jit: bool, alone: None) -> None:
    b = Builder()
    x, y = b.input((2, 3, 5, 7)), b.input((2, 7, 3, 9))
    turned = b.make("transpose", y, axes=(0, 2, 1, 3))
    graph = b.graph(b.make("matmul", x, turned))
    arrays = [numbers((2, 3, 5, 7), "f4", 0), numbers((2, 7, 3, 9), "f4", 1)]
    (got,) = cpu.Program(graph, jit=jit)(arrays)
    want = arrays[0].astype("f8") @ arrays[1].transpose(0, 2, 1, 3).astype("f8")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_operands_are_read_where_they_lie(alone: None) -> None:
    """The windows of an image, and a matrix whose rows are not side by side: no copy."""
    b = Builder()
    x = b.input((50, 8))
    seen = b.make("window", x, axis=0, count=46, size=5, step=1, spacing=1)
    graph = b.graph(b.make("matmul", b.reshape(seen, (46, 40)), b.input((40, 6))))
    kernel = cpu.Program(graph)
    assert [row.name.split()[0] for row in kernel.kernels] == ["matmul"]


def test_a_tile_fits_into_the_registers() -> None:
    for count, most in tiles.ROWS.items():
        for vectors, rows_ in most.items():
            assert rows_ * vectors + vectors + 1 <= count  # sums, a row of B, a number of A
    for m, n, k in sizes():
        t = tiles.tile(m, n, k, 4)
        assert t.rows <= tiles.ROWS[tiles.registers()[1]][t.vectors]
