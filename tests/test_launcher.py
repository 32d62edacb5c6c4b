"""The straight form of a compiled function: calls in steady state take it, whatever they pass."""

import collections
from typing import Any

import numpy as np
import pytest
from steps import training_step

import everyo as eo
from everyo import nn
from everyo.compile.launch import LOOKED, MISS

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


OTHER = eo.tensor(values(3, 4, seed=5))


def reshaped(t: Any) -> Any:
    t = t.detach().clone()
    t.data.shape = (4, 3)
    return t


def read_only(t: Any) -> Any:
    t = t.detach().clone()
    t.data.flags.writeable = False
    return t


class Special(np.ndarray):
    """An array of another kind."""


UNFIT = {
    "a number": lambda t: 2.0,
    "None": lambda t: None,
    "an array": lambda t: t.data,
    "another dtype": lambda t: t.astype("float64"),
    "an integer of the same size": lambda t: t.astype("int32"),
    "another shape": lambda t: t[:, :3],
    "another rank": lambda t: t.reshape(3, 4, 1),
    "one reshaped in place": reshaped,
    "a transposed one": lambda t: eo.tensor(values(4, 3)).T,
    "every second column": lambda t: eo.tensor(values(3, 8))[:, ::2],
    "one that needs a gradient": lambda t: eo.tensor(t.data, requires_grad=True),
    "one with a graph": lambda t: eo.tensor(t.data, requires_grad=True) * 1,
    "a parameter": lambda t: nn.Parameter(t.data, requires_grad=False),
    "one over another kind of array": lambda t: eo.Tensor._wrap(t.data.view(Special)),
    "one that cannot be written": read_only,
    "one that the function has": lambda t: OTHER,
}


@pytest.mark.parametrize("count", [LOOKED - 1, LOOKED, 20])
@pytest.mark.parametrize("unfit", UNFIT)
def test_a_launcher_takes_the_calls_that_fit_and_no_others(count, unfit):
    def total(*tensors: Any) -> Any:
        tensors[-1].data += 1
        out = OTHER * 0.5
        for i, t in enumerate(tensors):
            out = out + (i + 1.5) * t
        return out

    def fresh(seed: int) -> list[Any]:
        return [eo.tensor(values(3, 4, seed=seed + i)) for i in range(count)]

    other = UNFIT[unfit](tensor(3, 4))  # before, as some of these move the epoch
    step = eo.compile(total)
    for seed in range(4):
        step(*fresh(seed))
    (launch,) = step._launchers
    args = fresh(0)
    for at in (0, count // 2, count - 1):
        for one in (args, fresh(at), args):
            want = [t.clone() for t in one]
            np.testing.assert_allclose(
                launch(tuple(one), {}).numpy(), total(*want).numpy(), rtol=1e-5
            )
        if unfit != "one that cannot be written" or at == count - 1:
            replaced = (*args[:at], other, *args[at + 1 :])
            assert launch(replaced, {}) is launch(replaced, {}) is MISS
        twice = (*args[:at], args[at - 1], *args[at + 1 :])
        assert launch(twice, {}) is launch(twice, {}) is MISS
    assert launch(tuple(args[1:]), {}) is launch((*args, OTHER), {}) is MISS


@pytest.mark.parametrize("count", [2, 20])
def test_arguments_that_are_one_object_or_captured_stay_so(count):
    """The versions with a repeated argument, or one that the function has, are others."""
    step = eo.compile(lambda *t: sum(t, OTHER) * t[0])
    tensors = [eo.tensor(values(3, 4, seed=i)) for i in range(count)]
    calls = [tensors, [*tensors[:-1], tensors[0]], [OTHER, *tensors[1:]], [OTHER] * count]
    for _ in range(5):
        for args in calls:
            np.testing.assert_allclose(
                step(*args).numpy(), (sum(args, OTHER) * args[0]).numpy(), rtol=1e-5, atol=1e-5
            )
    assert len(step._launchers) == len(calls)
    for args in calls:
        assert sum(launch(tuple(args), {}) is not MISS for launch in step._launchers) == 1


@pytest.mark.parametrize("count", [1, 20])
def test_arrays_beside_tensors_that_stay_are_looked_at(count):
    own, a, b = values(3, 4, seed=7), values(3, 4, seed=8), values(3, 4, seed=9)
    step = eo.compile(lambda x, y, *t: sum(t, eo.tensor(x) * 2) - y + own)
    tensors = [eo.tensor(values(3, 4, seed=i)) for i in range(count)]
    for _ in range(4):
        step(a, b, *tensors)
    (launch,) = step._launchers
    for pair in ((a, a), (own, b), (a, own), (b, b), (own, own)):
        assert launch((a, b, *tensors), {}) is not MISS
        assert launch((*pair, *tensors), {}) is MISS


@pytest.mark.parametrize("count", [2, 20])
def test_gradients_of_a_function_of_many_tensors_flow_out_of_it(count):
    step = eo.compile(lambda *t: sum((i + 1) * x.square().sum() for i, x in enumerate(t)))
    tensors = [eo.tensor(values(3, seed=i), requires_grad=True) for i in range(count)]
    computed = tensors[-1] * 1
    for call in range(6):
        for t in tensors:
            t.grad = None
        step(*tensors).backward()
        for i, t in enumerate(tensors):
            np.testing.assert_allclose(t.grad, 2 * (i + 1) * t.data, rtol=1e-6)
        tensors[call % count].data[...] += 1
    (launch,) = step._launchers
    assert launch((*tensors[:-1], computed), {}) is MISS
    late = step(*tensors)
    tensors[-1].data -= 1
    with pytest.raises(eo.EveryOGradientError, match="modified"):
        late.backward()
