"""Laws of the eager engine on drawn shapes, keys and programs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import everyo as eo
from everyo.core.autograd import unbroadcast

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
QUICK = settings(max_examples=60, deadline=None)


def numbers(shape, seed=0):
    """Distinct numbers in a shape."""
    count = int(np.prod(shape))
    return np.random.default_rng(seed).permutation(count).reshape(shape) / 7.0 - 1.0


@QUICK
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
def test_broadcasting_and_its_gradient_are_adjoint(shapes):
    (first, second), full = shapes.input_shapes, shapes.result_shape
    a, b = numbers(first, 1), numbers(second, 2)
    x, y = eo.tensor(a, requires_grad=True), eo.tensor(b, requires_grad=True)
    out = x * y
    np.testing.assert_array_equal(out.numpy(), a * b)
    seed = numbers(full, 3)
    out.backward(seed)
    for t, array, other in ((x, a, b), (y, b, a)):
        assert t.grad.shape == array.shape
        want = unbroadcast(np.asarray(seed * other).reshape(full), array.shape)
        np.testing.assert_allclose(t.grad, want, atol=1e-12)


@QUICK
@given(st.data())
def test_any_key_reads_writes_and_differentiates_as_numpy(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    basic = hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
    masks = hnp.arrays(bool, shape)
    key = data.draw(st.one_of(basic, hnp.integer_array_indices(shape), masks))
    a = numbers(shape)
    t = eo.tensor(a, requires_grad=True)
    part = t[key]
    np.testing.assert_array_equal(part.numpy(), a[key])
    seed = numbers(part.shape, 5)
    part.backward(seed)
    want = np.zeros(shape)
    np.add.at(want, key, seed)
    np.testing.assert_allclose(t.grad, want, atol=1e-12)
    with eo.no_grad():
        t[key] = seed
    a[key] = seed
    np.testing.assert_array_equal(t.numpy(), a)


@QUICK
@given(st.data())
def test_reductions_over_any_axes_agree_with_numpy(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    axis = data.draw(st.one_of(st.none(), hnp.valid_tuple_axes(len(shape))))
    keepdims = data.draw(st.booleans())
    a = numbers(shape)
    for name in ("sum", "mean", "max", "min", "prod", "var", "std"):
        t = eo.tensor(a, requires_grad=True)
        out = getattr(t, name)(axis=axis, keepdims=keepdims)
        want = np.asarray(getattr(np, name)(a, axis=axis, keepdims=keepdims))
        assert out.shape == want.shape
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-12, atol=1e-14)
        out.backward(np.ones(out.shape))
        assert t.grad.shape == shape


@QUICK
@given(st.data())
def test_what_only_moves_values_moves_gradients_back(data):
    shape = data.draw(SHAPES)
    a = numbers(shape)
    moves = [
        lambda t: t.transpose(*data.draw(st.permutations(range(t.ndim)))) if t.ndim else t.T,
        lambda t: t.reshape(-1) if t.size else t.flatten(),
        lambda t: eo.unsqueeze(t, data.draw(st.integers(-t.ndim - 1, t.ndim))),
        lambda t: eo.flip(t),
        lambda t: eo.roll(t, data.draw(st.integers(-5, 5))),
        lambda t: eo.squeeze(t),
        lambda t: (
            eo.concatenate(eo.split(t, t.shape[0], 0)) if t.ndim and t.shape[0] else t.clone()
        ),
    ]
    t = eo.tensor(a, requires_grad=True)
    out = t.clone()
    for move in data.draw(st.lists(st.sampled_from(moves), max_size=5)):
        out = move(out)
    np.testing.assert_array_equal(np.sort(out.numpy(), axis=None), np.sort(a, axis=None))
    out.backward(out.numpy())
    np.testing.assert_array_equal(t.grad, a)


UNARY = [
    eo.sin,
    eo.tanh,
    eo.sigmoid,
    eo.softplus,
    eo.square,
    lambda t: t * 0.5,
    lambda t: eo.softmax(t, 0),
]
BINARY = [
    eo.add,
    eo.multiply,
    eo.subtract,
    lambda a, b: a / (b * b + 1.0),
    lambda a, b: eo.atan2(a, b * b + 1.0),
]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_program_has_the_gradient_of_finite_differences(data):
    steps = data.draw(st.integers(1, 12))

    def program(*leaves):
        values = list(leaves)
        for kind, i, j in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[kind](a) if kind < len(UNARY) else BINARY[kind - len(UNARY)](a, b))
        return values[-1] + 0.0 * eo.concatenate([v.sum().reshape(1) for v in values]).sum()

    plan = [
        tuple(data.draw(st.integers(0, top)) for top in (len(UNARY) + len(BINARY) - 1, 40, 40))
        for _ in range(steps)
    ]
    inputs = [numbers((3, 2), 1), numbers((2,), 2)]
    assert eo.gradcheck(program, inputs, eps=1e-5, atol=1e-6, rtol=1e-5)
    total = lambda *leaves: program(*leaves).sum()  # noqa: E731
    second = lambda x, y: eo.grad(total)(x, y)  # noqa: E731
    assert eo.gradcheck(second, inputs, eps=1e-5, atol=1e-5, rtol=1e-4)
