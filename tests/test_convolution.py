"""Convolution and pooling against loops, for any size, stride, padding, dilation and groups."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOShapeError
from everyo.ops.windows import Windows

# ---------------------------------------------------------------------------------- by loops


def padded(x, pads, fill=0.0):
    return np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)


def cells(shape, window, stride, dilation, pads):
    """(output position, [(tap, padded position)]) for every window."""
    sizes = [
        (n + sum(p) - ((k - 1) * d + 1)) // s + 1
        for n, k, s, d, p in zip(shape[1:3], window, stride, dilation, pads, strict=True)
    ]
    for at in itertools.product(*map(range, sizes)):
        yield (
            at,
            [
                (
                    tap,
                    tuple(
                        i * s + a * d for i, s, a, d in zip(at, stride, tap, dilation, strict=True)
                    ),
                )
                for tap in itertools.product(*map(range, window))
            ],
        )


def looped_convolution(x, kernel, stride, dilation, pads, groups):
    kh, kw, c, out = kernel.shape
    image = padded(x, pads)
    found = {}
    for at, taps in cells(x.shape, (kh, kw), stride, dilation, pads):
        value = np.zeros((len(x), out))
        for group in range(groups):
            mine = slice(group * out // groups, (group + 1) * out // groups)
            for (a, b), (i, j) in taps:
                seen = image[:, i, j, group * c : (group + 1) * c]
                value[:, mine] += seen @ kernel[a, b, :, mine]
        found[at] = value
    rows, columns = (max(at[i] for at in found) + 1 for i in (0, 1))
    grid = [np.stack([found[r, q] for q in range(columns)], 1) for r in range(rows)]
    return np.stack(grid, 1)


def looped_pool(x, window, stride, pads, largest):
    image, real = padded(x, pads, np.nan), {}
    for at, taps in cells(x.shape, window, stride, (1, 1), pads):
        seen = np.stack([image[:, i, j] for _, (i, j) in taps])
        real[at] = np.nanmax(seen, 0) if largest else np.nanmean(seen, 0)
    rows, columns = (max(at[i] for at in real) + 1 for i in (0, 1))
    grid = [np.stack([real[r, q] for q in range(columns)], 1) for r in range(rows)]
    return np.stack(grid, 1)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
padding_pairs = st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 2)),
                          st.tuples(st.integers(0, 2), st.integers(0, 2)))  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2), pairs, pairs, pairs, padding_pairs, st.integers(1, 2), st.integers(0, 99))
def test_convolution_is_a_loop_over_windows(n, window, stride, dilation, pads, groups, seed):
    generator = np.random.default_rng(seed)
    sizes = [
        (k - 1) * d + 1 + generator.integers(0, 4) for k, d in zip(window, dilation, strict=True)
    ]
    x = generator.normal(size=(n, *sizes, 2 * groups))
    kernel = generator.normal(size=(*window, 2, 3 * groups))
    got = eo.conv2d(x, kernel, stride=stride, padding=pads, dilation=dilation, groups=groups)
    want = looped_convolution(x, kernel, stride, dilation, pads, groups)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(pairs, pairs, st.booleans(), st.sampled_from(["valid", "same"]), st.integers(0, 99))
def test_pooling_is_a_loop_over_windows(window, stride, largest, padding, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(2, *(k + generator.integers(0, 4) for k in window), 3))
    pads = ((0, 0), (0, 0))
    if padding == "same":
        total = [
            max((-(-size // s) - 1) * s + k - size, 0)
            for size, s, k in zip(x.shape[1:3], stride, window, strict=True)
        ]
        pads = tuple((t // 2, t - t // 2) for t in total)
    pool = eo.max_pool2d if largest else eo.avg_pool2d
    got = pool(x, window, stride=stride, padding=padding)
    want = looped_pool(x, window, stride, pads, largest)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-14)


@settings(deadline=None, max_examples=40)
@given(pairs, pairs, pairs, padding_pairs, st.integers(1, 2), st.integers(0, 99))
def test_the_transpose_is_the_adjoint(window, stride, dilation, pads, groups, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(2, 3, 2, 2 * groups))
    kernel = generator.normal(size=(*window, 2 * groups, 3))  # (kh, kw, in, out / groups)
    options = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    sizes = [
        (m - 1) * s + (k - 1) * d + 1 - sum(p)
        for m, s, k, d, p in zip((3, 2), stride, window, dilation, pads, strict=True)
    ]
    if min(sizes) <= 0:
        with pytest.raises(EveryOShapeError, match="leaves nothing"):
            eo.conv_transpose2d(x, kernel, **options)
        return
    image = eo.conv_transpose2d(x, kernel, **options)
    assert image.shape == (2, *sizes, 3 * groups)
    other = generator.normal(size=image.shape)
    back = eo.conv2d(other, kernel.transpose(0, 1, 3, 2), **options)
    np.testing.assert_allclose((image.numpy() * other).sum(), (back.numpy() * x).sum(), rtol=1e-9)


# ---------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
@pytest.mark.parametrize("padding", ["valid", "same", 1])
def test_convolution_matches_finite_differences(stride, padding):
    generator = np.random.default_rng(0)
    inputs = [generator.normal(size=s) for s in ((2, 5, 4, 2), (3, 2, 2, 3), (3,))]

    def run(x, k, b):
        return eo.conv2d(x, k, b, stride=stride, padding=padding)

    assert eo.gradcheck(run, inputs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("pool", [eo.max_pool2d, eo.avg_pool2d])
@pytest.mark.parametrize("stride", [None, 1])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_pooling_matches_finite_differences(pool, stride, padding):
    x = np.random.default_rng(0).permutation(2 * 5 * 4 * 2).reshape(2, 5, 4, 2) / 10
    assert eo.gradcheck(lambda t: pool(t, (3, 2), stride=stride, padding=padding), [x], rtol=1e-6)


def test_a_tie_belongs_to_the_first_in_window_order():
    x = eo.ones(1, 2, 4, 1, requires_grad=True)
    eo.max_pool2d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad[0, :, :, 0], [[1, 0, 1, 0], [0, 0, 0, 0]])
    x = eo.ones(1, 3, 3, 1, requires_grad=True)
    eo.max_pool2d(x, 2, stride=1).sum().backward()
    np.testing.assert_array_equal(x.grad[0, :, :, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])


def test_padding_never_wins_and_never_counts():
    x = np.full((1, 3, 3, 1), -5.0)
    for padding in ("same", 1):
        np.testing.assert_array_equal(eo.max_pool2d(x, 2, padding=padding).numpy(), -5)
        np.testing.assert_array_equal(eo.avg_pool2d(x, 2, padding=padding).numpy(), -5)


def test_nan_and_infinity_travel():
    x = np.zeros((1, 4, 4, 1))
    x[0, 0, 0], x[0, 2, 2] = np.nan, -np.inf
    y = eo.max_pool2d(x, 2).numpy()[0, :, :, 0]
    np.testing.assert_array_equal(y, [[np.nan, 0], [0, 0]])
    assert np.isneginf(eo.avg_pool2d(x, 2).numpy()[0, 1, 1, 0])


# ---------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("size", [4, 5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_same_divides_the_size_by_the_stride(size, stride, k):
    x = np.ones((1, size, size, 1))
    want = (1, -(-size // stride), -(-size // stride), 2)
    assert eo.conv2d(x, np.ones((k, k, 1, 2)), stride=stride, padding="same").shape == want
    up = eo.conv_transpose2d(x, np.ones((k, k, 1, 2)), stride=stride, padding="same")
    assert up.shape == (1, size * stride, size * stride, 2)


def test_same_puts_the_odd_cell_at_the_end():
    image = np.arange(1.0, 5.0).reshape(1, 1, 4, 1)
    kernel = np.array([1.0, 10.0]).reshape(1, 2, 1, 1)
    got = eo.conv2d(image, kernel, padding="same").numpy().reshape(-1)
    np.testing.assert_array_equal(got, [21, 32, 43, 4])


def test_paddings_may_be_given_in_any_form():
    x, k = np.random.default_rng(0).normal(size=(1, 4, 5, 2)), np.ones((3, 3, 2, 1))
    one = eo.conv2d(x, k, padding=1).numpy()
    for padding in ((1, 1), [1, 1], ((1, 1), (1, 1)), "same"):
        np.testing.assert_array_equal(eo.conv2d(x, k, padding=padding).numpy(), one)
    causal = eo.conv2d(x, k, padding=(1, (2, 0)))
    assert causal.shape == (1, 4, 5, 1)


def test_a_sequence_is_an_image_of_one_row():
    generator = np.random.default_rng(0)
    x, k, b = (generator.normal(size=s) for s in ((2, 9, 3), (4, 3, 5), (5,)))
    for options in ({}, {"stride": 2, "padding": "same"}, {"padding": (3, 0), "dilation": 1}):
        wide = {**options, "stride": (1, options.get("stride", 1))}
        if isinstance(options.get("padding"), tuple):
            wide["padding"] = (0, options["padding"])
        wide["dilation"] = (1, options.get("dilation", 1))
        want = eo.conv2d(x[:, None], k[None], b, **wide).numpy()[:, 0]
        np.testing.assert_allclose(eo.conv1d(x, k, b, **options).numpy(), want, rtol=1e-12)


def test_layers_hold_kernels_of_their_layout_and_keep_settings():
    layer = nn.Conv2D(4, 6, (3, 5), stride=[2, 1], padding="same", groups=2, seed=0)
    assert layer.weight.shape == (3, 5, 2, 6) and layer.bias.shape == (6,)
    assert layer.kernel_size == (3, 5) and layer.padding == "same"
    assert nn.Conv2D(2, 3, 3, bias=False).use_bias is False
    assert not hasattr(nn.Conv2D(2, 3, 3, bias=False), "bias")
    assert nn.Conv1D(4, 6, 3).weight.shape == (3, 4, 6)
    assert nn.ConvTranspose2D(4, 6, 3, groups=2).weight.shape == (3, 3, 4, 3)
    assert nn.MaxPool2D((2, 3)).stride == (2, 3)


def test_windows_know_their_extent():
    w = Windows((3, 2), (2, 1), ((1, 0), (0, 0)), (2, 3))
    assert w.extent == (5, 4) and w.count((1, 6, 7, 1)) == (2, 4)


# ---------------------------------------------------------------------------------- refusals

X, K = np.zeros((1, 5, 5, 3)), np.zeros((3, 3, 3, 2))


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (lambda: eo.conv2d(X[0], K), ["4-D tensor"]),
        (lambda: eo.conv2d(X[0], K[0]), ["4-D tensor"]),
        (lambda: eo.conv2d(X, K[0]), ["4-D kernel"]),
        (lambda: eo.conv2d(X, np.zeros((9, 9, 5, 2))), [r"3 channel\(s\)", "expects 5"]),
        (lambda: eo.conv2d(X, np.zeros((6, 3, 3, 2)), np.zeros(5)), ["does not fit"]),
        (lambda: eo.conv2d(X, K, np.zeros(3)), ["bias must have shape"]),
        (lambda: eo.conv2d(X, K, padding="full"), ["Unknown padding"]),
        (lambda: eo.conv2d(X, K, padding=-1), ["Unknown padding"]),
        (lambda: eo.conv2d(X, K, padding=(1, 2, 3)), ["Unknown padding"]),
        (lambda: eo.conv2d(X, K, padding=1.5), ["Unknown padding"]),
        (lambda: eo.conv2d(X, K, stride=0), ["must be positive"]),
        (lambda: eo.conv2d(X, K, stride=1.5), ["must be positive"]),
        (lambda: eo.conv2d(X, np.zeros((0, 3, 3, 2))), ["must be positive"]),
        (lambda: eo.conv2d(X, K, groups=0), ["groups"]),
        (lambda: eo.conv2d(X, np.zeros((1, 1, 1, 2)), groups=3), ["groups"]),
        (lambda: eo.conv1d(X, K[0]), ["3-D tensor"]),
        (lambda: eo.conv_transpose2d(X, K, output_padding=1), ["output_padding"]),
        (lambda: eo.max_pool2d(X[0]), ["4-D tensor"]),
        (lambda: eo.max_pool2d(X, 0), ["must be positive"]),
        (lambda: eo.avg_pool2d(X, 6), ["larger than the padded"]),
        (lambda: eo.avg_pool2d(X, 2, padding=2), ["smaller than the window"]),
        (lambda: nn.Conv2D(3, 2, 3)(np.zeros((1, 5, 5, 4))), ["must be 3 channel"]),
        (lambda: nn.Conv2D(3, 2, 3)(np.zeros((5, 5, 3))), ["4-D tensor"]),
        (lambda: nn.Conv2D(0, 2), ["positive channel counts"]),
        (lambda: nn.Conv2D(3, 2, 0), ["must be positive"]),
        (lambda: nn.Conv2D(3, 2, padding="full"), ["Unknown padding"]),
        (lambda: nn.Conv2D(3, 2, groups=2), ["groups"]),
        (lambda: nn.Conv1D(3, 2, 0), ["positive"]),
        (lambda: nn.MaxPool2D(0), ["must be positive"]),
    ],
)
def test_what_does_not_fit_is_a_shape_error(call, fragments):
    with pytest.raises(EveryOShapeError) as caught:
        call()
    for fragment in fragments:
        caught.match(fragment)


def test_convolution_agrees_with_torch():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    x, k = generator.normal(size=(2, 7, 6, 4)), generator.normal(size=(3, 2, 2, 6))
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    one, kernel = eo.tensor(x, requires_grad=True), eo.tensor(k, requires_grad=True)
    got = eo.conv2d(one, kernel, **options)
    got.sum().backward()
    theirs = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
    weight = torch.tensor(k.transpose(3, 2, 0, 1), requires_grad=True)
    want = torch.nn.functional.conv2d(theirs, weight, **options)
    want.sum().backward()
    np.testing.assert_allclose(got.numpy(), want.detach().numpy().transpose(0, 2, 3, 1), rtol=1e-9)
    np.testing.assert_allclose(one.grad, theirs.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-9)
    np.testing.assert_allclose(kernel.grad, weight.grad.numpy().transpose(2, 3, 1, 0), rtol=1e-9)
