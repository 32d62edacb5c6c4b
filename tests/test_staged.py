"""Compiled functions with exchanges: cut into stages, they compute what one program would."""

import numpy as np
import pytest

import everyo as eo
from everyo.compile import interpret, staged
from everyo.core.autograd import current_trace


def doubled(flat):
    return flat * 2 + 1


def reversed_(flat):
    return flat[::-1].copy()


NUMBERS = {f: staged.register(f) for f in (doubled, reversed_)}


def through(t, function):
    """What a host function makes of the elements of a traced tensor."""
    trace = current_trace()
    flat = trace.xp.reshape(trace.read(t), (-1,))
    result = staged.exchange(trace, flat, NUMBERS[function])
    return eo.Tensor._wrap(trace.xp.reshape(result, t.shape))


X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def chain(x):
    """Exchanges one after the other, beside each other, and values read across stages."""
    h = eo.tanh(x * 2)
    y = through(h, doubled)
    z = through(y * h, reversed_)
    q = through(h + 1, doubled)
    return z + q * h + x[::-1], h, y


def transposed(x):
    return through(x.T, reversed_) + x.T.sum(axis=0), x


def untouched(x):
    return (through(x, doubled),)


def expected(function):
    h = np.tanh(X * 2)
    y = h * 2 + 1
    match function.__name__:
        case "chain":
            z = (y * h).reshape(-1)[::-1].reshape(3, 4)
            return z + ((h + 1) * 2 + 1) * h + X[::-1], h, y
        case "transposed":
            return X.T.reshape(-1)[::-1].reshape(4, 3) + X.T.sum(axis=0), X
        case "untouched":
            return (X * 2 + 1,)


@pytest.mark.parametrize("function", [chain, transposed, untouched])
def test_stages_compute_what_the_whole_graph_means(function):
    run = eo.compile(function)
    for _ in range(3):  # the first call, the second with its check, the steady state
        found = run(eo.tensor(X))
        for a, b in zip(found, expected(function), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)
    graph = run.graph()
    meant, _ = interpret.interpret(graph, [X])
    first = expected(function)[0]
    np.testing.assert_allclose(meant[0].reshape(first.shape), first, rtol=1e-5, atol=1e-6)
    assert "exchange" in str(graph)
    assert "kernel" in str(run.explain(eo.tensor(X), profile=True))
    assert "def " in run.source()


def test_state_is_written_once_and_at_the_end():
    w, seen = eo.Parameter(np.ones(3, np.float32)), eo.zeros(3)
    optimizer = eo.SGD([w], lr=0.5)

    @eo.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        gradient = through(eo.Tensor._wrap(current_trace().xp.asarray(w.grad)), doubled)
        w.grad = gradient.data
        with eo.no_grad():
            seen[...] = seen + w
        optimizer.step()
        return gradient

    x = np.float32([1, 2, 3])
    for i in range(3):
        assert step(x).tolist() == [3, 5, 7]
        np.testing.assert_allclose(w.data, 1 - 0.5 * (i + 1) * np.float32([3, 5, 7]))
        assert w.grad.tolist() == [3, 5, 7]
    np.testing.assert_allclose(seen.numpy(), 3 - 0.5 * 3 * np.float32([3, 5, 7]))
    assert optimizer.step_count == 3


@pytest.mark.parametrize("late", [False, True])
def test_a_check_that_fails_leaves_state_alone(late):
    table, count, calls = eo.tensor(np.arange(4.0)), eo.zeros(()), []
    number = staged.register(lambda flat: (calls.append(1), flat)[1])

    @eo.compile
    def pick(i, x):
        count[...] = count + 1
        trace = current_trace()
        y = eo.Tensor._wrap(staged.exchange(trace, trace.read(eo.as_tensor(x)), number))
        index = i + (y.data > 1e9).sum() if late else i
        return table[index] + y

    x = np.ones(2, np.float32)
    assert pick(np.array([1, 2]), x).tolist() == [2, 3]
    before = len(calls)
    with pytest.raises(IndexError, match="out of range"):
        pick(np.array([1, 9]), x)
    assert count.item() == 1
    assert (len(calls) > before) is late  # an early check fails before anything is exchanged
