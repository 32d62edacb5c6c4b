"""Buffers of results and gradients: written again only where nobody can see it."""

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import everyo as eo

CALLS = 6


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def derived(x: Any, picked: Any = None) -> Any:
    """A step that sets the gradient of `x`: of the sum of squares of some rows."""

    @eo.compile
    def step(x: Any, scale: Any, ids: Any) -> Any:
        x.grad = None
        loss = ((x[ids] if picked else x).square() * scale).sum()
        loss.backward()
        return loss

    return step


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def test_a_gradient_is_written_over_the_one_before():
    """One buffer, not two in turn: half the memory, and it stays in the caches."""
    x = eo.tensor(values(40, 30), requires_grad=True)
    step = derived(x)
    places = set()
    for i in range(CALLS):
        step(x, eo.tensor(float(i)), None)
        np.testing.assert_allclose(x.grad, 2 * i * x.data, rtol=1e-6)
        if i >= 3:
            places.add(address(x.grad))
    assert len(places) == 1


def test_the_peak_of_a_step_is_its_gradient_once():
    x = eo.tensor(values(1000, 1000), requires_grad=True)
    derived(x)(x, eo.tensor(1.0), None)  # imports and compiles
    x.grad = None
    step = derived(x)
    tracemalloc.start()
    try:
        for _ in range(4):
            step(x, eo.tensor(1.0), None)
        gc.collect()
        tracemalloc.reset_peak()
        for i in range(CALLS):
            step(x, eo.tensor(float(i)), None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * x.data.nbytes


HOLDERS = {
    "the array": lambda g: g,
    "a view": lambda g: g[1:3, ::2],
    "a transposed view": lambda g: g.T,
    "a memoryview": lambda g: np.frombuffer(memoryview(g).cast("B"), np.float32),
    "a DLPack export": lambda g: np.from_dlpack(g),
    "a tensor": lambda g: eo.as_tensor(g),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_gradient_that_somebody_holds_is_left_alone(holder):
    x = eo.tensor(values(40, 30), requires_grad=True)
    step = derived(x)
    held = []
    for i in range(2 * CALLS):
        step(x, eo.tensor(float(i + 1)), None)
        if i % 3 != 2:
            mine = HOLDERS[holder](x.grad)
            held.append((mine, np.array(mine)))
    for mine, copy in held:
        np.testing.assert_array_equal(mine, copy)


def test_a_gradient_held_by_another_tensor_too_is_left_alone():
    x = eo.tensor(values(40, 30), requires_grad=True)
    y = eo.tensor(values(40, 30), requires_grad=True)
    step = derived(x)
    for i in range(CALLS):
        step(x, eo.tensor(float(i + 1)), None)
        if i == 3:
            y.grad = x.grad
            copy = y.grad.copy()
    np.testing.assert_array_equal(y.grad, copy)


def test_a_failing_check_leaves_the_gradient_as_it_was():
    x = eo.tensor(values(40, 30), requires_grad=True)
    step = derived(x, picked=True)
    ids = np.arange(5)
    for i in range(CALLS):
        step(x, eo.tensor(float(i + 1)), ids)
    before = x.grad.copy()
    with pytest.raises(IndexError):
        step(x, eo.tensor(100.0), ids + 38)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad, before)
    step(x, eo.tensor(2.0), ids)
    np.testing.assert_allclose(x.grad[:5], 4 * x.data[:5], rtol=1e-6)


def test_a_check_that_depends_on_the_gradient_may_fail_too():
    x, rows = eo.tensor(values(40, 30), requires_grad=True), eo.tensor(values(8, 3))

    @eo.compile
    def step(scale: Any) -> Any:
        x.grad = None
        loss = (x.square() * scale).sum()
        loss.backward()
        return rows[(eo.tensor(x.grad).abs().max() > 50.0).astype("int64") * 10]

    for i in range(CALLS):
        step(eo.tensor(float(i + 1)))
    before = x.grad.copy()
    with pytest.raises(IndexError):
        step(eo.tensor(1e4))
    np.testing.assert_array_equal(x.grad, before)


def test_a_gradient_that_the_step_reads_is_not_written_over():
    x = eo.tensor(values(40, 30), requires_grad=True)

    @eo.compile
    def step(scale: Any) -> Any:
        old = x.grad
        x.grad = None
        loss = (x.square() * scale).sum()
        loss.backward()
        return eo.tensor(old).sum(axis=0) if old is not None else loss

    step(eo.tensor(1.0))
    for i in range(CALLS):
        before = x.grad.copy()
        got = step(eo.tensor(float(i + 1)))
        np.testing.assert_allclose(got.numpy(), before.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(x.grad, 2 * (i + 1) * x.data, rtol=1e-6)


def test_gradients_that_accumulate_are_right():
    x = eo.tensor(values(40, 30), requires_grad=True)

    @eo.compile
    def step() -> Any:
        loss = x.square().sum()
        loss.backward()
        return loss

    for i in range(CALLS):
        step()
        np.testing.assert_allclose(x.grad, 2 * (i + 1) * x.data, rtol=1e-5)


def test_results_that_somebody_holds_are_left_alone():
    f = eo.compile(lambda x: (x * 2, x.exp()))
    x = eo.tensor(values(40, 30))
    held = []
    for i in range(CALLS):
        x.data[...] = i
        held.append(f(x))
    for i, (double, exp) in enumerate(held):
        assert (double.numpy() == 2 * i).all()
        np.testing.assert_allclose(exp.numpy(), np.exp(np.float32(i)), rtol=1e-6)


def test_captured_arrays_are_found_after_any_other_use_of_the_program():
    """The straight form stores their addresses once: whatever else stores there, it stores anew."""
    captured = [eo.tensor(values(3, seed=i)) for i in range(4)]

    @eo.compile
    def total(x: Any) -> Any:
        for t in captured:
            x = x + t
        return x

    def profile(x: Any) -> None:
        total.explain(x, profile=True)

    def other_layout(x: Any) -> None:
        total(eo.tensor(np.repeat(x.data, 2)[::2]))

    def watched(x: Any) -> None:
        with eo.profile():
            total(x)

    def moved(x: Any) -> None:
        captured[1].data = captured[1].data + 1

    def written(x: Any) -> None:
        captured[2].data[...] += 1

    def replaced(x: Any) -> None:
        captured[3] = eo.tensor(values(3, seed=9))

    x = eo.tensor(values(3, seed=7))
    for between in (profile, other_layout, watched, moved, written, replaced, profile, moved):
        for _ in range(4):
            want = x.data + sum(t.data.astype(np.float64) for t in captured)
            np.testing.assert_allclose(total(x).data, want, rtol=1e-5, atol=1e-6)
        assert total._launchers
        between(x)
        want = x.data + sum(t.data.astype(np.float64) for t in captured)
        np.testing.assert_allclose(total(x).data, want, rtol=1e-5, atol=1e-6)
