"""State in a compiled function: what a call leaves behind is what eager code leaves behind.

Every program is a function that makes its own state and returns a step and a way to look at all
state; the step runs eagerly on one copy and compiled on another, and everything is compared after
each call.
"""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOError, EveryOGradientError, EveryOTraceError

TOLERANCE = 2e-5  # float32 through a few layers


def agree(got: Any, want: Any, what: str = "", tolerance: float = TOLERANCE) -> None:
    """Nested results: equal structure, dtype, shape and nearly equal numbers."""
    if isinstance(want, dict):
        assert list(got) == list(want), what
        for key in want:
            agree(got[key], want[key], f"{what}.{key}", tolerance)
    elif isinstance(want, list | tuple):
        assert type(got) is type(want) and len(got) == len(want), what
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            agree(a, b, f"{what}[{i}]", tolerance)
    elif isinstance(want, eo.Tensor):
        assert isinstance(got, eo.Tensor) and got.requires_grad == want.requires_grad, what
        agree(got.data, want.data, what, tolerance)
        agree(got.grad, want.grad, f"{what}.grad", tolerance)
    elif isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray), what
        assert (got.dtype, got.shape) == (want.dtype, want.shape), what
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=what)
    elif isinstance(want, float):
        assert type(got) is float and got == pytest.approx(want, rel=tolerance), what
    else:
        assert type(got) is type(want) and got == want, f"{what}: {got!r}, eager {want!r}"


def numbers(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


Program = tuple[Callable[..., Any], Callable[[], Any]]


def network(*layers: Any, optimizer: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    eo.manual_seed(0)
    model = nn.Sequential(*[layer() for layer in layers])
    return model, None if optimizer is None else optimizer(model.parameters())


def look(model: Any, opt: Any = None) -> dict[str, Any]:
    """Everything of a model and its optimizer that a user can see."""
    state = {"state": model.state_dict(), "random": eo.get_rng_state()}
    state["grads"] = [p.grad for p in model.parameters()]
    state["own random"] = model.random_state()
    if opt is not None:
        state["optimizer"] = opt.state_dict()
    return state


def trained_with(optimizer: Callable[[Any], Any]) -> Callable[[], Program]:
    def program() -> Program:
        model, opt = network(
            lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 2), optimizer=optimizer
        )

        def step(x, y):
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        return step, lambda: look(model, opt)

    return program


def normalised() -> Program:
    model, opt = network(
        lambda: nn.Linear(3, 4), lambda: nn.BatchNorm1D(4), nn.ReLU, lambda: nn.LayerNorm(4),
        lambda: nn.Linear(4, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.01),
    )  # fmt: skip

    def step(x, y):
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach(), model(x).detach()

    return step, lambda: look(model, opt)


def with_dropout() -> Program:
    model, opt = network(
        lambda: nn.Linear(3, 8), lambda: nn.Dropout(0.5), lambda: nn.Dropout(0.2, seed=3),
        lambda: nn.Linear(8, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1, momentum=0.9),
    )  # fmt: skip

    def step(x, y):
        opt.zero_grad()
        out = model(x)
        ((out - y) ** 2).mean().backward()
        opt.step()
        return out.detach(), eo.rand(3), eo.randn(5)

    return step, lambda: look(model, opt)


def clipped() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.Adam(p, lr=0.1))

    def step(x, y):
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).sum()
        loss.backward()
        norm = eo.optim.clip_grad_norm(model.parameters(), 0.5)
        eo.optim.clip_grad_value(model.parameters(), 0.2)
        opt.step()
        return norm, loss.detach()

    return step, lambda: look(model, opt)


def accumulating() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1))

    def step(x, y):
        for k in range(2):
            (((model(x) - y) ** 2).mean() * (k + 1)).backward()
        return [p.grad for p in model.parameters()]

    return step, lambda: look(model, opt)


def averaging() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1))
    average = [eo.tensor(np.zeros(p.shape, np.float32)) for p in model.parameters()]

    def step(x, y):
        opt.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        opt.step()
        with eo.no_grad():
            for a, p in zip(average, model.parameters(), strict=True):
                a *= 0.9
                a += 0.1 * p

    return step, lambda: [look(model, opt), average]


def scheduled_by_argument() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1))
    calls = [0]

    def inner(x, y, lr):
        opt.lr = lr
        opt.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        opt.step()

    def step(x, y, run=inner):
        calls[0] += 1
        run(x, y, 0.1 / calls[0])
        return opt.lr

    step.inner = inner
    return step, lambda: look(model, opt)


def scheduled_inside() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1))

    def step(x, y):
        opt.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        opt.step()
        opt.lr = opt.lr * 0.9
        return opt.lr

    return step, lambda: [look(model, opt), opt.lr]


def second_derivatives() -> Program:
    model, opt = network(
        lambda: nn.Linear(3, 4), nn.Tanh, lambda: nn.Linear(4, 1),
        optimizer=lambda p: eo.optim.Adam(p, lr=0.01),
    )  # fmt: skip

    def step(x, y):
        opt.zero_grad()
        slope = eo.grad(lambda t: model(t).sum())(x)
        penalty = ((eo.norm(slope, axis=1) - 1.0) ** 2).mean()
        (((model(x) - y[:, :1]) ** 2).mean() + penalty).backward()
        opt.step()
        return penalty.detach()

    return step, lambda: look(model, opt)


def buffers_and_attributes() -> Program:
    class Meter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", np.zeros(3, np.float32))
            self.register_buffer("count", np.array(0))
            self.last = None

        def forward(self, x):
            self.mean = self.mean * 0.9 + 0.1 * x.data.mean(axis=0)
            self.count = self.count + 1
            self.last = (x * 2.0).detach()
            return x - self.mean

    meter = Meter()
    return lambda x, y: meter(x), lambda: [meter.state_dict(), meter.last]


def writes_into_parameters() -> Program:
    p = nn.Parameter(numbers(1, 3, 2))

    def step(x, y):
        with eo.no_grad():
            p[0] = y[0]
            p[1:, 0] *= 0.5
            p.data[2, 1] = 7.0
        before = (p * 1.0).detach()
        p.data = p.data - 0.1
        p.grad = p.data * 2.0
        return before, x @ p

    return step, lambda: [p]


def writes_through_views() -> Program:
    base = eo.tensor(numbers(1, 4, 4))
    row, column, block = base[1], base[:, 2], base.T[1:3, ::-1]

    def step(x, y):
        row.data[...] = row.data + 1.0
        column.data[::2] = 0.5
        block.data[...] *= 2.0
        return base.sum(), row * 1.0, block * 1.0

    return step, lambda: [base, row, column, block]


def gradients_of_what_is_made_inside() -> Program:
    def step(x, y):
        w = eo.tensor(np.ones(3, np.float32), requires_grad=True)
        h = x * w
        h.retain_grad()
        (h * h).sum().backward()
        return w, h

    return step, lambda: None


def objects_made_inside() -> Program:
    model, opt = network(lambda: nn.Linear(3, 2), optimizer=lambda p: eo.optim.SGD(p, lr=0.1))

    def step(x, y):
        opt.zero_grad()
        loss = nn.MSELoss()(nn.Dropout(0.5)(model(x)), y)
        loss.backward()
        opt.step()
        return nn.Linear(3, 1)(x).detach()

    return step, lambda: look(model, opt)


PROGRAMS = {
    "SGD": trained_with(lambda p: eo.optim.SGD(p, lr=0.1)),
    "momentum": trained_with(
        lambda p: eo.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    ),
    "Adam": trained_with(lambda p: eo.optim.Adam(p, lr=0.05)),
    "AdamW": trained_with(lambda p: eo.optim.AdamW(p, lr=0.05, weight_decay=0.1)),
    "normalised": normalised,
    "dropout": with_dropout,
    "clipped": clipped,
    "accumulating": accumulating,
    "averaging": averaging,
    "scheduled inside": scheduled_inside,
    "second derivatives": second_derivatives,
    "buffers and attributes": buffers_and_attributes,
    "writes into parameters": writes_into_parameters,
    "writes through views": writes_through_views,
    "gradients of what is made inside": gradients_of_what_is_made_inside,
    "objects made inside": objects_made_inside,
}


def snapshot(value: Any) -> Any:
    """Copies of all arrays, so that later calls cannot change them."""
    if isinstance(value, eo.Tensor):
        out = eo.Tensor._wrap(np.array(value.data))
        out._requires_grad, out._grad = value.requires_grad, snapshot(value.grad)
        return out
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {k: snapshot(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(snapshot(v) for v in value)
    return value


def history(make: Callable[[], Program], wrap: Callable[[Any], Any], calls: int = 5) -> list[Any]:
    """What each call returns and leaves, and, at the end, what was held all along."""
    step, state = make()
    run = wrap(step)
    eo.manual_seed(5)
    seen, held = [], []
    for k in range(calls):
        x, y = eo.tensor(numbers(k, 4, 3)), eo.tensor(numbers(100 + k, 4, 2))
        result = run(x, y)
        seen.append([snapshot(result), snapshot(state()), x.numpy(), y.numpy()])
        held.append((result, snapshot(result)))
    for result, before in held:
        agree(result, before, "a held result", 0.0)
    return seen


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_call_leaves_what_eager_code_leaves(name):
    want = history(PROGRAMS[name], lambda f: f)
    got = history(PROGRAMS[name], eo.compile)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        agree(a, b, f"{name}, call {k}")


@pytest.mark.parametrize("name", ["Adam", "dropout", "writes into parameters"])
def test_compiled_and_eager_calls_may_alternate(name):
    def alternating(step):
        compiled, count = eo.compile(step), [0]

        def run(*args):
            count[0] += 1
            return (step if count[0] % 3 == 0 else compiled)(*args)

        return run

    want, got = history(PROGRAMS[name], lambda f: f, 8), history(PROGRAMS[name], alternating, 8)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        agree(a, b, f"{name}, call {k}")


def test_a_learning_rate_may_be_an_argument():
    def both(compiling):
        step, state = scheduled_by_argument()
        run = compiling(step.inner)
        out = []
        for k in range(5):
            x, y = eo.tensor(numbers(k, 4, 3)), eo.tensor(numbers(100 + k, 4, 2))
            out.append([step(x, y, run=run), snapshot(state())])
        return out

    agree(both(eo.compile), both(lambda f: f))


# ------------------------------------------------------------- changes between calls


def a_step(**options: Any) -> tuple[Any, Any, Callable[..., Any]]:
    eo.manual_seed(0)
    net = nn.Linear(3, 2)
    opt = eo.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **options)

    def step(x, y):
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return net, opt, step


def change_hyperparameters(net, opt, k):
    opt.lr = 0.1 / (k + 1)


def change_weights_in_place(net, opt, k):
    net.weight.data[...] = numbers(k, 3, 2)


def replace_weights(net, opt, k):
    net.weight.data = numbers(k, 3, 2)


def load_weights(net, opt, k):
    net.load_state_dict({"weight": numbers(k, 3, 2), "bias": numbers(k, 2)})


def reload_optimizer(net, opt, k):
    state = opt.state_dict()
    state["config"]["lr"] = 0.01 * (k + 1)
    opt.load_state_dict(state)


def drop_gradients(net, opt, k):
    net.weight.grad = None if k % 2 else np.ones((3, 2), np.float32)


def continue_the_random_state(net, opt, k):
    eo.manual_seed(k)


FREE = [
    change_hyperparameters, change_weights_in_place, replace_weights, load_weights,
    reload_optimizer,
    continue_the_random_state, drop_gradients,
]  # fmt: skip


@pytest.mark.parametrize("change", FREE, ids=lambda f: f.__name__)
def test_changes_between_calls_take_effect_without_a_trace(change):
    net, opt, step = a_step()
    other_net, other_opt, eager = a_step()
    compiled = eo.compile(step)
    for k in range(6):
        x, y = eo.tensor(numbers(k, 4, 3)), eo.tensor(numbers(50 + k, 4, 2))
        agree(compiled(x, y), eager(x, y))
        agree(look(net, opt), look(other_net, other_opt))
        change(net, opt, k)
        change(other_net, other_opt, k)
    assert compiled.cache_info().traces <= (4 if change is drop_gradients else 2)


def test_a_structure_of_the_optimizer_that_changes_is_traced_anew():
    net, opt, step = a_step()
    other_net, other_opt, eager = a_step()
    compiled = eo.compile(step)
    for k in range(8):
        x, y = eo.tensor(numbers(k, 4, 3)), eo.tensor(numbers(50 + k, 4, 2))
        for o in (opt, other_opt):
            if k == 3:
                o.nesterov = True
            if k == 5:
                o.weight_decay = 0.1
            if k == 6:
                o.momentum = 0.0 if not o.nesterov else 0.5
        compiled(x, y), eager(x, y)
        agree(look(net, opt), look(other_net, other_opt))


def test_gradients_may_be_none_or_not():
    w = eo.tensor([1.0, 2.0], requires_grad=True)
    accumulate = eo.compile(lambda: (w * w).sum().backward())
    for k in range(5):
        accumulate()
        agree(w.grad, np.array([2.0, 4.0], np.float32) * (k + 1))
    w.grad = None
    accumulate()
    accumulate()
    agree(w.grad, np.array([4.0, 8.0], np.float32))
    w.grad[...] = 0
    accumulate()
    agree(w.grad, np.array([2.0, 4.0], np.float32))


def test_accumulated_gradients_are_not_those_that_were_held():
    w, held = eo.tensor([1.0, 2.0], requires_grad=True), []
    accumulate = eo.compile(lambda: (w * w).sum().backward())
    for _ in range(6):
        accumulate()
        held.append((w.grad, w.grad.copy()))
    for g, before in held:
        np.testing.assert_array_equal(g, before)


# ------------------------------------------------------------- aliasing


def scaled(a, b):
    a *= 2.0
    return a + b


def swapped(a, b):
    a.data[...], b.data[...] = b.data.copy(), a.data.copy()
    return a - b


def shifted(a, b):
    a.data[1:] = b.data[:-1]
    return a * 1.0


PLACES = {
    "apart": (slice(0, 4), slice(4, 8)), "overlapping": (slice(0, 4), slice(2, 6)),
    "equal": (slice(0, 4), slice(0, 4)), "before": (slice(2, 6), slice(0, 4)),
    "reversed": (slice(0, 4), slice(3, None, -1)), "in gaps": (slice(0, 8, 2), slice(1, 8, 2)),
}  # fmt: skip


@pytest.mark.parametrize("body", [scaled, swapped, shifted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", ["apart", "overlapping", "equal"])
def test_views_that_overlap_see_each_others_writes(body, first):
    """The version of the first kind of overlap must not be used for another."""
    compiled = eo.compile(body)
    for place in [first] * 3 + list(PLACES) * 2:
        one, other = (eo.tensor(np.arange(8.0)) for _ in range(2))
        a, b = PLACES[place]
        want = body(other[a], other[b])
        agree(compiled(one[a], one[b]), want, place, 0.0)
        agree(one, other, place, 0.0)


@pytest.mark.parametrize("kind", [eo.tensor, np.array], ids=["tensors", "arrays"])
def test_an_argument_given_twice_is_one_object(kind):
    compiled = eo.compile(lambda a, b: a * 2.0 - b)
    one, other = kind(np.array([1.0, 2.0])), kind(np.array([5.0, 7.0]))
    for pair in [(one, one)] * 4 + [(one, other)] * 4 + [(other, other), (other, one)]:
        agree(np.asarray(compiled(*pair)), np.asarray(pair[0] * 2.0 - pair[1]))


def test_an_argument_may_be_captured_too():
    w = eo.tensor([1.0, 2.0])

    @eo.compile
    def add(t):
        t += 1.0
        return t * w

    other = eo.tensor([3.0, 4.0])
    for t in (w, w, w, other, other, other, w):
        want = (t.numpy() + 1) * (w.numpy() + (t is w))
        agree(add(t), eo.tensor(want))


def test_results_alias_inputs_as_in_eager_code():
    w = eo.tensor([1.0, 2.0])
    compiled = eo.compile(lambda t: (t, t[:1], w, w[1:], t.detach(), {"again": t}))
    for k in range(4):
        t = eo.tensor([float(k), 3.0])
        same, view, captured, part, detached, nested = compiled(t)
        assert same is t and captured is w and nested["again"] is t
        t.data[0], w.data[1] = 9.0, 4.0 + k
        assert view.item() == 9.0 and part.item() == 4.0 + k and detached.tolist() == [9.0, 3.0]


def test_results_that_share_memory_share_it_compiled():
    compiled = eo.compile(lambda t: (lambda y: (y, y[0], y.T))(t * 2.0))
    for _ in range(4):
        y, row, turned = compiled(eo.tensor(np.ones((2, 2))))
        y.data[0, 1] = 9.0
        assert row.tolist() == [2.0, 9.0] and turned.tolist() == [[2.0, 2.0], [9.0, 2.0]]


def test_arrays_made_inside_are_fresh_in_every_call():
    constant = np.arange(3.0)
    compiled = eo.compile(lambda t: (t * 2.0, np.zeros(2), {1, 2}, constant))
    for _ in range(4):
        _, zeros, numbers_, same = compiled(eo.tensor([1.0]))
        assert (zeros == 0).all() and numbers_ == {1, 2} and same is constant
        zeros += 1
        numbers_.add(3)


def test_results_that_are_held_keep_their_values():
    compiled = eo.compile(lambda t: (t * 2.0, (t * 3.0).T, t.sum()))
    held = []
    for k in range(12):
        a, b, c = compiled(eo.tensor([[float(k), 1.0], [2.0, 3.0]], dtype="float64"))
        held.append((a, b.data[1:], memoryview(a.data), c.data[...], np.from_dlpack(b.detach())))
        del a, b, c
    for k, (a, row, view, total, exported) in enumerate(held):
        assert a.tolist() == [[2.0 * k, 2.0], [4.0, 6.0]] and row.tolist() == [[3.0, 9.0]]
        assert view[0, 0] == 2.0 * k and total == k + 6 and exported[0, 0] == 3.0 * k


# ------------------------------------------------------------- gradients from outside


def test_compiled_functions_are_differentiable_from_outside():
    w = eo.tensor(np.array([1.0, 2.0]), requires_grad=True)
    cube = eo.compile(lambda t: (t**3 * w).sum())
    for _ in range(4):
        t = eo.tensor(np.array([2.0, 3.0]), requires_grad=True)
        w.grad = None
        (cube(t) * 2.0).backward()
        np.testing.assert_allclose(t.grad, 6 * np.array([4.0, 9.0]) * w.data)
        np.testing.assert_allclose(w.grad, 2 * np.array([8.0, 27.0]))


def test_gradients_of_compiled_functions_are_differentiable():
    w = eo.tensor(np.array([1.0, 2.0]), requires_grad=True)
    cube = eo.compile(lambda t: (t**3 * w).sum())
    for _ in range(3):
        t = eo.tensor(np.array([2.0, 3.0]), requires_grad=True)
        cube(t).backward(create_graph=True)
        slope, t.grad, w.grad = t.grad, None, None
        slope.sum().backward()
        np.testing.assert_allclose(t.grad, 6 * t.data * w.data)
        np.testing.assert_allclose(w.grad, 3 * t.data**2)


@pytest.mark.parametrize("outer", [lambda f: f, eo.compile], ids=["eager", "compiled"])
def test_transforms_take_compiled_functions(outer):
    x = eo.tensor(np.array([2.0, 3.0]))
    cube = eo.compile(lambda t: (t**3).sum())
    np.testing.assert_allclose(outer(eo.grad(cube))(x).data, 3 * x.data**2)
    np.testing.assert_allclose(outer(eo.hessian(cube))(x).data, np.diag(6 * x.data))
    square = eo.compile(lambda t: t * t)
    np.testing.assert_allclose(outer(eo.jacobian(square))(x).data, np.diag(2 * x.data))
    value, slope = outer(eo.value_and_grad(cube))(x)
    assert value.item() == 35.0 and not slope.requires_grad


def test_a_graph_runs_through_several_compiled_functions():
    w = eo.tensor(np.array([1.0, 2.0]), requires_grad=True)
    first, then = eo.compile(lambda t: (t * w, t + w)), eo.compile(lambda a, b: (a * b).sum())
    for _ in range(3):
        w.grad = None
        x = eo.tensor(np.array([3.0, 4.0]), requires_grad=True)
        then(*first(eo.exp(x) * 0.1)).backward()
        e = np.exp(x.data) * 0.1
        np.testing.assert_allclose(w.grad, e * e + 2 * e * w.data)
        np.testing.assert_allclose(x.grad, (2 * e * w.data + w.data**2) * e)


def test_results_without_a_gradient_have_none():
    compiled = eo.compile(lambda t, u: ((t * u).sum(), (u * 2.0).sum()))
    for _ in range(3):
        t = eo.tensor([1.0, 2.0], requires_grad=True)
        a, b = compiled(t, eo.tensor([3.0, 4.0]))
        assert a.requires_grad and not b.requires_grad
        a.backward()
        assert t.grad.tolist() == [3.0, 4.0]


def test_the_backward_of_a_dropout_uses_the_mask_of_its_forward():
    drop = nn.Dropout(0.5, seed=1)
    compiled = eo.compile(lambda t: drop(t))
    for _ in range(4):
        t = eo.tensor(np.ones(64), requires_grad=True)
        y = compiled(t)
        state = drop.random_state()
        y.sum().backward()
        np.testing.assert_array_equal(t.grad, y.data)
        agree(drop.random_state(), state)


def test_second_gradients_through_a_dropout_use_its_mask_and_leave_the_generator_alone():
    drop = nn.Dropout(0.5, seed=1)
    compiled = eo.compile(lambda t: drop(t * t).sum())
    for _ in range(4):
        t = eo.tensor(np.ones(64), requires_grad=True)
        before = drop.random_state()
        y = compiled(t)
        after = drop.random_state()
        y.backward(create_graph=True)
        agree(drop.random_state(), after)
        drop.load_random_state(before)
        np.testing.assert_array_equal(t.grad.data, drop(eo.tensor(np.ones(64))).data * 2)


def test_second_gradients_of_a_function_that_changes_state_are_refused():
    norm = nn.BatchNorm1D(2)
    compiled = eo.compile(lambda t: norm(t).sum())
    y = compiled(eo.tensor(numbers(0, 4, 2), requires_grad=True))
    with pytest.raises(EveryOGradientError, match="once only"):
        y.backward(create_graph=True)


@pytest.mark.parametrize("kind", ["argument", "captured"])
def test_arrays_that_change_before_backward_do_not_change_the_gradient(kind):
    a = np.array([3.0, 4.0])
    if kind == "argument":
        compiled = eo.compile(lambda t, b: (t * b).sum())
    else:
        inner = eo.compile(lambda t: (t * a).sum())
        compiled = lambda t, b: inner(t)  # noqa: E731
    for _ in range(4):
        a[:] = [3.0, 4.0]
        t = eo.tensor(np.array([1.0, 2.0]), requires_grad=True)
        y = compiled(t, a)
        a[:] = 0
        y.backward()
        assert t.grad.tolist() == [3.0, 4.0]


def test_tensors_that_change_before_backward_are_noticed():
    w = eo.tensor([1.0, 2.0], requires_grad=True)
    compiled = eo.compile(lambda t: (t * w * w).sum())
    for _ in range(4):
        y = compiled(eo.tensor([3.0, 4.0]))
        with eo.no_grad():
            w *= 1.5
        with pytest.raises(EveryOGradientError, match="modified"):
            y.backward()


def test_a_training_step_that_returns_its_loss_gives_no_second_backward():
    net, _, step = a_step()
    compiled = eo.compile(lambda x, y: step(x, y))
    w = net.weight

    @eo.compile
    def spent():
        loss = (w * w).sum()
        loss.backward()
        with eo.no_grad():
            w.data[...] = w.data * 0.9
        return loss

    for _ in range(4):
        loss = spent()
        assert loss.requires_grad
        with pytest.raises(EveryOGradientError, match="modified"):
            loss.backward()
    compiled(eo.tensor(numbers(0, 4, 3)), eo.tensor(numbers(1, 4, 2)))


# ------------------------------------------------------------- failures change nothing


def everything(net, opt):
    grads = [None if p.grad is None else p.grad.tobytes() for p in net.parameters()]
    flags = [p.requires_grad for p in net.parameters()]
    state = pickle.dumps((net.state_dict(), opt.state_dict()))
    attributes = {k: v for k, v in vars(net).items() if isinstance(v, int | float | str | None)}
    return state, eo.get_rng_state().tobytes(), grads, flags, attributes


def a_classifier():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.Dropout(0.5), nn.Linear(4, 3))
    opt = eo.optim.Adam(net.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()

    def step(x, y):
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, opt, step


def test_a_failing_check_leaves_everything_untouched():
    net, opt, step = a_classifier()
    x, good, bad = eo.tensor(numbers(0, 4, 3)), np.array([0, 1, 2, 0]), np.array([0, 1, 3, 0])
    with pytest.raises(EveryOError) as eager:
        step(x, bad)
    compiled = eo.compile(step)
    for k in range(5):
        before = everything(net, opt)
        with pytest.raises(type(eager.value)):
            compiled(x, bad)
        assert everything(net, opt) == before, k
        compiled(x, good)
        assert everything(net, opt) != before


def test_the_first_check_that_fails_is_the_one_that_raises():
    loss_fn = nn.CrossEntropyLoss()

    def pick(t, i, j):
        return t[i].sum() + loss_fn(t.reshape(1, -1), j)

    compiled, t = eo.compile(pick), eo.tensor(np.ones(3))
    fine, bad = np.array([1]), np.array([7])
    for _ in range(3):
        compiled(t, fine, fine)
        for i, j in ((bad, fine), (fine, bad), (bad, bad)):
            with pytest.raises(EveryOError) as want:
                pick(t, i, j)
            with pytest.raises(type(want.value)):
                compiled(t, i, j)


class Unruly(nn.Module):
    """Changes everything that a trace must put back, then fails."""

    def __init__(self, fail):
        super().__init__()
        self.k = 1
        self.w = nn.Parameter(np.ones(2))
        self.register_buffer("b", np.zeros(2))
        self.fail = fail

    def forward(self, t):
        self.k = 5
        self.new = 3
        self.b = self.b + 1
        self.w.grad = np.ones(2)
        self.w.data[...] = 7.0
        self.w.requires_grad = False
        eo.rand(3)
        self.fail(t)
        return t


class Surprise(Exception):
    pass


def raise_surprise(t):
    raise Surprise("as it is")


FAILURES = [
    float, lambda t: bool(t.sum() > 0), raise_surprise, lambda t: t.reshape(7),
    lambda t: np.unique(t),
]  # fmt: skip


@pytest.mark.parametrize("fail", FAILURES)
def test_a_failing_trace_leaves_everything_untouched(fail):
    model = Unruly(fail)
    opt = eo.optim.SGD([model.w], lr=0.1)
    before = everything(model, opt)
    kind = Surprise if fail is raise_surprise else EveryOError
    for _ in range(2):
        with pytest.raises(kind):
            eo.compile(model)(eo.tensor(np.ones(2)))
        assert everything(model, opt) == before and not hasattr(model, "new")
    assert not eo.core.autograd.TRACES and eo.core.autograd.MODE.trace is None


def test_warming_up_changes_nothing():
    net, opt, step = a_classifier()
    compiled = eo.compile(step)
    x, y = eo.tensor(numbers(0, 4, 3)), np.array([0, 1, 2, 0])
    before = everything(net, opt)
    compiled.warmup(x, y)
    assert everything(net, opt) == before
    compiled(x, y)
    assert compiled.cache_info().traces == 2


# ------------------------------------------------------------- memory


def test_dropping_a_compiled_function_frees_what_it_captured():
    def made():
        w = eo.tensor(np.ones(1000))
        f = eo.compile(lambda t: t * w)
        for _ in range(4):
            f(eo.tensor(np.ones(1000)))
        return weakref.ref(w)

    reference = made()
    gc.collect()
    assert reference() is None


def test_dropping_an_object_frees_what_its_compiled_methods_captured():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(np.ones(4))

        @eo.compile
        def apply(self, t):
            return t * self.w

    def made():
        model = Model()
        for _ in range(4):
            model.apply(eo.tensor(np.ones(4)))
        return weakref.ref(model), weakref.ref(model.w)

    references = made()
    gc.collect()
    assert [r() for r in references] == [None, None]


def test_calls_keep_neither_arguments_nor_results():
    compiled = eo.compile(lambda t: t * 2.0)
    for _ in range(4):
        t = eo.tensor(np.ones(1000))
        references = [weakref.ref(t), weakref.ref(compiled(t))]
        del t
        gc.collect()
        assert [r() for r in references] == [None, None]


# ------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_compiled_module_is_the_module():
    model = Net()
    compiled = eo.compile(model)
    assert isinstance(compiled, Net) and compiled.__wrapped__ is model
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters(), strict=True))
    x = eo.tensor(numbers(0, 5, 3))
    for training in (True, False, True, False):
        compiled.train(training)
        assert model.training is training
        for _ in range(2):
            state, before = model.state_dict(), eo.get_rng_state()
            want = model(x)
            after = model.state_dict()
            model.load_state_dict(state)
            eo.set_rng_state(before)
            agree(compiled(x).detach(), want.detach())
            agree(compiled.state_dict(), after)
    compiled.load_state_dict({k: v * 0 for k, v in model.state_dict().items()})
    agree(compiled(x).detach(), eo.tensor(np.zeros((5, 2), np.float32)))
    assert compiled.cache_info().calls == 9


def test_a_compiled_module_trains_like_the_module():
    def run(wrap):
        eo.manual_seed(0)
        model = Net()
        call = wrap(model)
        opt = eo.optim.Adam(call.parameters(), lr=0.05)
        out = []
        for k in range(5):
            opt.zero_grad()
            loss = (call(eo.tensor(numbers(k, 6, 3))) ** 2).mean()
            loss.backward()
            opt.step()
            out.append([loss.item(), model.state_dict()])
        return out

    agree(run(eo.compile), run(lambda m: m))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_a_compiled_module_are_compiled_and_independent(clone):
    model = eo.compile(Net()).eval()
    x = eo.tensor(numbers(0, 5, 3))
    want = model(x).detach()
    other = clone(model)
    agree(other(x).detach(), want)
    assert other.cache_info().calls == 1
    other.head.weight.data[...] = 0
    agree(model(x).detach(), want)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_module_that_was_used_compiled_can_be_copied(clone):
    model = Net().eval()
    step = eo.compile(lambda x: model(x))
    x = eo.tensor(numbers(0, 5, 3))
    want = step(x).detach()
    agree(clone(model)(x).detach(), want)


def test_a_compiled_module_works_inside_another():
    outer = nn.Sequential(eo.compile(nn.Linear(3, 4)), nn.Tanh(), eo.compile(nn.Linear(4, 2)))
    x = eo.tensor(numbers(0, 5, 3))
    want = nn.Sequential(*[getattr(m, "__wrapped__", m) for m in outer])(x)
    step = eo.compile(lambda t: outer(t))
    for _ in range(3):
        agree(outer(x).detach(), want.detach())
        agree(step(x).detach(), want.detach())


def test_requires_grad_may_be_switched_off_and_on_again_inside():
    w, v = (eo.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))

    def frozen():
        w.requires_grad = False
        loss = (w * v).sum()
        w.requires_grad = True
        loss.backward()

    compiled = eo.compile(frozen)
    for k in range(4):
        compiled()
        assert w.grad is None and w.requires_grad
        agree(v.grad, np.array([1.0, 2.0], np.float32) * (k + 1))


def test_requires_grad_must_not_be_left_changed():
    w = eo.tensor([1.0, 2.0], requires_grad=True)

    def freeze():
        w.requires_grad = False

    with pytest.raises(EveryOTraceError, match=r"requires_grad.*test_compile_state\.py"):
        eo.compile(freeze)()
    assert w.requires_grad


# ------------------------------------------------------------- several functions, one state


def test_a_parameter_that_one_compiled_function_replaces_is_new_to_another():
    w = eo.tensor([1.0, 2.0])

    def double():
        w.data = w.data * 2.0

    replace, read = eo.compile(double), eo.compile(lambda t: t * w)
    for k in range(1, 9):
        replace()
        assert read(eo.tensor([1.0, 1.0])).tolist() == [2.0**k, 2.0 ** (k + 1)]


def test_an_attribute_that_one_compiled_function_stores_is_new_to_another():
    class Keeps(nn.Module):
        def forward(self, t):
            self.last = (t * 2.0).detach()
            return t

    model = Keeps()
    store, read = eo.compile(model), eo.compile(lambda t: t + model.last)
    for k in range(8):
        store(eo.tensor([float(k)]))
        assert read(eo.tensor([1.0])).tolist() == [1.0 + 2 * k]


def test_a_parameter_that_an_optimizer_gets_later_is_updated():
    w, v = (eo.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    opt = eo.optim.SGD([w], lr=0.1)

    @eo.compile
    def step():
        opt.zero_grad()
        (w * w + v * v).sum().backward()
        opt.step()

    for _ in range(4):
        step()
    assert v.tolist() == [1.0, 2.0]
    opt.parameters.append(v)
    step()
    assert v.tolist() != [1.0, 2.0]


def test_an_argument_that_the_optimizer_holds_is_not_any_argument():
    w, v = (eo.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    opt = eo.optim.SGD([w], lr=0.1)

    @eo.compile
    def step(p):
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    for _ in range(4):
        step(w)
    trained = w.numpy()
    agree(trained, np.array([1.0, 2.0], np.float32) * np.float32(0.8) ** 4)
    for k in range(1, 5):
        step(v)
        assert v.tolist() == [1.0, 2.0] and v.grad.tolist() == [2.0 * k, 4.0 * k]
        assert w.tolist() == trained.tolist() and w.grad is None


def test_a_result_given_twice_is_one_object():
    compiled = eo.compile(lambda t: (lambda y, a: (y, [y], a, {"a": a}))(t * 2.0, t.data + 1.0))
    for _ in range(4):
        y, (again,), a, nested = compiled(eo.tensor([1.0], requires_grad=True))
        assert y is again and a is nested["a"] and y.requires_grad


@pytest.mark.parametrize("kind", [lambda a: a, eo.as_tensor], ids=["array", "tensor"])
def test_memory_that_is_read_only_is_not_written(kind):
    def write(a):
        (a.data if isinstance(a, eo.Tensor) else a)[0] = 7.0

    compiled = eo.compile(write)
    for calls in range(4):
        fixed = np.ones(3)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            compiled(kind(fixed))
        assert fixed[0] == 1.0, calls
        compiled(kind(np.ones(3)))
