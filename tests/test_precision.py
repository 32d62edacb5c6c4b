"""Mixed precision: what runs in half precision, what stays, and that small gradients survive."""

import copy
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everyo as eo
from everyo.compile import interpret, ir
from everyo.exceptions import EveryOError, EveryOSerializationError
from everyo.precision import GradScaler, autocast, autocast_dtype, is_autocast_enabled

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def floats(*shape, seed=0, scale=1.0):
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return values.astype(np.float32)


# ---------------------------------------------------------------------------------- autocast


def test_products_run_in_half_and_nothing_else():
    a, b = eo.tensor(floats(3, 4)), eo.tensor(floats(4, 2))
    with autocast():
        assert (a @ b).dtype == "float16"
        assert eo.conv2d(floats(1, 4, 4, 2), floats(2, 2, 2, 3), floats(3)).dtype == "float16"
        assert eo.Linear(4, 2)(a).dtype == "float16"
        assert {f(a).dtype for f in (eo.exp, eo.mean, eo.softmax, eo.relu)} == {"float32"}
        assert (a * 2 + 1).dtype == "float32"
        half = a @ b
        assert {f(half).dtype for f in (eo.relu, eo.transpose, abs, eo.tanh)} == {"float16"}
        assert {f(half).dtype for f in (eo.exp, eo.sum, eo.softmax, eo.square)} == {"float32"}
        assert (
            eo.matmul(eo.tensor([[1]], dtype="int64"), eo.tensor([[2]], dtype="int64")).item() == 2
        )
    assert (a @ b).dtype == "float32"


def test_the_product_is_that_of_rounded_operands():
    a, b = floats(5, 7), floats(7, 3, seed=1)
    with autocast():
        found = (eo.tensor(a) @ b).numpy()
    wide = [x.astype(np.float16).astype(np.float32) for x in (a, b)]
    assert np.array_equal(found, (wide[0] @ wide[1]).astype(np.float16))


def test_casts_are_in_the_graph():
    layer = eo.Linear(4, 2, seed=0)
    x, h = eo.tensor(floats(3, 4), requires_grad=True), eo.tensor(np.float16([[1, 2, 3, 4]]))
    h.requires_grad = True
    with autocast():
        y = layer(x)
        (y.sum() + layer(h).sum()).backward()
    assert [p.grad.dtype for p in layer.parameters()] == [np.float32] * 2
    assert (x.grad.dtype, h.grad.dtype) == (np.float32, np.float16)
    assert all(p.dtype == "float32" for p in layer.parameters())
    assert y.grad_node.operation == "add"


def test_attention_and_losses_widen_what_they_exponentiate():
    model, x = eo.TransformerEncoder(8, 2, seed=0).eval(), floats(2, 5, 8)
    with autocast():
        found = model(x)
        logits = eo.Linear(8, 3, seed=1)(found)
        losses = [
            eo.nn.cross_entropy(logits[:, 0], [0, 2]),
            eo.nn.mse_loss(logits, eo.zeros(logits.shape)),
            eo.nn.binary_cross_entropy_with_logits(logits, eo.zeros(logits.shape)),
        ]
    np.testing.assert_allclose(found.numpy(), model(x).numpy(), atol=0.02)
    assert [loss.dtype for loss in losses] == ["float32"] * 3
    weights = model.blocks[0].attention.last_attention_weights
    with autocast():
        masked = model.blocks[0].attention(x, mask=eo.causal_mask(5))
    assert np.isfinite(masked.numpy()).all()
    assert (model.blocks[0].attention.last_attention_weights.numpy()[..., 0, 1:] == 0).all()
    assert weights.dtype == "float32"


def test_modes_nest_and_end():
    assert is_autocast_enabled() is False
    same = autocast()
    with same:
        assert is_autocast_enabled() is True
        assert autocast_dtype() == np.float16
        with autocast(False), same:
            assert is_autocast_enabled() is True
        with autocast(False):
            assert is_autocast_enabled() is False
        with autocast(dtype="float64"):
            assert autocast_dtype() == np.float64
            assert (eo.ones((1, 1)) @ eo.ones((1, 1))).dtype == "float64"
        assert autocast_dtype() == np.float16
    with pytest.raises(ZeroDivisionError), autocast():
        1 / 0  # noqa: B018
    assert is_autocast_enabled() is False
    assert autocast()(is_autocast_enabled)() is True
    with pytest.raises(EveryOError, match="floating"):
        autocast(dtype="int32")


# ---------------------------------------------------------------------------------- compiled


def ran(function, *arrays):
    """(compiled, interpreted) result of one node of a graph."""
    from everyo.compile import passes
    from everyo.compile.cpu import Program

    table = ir.Table()
    inputs = [table.input(a.shape, a.dtype) for a in arrays]
    graph = ir.Graph("half", tuple(inputs), (function(table, *inputs),))
    with np.errstate(all="ignore"):
        compiled = Program(passes.run(graph))(list(arrays))[0]
        return compiled, interpret.interpret(graph, arrays)[0][0]


def bits(a):
    """The bits, all NaNs alike."""
    if a.dtype.kind != "f":
        return a
    return np.where(np.isnan(a), a.dtype.type(np.nan), a).view(f"u{a.dtype.itemsize}")


def between():
    """Everything near the border between two halves, and beyond them all."""
    finite = HALVES[np.isfinite(HALVES)].astype(np.float64)
    halfway = (finite[:-1] + finite[1:]) / 2
    ends = [65519.999, 65520.0, 65520.001, 1e30, 1e300, 5e-324, 2.0**-25, 3e-8]
    near = [np.nextafter(halfway, np.inf), np.nextafter(halfway, -np.inf)]
    return np.concatenate([halfway, *near, HALVES.astype(np.float64), ends, np.negative(ends)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_kernels_convert_as_numpy_does(dtype):
    with np.errstate(all="ignore"):
        sources = between() if np.dtype(dtype).kind == "f" else np.arange(-70_000, 70_000)
        if dtype == "float32":
            sources = np.concatenate(
                [sources, np.nextafter(sources.astype(np.float32), np.float32(0))]
            )
        sources = sources.astype(dtype)
        found, _ = ran(lambda t, x: t.make("cast", x, dtype=ir.F16), sources)
        assert np.array_equal(bits(found), bits(sources.astype(np.float16)))
        halves = HALVES if dtype[0] in "fb" else HALVES[np.isfinite(HALVES)]
        found, _ = ran(lambda t, x: t.make("cast", x, dtype=np.dtype(dtype)), halves)
        assert np.array_equal(bits(found), bits(halves.astype(dtype)))


COMPUTED = ["add", "subtract", "multiply", "divide", "maximum", "less", "equal", "remainder"]


@pytest.mark.parametrize("op", COMPUTED)
def test_kernels_compute_halves_as_numpy_does(op):
    a, b = HALVES[::7].copy(), np.random.default_rng(0).permutation(HALVES[::7])
    found, meant = ran(lambda t, x, y: t.make(op, x, y), a, b)
    assert np.array_equal(bits(found), bits(meant))
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(found), bits(getattr(np, op)(a, b)))


def trained(compiled, steps=8, model=None, **options):
    """(losses, what each step said, model, scaler) of a short training in mixed precision."""
    model = model or eo.Sequential(
        eo.Linear(6, 16, seed=0), eo.ReLU(), eo.LayerNorm(16), eo.Linear(16, 3, seed=1)
    )
    optimizer = eo.Adam(model.parameters(), lr=0.01)
    scaler = GradScaler(2.0**10, growth_interval=3, **options)

    def step(x, y):
        optimizer.zero_grad()
        with autocast():
            loss = eo.nn.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        taken = scaler.step(optimizer)
        scaler.update()
        return loss, taken

    run = eo.compile(step) if compiled else step
    losses, said, scales = [], [], []
    for i in range(steps):
        x = floats(8, 6, seed=i, scale=1e5 if i == 4 else 1.0)
        with np.errstate(all="ignore"):
            loss, taken = run(x, np.arange(8) % 3)
        losses.append(loss.item())
        said.append(taken)
        scales.append(scaler.get_scale())
    return losses, said, scales, model, scaler, optimizer


def test_a_compiled_step_scales_skips_and_adapts_like_eager():
    eager, compiled = trained(False), trained(True)
    np.testing.assert_allclose(compiled[0], eager[0], rtol=2e-3)
    assert [bool(t) for t in compiled[1]] == eager[1] == [i != 4 for i in range(8)]
    assert {type(t) for t in eager[1]} == {bool}
    assert {(type(t), t.dtype, t.shape) for t in compiled[1]} == {(eo.Tensor, "bool", ())}
    assert compiled[2] == eager[2] == [1024.0] * 2 + [2048.0] * 2 + [1024.0] * 3 + [2048.0]
    for p, q in zip(eager[3].parameters(), compiled[3].parameters(), strict=True):
        np.testing.assert_allclose(q.data, p.data, rtol=1e-2, atol=1e-4)
    for run in (eager, compiled):
        assert (run[4].applied_steps, run[4].skipped_steps) == (7, 1)
        assert run[5].step_count == 7


def test_the_mode_is_part_of_what_was_compiled():
    layer, x = eo.Linear(3, 2, seed=0), floats(4, 3)

    @eo.compile
    def run(x):
        return layer(x)

    for _ in range(3):
        assert run(x).dtype == "float32"
        with autocast():
            assert run(x).dtype == "float16"
            assert np.array_equal(run(x).numpy(), layer(x).numpy())
        with autocast(dtype="float64"):
            assert run(x).dtype == "float64"


def test_a_gradient_asked_for_later_is_that_of_the_mode_of_the_call():
    layer, x = eo.Linear(3, 2, seed=0), floats(4, 3)
    with autocast():
        layer(x).sum().backward()
    expected = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    run = eo.compile(lambda x: layer(x).sum())
    with autocast():
        y = run(x)
    y.backward()
    for p, g in zip(layer.parameters(), expected, strict=True):
        np.testing.assert_allclose(p.grad, g, rtol=1e-3)


OPS = {
    "softmax": eo.softmax, "sort": eo.sort, "gelu": eo.gelu, "pad": lambda x: eo.pad(x, 1),
    "mean": lambda x: x.mean(axis=0), "cumsum": lambda x: eo.cumsum(x, axis=1),
    "concatenate": lambda x: eo.concatenate([x, x * 2], axis=1),
    "index": lambda x: x[np.array([2, 0, 2])], "max": lambda x: x.max(axis=1),
    "where": lambda x: eo.where(x > 0, x, -x), "transpose": lambda x: x.T * 1.5,
    "einsum": lambda x: eo.einsum("ij,kj->ik", x, x), "argmax": lambda x: x.argmax(axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_half_tensors_compile(name):
    x = eo.tensor(floats(5, 6).astype(np.float16), requires_grad=True)

    def run(x):
        y = OPS[name](x)
        gradient = None
        if isinstance(y, eo.Tensor) and y.requires_grad:
            (y * y).sum().backward()
            gradient, x.grad = x.grad, None
        return y, gradient

    expected, found = run(x), eo.compile(run)(x)
    for a, b in zip(expected, found, strict=True):
        if a is not None:
            assert b.dtype == a.dtype
            np.testing.assert_allclose(
                np.asarray(b, float), np.asarray(a, float), rtol=4e-3, atol=2e-3
            )


# ---------------------------------------------------------------------------------- the scaler


def deep():
    return eo.Sequential(*[eo.Linear(24, 24, seed=i) for i in range(3)])


def zeros_in_gradients(scaler):
    model = deep()
    with autocast():
        loss = (model(floats(16, 24)) ** 2).mean() * 1e-7
    scaler.backward(loss)
    gradients = np.concatenate([p.grad.ravel() for p in model.parameters()])
    assert np.isfinite(gradients).all()
    return (gradients == 0).mean()


def test_small_gradients_vanish_without_a_scaler_and_survive_with_one():
    assert zeros_in_gradients(GradScaler(enabled=False)) > 0.9
    assert zeros_in_gradients(GradScaler(2.0**20)) == 0


def test_backward_is_that_of_the_scaled_loss_and_does_not_warn():
    models = [deep(), deep()]
    scaler = GradScaler(2.0**20)
    for model, how in zip(
        models, (scaler.backward, lambda t: scaler.scale(t).backward()), strict=True
    ):
        with autocast():
            loss = (model(floats(4, 24)) ** 2).mean() * 1e3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            how(loss)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert np.array_equal(p.grad, q.grad, equal_nan=True)
    assert not np.isfinite(models[0][0].weight.grad).all()


def one(value=1.0, gradient=0.5):
    w = eo.Parameter(np.float32([value]))
    w.grad = np.float32([gradient])
    return w, eo.SGD([w], lr=0.1)


def test_gradients_are_unscaled_once():
    w, optimizer = one(gradient=8.0)
    scaler = GradScaler(4.0)
    assert scaler.unscale_(optimizer) is True
    assert scaler.unscale_(optimizer) is True
    assert w.grad.tolist() == [2.0]
    assert scaler.step(optimizer) is True
    assert w.item() == pytest.approx(1 - 0.1 * 2.0)
    w.grad = np.float32([8.0])  # the next step, without update() in between
    assert scaler.step(optimizer) is True
    assert w.item() == pytest.approx(1 - 0.1 * 4.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_skips_the_step(bad):
    w, optimizer = one(gradient=bad)
    scaler = GradScaler(1.5, backoff_factor=0.5)
    assert scaler.step(optimizer) is False
    assert w.item() == 1.0
    assert optimizer.step_count == 0
    scaler.update()
    assert scaler.get_scale() == 1.0  # never below
    assert (scaler.skipped_steps, scaler.applied_steps) == (1, 0)


def test_one_bad_optimizer_of_two_lowers_the_scale():
    (w, good), (v, bad) = one(), one(gradient=np.nan)
    scaler = GradScaler(16.0, growth_interval=1)
    assert (scaler.step(good), scaler.step(bad)) == (True, False)
    scaler.update()
    assert scaler.get_scale() == 8.0
    assert v.item() == 1.0 != w.item()


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_the_scale_follows_its_rule(outcomes, interval):
    w, optimizer = one()
    scaler = GradScaler(64.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=interval)
    expected, run = 64.0, 0
    for fine in outcomes:
        w.grad = np.float32([1.0 if fine else np.inf])
        assert scaler.step(optimizer) is fine
        scaler.update()
        run = run + 1 if fine else 0
        if not fine:
            expected = max(expected / 4, 1.0)
        elif run == interval:
            expected, run = expected * 4, 0
        assert scaler.get_scale() == expected
    assert scaler.applied_steps == sum(outcomes)
    scaler.update()  # without a step nothing happens
    assert scaler.get_scale() == expected
    scaler.update(7.0)
    assert scaler.get_scale() == 7.0


def test_a_disabled_scaler_does_nothing():
    w, optimizer = one(gradient=np.inf)
    scaler = GradScaler(enabled=False)
    loss = eo.tensor(2.0)
    assert scaler.scale(loss) is loss
    assert scaler.get_scale() == 1.0
    assert scaler.unscale_(optimizer) is True
    assert scaler.step(optimizer) is True
    scaler.update()
    assert w.item() == -np.inf


def test_a_half_loss_is_scaled_in_float32():
    assert GradScaler(2.0**17).scale(eo.tensor(np.float16(1.0))).item() == 2.0**17


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0.0}, {"init_scale": -1.0}, {"init_scale": np.inf}, {"growth_factor": 1.0},
        {"backoff_factor": 0.0}, {"backoff_factor": 1.0}, {"growth_interval": 0},
    ],
    ids=str,
)  # fmt: skip
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options)).removeprefix("init_")):
        GradScaler(**options)


def test_a_scaler_goes_on_from_its_state(tmp_path):
    scaler = trained(False, steps=5)[4]
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    path = eo.save_checkpoint(tmp_path / "run", scaler=scaler)
    third = GradScaler(3.0)
    eo.load_checkpoint(path, scaler=third)
    assert repr(third) == repr(scaler)
    assert third.skipped_steps == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": -1.0}, "positive"), ({"scale": "much"}, "wrong"),
        ({"growth_factor": 1}, "greater"), ({"skipped_steps": -1}, "negative"),
        ({"applied_steps": None}, "wrong"), ({"x": 1}, "unexpected"),
    ],
)  # fmt: skip
def test_a_wrong_state_changes_nothing(change, message):
    scaler = GradScaler(8.0)
    before = copy.deepcopy(scaler.state_dict())
    with pytest.raises(EveryOSerializationError, match=message):
        scaler.load_state_dict({**before, **change})
    assert scaler.state_dict() == before
