"""The straight form of a compiled function: calls in steady state take it, whatever they pass."""

import collections
from typing import Any

import numpy as np
import pytest
from steps import training_step

import everyo as eo
from everyo import nn

Pair = collections.namedtuple("Pair", "a b")


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(*shape: int, grad: bool = False) -> eo.Tensor:
    return eo.tensor(values(*shape), requires_grad=grad)


def network(*middle: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5, seed=0), *middle, nn.Linear(5, 2, seed=1))


def trained(*middle: Any, optimizer: Any = None) -> tuple:
    model = network(*middle)
    rule = (optimizer or eo.optim.Adam)(model.parameters(), lr=0.01)
    return training_step(model, rule), (tensor(4, 6),), {}


def scaled() -> tuple:
    model, scaler = network(), eo.GradScaler()
    rule = eo.optim.SGD(model.parameters(), lr=0.1)

    @eo.compile
    def step(x: Any) -> Any:
        rule.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(rule)
        scaler.update()
        return loss

    return step, (tensor(4, 6),), {}


def by_hand(update: Any) -> Any:
    """A step that changes its weights itself."""

    def make() -> tuple:
        weights = [tensor(6, 5, grad=True), tensor(5, 2, grad=True)]

        @eo.compile
        def step(x: Any) -> Any:
            for w in weights:
                w.grad = None
            loss = (eo.tanh(x @ weights[0]) @ weights[1]).square().mean()
            loss.backward()
            for w in weights:
                update(w)
            return loss

        return step, (tensor(4, 6),), {}

    return make


def less(w: Any) -> None:
    w.data -= 0.1 * w.grad


def rebound(w: Any) -> None:
    w.data = w.data - 0.1 * w.grad


def stored(w: Any) -> None:
    w.data[...] = w.data - 0.1 * w.grad


def given(function: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda: (eo.compile(function), args, kwargs)


TWICE = tensor(3, 3)
CALLS = {
    "a tensor": given(lambda x: x * 2, tensor(3, 3)),
    "a tensor that needs a gradient": given(lambda x: x * 2, tensor(3, 3, grad=True)),
    "a parameter": given(lambda x: x * 2, nn.Parameter(values(3, 3))),
    "a view": given(lambda x: x * 2, tensor(3, 4).T),
    "one tensor twice": given(lambda x, y: x * y, TWICE, TWICE),
    "an array": given(lambda x: eo.tensor(x) * 2, values(3, 3)),
    "labels": given(nn.cross_entropy, tensor(4, 3), np.array([0, 2, 1, 1])),
    "a float": given(lambda x, c: x * c, tensor(3, 3), 2.5),
    "an int": given(lambda x, c: x * c, tensor(3, 3), 3),
    "None": given(lambda x, c: x if c is None else x * 2, tensor(3, 3), None),
    "a string": given(lambda x, c: x * 2 if c == "a" else x, tensor(3, 3), "a"),
    **{
        f"a NumPy {kind.__name__}": given(lambda x, c: x * c, tensor(3, 3), kind(1))
        for kind in (np.float32, np.float64, np.int64, np.bool_)
    },
    "a module": given(lambda m, x: m(x), network(), tensor(4, 6)),
    "a keyword": given(lambda x, c=1.0: x * c, tensor(3, 3), c=2.0),
    "a dict": given(lambda b: {"twice": b["x"] * 2, "list": [b["x"] + 1]}, {"x": tensor(3, 3)}),
    "a tuple": given(lambda b: (b[0] * 2, b[1]), (tensor(3, 3), tensor(3))),
    "a named tuple": given(lambda b: Pair(b.a * 2, b.b + 1), Pair(tensor(3, 3), tensor(3))),
    "a result of ordinary objects": given(lambda x: (x.shape, "a", x * 2), tensor(3, 3)),
    "a result that is a view": given(lambda x: x.reshape(9), tensor(3, 3)),
    "a step of Adam": trained,
    **{
        f"a step of {name}": lambda name=name: trained(optimizer=getattr(eo.optim, name))
        for name in ("SGD", "AdamW", "RMSprop", "Adagrad", "Lion")
    },
    "a step with dropout": lambda: trained(nn.Dropout(0.5)),
    "a step with batch statistics": lambda: trained(nn.BatchNorm1D(5)),
    "a step with a scaler": scaled,
    **{f"a step by hand, {f.__name__}": by_hand(f) for f in (less, rebound, stored)},
}


@pytest.mark.parametrize("name", CALLS)
def test_steady_calls_take_the_straight_form(name):
    step, args, kwargs = CALLS[name]()
    for _ in range(3):
        step(*args, **kwargs)
    (entry,) = (e for versions in step._entries.values() for e in versions)
    general = entry.patience.general
    runs = entry.runs
    for _ in range(5):
        step(*args, **kwargs)
    assert (entry.runs, entry.patience.general) == (runs + 5, general)


@pytest.mark.parametrize("update", [less, rebound, stored], ids=lambda f: f.__name__)
def test_steps_by_hand_are_the_eager_ones(update):
    step, args, _ = by_hand(update)()
    eager, _, _ = by_hand(update)()
    for _ in range(8):
        np.testing.assert_allclose(step(*args).item(), eager.__wrapped__(*args).item(), rtol=1e-5)


def test_a_tensor_rebound_elsewhere_is_seen_by_a_step_that_rebinds():
    x = tensor(3, 3)

    @eo.compile
    def step() -> Any:
        x.data = x.data * 2
        return x.sum()

    for i in range(9):
        if i % 4 == 3:
            x.data = np.full((3, 3), i, np.float32)
        before = x.data
        kept = before.copy()
        assert step().item() == pytest.approx(2 * kept.sum(), rel=1e-6)
        np.testing.assert_array_equal(x.data, 2 * kept)
        np.testing.assert_array_equal(before, kept)  # the array that was there is as it was


def test_values_of_numpy_scalars_and_named_tuples_are_those_of_the_call():
    f = eo.compile(lambda p: Pair(p.a * p.b, p.b))
    for i in range(6):
        x = values(2, 3, seed=i)
        out = f(Pair(eo.tensor(x), np.float32(i)))
        assert type(out) is Pair
        np.testing.assert_array_equal(out.a.numpy(), x * np.float32(i))


def test_a_schedule_does_not_move_the_state_of_a_step():
    model = network()
    rule = eo.optim.SGD(model.parameters(), lr=0.1)
    schedule = eo.optim.CosineAnnealingLR(rule, 100)
    step, x = training_step(model, rule), tensor(4, 6)
    for _ in range(3):
        step(x)
        schedule.step()
    (launch,) = step._launchers
    for _ in range(5):
        step(x)
        schedule.step()
    assert step._launchers == [launch] and launch.entry.patience.general == 0


def test_a_function_that_reads_a_schedule_sees_it_move():
    rule = eo.optim.SGD(network().parameters(), lr=0.1)
    schedule = eo.optim.LinearLR(rule)
    f = eo.compile(lambda x: x * schedule.last_epoch)
    x = tensor(3, 3)
    for i in range(5):
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * i)
        schedule.step()


def test_a_state_that_moves_at_every_call_has_few_launchers_written():
    x = eo.tensor(values(40, 30))
    f = eo.compile(lambda: x * 2)
    seen = []
    for i in range(100):
        x.data = np.full((40, 30), i, np.float32)
        assert (f().numpy() == 2 * i).all()
        seen += [s for s in f._launchers if s not in seen]
    assert len(seen) <= 8
    f()
    used = f._launchers[0].entry.runs
    for _ in range(2 * 64):
        f()
    entry = f._launchers[0].entry
    assert entry.runs == used + 128 and entry.patience.general == 0


def test_switching_a_mode_back_and_forth_writes_no_launcher_again():
    model = network(nn.Dropout(0.5))
    f = eo.compile(lambda x: model(x))
    x = tensor(4, 6)
    launchers = []
    for _ in range(20):
        for training in (True, False):
            model.train(training)
            f(x)
            launchers += [s for s in f._launchers if s not in launchers]
    assert len(launchers) == 2
    np.testing.assert_allclose(f(x).numpy(), model(x).numpy(), rtol=1e-6)


def test_a_rebound_array_is_seen_by_a_renewed_launcher():
    model = network()
    f = eo.compile(lambda x: model(x))
    x = tensor(4, 6)
    for i in range(12):
        if i % 3 == 0:
            model[0].weight.data = values(6, 5, seed=i)
        if i % 3 == 1:
            model.train(i % 2 == 0)
        np.testing.assert_allclose(f(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
