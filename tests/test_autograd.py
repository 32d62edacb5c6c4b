"""The engine: backward, accumulation, modes, saved values, memory, depth, threads, NaNs."""

import copy
import gc
import itertools
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import everyo as eo
from everyo.core import autograd
from everyo.core.autograd import Clock, topological_order, unbroadcast
from everyo.exceptions import EveryOError, EveryOGradientError


def leaf(values, dtype=np.float64):
    return eo.tensor(np.array(values, dtype), requires_grad=True)


# ---------------------------------------------------------------------------------- backward


def test_paths_of_a_diamond_are_summed():
    a = leaf(3.0)
    b = a * 2.0
    c = b * b + b
    y = c * b
    y.backward()
    assert float(y) == 252.0
    assert a.grad == 240.0


def test_gradients_of_broadcast_operands_have_the_shape_of_the_operands():
    x, y, s, v = (
        leaf(np.arange(3.0).reshape(3, 1)),
        leaf([[1.0, 2, 3, 4]]),
        leaf(2.0),
        leaf([1.0, 2, 3, 4]),
    )
    ((x * y + s) * v).sum().backward()
    np.testing.assert_array_equal(x.grad, np.full((3, 1), 30.0))
    np.testing.assert_array_equal(y.grad, [[3.0, 6, 9, 12]])
    np.testing.assert_array_equal(s.grad, 30.0)
    np.testing.assert_array_equal(v.grad, [9.0, 12, 15, 18])


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((2, 3), ()),
        ((2, 3), (3,)),
        ((2, 3), (1, 3)),
        ((4, 2, 3), (2, 1)),
        ((4, 2, 3), (1, 1, 1)),
        ((0, 3), (1, 3)),
    ],
    ids=str,
)
def test_unbroadcast_is_the_adjoint_of_broadcasting(given, shape):
    g = np.random.default_rng(0).standard_normal(given)
    x = np.random.default_rng(1).standard_normal(shape)
    back = unbroadcast(g, shape)
    assert back.shape == shape
    np.testing.assert_allclose((back * x).sum(), (g * np.broadcast_to(x, given)).sum(), atol=1e-12)
    np.testing.assert_allclose(unbroadcast(eo.tensor(g), shape).numpy(), back)


def test_repeated_indices_accumulate():
    x = leaf([1.0, 2.0, 3.0])
    (x[np.array([2, 0, 2, 2])] * eo.tensor(np.array([1.0, 10, 100, 1000]))).sum().backward()
    np.testing.assert_array_equal(x.grad, [10.0, 0.0, 1101.0])


def test_calls_accumulate_and_zero_grad_forgets():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward()
    y.backward()
    np.testing.assert_array_equal(x.grad, [4.0, 8.0])
    x.zero_grad()
    assert x.grad is None
    y.backward()
    np.testing.assert_array_equal(x.grad, [2.0, 4.0])


def test_accumulation_makes_a_new_array():
    x = leaf([1.0])
    (x * 2).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert first == [2.0] and x.grad == [5.0]


def test_only_leaves_and_retained_tensors_get_gradients():
    x, k = leaf([1.0, 2.0]), eo.tensor([3.0, 4.0])
    h = x * k
    kept = (h + 1.0).retain_grad()
    (kept * kept).sum().backward()
    np.testing.assert_array_equal(kept.grad, 2 * kept.numpy())
    assert h.grad is None and k.grad is None
    assert x.retain_grad() is x


def test_a_retained_gradient_does_not_keep_its_tensor_alive():
    x = leaf([1.0])
    h = (x * 2).retain_grad()
    alive = weakref.ref(h)
    y = (h * h).sum() * 1.0
    del h
    y.backward()
    assert x.grad == [8.0]
    del y
    assert alive() is None


def test_a_seed_weights_the_gradient_and_is_left_alone():
    x = leaf([1.0, 2.0, 3.0])
    seed = eo.tensor(np.array([1.0, 10.0, 100.0]))
    y = x * x
    y.backward(seed)
    np.testing.assert_array_equal(x.grad, [2.0, 40.0, 600.0])
    np.testing.assert_array_equal(seed.numpy(), [1.0, 10.0, 100.0])
    y.backward([1.0, 0.0, 0.0])  # anything array-like
    np.testing.assert_array_equal(x.grad, [4.0, 40.0, 600.0])


def test_a_scalar_of_any_rank_needs_no_seed():
    for shape in ((), (1,), (1, 1)):
        x = leaf(np.ones(shape))
        (x * 3).backward()
        np.testing.assert_array_equal(x.grad, np.full(shape, 3.0))


def test_the_seed_of_a_leaf_is_copied():
    x, seed = leaf([1.0, 2.0]), np.array([5.0, 6.0])
    x.backward(seed)
    seed[:] = 0
    np.testing.assert_array_equal(x.grad, [5.0, 6.0])


def test_gradients_have_the_dtype_of_their_tensor():
    w, x = leaf([1.0, 2.0], np.float32), leaf([3.0, 4.0], np.float64)
    y = (w * x).sum()
    assert y.dtype == "float64"
    y.backward()
    assert (w.grad.dtype, x.grad.dtype) == (np.float32, np.float64)
    h = leaf([1.0], np.float16)
    (h.astype("float32") * 2.5).sum().backward()
    assert h.grad.dtype == np.float16


def test_0d_gradients_are_arrays():
    x = leaf(0.5)
    (eo.exp(x * x) + x.sum()).backward()
    assert isinstance(x.grad, np.ndarray) and x.grad.shape == ()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_no_two_leaves_share_a_gradient_whatever_the_order(order):
    x, y = leaf([1.0, 2.0]), leaf([3.0, 5.0])
    terms = [x + y, x * x, y - x]
    total = (terms[order[0]] + terms[order[1]] + terms[order[2]]) * 1.0
    total.backward(np.ones(2))
    np.testing.assert_array_equal(x.grad, 2 * x.numpy())
    np.testing.assert_array_equal(y.grad, [2.0, 2.0])
    assert not np.shares_memory(x.grad, y.grad)
    x.grad *= 0.0
    np.testing.assert_array_equal(y.grad, [2.0, 2.0])


def test_a_failed_backward_changes_no_gradient():
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    z = (eo.exp(a) * b).sum()
    with eo.no_grad():
        a += 1.0  # not saved: exp saves its result
        b *= 2.0
    with pytest.raises(EveryOGradientError, match="multiply"):
        z.backward()
    assert a.grad is None and b.grad is None


def test_twelve_dimensions():
    x = leaf(np.arange(2.0**12).reshape((2,) * 12))
    y = (x * 2.0 + x.transpose(*range(11, -1, -1))).sum(axis=(0, 2, 4, 6, 8, 10))
    y.backward(np.ones(y.shape))
    np.testing.assert_array_equal(x.grad, np.full(x.shape, 3.0))


def test_overflow_in_backward_is_silent():
    x = leaf([1.0], np.float32)
    (eo.exp(x * 80.0) * eo.tensor([1.0])).sum().backward(np.float32(1e30).reshape(()))
    assert np.isinf(x.grad).all()


# ---------------------------------------------------------------------------------- create_graph


def test_third_derivatives():
    x = leaf(2.0)
    y = x**4
    for want in (32.0, 48.0, 48.0):
        x.grad = None
        y.backward(create_graph=True)
        y = x.grad
        assert isinstance(y, eo.Tensor) and float(y) == want


def test_second_derivatives_reach_other_tensors():
    x, w = leaf(2.0), leaf(3.0)
    (x * x * w).backward(create_graph=True)
    slope = x.grad  # 2 x w
    x.grad = w.grad = None
    slope.backward()
    assert (x.grad, w.grad) == (6.0, 4.0)


def test_plain_and_recorded_gradients_add_up():
    x = leaf(3.0)
    (x * x).backward()
    (x * x).backward(create_graph=True)
    assert isinstance(x.grad, eo.Tensor) and float(x.grad) == 12.0
    (x * x).backward()
    assert float(x.grad) == 18.0


# ---------------------------------------------------------------------------------- modes


def test_modes_nest_and_are_restored():
    x = leaf([1.0])
    with eo.no_grad():
        assert not eo.is_grad_enabled() and not (x * 2).requires_grad
        with eo.enable_grad():
            assert (x * 2).requires_grad
            with eo.set_grad_enabled(False):
                assert not eo.is_grad_enabled()
        assert not eo.is_grad_enabled()
    assert eo.is_grad_enabled()


def test_a_mode_is_restored_after_an_exception():
    with pytest.raises(ZeroDivisionError), eo.no_grad():
        _ = 1 / 0
    assert eo.is_grad_enabled()


def test_one_mode_object_is_reentrant():
    off = eo.no_grad()
    with off:
        with off:
            pass
        assert not eo.is_grad_enabled()
    assert eo.is_grad_enabled()


def test_modes_decorate_functions():
    @eo.set_grad_enabled(False)
    def frozen(t):
        """Twice."""
        return t * 2

    @autograd.no_grad()
    @eo.enable_grad()
    def tracked(t):
        return t * 2

    assert frozen.__doc__ == "Twice." and frozen.__name__ == "frozen"
    assert not frozen(leaf([1.0])).requires_grad
    assert tracked(leaf([1.0])).requires_grad


def test_modes_belong_to_a_thread():
    seen, inside, leave = [], threading.Event(), threading.Event()
    shared = eo.no_grad()

    def other():
        with shared:
            inside.set()
            leave.wait(5)
            seen.append(eo.is_grad_enabled())
        seen.append(eo.is_grad_enabled())

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(5)
    with eo.enable_grad(), shared:
        leave.set()
        thread.join()
        assert not eo.is_grad_enabled()
    assert eo.is_grad_enabled() and seen == [False, True]


def test_threads_differentiate_one_graph_at_the_same_time():
    x = leaf(np.ones(100))
    y = (eo.exp(x) * eo.sin(x)).sum()
    want = np.exp(1) * (np.sin(1) + np.cos(1))
    results = []

    def work():
        for _ in range(20):
            found = autograd.propagate(y, np.ones(()), autograd.NUMPY)
            results.append(np.allclose(found[0][1], want))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 80 and all(results)


def test_backward_leaves_the_mode_as_it_was():
    x = leaf([1.0])
    y = x * x
    with eo.no_grad():
        y.backward(create_graph=True)
        assert not eo.is_grad_enabled()
        with pytest.raises(EveryOGradientError):
            y.backward(np.ones(2))
        assert not eo.is_grad_enabled()
    y.backward()
    assert eo.is_grad_enabled()


# ---------------------------------------------------------------------------------- the graph


def test_a_node_exists_only_where_it_is_needed():
    x, k = leaf([1.0]), eo.tensor([1.0])
    assert (k * k).grad_node is None and (k * k).is_leaf
    assert not (x > 0).requires_grad and (x > 0).grad_node is None
    assert not x.astype("int64").requires_grad
    y = x.sum(axis=0)
    assert y.grad_node.operation == "sum" and y.grad_node.parents[0] is x
    assert y.grad_node.attributes == {"axis": (0,), "keepdims": False}
    (g,) = y.grad_node.backward_fn(np.ones(()))
    np.testing.assert_array_equal(g, [1.0])
    assert repr(y.grad_node) == "<Node sum>"


def test_consumers_come_before_what_they_consume():
    x = leaf([1.0])
    a = x * 2
    b = eo.exp(a) + x
    c = b * a
    order = topological_order(c)
    where = {id(t): i for i, t in enumerate(order)}
    assert len(order) == len(where) == 5
    for t in order:
        if t.grad_node is not None:
            assert all(where[id(p)] > where[id(t)] for p in t.grad_node.parents)
    assert order[0] is c and order[-1] is x


def chain(n):
    x = leaf([1.0])
    y = x
    for _ in range(n):
        y = y * 1.00001
    return x, y


def work_of_backward(n):
    """How many calls, of Python and of C functions, one backward over n ops makes."""
    x, y = chain(n)
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        y.backward()
    finally:
        sys.setprofile(None)
    np.testing.assert_allclose(x.grad, 1.00001**n)
    return count


def test_backward_is_iterative_and_linear_in_the_number_of_ops():
    small, large = work_of_backward(20_000), work_of_backward(100_000)
    assert 20_000 < small and large < 5.05 * small


def test_a_chain_of_100000_ops_goes_backward_and_away():
    x, y = chain(100_000)
    y.backward()
    np.testing.assert_allclose(x.grad, 1.00001**100_000, rtol=1e-9)
    del y  # freeing must not overflow the stack


def test_backward_below_a_wanted_tensor_is_not_walked():
    _, y = chain(2_000)
    z = (eo.exp(y) * y).sum()
    assert len(topological_order(z, y.grad_node.number)) == 4


# ---------------------------------------------------------------------------------- saved values


def test_an_overwritten_result_is_noticed():
    w = leaf([0.0, 1.0])
    y = eo.exp(w)
    z = y.sum()
    with eo.no_grad():
        y *= 0.0
    with pytest.raises(EveryOGradientError, match=r"exp: a value saved .* was modified"):
        z.backward()


def test_an_overwritten_operand_is_noticed():
    x, k = leaf([1.0, 2.0]), eo.tensor([3.0, 4.0])
    z = (x * k).sum()
    k[0] = 100.0
    with pytest.raises(EveryOGradientError, match="multiply"):
        z.backward()


def test_a_write_through_a_view_or_a_detached_alias_is_noticed():
    for write in (
        lambda k: k[1:].__setitem__(0, 5.0),
        lambda k: k.detach().__setitem__(0, 5.0),
        lambda k: k.reshape(2, 2).T.__setitem__((0, 0), 5.0),
        lambda k: k.__setitem__(slice(None), 0.0),
    ):
        x, k = leaf([1.0, 2.0, 3.0, 4.0]), eo.tensor([3.0, 4.0, 5.0, 6.0])
        z = (x * k).sum()
        write(k)
        with pytest.raises(EveryOGradientError, match="multiply"):
            z.backward()


def test_a_write_before_the_value_was_saved_is_fine():
    x, k = leaf([1.0, 2.0]), eo.tensor(np.array([3.0, 4.0]))
    k[0] = 7.0
    z = (x * k).sum()
    z.backward()
    np.testing.assert_array_equal(x.grad, [7.0, 4.0])


def test_a_copy_made_by_an_op_has_writes_of_its_own():
    x, k = leaf([1.0, 2.0]), eo.tensor([3.0, 4.0])
    copies = (k[[0, 1]], k.clone(), k.T.clone(), eo.broadcast_to(k, (2, 2)))
    z = (x * k).sum()
    for c in copies:
        c *= 0.0
    z.backward()
    np.testing.assert_array_equal(x.grad, [3.0, 4.0])


def test_rebinding_data_leaves_the_graph_its_old_values():
    x, k = leaf([1.0, 2.0]), eo.tensor([3.0, 4.0])
    z = (x * k).sum()
    k.data = np.zeros(2)
    k += 1.0
    z.backward()
    np.testing.assert_array_equal(x.grad, [3.0, 4.0])


def test_an_array_that_took_part_may_change_afterwards():
    arr = np.array([1.0, 2.0])
    x = eo.tensor(arr, requires_grad=True)
    z = (x * arr).sum()
    arr[:] = 100.0
    z.backward()
    np.testing.assert_array_equal(x.grad, [1.0, 2.0])


def test_what_no_gradient_reads_may_be_overwritten():
    x = leaf([1.0, 2.0])
    y = x + 1.0
    z = (y * 2.0).sum()
    with eo.no_grad():
        y *= 0.0
    z.backward()
    np.testing.assert_array_equal(x.grad, [2.0, 2.0])


def test_every_write_of_the_library_is_numbered():
    t = eo.tensor([1.0, 2.0])
    for write in (
        lambda: t.__setitem__(0, 3.0),
        lambda: t.__iadd__(1.0),
        lambda: t.__ipow__(2),
        lambda: t.__itruediv__(3.0),
    ):
        before = Clock.written
        write()
        assert Clock.written > before


# ---------------------------------------------------------------------------------- memory


def step():
    x, w = eo.tensor(np.ones(1000)), leaf(np.ones(1000))
    h = eo.exp(x * w)
    h = h / (h.sum() + 1.0)
    loss = (h * h).sum() + eo.prod(h[:3]) + eo.einsum("i,i->", h, h)
    loss.backward()
    return loss


def live():
    return sum(issubclass(type(o), eo.Tensor | autograd.Node) for o in gc.get_objects())


def test_a_step_leaves_no_cycle():
    step()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            step()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_recorded_backward_leaves_no_cycle_once_its_gradients_are_dropped():
    x = leaf([1.0, 2.0])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            (x**3).sum().backward(create_graph=True)
            x.grad.sum().backward()
            x.grad = None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_memory_is_flat_over_10000_steps_without_the_collector():
    w = leaf(np.ones(8))
    x = eo.tensor(np.ones(8))
    gc.collect()
    gc.disable()
    try:
        blocks = []
        for k in range(10_000):
            w.grad = None
            loss = eo.exp(w * x * 0.01).sum()
            loss.backward()
            with eo.no_grad():
                w -= 0.001 * eo.tensor(w.grad)
            if k in (1_000, 9_999):
                blocks.append(sys.getallocatedblocks())
        assert blocks[1] - blocks[0] < 100
    finally:
        gc.enable()


def test_a_graph_goes_when_its_result_goes():
    gc.collect()
    before = live()
    loss = step()
    assert live() > before + 5
    del loss
    assert live() <= before + 2


# ---------------------------------------------------------------------------------- detect_nan


def test_the_first_op_that_makes_a_nan_is_named_with_its_line():
    x = leaf([1.0, -1.0])
    with np.errstate(all="ignore"), eo.detect_nan(), pytest.raises(EveryOError) as caught:
        y = eo.exp(x)
        y = eo.log(x) + y  # the line
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(i for i, t in enumerate(text, 1) if t.endswith("# the line"))
    assert f"log of (2,) made a NaN at {__file__}:{line}" in str(caught.value)


def test_a_nan_that_came_in_is_not_blamed_on_an_op():
    with eo.detect_nan():
        assert np.isnan(eo.sqrt(eo.tensor([np.nan])).numpy()).all()


def test_the_first_gradient_that_makes_a_nan_is_named():
    x = leaf([0.0])
    with np.errstate(all="ignore"), eo.detect_nan():
        y = eo.atan2(x, x * 0.0).sum()
        with pytest.raises(EveryOError, match=rf"the gradient of atan2, called at .*{__name__}"):
            y.backward()
    assert x.grad is None


def test_nan_detection_ends_with_its_context():
    with pytest.raises(ZeroDivisionError), eo.detect_nan():
        _ = 1 / 0
    assert autograd.MODE.watch is None and autograd.TRACES == []
    with np.errstate(all="ignore"):
        assert np.isnan(eo.log(eo.tensor([-1.0])).numpy()).all()


def test_nan_detection_nests_and_belongs_to_a_thread():
    seen = []

    def other():
        with np.errstate(all="ignore"):
            seen.append(bool(np.isnan(eo.log(eo.tensor([-1.0])).numpy()).all()))

    with eo.detect_nan():
        with eo.detect_nan():
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with np.errstate(all="ignore"), pytest.raises(EveryOError, match="NaN"):
            eo.log(eo.tensor([-1.0]))
    assert seen == [True]


def test_a_graph_cannot_be_copied_but_its_leaves_can():
    x = leaf([1.0])
    with pytest.raises(EveryOGradientError, match="leaf"):
        copy.deepcopy(x * 2)
    assert copy.deepcopy(x).requires_grad
