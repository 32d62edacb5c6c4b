"""Layers: derivatives, dtypes, randomness, what they compute, and what they refuse."""

import math

import numpy as np
import pytest
from nn_table import CASES, called

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOShapeError
from everyo.nn import MASK_VALUE
from everyo.nn.initialization import compute_fans, get_initializer, he_normal, xavier_uniform

MODES = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name)


def x_of(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def functional(case, training):
    """The module as a function of (input, *parameters), and where to evaluate it."""
    module = case.module(training=training)
    names = [name for name, _ in module.named_parameters()]
    values = [p.numpy() for p in module.parameters()]
    start = module.random_state()

    def run(x, *parameters):
        module.load_random_state(start)  # the same dropout mask at every evaluation
        return called(module, x, names, parameters)

    if case.ids is None:
        return run, [case.input(), *values]
    return lambda *parameters: run(case.ids, *parameters), values


# ---------------------------------------------------------------------------------- every module


@MODES
@named(CASES)
def test_every_module_matches_finite_differences(case, training):
    run, inputs = functional(case, training)
    if inputs:
        assert eo.gradcheck(run, inputs, rtol=1e-5, atol=1e-7)


@named(CASES)
def test_every_module_matches_finite_differences_twice(case):
    run, inputs = functional(case, training=True)
    every = tuple(range(len(inputs)))

    def slope(*given):
        gradients = eo.grad(lambda *v: (run(*v) ** 2).sum(), argnums=every)(*given)
        return eo.concatenate([eo.reshape(g * g, (-1,)) for g in gradients])

    assert eo.gradcheck(slope, inputs, rtol=1e-4, atol=1e-5)


@MODES
@named(CASES)
def test_every_module_keeps_float32_and_computes_wider_inputs_wider(case, training):
    single = case.module(np.float32, training)
    x = case.input(np.float32)
    out = single(x)
    assert out.dtype == "float32"
    if case.ids is None:
        assert single(x.astype(np.float64)).dtype == "float64"
    if out.requires_grad:
        out.sum().backward()
        assert all(p.grad.dtype == np.float32 for p in single.parameters())


@named(CASES)
def test_equal_seeds_give_equal_modules(case):
    x = case.input(np.float32)
    one, other = case.make(), case.make()
    np.testing.assert_array_equal(one(x).numpy(), other(x).numpy())


# relative to the largest number: sums are taken in another order
ROUNDING = {np.float64: 1e-12, np.float32: 2e-5}
DTYPES = pytest.mark.parametrize("dtype", ROUNDING, ids=lambda dtype: dtype.__name__)


def equal(found, want, dtype):
    assert (found is None) == (want is None)
    if want is not None:
        found, want = np.asarray(found), np.asarray(want)
        assert found.dtype == want.dtype
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        np.testing.assert_allclose(found, want, rtol=0, atol=ROUNDING[dtype] * scale)


def compiled_equals_eager(case, training, dtype):
    """Results, the gradients of input and parameters, and buffers, over three steps."""
    eager, compiled = (case.module(dtype, training=training) for _ in range(2))

    def step(module, x):
        out = module(x)
        loss = (out * out).mean()
        if loss.requires_grad:
            loss.backward()
        return out

    run = eo.compile(lambda x: step(compiled, x))
    for i in range(3):
        one, other = (case.input(dtype), case.input(dtype))
        if case.ids is None:
            one, other = (eo.tensor(x * (1 + 0.1 * i), requires_grad=True) for x in (one, other))
        equal(run(one), step(eager, other), dtype)
        if case.ids is None:
            equal(one.grad, other.grad, dtype)
    for p, q in zip(compiled.parameters(), eager.parameters(), strict=True):
        equal(p.grad, q.grad, dtype)
    for p, q in zip(compiled.buffers(), eager.buffers(), strict=True):
        equal(p, q, dtype)


@pytest.mark.slow
@DTYPES
@MODES
@named(CASES)
def test_every_module_compiled_equals_eager(case, training, dtype):
    compiled_equals_eager(case, training, dtype)


@DTYPES
@named([c for c in CASES if c.name in ("sequential", "batch norm 1d")])
def test_modules_compiled_equal_eager(case, dtype):
    compiled_equals_eager(case, True, dtype)


@pytest.mark.slow
def test_compiled_attention_keeps_no_weights_and_eager_calls_do_not_disturb_it():
    layer = nn.MultiHeadAttention(4, 2, seed=0)
    x = eo.tensor(x_of(2, 3, 4))
    run = eo.compile(lambda t: layer(t))
    run(x), run(x)
    assert layer.last_attention_weights is None
    layer(x)
    traces = run.cache_info().traces
    run(x)
    assert layer.last_attention_weights is not None and run.cache_info().traces == traces


@pytest.mark.slow
def test_a_compiled_embedding_checks_its_ids():
    layer = nn.Embedding(5, 2, seed=0)
    run = eo.compile(lambda ids: layer(ids))
    assert run(eo.tensor([1.0, 4.0])).shape == (2, 2)
    with pytest.raises(EveryOShapeError, match="out of range"):
        run(eo.tensor([1.0, 5.0]))
    with pytest.raises(EveryOShapeError, match="whole numbers"):
        run(eo.tensor([0.5, 1.0]))


# ---------------------------------------------------------------------------------- initial values


def test_fans_count_what_reaches_and_leaves_a_unit():
    assert compute_fans((5,)) == (5, 5)
    assert compute_fans((3, 7)) == (3, 7)
    assert compute_fans((3, 2, 5, 4)) == (30, 24)
    with pytest.raises(EveryOShapeError):
        compute_fans(())


@pytest.mark.parametrize(
    ("name", "bound", "std"),
    [
        ("xavier_uniform", math.sqrt(6 / 500), math.sqrt(2 / 500)),
        ("glorot_normal", None, math.sqrt(2 / 500)),
        ("he_uniform", math.sqrt(6 / 200), math.sqrt(2 / 200)),
        ("kaiming_normal", None, math.sqrt(2 / 200)),
        ("uniform", 0.05, 0.05 / math.sqrt(3)),
        ("normal", None, 0.05),
    ],
)
def test_initializers_have_their_spread(name, bound, std):
    values = get_initializer(name)((200, 300), seed=0)
    assert values.dtype == np.float64 and values.shape == (200, 300)
    assert abs(values.std() - std) < 0.02 * std and abs(values.mean()) < 0.02 * std
    if bound is not None:
        assert np.abs(values).max() <= bound and np.abs(values).max() > 0.99 * bound


def test_initializers_draw_from_numpys_generator_of_the_seed():
    want = np.random.default_rng(4).uniform(-math.sqrt(0.75), math.sqrt(0.75), (3, 5))
    np.testing.assert_allclose(xavier_uniform((3, 5), seed=4), want, rtol=1e-14)
    np.testing.assert_array_equal(
        he_normal((3, 5), seed=4, gain=2.0), 2 * he_normal((3, 5), seed=4)
    )
    np.testing.assert_array_equal(get_initializer("ones")((2,)), [1, 1])
    np.testing.assert_array_equal(get_initializer("zeros")((2,)), [0, 0])


def test_without_a_seed_the_generator_of_manual_seed_is_used():
    eo.manual_seed(5)
    first = nn.Linear(3, 4).weight.numpy()
    second = nn.Linear(3, 4).weight.numpy()
    eo.manual_seed(5)
    np.testing.assert_array_equal(nn.Linear(3, 4).weight.numpy(), first)
    assert not np.array_equal(first, second)


def test_initializer_options_may_be_bound():
    values = get_initializer("uniform", low=2.0, high=3.0)((100,), seed=0)
    assert values.min() >= 2 and values.max() < 3


# ---------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_its_share(p):
    eo.manual_seed(0)
    y = nn.Dropout(p)(eo.ones(200, 500)).numpy()
    zeros = (y == 0).mean()
    sigma = math.sqrt(p * (1 - p) / y.size)
    assert abs(zeros - p) < 5 * sigma
    np.testing.assert_allclose(y[y != 0], 1 / (1 - p), rtol=1e-6)
    assert abs(y.mean() - 1) < 5 * sigma / (1 - p)


def test_dropout_is_the_identity_in_evaluation_and_for_p_0():
    x = eo.tensor(x_of(3, 4))
    assert nn.Dropout(0.5).eval()(x) is x and nn.Dropout(0.0)(x) is x


def test_dropout_masks_the_gradient_alike():
    x = eo.ones(50, requires_grad=True)
    y = nn.Dropout(0.5, seed=1)(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.numpy())


def test_a_dropout_with_a_seed_has_a_stream_of_its_own():
    x = eo.ones(64)
    own = nn.Dropout(0.5, seed=7)
    eo.manual_seed(0)
    a, b = own(x).numpy(), own(x).numpy()
    assert not np.array_equal(a, b)
    eo.manual_seed(1)
    again = nn.Dropout(0.5, seed=7)
    np.testing.assert_array_equal(again(x).numpy(), a)
    np.testing.assert_array_equal(again(x).numpy(), b)


def test_a_dropout_without_a_seed_follows_manual_seed():
    x, layer = eo.ones(64), nn.Dropout(0.5)
    eo.manual_seed(3)
    a = layer(x).numpy()
    eo.manual_seed(3)
    np.testing.assert_array_equal(layer(x).numpy(), a)
    assert not np.array_equal(layer(x).numpy(), a)


# ---------------------------------------------------------------------------------- normalisation


def test_batch_norm_normalises_and_tracks_unbiased_statistics():
    x = x_of(20, 3) * 5 + 2
    layer = nn.BatchNorm1D(3, momentum=0.3)
    y = layer(eo.tensor(x)).numpy()
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(0), 1, rtol=1e-4)
    np.testing.assert_allclose(layer.running_mean, 0.3 * x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(layer.running_var, 0.7 + 0.3 * x.var(0, ddof=1), rtol=1e-6)
    assert layer.num_batches_tracked == 1
    assert layer.running_mean.dtype == np.float32
    assert layer.num_batches_tracked.dtype == np.int64


def test_batch_norm_uses_running_statistics_in_evaluation_and_leaves_them():
    layer = nn.BatchNorm2D(2)
    for seed in range(3):
        layer(eo.tensor(x_of(4, 3, 3, 2, seed=seed)))
    before = layer.state_dict()
    x = x_of(2, 3, 3, 2, seed=9)
    y = layer.eval()(eo.tensor(x)).numpy()
    want = (x - layer.running_mean) / np.sqrt(layer.running_var + 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    one = layer(eo.tensor(x[:1])).numpy()
    np.testing.assert_allclose(one, y[:1], rtol=1e-12)


def test_batch_norm_counts_parameters_and_buffers():
    layer = nn.BatchNorm2D(4)
    assert len(layer.parameters()) == 2 and len(layer.buffers()) == 3
    bare = nn.BatchNorm1D(4, track_running_stats=False)
    assert bare.buffers() == []
    x = x_of(6, 4)
    np.testing.assert_array_equal(bare(x).numpy(), bare.eval()(x).numpy())


def test_batch_norm_of_a_single_sample_stays_finite():
    layer = nn.BatchNorm1D(2)
    assert np.isfinite(layer(eo.ones(1, 2)).numpy()).all()
    assert np.isfinite(layer.running_var).all()


def test_normalisation_of_data_with_a_large_mean():
    x = (1e4 + np.arange(4)).astype(np.float32)[:, None]
    want = np.array([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25 + 1e-5)
    np.testing.assert_allclose(nn.BatchNorm1D(1)(x).numpy()[:, 0], want, rtol=1e-4)
    np.testing.assert_allclose(nn.LayerNorm(4)(x[:, 0]).numpy(), want, rtol=1e-4)


def test_layer_norm_does_not_see_other_samples_or_the_mode():
    layer = nn.LayerNorm(5)
    x = x_of(4, 5)
    y = layer(x).numpy()
    np.testing.assert_allclose(layer(x[2:3]).numpy(), y[2:3], rtol=1e-13)
    np.testing.assert_array_equal(layer.eval()(x).numpy(), y)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-12)


def test_layer_norm_of_half_precision_computes_wider():
    x = np.float16([[300.0, -300.0, 299.0, -299.0]])
    y = nn.LayerNorm(4, affine=False)(x)
    assert y.dtype == "float16"
    np.testing.assert_allclose(y.numpy(), [[1, -1, 1, -1]], rtol=5e-3)


# ---------------------------------------------------------------------------------- embedding


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 2], [2, 4]],
        np.array([[0, 2], [2, 4]]),
        np.array([[0, 2], [2, 4]], np.int32),
        np.array([[0.0, 2.0], [2.0, 4.0]], np.float32),
        eo.tensor([[0, 2], [2, 4]]),
        eo.tensor([[0, 2], [2, 4]], dtype="int64"),
    ],
    ids=["list", "int64", "int32", "float32", "float tensor", "int tensor"],
)
def test_embedding_takes_whole_numbers_of_any_kind_and_scatters_gradients(ids):
    layer = nn.Embedding(5, 3, seed=0)
    y = layer(ids)
    np.testing.assert_array_equal(y.numpy(), layer.weight.numpy()[[[0, 2], [2, 4]]])
    y.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, np.outer([1, 0, 2, 0, 1], [1, 1, 1]))


# ---------------------------------------------------------------------------------- recurrent


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn_reference(x, w, u, b):
    h, out = np.zeros((len(x), len(u))), []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w + b + h @ u)
        out.append(h)
    return np.stack(out, 1)


def lstm_reference(x, w, u, b):
    h = c = np.zeros((len(x), len(u)))
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ w + b + h @ u, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out, 1)


def gru_reference(x, w, u, b):
    h, out = np.zeros((len(x), len(u))), []
    for t in range(x.shape[1]):
        xr, xu, xc = np.split(x[:, t] @ w + b, 3, 1)
        hr, hu, hc = np.split(h @ u, 3, 1)
        update = sigmoid(xu + hu)
        h = (1 - update) * np.tanh(xc + sigmoid(xr + hr) * hc) + update * h
        out.append(h)
    return np.stack(out, 1)


RECURRENT = pytest.mark.parametrize(
    ("layer", "reference", "gates"),
    [(nn.RNN, rnn_reference, 1), (nn.LSTM, lstm_reference, 4), (nn.GRU, gru_reference, 3)],
    ids=["rnn", "lstm", "gru"],
)


@RECURRENT
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_recurrent_layers_match_their_definition(layer, reference, gates, length):
    module = layer(3, 4, seed=1)
    module.bias.data[...] = np.random.default_rng(2).normal(size=4 * gates)
    x = x_of(2, length, 3)
    weights = [p.numpy().astype(np.float64) for p in module.parameters()]
    want = reference(x, *weights)
    np.testing.assert_allclose(module(x).numpy(), want, rtol=1e-6, atol=1e-9)
    last = layer(3, 4, seed=1, return_sequences=False)
    last.load_state_dict(module.state_dict())
    np.testing.assert_allclose(last(x).numpy(), want[:, -1], rtol=1e-6, atol=1e-9)


@RECURRENT
def test_recurrent_layers_count_parameters_and_train_all_of_them(layer, reference, gates):
    module = layer(3, 4, seed=0)
    assert module.num_parameters() == gates * (3 * 4 + 4 * 4 + 4)
    assert [n for n, _ in module.named_parameters()] == ["weight_ih", "weight_hh", "bias"]
    x = eo.tensor(x_of(2, 6, 3), requires_grad=True)
    module(x)[:, -1].sum().backward()
    assert all(np.abs(p.grad).max() > 0 for p in module.parameters())
    assert np.abs(x.grad[:, 0]).max() > 0
    assert len(layer(3, 4, bias=False).parameters()) == 2


def test_a_unit_forget_bias_starts_at_1_and_carries_gradients_further():
    np.testing.assert_array_equal(nn.LSTM(2, 3).bias.numpy(), [0] * 3 + [1] * 3 + [0] * 6)
    assert not nn.LSTM(2, 3, unit_forget_bias=False).bias.numpy().any()

    def reach(layer):
        x = eo.tensor(x_of(4, 40, 3), requires_grad=True)
        layer(x)[:, -1].sum().backward()
        return np.abs(x.grad[:, 0]).max()

    assert reach(nn.LSTM(3, 8, seed=0)) > reach(nn.RNN(3, 8, seed=0)) > 0


def test_an_lstm_step_is_three_sigmoids_and_two_tanhs():
    out = nn.LSTM(3, 4, seed=0)(x_of(2, 5, 3)).sum()
    names = [t.grad_node.operation for t in eo.core.autograd.topological_order(out) if t.grad_node]
    assert names.count("sigmoid") == 15 and names.count("tanh") == 10
    assert names.count("matmul") >= 1


# ---------------------------------------------------------------------------------- attention


def test_masks_hold_0_or_the_mask_value_and_nothing_else():
    causal = nn.causal_mask(3)
    assert causal.shape == (1, 1, 3, 3) and causal.dtype == np.float32
    np.testing.assert_array_equal(causal[0, 0] == MASK_VALUE, np.triu(np.ones((3, 3), bool), 1))
    np.testing.assert_array_equal(causal[0, 0] == 0, np.tril(np.ones((3, 3), bool)))
    padding = nn.padding_mask([1, 3], 3)
    assert padding.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(
        padding[:, 0, 0] == MASK_VALUE, [[False, True, True], [False, False, False]]
    )


def test_attention_is_a_softmax_of_scaled_products():
    q, k, v = x_of(2, 3, 4), x_of(2, 5, 4, seed=1), x_of(2, 5, 6, seed=2)
    out, weights = nn.scaled_dot_product_attention(q, k, v)
    scores = np.exp(q @ k.transpose(0, 2, 1) / 2)
    want = scores / scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights.numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(out.numpy(), want @ v, rtol=1e-12)


def test_masked_weights_are_exactly_0_and_masks_do_not_widen():
    x = x_of(1, 2, 4, 3, dtype=np.float32)
    out, weights = nn.scaled_dot_product_attention(
        x, x, x, mask=nn.causal_mask(4).astype(np.float64)
    )
    assert out.dtype == weights.dtype == "float32"
    assert (weights.numpy()[..., np.triu(np.ones((4, 4), bool), 1)] == 0).all()
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-6)


def test_a_causal_encoder_does_not_see_the_future():
    model = nn.TransformerEncoder(4, 2, seed=0, dropout=0.0)
    x = x_of(1, 5, 4)
    y = model(x, mask=nn.causal_mask(5)).numpy()
    x[:, 3:, 0] += 1
    changed = model(x, mask=nn.causal_mask(5)).numpy()
    np.testing.assert_allclose(changed[:, :3], y[:, :3], rtol=1e-12)
    assert np.abs(changed[:, 3:] - y[:, 3:]).max() > 1e-3


def test_attention_drops_weights_in_training_only():
    layer = nn.MultiHeadAttention(4, 2, dropout=0.5, seed=0)
    x = x_of(2, 3, 4)
    assert not np.array_equal(layer(x).numpy(), layer(x).numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x).numpy(), layer(x).numpy())


def test_multi_head_attention_keeps_its_last_weights_without_a_graph():
    layer = nn.MultiHeadAttention(6, 3, seed=0)
    assert layer.last_attention_weights is None
    assert layer.head_dim == 2 and layer.num_parameters() == 4 * (6 * 6 + 6)
    out = layer(x_of(2, 4, 6), x_of(2, 5, 6, seed=1))
    assert out.shape == (2, 4, 6)
    assert layer.last_attention_weights.shape == (2, 3, 4, 5)
    assert not layer.last_attention_weights.requires_grad
    out.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_positions_are_sines_and_cosines():
    layer = nn.PositionalEncoding(6, max_length=9)
    assert layer.parameters() == [] and layer.encoding.shape == (9, 6)
    position, i = np.arange(9)[:, None], np.arange(3)
    angle = position * 10000.0 ** (-2 * i / 6)
    np.testing.assert_allclose(layer.encoding[:, 0::2], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(layer.encoding[:, 1::2], np.cos(angle), atol=1e-6)
    np.testing.assert_array_equal(layer(np.zeros((1, 4, 6))).numpy()[0], layer.encoding[:4])


def test_a_block_with_zeroed_outputs_is_the_identity():
    block = nn.TransformerEncoderBlock(4, 2, seed=0)
    assert block.feedforward_dim == 16 and block.get_config()["norm_first"] is True
    for layer in (block.attention.output_projection, block.linear_out):
        layer.weight.data[...] = 0
    x = x_of(2, 3, 4)
    np.testing.assert_array_equal(block(x).numpy(), x)


def test_an_encoder_is_blocks_and_a_norm():
    model = nn.TransformerEncoder(4, 2, num_layers=3, seed=0)
    assert len(model.blocks) == model.num_layers == 3
    assert isinstance(model.norm, eo.LayerNorm)
    assert not hasattr(nn.TransformerEncoder(4, 2, norm_first=False), "norm")
    weights = [b.linear_in.weight.numpy() for b in model.blocks]
    assert not np.array_equal(weights[0], weights[1])


# ---------------------------------------------------------------------------------- torch


def theirs_of(torch, value):
    return torch.tensor(value.numpy() if isinstance(value, eo.Tensor) else value).double()


@pytest.mark.parametrize("cls", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_agree_with_torch(cls):
    torch = pytest.importorskip("torch")
    ours, theirs = getattr(nn, cls)(3, 4, seed=0), getattr(torch.nn, cls)(3, 4, batch_first=True)
    theirs = theirs.double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(theirs_of(torch, ours.weight_ih).T)
        theirs.weight_hh_l0.copy_(theirs_of(torch, ours.weight_hh).T)
        theirs.bias_ih_l0.copy_(theirs_of(torch, ours.bias))
        theirs.bias_hh_l0.zero_()
    x = x_of(2, 5, 3)
    want = theirs(torch.tensor(x))[0]
    want.sum().backward()
    y = ours(x)
    y.sum().backward()
    np.testing.assert_allclose(y.numpy(), want.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(ours.weight_hh.grad, theirs.weight_hh_l0.grad.numpy().T, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_normalisation_agrees_with_torch(training):
    torch = pytest.importorskip("torch")
    x = x_of(4, 3, 2, 5) * 3 + 1
    ours, theirs = nn.BatchNorm2D(5), torch.nn.BatchNorm2d(5).double()
    ours.train(training), theirs.train(training)
    for _ in range(2):
        want = theirs(torch.tensor(x.transpose(0, 3, 1, 2))).detach().numpy().transpose(0, 2, 3, 1)
        np.testing.assert_allclose(ours(x).numpy(), want, rtol=1e-5)
    np.testing.assert_allclose(ours.running_mean, theirs.running_mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.running_var, theirs.running_var.numpy(), rtol=1e-5)
    want = torch.nn.LayerNorm((2, 5)).double()(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(nn.LayerNorm((2, 5))(x).numpy(), want, rtol=1e-9)


def test_attention_agrees_with_torch():
    torch = pytest.importorskip("torch")
    ours = nn.MultiHeadAttention(6, 2, seed=0)
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True).double()
    inner = [getattr(ours, f"{n}_projection").weight.numpy().T for n in ("query", "key", "value")]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.tensor(np.concatenate(inner)))
        theirs.out_proj.weight.copy_(theirs_of(torch, ours.output_projection.weight).T)
    x = x_of(2, 4, 6)
    later = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    want, weights = theirs(*[torch.tensor(x)] * 3, attn_mask=later, average_attn_weights=False)
    got = ours(x, mask=nn.causal_mask(4))
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(
        ours.last_attention_weights.numpy(), weights.detach().numpy(), rtol=1e-9
    )


# ---------------------------------------------------------------------------------- refusals

X3 = np.zeros((2, 3, 4))

REFUSED = [
    (lambda: nn.Linear(4, 2)(np.zeros((3, 5))), "must be 4"),
    (lambda: nn.Linear(4, 2)(np.zeros(())), "must be 4"),
    (lambda: nn.Linear(0, 2), "positive"),
    (lambda: nn.Linear(2, -1), "positive"),
    (lambda: nn.BatchNorm1D(3)(X3), "2-D input"),
    (lambda: nn.BatchNorm2D(3)(X3), "4-D input"),
    (lambda: nn.BatchNorm1D(3)(np.zeros((2, 4))), "last axis"),
    (lambda: nn.BatchNorm1D(0), "positive"),
    (lambda: nn.LayerNorm(5)(X3), "trailing axes"),
    (lambda: nn.LayerNorm((2, 3, 4, 5))(X3), "trailing axes"),
    (lambda: nn.LayerNorm(0), "positive normalized_shape"),
    (lambda: nn.LayerNorm(()), "positive normalized_shape"),
    (lambda: nn.Embedding(3, 2)([0, 3]), "out of range"),
    (lambda: nn.Embedding(3, 2)([-1]), "out of range"),
    (lambda: nn.Embedding(3, 2)([0.5]), "whole numbers"),
    (lambda: nn.Embedding(3, 2)([np.nan]), "whole numbers"),
    (lambda: nn.Embedding(0, 2), "positive sizes"),
    (lambda: nn.RNN(4, 2)(np.zeros((3, 4))), "3-D input"),
    (lambda: nn.LSTM(4, 2)(np.zeros((2, 3, 5))), "last axis"),
    (lambda: nn.GRU(4, 2)(np.zeros((2, 0, 4))), "length 0"),
    (lambda: nn.RNN(0, 2), "positive sizes"),
    (lambda: nn.scaled_dot_product_attention(X3, X3[..., :2], X3), "query and key depths"),
    (lambda: nn.scaled_dot_product_attention(X3, X3, X3[:, :2]), "as many keys as values"),
    (lambda: nn.padding_mask([4], 3), "lengths must lie"),
    (lambda: nn.padding_mask([-1], 3), "lengths must lie"),
    (lambda: nn.padding_mask([1], 0), "positive size"),
    (lambda: nn.causal_mask(0), "positive size"),
    (lambda: nn.MultiHeadAttention(5, 2), "divide evenly"),
    (lambda: nn.MultiHeadAttention(4, 2)(np.zeros((3, 4))), r"\(batch, time, embed_dim\)"),
    (lambda: nn.MultiHeadAttention(4, 2)(np.zeros((2, 3, 5))), "last axis"),
    (lambda: nn.PositionalEncoding(4, max_length=2)(X3), "exceeds max_length"),
    (lambda: nn.PositionalEncoding(5)(X3), "last axis"),
]


@pytest.mark.parametrize(("call", "fragment"), REFUSED)
def test_what_does_not_fit_is_a_shape_error(call, fragment):
    with pytest.raises(EveryOShapeError, match=fragment):
        call()


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda: nn.Dropout(1.0), r"\[0, 1\)"),
        (lambda: nn.Dropout(-0.1), r"\[0, 1\)"),
        (lambda: nn.Linear(2, 2, initializer="magic"), "Unknown initializer"),
        (lambda: nn.BatchNorm1D(2, eps=0.0), "eps"),
        (lambda: nn.LayerNorm(2, eps=-1.0), "eps"),
        (lambda: nn.BatchNorm2D(2, momentum=1.5), "momentum"),
    ],
)
def test_a_bad_setting_is_a_value_error(call, fragment):
    with pytest.raises(ValueError, match=fragment):
        call()
