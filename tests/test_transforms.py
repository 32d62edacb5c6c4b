"""Derivatives of functions: grad, value_and_grad, vjp, jacobian, hessian."""

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryOGradientError


def leaf(values):
    return eo.tensor(np.array(values, float), requires_grad=True)


def cube(x):
    return (x**3).sum()


def test_grad_of_arrays_lists_and_tensors():
    for x in (np.array([1.0, 2.0]), [1.0, 2.0], eo.tensor([1.0, 2.0])):
        g = eo.grad(cube)(x)
        assert isinstance(g, eo.Tensor) and not g.requires_grad
        np.testing.assert_allclose(g.numpy(), [3.0, 12.0])
    assert eo.grad(cube)(np.ones(2)).dtype == "float64" and eo.grad(cube)([1.0]).dtype == "float32"


def test_grad_nests_to_any_order():
    f = eo.sin
    for want in (np.cos(0.7), -np.sin(0.7), -np.cos(0.7), np.sin(0.7)):
        f = eo.grad(f)
        np.testing.assert_allclose(float(f(np.array(0.7))), want, rtol=1e-12)


def test_value_and_grad_of_several_arguments_with_extras():
    def f(a, b, scale=1.0):
        y = (a * b).sum() * scale
        return y, {"a": a.shape}

    (value, extra), (ga, gb) = eo.value_and_grad(f, argnums=(0, -1), has_aux=True)(
        np.array([1.0, 2.0]), np.array([3.0, 4.0]), scale=2.0
    )
    assert float(value) == 22.0 and extra == {"a": (2,)} and not value.requires_grad
    np.testing.assert_array_equal(ga.numpy(), [6.0, 8.0])
    np.testing.assert_array_equal(gb.numpy(), [2.0, 4.0])
    assert eo.grad(lambda a, b: (a * b).sum(), argnums=1)(2.0, 3.0).item() == 2.0
    assert len(eo.grad(lambda a, b: (a * b).sum(), argnums=[1])(2.0, 3.0)) == 1
    assert eo.grad(lambda a: a.sum(), argnums=np.int64(0))([1.0, 2.0]).shape == (2,)


def test_transforms_touch_nobodys_grad():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    eo.grad(lambda t: (t * t * w).sum())(x)
    eo.jacobian(lambda t: t * w)(x)
    assert x.grad is None and w.grad is None


def test_results_are_differentiable_by_what_else_the_function_used():
    w = leaf([3.0, 4.0])
    g = eo.grad(lambda t: (t * t * w).sum())(np.array([1.0, 2.0]))
    assert g.requires_grad
    g.sum().backward()
    np.testing.assert_array_equal(w.grad, [2.0, 4.0])
    value, g = eo.value_and_grad(lambda t: (t * w).sum())(np.ones(2))
    assert value.requires_grad and g.requires_grad


def test_results_are_differentiable_by_arguments_that_require_gradients():
    x = leaf([1.0, 2.0])
    eo.grad(cube)(x).sum().backward()
    np.testing.assert_array_equal(x.grad, [6.0, 12.0])


def test_under_no_grad_the_gradient_is_right_and_plain():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with eo.no_grad():
        value, g = eo.value_and_grad(lambda t: (t * t * w).sum())(x)
        assert not eo.is_grad_enabled()
    assert not value.requires_grad and not g.requires_grad and g.is_leaf
    np.testing.assert_array_equal(g.numpy(), [6.0, 16.0])


def test_an_argument_that_does_not_matter_has_gradient_zero():
    g = eo.grad(lambda a, b: (a * 2).sum(), argnums=1)(eo.ones(2), np.ones(3))
    np.testing.assert_array_equal(g.numpy(), np.zeros(3))
    g = eo.grad(lambda a: eo.tensor(1.0))(np.ones(2))
    np.testing.assert_array_equal(g.numpy(), np.zeros(2))


def test_identity_is_its_own_gradient_and_shares_nothing():
    x = np.array([5.0])
    g = eo.grad(lambda t: t)(x)
    assert g.tolist() == [1.0] and not np.shares_memory(g.data, x)
    a, b = eo.grad(lambda s, t: (s + t).sum(), argnums=(0, 1))(np.ones(2), np.ones(2))
    assert not np.shares_memory(a.data, b.data)


@pytest.mark.parametrize(
    ("use", "fragment"),
    [
        (lambda: eo.grad(lambda t: t * 2)(np.ones(2)), r"one number.*\(2,\)"),
        (lambda: eo.grad(lambda t: 3.0)(np.ones(2)), "float"),
        (lambda: eo.grad(cube)(eo.tensor([1], dtype="int64")), "floating point"),
        (lambda: eo.grad(cube, argnums=1)(np.ones(2)), "argnums 1"),
    ],
)
def test_what_has_no_gradient_is_refused(use, fragment):
    with pytest.raises(EveryOGradientError, match=fragment):
        use()


def test_vjp_pulls_back_any_number_of_times():
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    out, pull = eo.vjp(lambda a, b: a * b + a, x, y)
    np.testing.assert_array_equal(out.numpy(), x * y + x)
    assert not out.requires_grad
    for seed in (np.array([1.0, 0.0]), np.array([2.0, 5.0])):
        ga, gb = pull(seed)
        np.testing.assert_array_equal(ga.numpy(), seed * (y + 1))
        np.testing.assert_array_equal(gb.numpy(), seed * x)
    with pytest.raises(EveryOGradientError, match="shape"):
        pull(np.ones(3))


def test_jacobian_has_the_shape_of_result_and_argument():
    m = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(eo.jacobian(lambda t: eo.tensor(m) @ t)(np.ones(3)).numpy(), m)
    j = eo.jacobian(lambda t: eo.outer(t, t))(np.array([1.0, 2.0]))
    want = np.zeros((2, 2, 2))
    for i in range(2):
        for k in range(2):
            want[i, k, i] += k + 1.0
            want[i, k, k] += i + 1.0
    np.testing.assert_array_equal(j.numpy(), want)
    assert eo.jacobian(lambda t: t.sum())(np.ones((2, 3))).shape == (2, 3)
    assert eo.jacobian(lambda t: t[:0])(np.ones(3)).shape == (0, 3)
    assert eo.jacobian(lambda t, k: t * k)(np.ones(2), 3.0).tolist() == [[3.0, 0.0], [0.0, 3.0]]


def test_hessian_of_a_quadratic_form_is_its_matrix():
    a = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.0, -1.0, 4.0]])
    h = eo.hessian(lambda t: 0.5 * (t @ eo.tensor(a) @ t))(np.array([1.0, -2.0, 0.5]))
    np.testing.assert_allclose(h.numpy(), a, rtol=1e-12)


def test_hessian_of_rosenbrock():
    h = eo.hessian(lambda t: (1 - t[0]) ** 2 + 100 * (t[1] - t[0] ** 2) ** 2)(np.array([1.0, 1.0]))
    np.testing.assert_allclose(h.numpy(), [[802.0, -400.0], [-400.0, 200.0]], rtol=1e-12)


def test_gradcheck_accepts_right_gradients_of_all_inputs():
    a, b = np.array([0.3, 0.9]), np.array([[1.0], [2.0]])
    assert eo.gradcheck(lambda x, y, i: (eo.exp(x) * y)[i], [a, b, np.array([1, 0, 1])])
    assert eo.gradcheck(lambda x: x.sum() * 0 + 1.0, [a])
    with eo.no_grad():
        assert eo.gradcheck(cube, [a])
    assert eo.gradcheck(cube, [eo.tensor(a)])


def test_gradcheck_notices_a_gradient_that_was_cut_off():
    with pytest.raises(EveryOGradientError, match=r"input 1.*worst at entry \(0,\)"):
        eo.gradcheck(lambda x, y: x + y.detach(), [np.ones(1), np.ones(1)])
