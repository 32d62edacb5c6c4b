"""Optimizers against their definition, their state, schedules, clipping, averages."""

import copy
import math
import pickle

import numpy as np
import pytest

import everyo as eo
from everyo import optim
from everyo.exceptions import EveryOError, EveryOGradientError, EveryOSerializationError

STEPS = 12
START = [np.array([0.1, -0.2, 0.3]), np.array([[1.0, -2.0]])]


def gradients(k, dtype=np.float64):
    """The gradients of step k."""
    generator = np.random.default_rng(k)
    return [generator.normal(size=p.shape).astype(dtype) for p in START]


def parameters(dtype=np.float64):
    return [eo.Parameter(p.astype(dtype)) for p in START]


def give(params, values):
    for p, g in zip(params, values, strict=True):
        p.grad = g


# ---------------------------------------------------------------------------------- by definition


def sgd(p, g, s, t, lr, momentum=0.0, wd=0.0, nesterov=False):
    g = g + wd * p
    if momentum:
        s["v"] = momentum * s.get("v", 0) + g
        g = g + momentum * s["v"] if nesterov else s["v"]
    return p - lr * g


def adam(p, g, s, t, lr, betas=(0.9, 0.999), eps=1e-8, wd=0.0, amsgrad=False, decoupled=False):
    b1, b2 = betas
    if decoupled:
        p = p - lr * wd * p
    else:
        g = g + wd * p
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    s["top"] = np.maximum(s.get("top", 0), s["v"])
    v = s["top"] if amsgrad else s["v"]
    return p - lr * (s["m"] / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)


def rmsprop(p, g, s, t, lr, alpha=0.99, eps=1e-8, wd=0.0, momentum=0.0, centered=False):
    g = g + wd * p
    s["sq"] = alpha * s.get("sq", 0) + (1 - alpha) * g * g
    s["mean"] = alpha * s.get("mean", 0) + (1 - alpha) * g
    spread = s["sq"] - s["mean"] ** 2 if centered else s["sq"]
    along = g / (np.sqrt(spread) + eps)
    if momentum:
        along = s["v"] = momentum * s.get("v", 0) + along
    return p - lr * along


def adagrad(p, g, s, t, lr, lr_decay=0.0, wd=0.0, first=0.0, eps=1e-10):
    g = g + wd * p
    s["sum"] = s.get("sum", first) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)


def lion(p, g, s, t, lr, betas=(0.9, 0.99), wd=0.0):
    m = s.get("m", np.zeros_like(g))
    along = np.sign(betas[0] * m + (1 - betas[0]) * g)
    s["m"] = betas[1] * m + (1 - betas[1]) * g
    return p - lr * wd * p - lr * along


# name -> (class, its options, the definition, the same options by its names)
TABLE = {
    "sgd": (optim.SGD, {"lr": 0.1}, sgd, {}),
    "sgd decay": (optim.SGD, {"lr": 0.1, "weight_decay": 0.3}, sgd, {"wd": 0.3}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}, sgd, {"momentum": 0.9}),
    "nesterov": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
        sgd,
        {"momentum": 0.8, "nesterov": True, "wd": 0.1},
    ),
    "adam": (optim.Adam, {"lr": 0.05}, adam, {}),
    "adam options": (
        optim.Adam,
        {"lr": 0.05, "betas": (0.7, 0.9), "eps": 0.1, "weight_decay": 0.2},
        adam,
        {"betas": (0.7, 0.9), "eps": 0.1, "wd": 0.2},
    ),
    "amsgrad": (
        optim.Adam,
        {"lr": 0.05, "betas": (0.9, 0.5), "amsgrad": True},
        adam,
        {"betas": (0.9, 0.5), "amsgrad": True},
    ),
    "adamw": (optim.AdamW, {"lr": 0.05}, adam, {"wd": 0.01, "decoupled": True}),
    "rmsprop": (optim.RMSprop, {"lr": 0.05}, rmsprop, {}),
    "rmsprop options": (
        optim.RMSprop,
        {"lr": 0.05, "alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
        rmsprop,
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "wd": 0.1},
    ),
    "adagrad": (optim.Adagrad, {"lr": 0.05}, adagrad, {}),
    "adagrad options": (
        optim.Adagrad,
        {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
        adagrad,
        {"lr_decay": 0.1, "first": 0.5, "wd": 0.1},
    ),
    "lion": (optim.Lion, {"lr": 0.05}, lion, {}),
    "lion options": (
        optim.Lion,
        {"lr": 0.05, "betas": (0.5, 0.8), "weight_decay": 0.2},
        lion,
        {"betas": (0.5, 0.8), "wd": 0.2},
    ),
}
EVERY = pytest.mark.parametrize("name", TABLE)


def made(name, dtype=np.float64):
    cls, options, *_ = TABLE[name]
    params = parameters(dtype)
    return params, cls(params, **options)


@EVERY
def test_every_optimizer_follows_its_definition(name):
    _, options, rule, named = TABLE[name]
    params, optimizer = made(name)
    want, state = [p.copy() for p in START], [{} for _ in START]
    for t in range(1, STEPS + 1):
        give(params, gradients(t))
        optimizer.step()
        want = [
            rule(p, g, s, t, options["lr"], **named)
            for p, g, s in zip(want, gradients(t), state, strict=True)
        ]
        for p, value in zip(params, want, strict=True):
            np.testing.assert_allclose(p.numpy(), value, rtol=1e-10, atol=1e-12)
    assert optimizer.step_count == STEPS


@EVERY
def test_every_optimizer_keeps_the_dtype_of_its_parameters(name):
    params, optimizer = made(name, np.float32)
    give(params, gradients(1, np.float32))
    optimizer.step()
    assert all(p.dtype == "float32" for p in params)
    arrays = [a for slot in optimizer.state_dict()["state"].values() for a in slot]
    assert all(a.dtype == np.float32 for a in arrays)


@EVERY
def test_every_optimizer_skips_what_has_no_gradient(name):
    params, optimizer = made(name)
    before = optimizer.state_dict()
    optimizer.step()
    assert optimizer.step_count == 0
    np.testing.assert_equal(optimizer.state_dict(), before)
    params[0].grad = np.ones(3)
    params[1].grad = np.ones((1, 2))
    params[1].requires_grad = False
    optimizer.step()
    np.testing.assert_array_equal(params[1].numpy(), START[1])
    assert not np.array_equal(params[0].numpy(), START[0])


@EVERY
def test_every_optimizer_resumes_exactly(name):
    params, optimizer = made(name)
    for t in range(3):
        give(params, gradients(t))
        optimizer.step()
    saved = pickle.loads(pickle.dumps(([p.numpy() for p in params], optimizer.state_dict())))
    others, fresh = made(name)
    give(others, gradients(7))
    fresh.step()  # it has been used
    for p, value in zip(others, saved[0], strict=True):
        p.data[...] = value
    fresh.load_state_dict(saved[1])
    for t in range(3, 6):
        for some, opt in ((params, optimizer), (others, fresh)):
            give(some, gradients(t))
            opt.step()
    for p, q in zip(params, others, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    np.testing.assert_equal(fresh.state_dict(), optimizer.state_dict())


@EVERY
def test_a_state_is_a_copy_and_loading_writes_in_place(name):
    params, optimizer = made(name)
    arrays = [t.data for slot in optimizer._state.values() for t in slot]
    give(params, gradients(0))
    optimizer.step()
    state = optimizer.state_dict()
    for slot in state["state"].values():
        for array in slot:
            array += 1
    optimizer.load_state_dict(state)
    assert all(
        a is t.data
        for a, t in zip(arrays, [t for s in optimizer._state.values() for t in s], strict=True)
    )
    np.testing.assert_equal(optimizer.state_dict(), state)


@EVERY
def test_a_copy_with_its_model_stays_with_the_copied_model(name):
    cls, options, *_ = TABLE[name]
    model = eo.Linear(3, 2, seed=0)
    optimizer = cls(model.parameters(), **options)
    model(eo.ones(1, 3)).sum().backward()
    optimizer.step()
    for copied in (
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
    ):
        other, opt = copied
        assert all(a is b for a, b in zip(opt.parameters, other.parameters(), strict=True))
        before = model.weight.numpy()
        opt.step()
        np.testing.assert_array_equal(model.weight.numpy(), before)
        assert not np.array_equal(other.weight.numpy(), before)
        assert opt.step_count == 2 and optimizer.step_count == 1
        assert opt.get_config() == optimizer.get_config()


@EVERY
def test_a_false_condition_changes_nothing(name):
    params, optimizer = made(name)
    before = optimizer.state_dict()
    give(params, gradients(0))
    optimizer.step(when=np.array(False))
    np.testing.assert_equal(optimizer.state_dict(), before)
    np.testing.assert_array_equal(params[0].numpy(), START[0])
    optimizer.step(when=eo.tensor(True))
    others, other = made(name)
    give(others, gradients(0))
    other.step()
    for p, q in zip(params, others, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


@pytest.mark.slow
@EVERY
def test_every_optimizer_compiled_equals_eager(name):
    runs = []
    for wrap in (lambda f: f, eo.compile):
        params, optimizer = made(name)

        def step(x, params=params, optimizer=optimizer):
            optimizer.zero_grad()
            loss = ((params[0] * x).sum() + params[1].sum() * 0.5) ** 2
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step)
        losses = []
        for k in range(4):
            optimizer.lr = 0.05 / (k + 1)
            losses.append(run(eo.tensor(gradients(k)[0])).item())
        runs.append((losses, [p.numpy() for p in params], optimizer.state_dict()))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-9)
    for p, q in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-9)
    assert runs[0][2]["step_count"] == runs[1][2]["step_count"] == 4
    for slot, arrays in runs[0][2]["state"].items():
        for a, b in zip(arrays, runs[1][2]["state"][slot], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.slow
def test_settings_of_a_compiled_step_are_read_at_every_call():
    p = eo.Parameter(np.array([1.0]))
    opt = optim.SGD([p], lr=0.5)

    @eo.compile
    def step():
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    want, velocity = 1.0, 0.0
    for k in range(6):
        opt.lr = 0.1 / (k + 1)
        if k == 3:
            opt.momentum = 0.5
        step()
        velocity = opt.momentum * velocity + 2 * want
        want -= opt.lr * (velocity if opt.momentum else 2 * want)
        velocity = velocity if opt.momentum else 0.0
        assert p.item() == pytest.approx(want, rel=1e-12)
    assert step.cache_info().traces <= 4


@EVERY
def test_every_optimizer_agrees_with_torch(name):
    torch = pytest.importorskip("torch")
    cls, options, *_ = TABLE[name]
    if not hasattr(torch.optim, cls.__name__):
        pytest.skip(f"torch has no {cls.__name__}")
    params, optimizer = made(name)
    theirs = [torch.nn.Parameter(torch.tensor(p)) for p in START]
    other = getattr(torch.optim, cls.__name__)(theirs, **options)
    for t in range(STEPS):
        give(params, gradients(t))
        for p, g in zip(theirs, gradients(t), strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
        other.step()
    for p, q in zip(params, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-9)


# ---------------------------------------------------------------------------------- single facts


def test_decay_alone_and_momentum_alone():
    p = eo.Parameter([2.0])
    p.grad = [0.0]
    optim.SGD([p], lr=0.1, weight_decay=0.5).step()
    assert p.item() == pytest.approx(1.9)
    p = eo.Parameter([1.0])
    opt = optim.SGD([p], lr=0.1, momentum=0.9)
    for want in (0.9, 0.71):
        p.grad = [1.0]
        opt.step()
        assert p.item() == pytest.approx(want)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_first_step_of_adam_is_the_rate_whatever_the_scale(scale):
    p = eo.Parameter([1.0], dtype="float64")
    p.grad = [scale]
    optim.Adam([p], lr=0.01).step()
    assert p.item() == pytest.approx(0.99, rel=1e-4)


def test_adam_shows_its_averages_per_parameter():
    params = parameters(np.float32)
    opt = optim.Adam(params)
    give(params, gradients(0, np.float32))
    opt.step()
    assert [m.shape for m in opt.m] == [(3,), (1, 2)] == [v.shape for v in opt.v]
    np.testing.assert_allclose(opt.m[0], 0.1 * gradients(0)[0], rtol=1e-6)
    assert opt.get_config()["betas"] == (0.9, 0.999) and opt.betas == (0.9, 0.999)
    assert "Adam" in repr(opt)


def test_a_parameter_that_is_given_twice_is_updated_once():
    p = eo.Parameter([1.0])
    opt = optim.SGD([p, p], lr=0.5)
    p.grad = [1.0]
    opt.step()
    assert p.item() == 0.5 and len(opt.parameters) == 1


def test_a_gradient_with_a_graph_is_taken_as_numbers():
    p = eo.Parameter([2.0])
    (p * p).sum().backward(create_graph=True)
    optim.SGD([p], lr=0.25).step()
    assert p.item() == 1.0 and p.is_leaf


def test_zero_grad_sets_none():
    params, opt = made("sgd")
    give(params, gradients(0))
    opt.zero_grad()
    assert all(p.grad is None for p in params)


def test_infinite_gradients_are_silent_and_travel():
    p = eo.Parameter([1.0])
    p.grad = [np.inf]
    optim.Adam([p]).step()
    assert np.isnan(p.numpy()).all()


# ---------------------------------------------------------------------------------- hyperparameters


def test_hyperparameters_are_plain_numbers_that_can_be_set():
    params = parameters()
    opt = optim.Adam(params, lr=0.5)
    opt.lr *= 0.5
    opt.betas = [0.5, 0.75]
    assert opt.lr == 0.25 and opt.betas == (0.5, 0.75) and opt.beta2 == 0.75
    opt.weight_decay = 0.1
    give(params, gradients(1))
    opt.step()
    want = adam(START[0], gradients(1)[0], {}, 1, 0.25, betas=(0.5, 0.75), wd=0.1)
    np.testing.assert_allclose(params[0].numpy(), want, rtol=1e-12)


def test_momentum_that_is_switched_on_starts_from_rest():
    params, opt = made("sgd")
    opt.momentum = 0.5
    state = {}
    want = START[0]
    for t in (1, 2):
        give(params, gradients(t))
        opt.step()
        want = sgd(want, gradients(t)[0], state, t, 0.1, momentum=0.5)
    np.testing.assert_allclose(params[0].numpy(), want, rtol=1e-12)
    opt.momentum = 0
    assert opt.structure == ()


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda p: optim.SGD(p, lr=0.0), "lr must be positive"),
        (lambda p: optim.SGD(p, lr=-1.0), "lr must be positive"),
        (lambda p: optim.SGD(p, lr=math.nan), "positive"),
        (lambda p: optim.SGD(p, momentum=1.0), r"momentum must be in \[0, 1\)"),
        (lambda p: optim.SGD(p, momentum=-0.1), r"\[0, 1\)"),
        (lambda p: optim.SGD(p, nesterov=True), "Nesterov"),
        (lambda p: optim.SGD(p, weight_decay=-1.0), "weight_decay"),
        (lambda p: optim.Adam(p, betas=(1.0, 0.9)), "beta1"),
        (lambda p: optim.Adam(p, betas=(0.9, -0.1)), "beta2"),
        (lambda p: optim.Adam(p, betas=(0.9,)), "betas"),
        (lambda p: optim.Adam(p, betas=0.9), "betas"),
        (lambda p: optim.Adam(p, eps=0.0), "eps"),
        (lambda p: optim.RMSprop(p, alpha=1.0), "alpha"),
        (lambda p: optim.Adagrad(p, lr_decay=-1.0), "lr_decay"),
        (lambda p: optim.Adagrad(p, initial_accumulator_value=-1.0), "initial_accumulator_value"),
        (lambda p: optim.Lion(p, weight_decay=-1.0), "weight_decay"),
    ],
)
def test_a_bad_hyperparameter_is_a_value_error(make, fragment):
    with pytest.raises(ValueError, match=fragment):
        make(parameters())


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("lr", -1, "lr must be positive"),
        ("momentum", 1.5, "momentum"),
        ("weight_decay", -0.1, "weight_decay"),
        ("nesterov", True, "Nesterov"),
    ],
)
def test_a_bad_assignment_changes_nothing(name, value, fragment):
    opt = optim.SGD(parameters(), lr=0.1)
    with pytest.raises(ValueError, match=fragment):
        setattr(opt, name, value)
    assert opt.get_config() == optim.SGD(parameters(), lr=0.1).get_config()
    adam = optim.Adam(parameters())
    with pytest.raises(ValueError, match="beta2"):
        adam.betas = (0.5, 2.0)
    assert adam.betas == (0.9, 0.999)


def test_a_schedule_may_reach_0():
    params, opt = made("sgd")
    opt.lr = 0.0
    give(params, gradients(0))
    opt.step()
    np.testing.assert_array_equal(params[0].numpy(), START[0])


def test_parameters_must_be_tensors_and_there_must_be_some():
    with pytest.raises(EveryOError, match="no parameters"):
        optim.SGD([])
    with pytest.raises(EveryOError, match="EveryO tensor"):
        optim.Adam([np.ones(3)])


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"optimizer": "SGD"}, "SGD does not fit"),
        ({"step_count": -1}, "step_count"),
        ({"step_count": 1.5}, "step_count"),
        ({"state": {"m": []}}, "Missing keys: v"),
        ({"state": {"m": [], "v": []}}, "for 2 parameters"),
        ({"state": {"m": [np.ones(2)] * 2, "v": START}}, "expects shape"),
        ({"state": {"m": START, "v": [*START[:1], "text"]}}, "expects numbers"),
        ({"config": {}}, "Missing keys"),
        ({"config": {"lr": -1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0,
                     "amsgrad": False}}, "stored option"),
        ({"config": {"lr": 1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0,
                     "amsgrad": True}}, "Missing keys: top"),
        ({"extra": 1}, "unexpected keys: extra"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_changes_nothing(change, fragment):
    params, opt = made("adam")
    give(params, gradients(0))
    opt.step()
    before = opt.state_dict()
    with pytest.raises(EveryOSerializationError, match=fragment):
        opt.load_state_dict({**optim.Adam(parameters()).state_dict(), **change})
    np.testing.assert_equal(opt.state_dict(), before)


def test_loading_takes_over_settings_and_structure():
    params = parameters()
    other = optim.SGD(parameters(), lr=0.2, momentum=0.7, nesterov=True)
    give(other.parameters, gradients(1))
    other.step()
    opt = optim.SGD(params, lr=0.1)
    opt.load_state_dict(other.state_dict())
    assert opt.get_config() == other.get_config() and opt.structure == other.structure
    np.testing.assert_equal(opt.state_dict(), other.state_dict())
    opt.load_state_dict(optim.SGD(params, lr=0.3).state_dict())
    assert opt.momentum == 0 and opt.structure == () and opt.step_count == 0


# ---------------------------------------------------------------------------------- schedules


COS = [math.cos(math.pi * k / 4) for k in range(9)]

# name -> (class, its options, the rates from 1.0 on)
SCHEDULES = {
    "step": ("StepLR", {"step_size": 3}, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]),
    "multi step": (
        "MultiStepLR",
        {"milestones": [2, 5], "gamma": 0.5},
        [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25],
    ),
    "exponential": ("ExponentialLR", {"gamma": 0.5}, [0.5**k for k in range(9)]),
    "constant": ("ConstantLR", {"factor": 0.5, "total_iters": 3}, [0.5] * 3 + [1] * 6),
    "linear": (
        "LinearLR",
        {"start_factor": 0.2, "total_iters": 4},
        [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1],
    ),
    "polynomial": (
        "PolynomialLR",
        {"total_iters": 4, "power": 2.0},
        [1, 9 / 16, 4 / 16, 1 / 16, 0, 0, 0, 0, 0],
    ),
    "cosine": (
        "CosineAnnealingLR",
        {"T_max": 4, "eta_min": 0.2},
        [0.2 + 0.4 * (1 + c) for c in COS],
    ),
    "restarts": (
        "CosineAnnealingWarmRestarts",
        {"T_0": 2, "T_mult": 2},
        [1, 0.5, *[(1 + c) / 2 for c in COS[:4]]]
        + [(1 + math.cos(math.pi * k / 8)) / 2 for k in range(3)],
    ),
    "lambda": ("LambdaLR", {"lr_lambda": lambda t: 1 / (1 + t)}, [1 / k for k in range(1, 10)]),
    "one cycle": (
        "OneCycleLR",
        {"max_lr": 1.0, "total_steps": 9, "pct_start": 0.5, "anneal_strategy": "linear",
         "div_factor": 10.0, "final_div_factor": 10.0, "cycle_momentum": False},
        [0.1 + 0.9 * k / 3.5 for k in range(4)]
        + [1 - 0.99 * (k - 3.5) / 4.5 for k in range(4, 9)],
    ),
}  # fmt: skip
FORMULAS = pytest.mark.parametrize("name", SCHEDULES)


def schedule_of(name, lr=1.0):
    """An optimizer and its schedule."""
    opt = optim.SGD(parameters(), lr=lr)
    cls, options, _ = SCHEDULES[name]
    return opt, getattr(optim, cls)(opt, **options)


def rates(opt, schedule, steps=8):
    """The rate now and after each step."""
    found = [opt.lr]
    for _ in range(steps):
        schedule.step()
        found.append(opt.lr)
    assert schedule.get_last_lr() == [opt.lr]
    return found


@FORMULAS
def test_every_schedule_is_its_formula(name):
    np.testing.assert_allclose(
        rates(*schedule_of(name)), SCHEDULES[name][2], rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"cosine", "one cycle"}))
def test_schedules_without_a_rate_of_their_own_scale_the_first(name):
    want = [0.25 * rate for rate in SCHEDULES[name][2]]
    np.testing.assert_allclose(rates(*schedule_of(name, lr=0.25)), want, rtol=1e-12, atol=1e-15)


@FORMULAS
def test_every_schedule_resumes(name):
    opt, schedule = schedule_of(name)
    rates(opt, schedule, 3)
    saved = pickle.loads(pickle.dumps((opt.state_dict(), schedule.state_dict())))
    other, again = schedule_of(name)
    again.step()
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    np.testing.assert_allclose(
        rates(other, again, 5), SCHEDULES[name][2][3:], rtol=1e-12, atol=1e-15
    )
    with pytest.raises(EveryOSerializationError, match="Missing keys"):
        again.load_state_dict({})


def test_schedules_in_sequence_start_from_the_same_rate_and_resume():
    def made():
        opt = optim.SGD(parameters(), lr=1.0)
        warm, fall = optim.LinearLR(opt, 0.5, 1.0, 2), optim.ExponentialLR(opt, 0.5)
        return opt, optim.SequentialLR(opt, [warm, fall], [2])

    want = [0.5, 0.75, 1, 0.5, 0.25, 0.125, 0.0625]
    opt, schedule = made()
    assert rates(opt, schedule, 3) == want[:4]
    other, again = made()
    other.load_state_dict(opt.state_dict())
    again.load_state_dict(schedule.state_dict())
    assert rates(other, again, 3) == want[3:]
    with pytest.raises(EveryOSerializationError, match="schedulers"):
        again.load_state_dict({**schedule.state_dict(), "schedulers": []})


def test_a_rate_set_by_hand_is_the_new_start():
    opt = optim.SGD(parameters(), lr=1.0)
    optim.LinearLR(opt, 0.5)
    assert optim.StepLR(opt, 2).base_lr == 1.0
    opt.lr = 0.3
    assert optim.StepLR(opt, 2).base_lr == 0.3


def test_one_cycle_moves_the_momentum_the_other_way():
    opt = optim.Adam(parameters(), lr=1.0)
    schedule = optim.OneCycleLR(opt, 0.5, epochs=2, steps_per_epoch=5, three_phase=True)
    found = [(opt.lr, opt.beta1)]
    for _ in range(9):
        schedule.step()
        found.append((opt.lr, opt.beta1))
    assert found[0] == pytest.approx((0.02, 0.95)) and found[2] == pytest.approx((0.5, 0.85))
    assert found[4] == pytest.approx((0.02, 0.95)) and found[-1][0] == pytest.approx(2e-6)
    schedule.step()
    with pytest.raises(ValueError, match="a cycle of 10 steps"):
        schedule.step()


def test_a_plateau_lowers_the_rate_after_patience():
    opt = optim.SGD(parameters(), lr=1.0)
    schedule = optim.ReduceLROnPlateau(opt, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    found = []
    for value in (1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1):
        schedule.step(value)
        found.append(opt.lr)
    assert found == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]
    assert schedule.best == 0.1


@pytest.mark.parametrize(("mode", "values"), [("min", [2.0, 1.5]), ("max", [1.0, 1.5])])
def test_a_plateau_measures_improvement_in_its_mode(mode, values):
    opt = optim.SGD(parameters(), lr=1.0)
    schedule = optim.ReduceLROnPlateau(opt, mode, patience=0, threshold=0.4, threshold_mode="abs")
    for value in values:
        schedule.step(eo.tensor(value))
    assert opt.lr == 1.0
    schedule.step(values[-1])
    assert opt.lr == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: optim.StepLR(o, 0),
        lambda o: optim.LinearLR(o, 0.0),
        lambda o: optim.LinearLR(o, total_iters=0),
        lambda o: optim.CosineAnnealingLR(o, 0),
        lambda o: optim.CosineAnnealingWarmRestarts(o, 2, 0),
        lambda o: optim.OneCycleLR(o, 1.0),
        lambda o: optim.OneCycleLR(o, 1.0, 10, pct_start=2.0),
        lambda o: optim.OneCycleLR(o, 1.0, 10, anneal_strategy="steep"),
        lambda o: optim.OneCycleLR(optim.Adagrad(parameters()), 1.0, 10),
        lambda o: optim.SequentialLR(o, [optim.StepLR(o, 2)], [3]),
        lambda o: optim.SequentialLR(o, [optim.StepLR(optim.SGD(parameters()), 2)], []),
        lambda o: optim.ReduceLROnPlateau(o, factor=1.0),
        lambda o: optim.ReduceLROnPlateau(o, mode="best"),
    ],
)
def test_a_bad_schedule_is_a_value_error(make):
    with pytest.raises(ValueError, match=r"\w+"):
        make(optim.SGD(parameters()))


def test_a_schedule_takes_an_optimizer():
    with pytest.raises(TypeError, match="takes an Optimizer"):
        optim.StepLR(parameters(), 2)


@FORMULAS
def test_every_schedule_agrees_with_torch(name):
    torch = pytest.importorskip("torch")
    cls, options, _ = SCHEDULES[name]
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = getattr(torch.optim.lr_scheduler, cls)(theirs, **options)
    found = [theirs.param_groups[0]["lr"]]
    for _ in range(8):
        theirs.step()
        schedule.step()
        found.append(theirs.param_groups[0]["lr"])
    np.testing.assert_allclose(rates(*schedule_of(name)), found, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_clipping_scales_all_gradients_together(order):
    params = parameters()
    give(params, gradients(0))
    every = np.concatenate([g.reshape(-1) for g in gradients(0)])
    want = np.linalg.norm(every, order)
    norm = optim.clip_grad_norm(params, 0.5 * want, order)
    assert norm.item() == pytest.approx(want, rel=1e-12)
    for p, g in zip(params, gradients(0), strict=True):
        np.testing.assert_allclose(p.grad, g / 2, rtol=1e-5)
    before = [p.grad for p in params]
    optim.clip_grad_norm(params, 10 * want, order)
    for p, g in zip(params, before, strict=True):
        np.testing.assert_array_equal(p.grad, g)


def test_clipping_keeps_dtypes_and_skips_what_has_no_gradient():
    params = [eo.Parameter(np.ones(2, np.float32)), eo.Parameter(np.ones(3))]
    params[0].grad = np.float32([3, 4])
    assert optim.clip_grad_norm(params, 1.0).item() == pytest.approx(5)
    assert params[0].grad.dtype == np.float32 and params[1].grad is None
    assert optim.clip_grad_norm(params[1], 1.0).item() == 0


def test_clipping_by_value_limits_elements():
    params = parameters()
    give(params, gradients(0))
    optim.clip_grad_value(params, 0.3)
    for p, g in zip(params, gradients(0), strict=True):
        np.testing.assert_array_equal(p.grad, np.clip(g, -0.3, 0.3))


def test_a_norm_that_is_not_finite_can_be_an_error():
    p = eo.Parameter([1.0, 2.0])
    p.grad = [np.inf, 1.0]
    with pytest.raises(EveryOGradientError, match="infinite or NaN"):
        optim.clip_grad_norm([p], 1.0, error_if_nonfinite=True)
    np.testing.assert_array_equal(p.grad, np.float32([np.inf, 1]))
    assert optim.clip_grad_norm([p], 1.0).item() == math.inf


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_limit_must_be_positive(wrong):
    with pytest.raises(ValueError, match="max_norm"):
        optim.clip_grad_norm(parameters(), wrong)
    with pytest.raises(ValueError, match="clip_value"):
        optim.clip_grad_value(parameters(), wrong)
    with pytest.raises(ValueError, match="norm_type"):
        optim.clip_grad_norm(parameters(), 1.0, wrong)


# ---------------------------------------------------------------------------------- averages


def test_an_average_follows_and_is_applied_for_a_while():
    p = eo.Parameter(np.array([1.0]))
    average = optim.ExponentialMovingAverage([p], decay=0.75)
    want = 1.0
    for value in (2.0, 4.0, 8.0):
        p.data[...] = value
        average.update()
        want = 0.75 * want + 0.25 * value
    assert average.averages[0].item() == pytest.approx(want)
    with pytest.raises(RuntimeError), average.applied():
        assert p.item() == pytest.approx(want)
        raise RuntimeError
    assert p.item() == 8.0
    average.copy_to()
    assert p.item() == pytest.approx(want)


def test_an_average_resumes():
    params = parameters()
    one = optim.ExponentialMovingAverage(params, 0.9)
    params[0].data[...] = 5.0
    one.update()
    other = optim.ExponentialMovingAverage(parameters(), 0.5)
    other.load_state_dict(pickle.loads(pickle.dumps(one.state_dict())))
    np.testing.assert_equal(other.state_dict(), one.state_dict())
    before = other.state_dict()
    for wrong in ({}, {"decay": 0.5, "averages": []}, {"decay": 0.5, "averages": [1.0, 2.0]}):
        with pytest.raises(EveryOSerializationError):
            other.load_state_dict(wrong)
    np.testing.assert_equal(other.state_dict(), before)
    with pytest.raises(ValueError, match="decay"):
        optim.ExponentialMovingAverage(params, 1.5)
    with pytest.raises(EveryOError, match="no parameters"):
        optim.ExponentialMovingAverage([])


# ---------------------------------------------------------------------------------- together


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop", "lion"])
def test_every_optimizer_trains_a_small_network(name):
    cls = TABLE[name][0]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(64, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    model = eo.Sequential(eo.Linear(2, 16, seed=0), eo.Tanh(), eo.Linear(16, 2, seed=1))
    rate = {"sgd": 0.5, "momentum": 0.2, "lion": 0.01}.get(name, 0.02)
    options = {"momentum": 0.9} if name == "momentum" else {}
    optimizer = cls(model.parameters(), lr=rate, **options)
    loss_fn = eo.CrossEntropyLoss()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
