"""What NumPy's namespace lacks and `everyo.core.namespace` adds."""

import math

import mpmath
import numpy as np
import pytest

from everyo.core import namespace
from everyo.core.erf import BLOCK, erf
from everyo.core.namespace import put_add


def ulps(got, x):
    """The largest distance from the true erf, in units of the last place of the result."""
    worst = 0.0
    for value, at in zip(got.tolist(), x.tolist(), strict=True):
        true = mpmath.erf(mpmath.mpf(at))
        unit = float(np.spacing(np.abs(got.dtype.type(float(true)))))
        worst = max(worst, float(abs(mpmath.mpf(value) - true)) / unit)
    return worst


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_is_within_2_units_of_the_last_place(dtype):
    generator = np.random.default_rng(0)
    tiny = -37 if dtype == np.float32 else -300
    x = np.concatenate(
        [
            generator.uniform(-7, 7, 1500),
            generator.uniform(-1.1, 1.1, 1500),
            10.0 ** generator.uniform(tiny, 1, 500),
            [1.0, -1.0, np.nextafter(1, 0), 4.0, 6.0, 5.99, 50.0],
        ]
    ).astype(dtype)
    assert ulps(erf(x), x) <= 2


def test_erf_at_the_edges():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324])
    got = erf(x)
    np.testing.assert_array_equal(got, [0, -0.0, 1, -1, np.nan, 5e-324])
    assert math.copysign(1, got[1]) == -1
    assert erf(np.zeros((0, 3))).shape == (0, 3) and erf(np.array(0.5)).shape == ()


def test_erf_keeps_shapes_and_floating_dtypes():
    x = np.linspace(-3, 3, 2 * BLOCK + 12)
    np.testing.assert_array_equal(erf(x.reshape(4, -1)), erf(x).reshape(4, -1))
    np.testing.assert_array_equal(erf(x[::-3]), erf(x)[::-3])
    assert erf(np.float16([1, 2])).dtype == np.float16
    assert erf(np.array([1, 2])).dtype == np.float64


@pytest.mark.parametrize("flat", [1 << 18, 4])
@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((5,), (7,)),
        ((5, 3), (4, 2)),
        ((5, 2, 3), (3,)),
        ((5, 3), ()),
        ((5, 3), (0,)),
        ((5, 0), (2,)),
    ],
)
def test_put_add_sums_what_has_the_same_index(monkeypatch, flat, shape, index):
    monkeypatch.setattr(namespace, "FLAT", flat)
    generator = np.random.default_rng(0)
    where = generator.integers(-shape[0], shape[0], index)
    value = generator.normal(size=(*index, *shape[1:]))
    want = np.zeros(shape)
    np.add.at(want, (where,), value)
    np.testing.assert_allclose(put_add(shape, (where,), value), want, rtol=1e-14)
    np.testing.assert_allclose(put_add(shape, where, value), want, rtol=1e-14)
