"""Convolution and pooling, compiled: eager = compiled = a sum of products in float64, in values,
gradients and second gradients, for tables of sizes, strides, dilations, paddings and groups."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from traced import interpreted

import everyo as eo

Pair = tuple[int, int]
EVEN: tuple[Pair, Pair] = ((0, 0), (0, 0))


@dataclass(frozen=True)
class Case:
    """An image (n, height, width, channels), a kernel of `window` to `out` channels."""

    image: tuple[int, int, int, int]
    window: Pair
    out: int
    stride: Pair = (1, 1)
    pads: tuple[Pair, Pair] = EVEN
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def options(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.pads,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def kernel(self) -> tuple[int, int, int, int]:
        return (*self.window, self.image[3] // self.groups, self.out)


SAME = ((1, 1), (1, 1))
CASES = [
    Case((2, 5, 4, 3), (3, 2), 4),
    Case((2, 6, 6, 5), (3, 3), 7, pads=SAME),
    Case((1, 7, 6, 4), (3, 3), 6, (2, 2), SAME),
    Case((2, 8, 7, 2), (2, 3), 3, (3, 2), ((1, 0), (0, 2))),
    Case((2, 9, 9, 4), (3, 3), 2, (1, 1), ((2, 2), (2, 2)), (2, 2)),
    Case((2, 9, 8, 4), (3, 2), 2, (2, 3), ((2, 1), (0, 1)), (2, 3)),
    Case((2, 9, 9, 4), (2, 3), 4, (2, 2), ((0, 1), (1, 0)), (3, 2), 2),
    Case((2, 5, 5, 6), (3, 3), 6, pads=SAME, groups=6),
    Case((2, 5, 5, 6), (1, 1), 4),
    Case((2, 7, 5, 6), (1, 1), 4, (2, 2)),
    Case((2, 5, 5, 3), (5, 5), 2),
    Case((1, 1, 9, 2), (1, 4), 3, (1, 2), ((0, 0), (3, 0))),
    Case((0, 5, 5, 2), (3, 3), 2, pads=SAME),
    Case((3, 4, 4, 1), (3, 3), 1, pads=SAME),
    Case((2, 3, 3, 2), (2, 2), 2, (4, 4)),
]
POOLS = [
    ((2, 6, 6, 3), (2, 2), (2, 2), "valid"),
    ((2, 7, 6, 3), (2, 3), (2, 3), "valid"),
    ((2, 7, 7, 2), (3, 3), (3, 3), "same"),
    ((2, 6, 5, 2), (3, 2), (1, 1), "same"),
    ((1, 7, 6, 2), (3, 3), (2, 2), "same"),
    ((1, 5, 5, 1), (2, 2), (3, 3), "valid"),
    ((2, 5, 6, 2), (3, 3), (2, 1), "valid"),
]


def summed(x: np.ndarray, kernel: np.ndarray, case: Case) -> np.ndarray:
    """The convolution as one sum of products per group."""
    (sh, sw), (dh, dw) = case.stride, case.dilation
    extent = [(k - 1) * d + 1 for k, d in zip(case.window, case.dilation, strict=True)]
    image = np.pad(x, ((0, 0), *case.pads, (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(image, extent, (1, 2))
    seen = seen[:, ::sh, ::sw, :, ::dh, ::dw]
    parts = zip(np.split(seen, case.groups, 3), np.split(kernel, case.groups, 3), strict=True)
    return np.concatenate([np.einsum("nhwcij,ijco->nhwo", a, b) for a, b in parts], 3)


def drawn(case: Case, dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in (case.image, case.kernel)]


def everything(case: Case) -> Callable[..., Any]:
    """The result, its gradients, and the gradients of a function of these."""

    def run(x: Any, kernel: Any) -> Any:
        y = eo.conv2d(x, kernel, **case.options)
        first = eo.grad(lambda a, b: (eo.conv2d(a, b, **case.options) ** 2).sum(), (0, 1))

        def bent(a: Any, b: Any) -> Any:
            return sum((g * g).sum() for g in first(a, b))

        return [y, *first(x, kernel), *eo.grad(bent, (0, 1))(x, kernel)]

    return run


def pooled(pool: Any, window: Pair, stride: Pair, padding: str) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        f = functools.partial(pool, pool_size=window, stride=stride, padding=padding)
        first = eo.grad(lambda a: (f(a) ** 3).sum())
        return [f(x), first(x), eo.grad(lambda a: (first(a) ** 2).sum())(x)]

    return run


def arrays(values: Any) -> list[np.ndarray]:
    return [np.array(v.numpy() if isinstance(v, eo.Tensor) else v) for v in values]


def close(got: Any, want: Any, dtype: str, what: str) -> None:
    """Equal but for the rounding of sums of products, at the size of the result."""
    eps = float(np.finfo(dtype).eps)
    for g, w in zip(arrays(got), arrays(want), strict=True):
        assert g.shape == w.shape, what
        scale = float(np.abs(w).max(initial=0)) + 1e-30
        np.testing.assert_allclose(g, w, rtol=0, atol=200 * eps * scale, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_is_a_sum_of_products(case: Case) -> None:
    x, kernel = drawn(case, "float64")
    got = eo.compile(lambda a, b: eo.conv2d(a, b, **case.options))(eo.tensor(x), eo.tensor(kernel))
    np.testing.assert_allclose(got.numpy(), summed(x, kernel, case), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_graph_of_gradients_of_gradients_means_what_eager_code_does(case: Case) -> None:
    operands = [eo.tensor(a) for a in drawn(case, "float64")]
    close(
        interpreted(everything(case))(*operands), everything(case)(*operands), "float64", str(case)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_gradients_of_gradients_are_those_of_eager_code(dtype: str) -> None:
    """All cases in one compiled function."""
    operands = [[eo.tensor(a) for a in drawn(case, dtype)] for case in CASES]
    compiled = eo.compile(
        lambda given: [everything(c)(*o) for c, o in zip(CASES, given, strict=True)]
    )
    for case, got, given in zip(CASES, compiled(operands), operands, strict=True):
        close(got, everything(case)(*given), dtype, str(case))


@pytest.mark.parametrize("pool", [eo.max_pool2d, eo.avg_pool2d])
def test_compiled_pools_are_those_of_eager_code(pool: Any) -> None:
    rng = np.random.default_rng(0)
    runs = [pooled(pool, *rest) for _, *rest in POOLS]
    given = [eo.tensor(np.rint(4 * rng.standard_normal(shape)) / 4) for shape, *_ in POOLS]
    compiled = eo.compile(lambda xs: [run(x) for run, x in zip(runs, xs, strict=True)])
    for case, run, got, x in zip(POOLS, runs, compiled(given), given, strict=True):
        close(got, run(x), "float64", str(case))
        close(interpreted(run)(x), run(x), "float64", str(case))


def test_a_window_that_holds_only_nan_gives_its_gradient_to_nobody() -> None:
    x = np.zeros((1, 4, 4, 1))
    x[0, :2, :2] = np.nan
    for stride in (2, 1):
        gradient = eo.grad(lambda a, s=stride: eo.max_pool2d(a, 2, stride=s).sum())
        t = eo.tensor(x)
        np.testing.assert_array_equal(eo.compile(gradient)(t).numpy(), gradient(t).numpy())


@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_has_as_many_rows_for_large_kernels_as_for_small_ones(stride: int) -> None:
    """No temporary per tap, forward or backward."""
    rows = []
    for size in (5, 7):
        x, k = eo.ones(2, 8, 8, 3), eo.ones(size, size, 3, 4)
        options = {"stride": stride, "padding": size // 2}
        step = eo.compile(
            eo.grad(lambda a, b, o=options: (eo.conv2d(a, b, **o) ** 2).sum(), (0, 1))
        )
        rows.append(len(step.explain(x, k).rows))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_windows_are_read_where_they_lie(dtype: str) -> None:
    """No row stores more than the padded image has."""
    shapes = ((2, 12, 12, 4), (5, 5, 4, 4))
    x, k = (eo.full(s, 0.03, dtype=dtype) for s in shapes)
    step = eo.compile(eo.grad(lambda a, b: (eo.conv2d(a, b, padding=2) ** 2).sum(), (0, 1)))
    shapes = [s for row in step.explain(x, k).rows for s in row.shapes]
    assert max(np.prod(s) for s in shapes) <= 2 * 16 * 16 * 4
    got, want = step(x, k), eo.grad(
        lambda a, b: (eo.conv2d(a, b, padding=2) ** 2).sum(), (0, 1))(x, k)  # fmt: skip
    close(got, want, dtype, dtype)
