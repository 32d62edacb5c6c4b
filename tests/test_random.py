"""Random numbers: NumPy's Philox, seeds, states, distributions."""

import copy
import pickle

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryODTypeError, EveryOError, EveryOShapeError


def words_of(seed):
    """The stream of NumPy's generator for a seed, from its first word."""
    return np.random.Philox(seed)


@pytest.fixture(autouse=True)
def same_state_afterwards():
    state = eo.get_rng_state()
    yield
    eo.set_rng_state(state)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40, np.int64(7)])
def test_the_state_of_a_seed_is_numpys(seed):
    eo.manual_seed(seed)
    state = eo.get_rng_state().view(np.uint64)
    theirs = np.random.Philox(int(seed)).state["state"]
    np.testing.assert_array_equal(state[:2], theirs["key"])
    np.testing.assert_array_equal(state[2:], theirs["counter"])


def test_uniform_numbers_are_the_words_of_philox():
    eo.manual_seed(3)
    got = eo.uniform((10,), dtype="float64").numpy()
    np.testing.assert_array_equal(got, (words_of(3).random_raw(10) >> np.uint64(11)) * 2.0**-53)
    eo.manual_seed(3)
    got = eo.rand(9).numpy()
    halves = [h for w in words_of(3).random_raw(5) for h in (int(w) % 2**32, int(w) >> 32)]
    np.testing.assert_array_equal(got, [(h >> 8) * 2.0**-24 for h in halves[:9]])


def test_a_draw_continues_at_the_next_block_of_four_words():
    eo.manual_seed(3)
    eo.rand(9)
    assert eo.get_rng_state()[2] == 2
    eo.rand(8)
    assert eo.get_rng_state()[2] == 3
    eo.manual_seed(3)
    first, second = (
        eo.uniform((5,), dtype="float64").numpy(),
        eo.uniform((4,), dtype="float64").numpy(),
    )
    stream = (words_of(3).random_raw(12) >> np.uint64(11)) * 2.0**-53
    np.testing.assert_array_equal(first, stream[:5])
    np.testing.assert_array_equal(second, stream[8:12])


def test_the_state_is_saved_and_restored():
    eo.manual_seed(1)
    eo.rand(3)
    state = eo.get_rng_state()
    want = [eo.randn(4).tolist(), eo.rand(2).tolist()]
    eo.rand(100)
    eo.set_rng_state(state)
    assert [eo.randn(4).tolist(), eo.rand(2).tolist()] == want
    state[...] = 0  # a copy
    assert eo.get_rng_state().any()


def test_a_generator_can_be_copied_and_pickled():
    g = eo.Generator(5)
    g.uniform((3,), np.float32)
    for h in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        np.testing.assert_array_equal(h.get_state(), g.get_state())
        before = g.get_state()
        np.testing.assert_array_equal(
            h.normal((4,), np.float64), copy.deepcopy(g).normal((4,), np.float64)
        )
        np.testing.assert_array_equal(g.get_state(), before)


def test_generators_without_a_seed_differ():
    assert not np.array_equal(eo.Generator().get_state(), eo.Generator().get_state())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_ends_of_a_range_are_half_open(dtype):
    eo.manual_seed(0)
    t = eo.uniform((20_000,), 1.0, 1.0 + 1e-3, dtype=dtype)
    assert t.dtype == dtype
    assert float(t.min()) >= 1.0 and float(t.max()) < 1.0 + 1e-3
    t = eo.uniform((20_000,), -3.0, 5.0, seed=2, dtype=dtype).numpy().astype(float)
    assert -3 <= t.min() < -2.9 and 4.9 < t.max() < 5 and abs(t.mean() - 1) < 0.1


@pytest.mark.parametrize("seed", [None, 4])
def test_normal_numbers_have_the_moments_asked_for(seed):
    eo.manual_seed(11)
    for dtype in ("float32", "float64"):
        t = eo.normal((40_001,), 2.0, 0.5, seed=seed, dtype=dtype).numpy()
        assert t.dtype == dtype and np.isfinite(t).all()
        assert abs(t.mean() - 2) < 0.015 and abs(t.std() - 0.5) < 0.01
        assert abs(((t - t.mean()) ** 3).mean()) < 0.01


def test_an_explicit_seed_is_numpys_default_generator():
    want = np.random.default_rng(9).uniform(0.0, 1.0, (2, 3)).astype(np.float32)
    np.testing.assert_array_equal(eo.rand(2, 3, seed=9).numpy(), want)
    np.testing.assert_array_equal(eo.rand((2, 3), seed=np.random.default_rng(9)).numpy(), want)
    want = np.random.default_rng(9).normal(0.0, 1.0, 4).astype(np.float32)
    np.testing.assert_array_equal(eo.randn(4, seed=9).numpy(), want)
    state = eo.get_rng_state()
    eo.rand(3, seed=1)
    np.testing.assert_array_equal(eo.get_rng_state(), state)


def test_random_tensors_can_require_gradients():
    assert eo.uniform((2,), requires_grad=True).is_leaf
    assert eo.normal((2,), seed=1, requires_grad=True).requires_grad
    assert eo.uniform(3).shape == (3,) and eo.rand().shape == () and eo.rand(0, 2).shape == (0, 2)


def test_bad_arguments_are_refused():
    for bad in (-1, 1.5, True, "a"):
        with pytest.raises(ValueError, match="seed"):
            eo.manual_seed(bad)
    with pytest.raises(EveryOError, match="seed"):
        eo.rand(2, seed="a")
    with pytest.raises(EveryOShapeError, match="6 integers"):
        eo.set_rng_state(np.zeros(3, np.int64))
    with pytest.raises(EveryOShapeError, match="6 integers"):
        eo.set_rng_state(np.zeros(6))
    with pytest.raises(EveryODTypeError, match="floating"):
        eo.uniform((2,), dtype="int64")
    with pytest.raises(EveryOShapeError, match="negative"):
        eo.rand(-1)
