"""Two kinds of programs with rules of their own: long graphs of scalars, integers that overflow."""

import numpy as np
import pytest
from ir_compare import compare
from ir_programs import random_graph
from test_random_programs import run

import everyo as eo
from everyo.compile import cpu, ir, passes, place, tape
from everyo.compile.interpret import interpret
from everyo.compile.ir import I32, I64

# Integers wrap around


def doubled_sign(t, x):
    return t.make("sign", t.make("add", x, x))


def successor_is_larger(t, x):
    return t.make("less", x, t.make("add", x, t.make("broadcast", one(t, x), shape=x.shape)))


def halved_double(t, x):
    two = t.make("add", one(t, x), one(t, x))
    two = t.make("broadcast", two, shape=x.shape)
    return t.make("floor_divide", t.make("multiply", x, two), two)


def size_of_negative(t, x):
    return t.make("abs", t.make("negative", x))


def largest_double(t, x):
    return t.make("max", t.make("add", x, x), axes=(0,))


def difference(t, x):
    return t.make("greater", t.make("subtract", x, t.make("negative", x)), x)


def one(t, x):
    return t.make("reshape", t.const(1, x.dtype), shape=(1,))


@pytest.mark.parametrize("dtype", [I32, I64], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        doubled_sign,
        successor_is_larger,
        halved_double,
        size_of_negative,
        largest_double,
        difference,
    ],
)
def test_integers_that_overflow_wrap_around(make, dtype):
    ends = np.iinfo(dtype)
    array = np.array(
        [ends.min, ends.min + 1, ends.min // 2 - 1, -1, 0, 1, ends.max // 2 + 1, ends.max], dtype
    )
    table = ir.Table()
    x = table.input(array.shape, dtype)
    graph = ir.Graph("f", (x,), (make(table, x),))
    want = interpret(graph, [array])[0]
    for jit in (False, True):
        np.testing.assert_array_equal(cpu.Program(graph, jit=jit)([array]), want)


# Tapes


def scalars(n):
    """A chain of n scalar operations of many kinds, with values that come from and go into
    arrays."""

    def f(x):
        a, b = x[0], x[1]
        for k in range(n):
            a, b = (
                eo.sin(a) * 0.5 + b,
                eo.where(a > b, a / (b * b + 1.0), eo.maximum(a, -b)) - x[k % 3],
            )
        return (x * a).sum() + b

    return f


def gradient(f, x):
    x.grad = None
    y = f(x)
    y.backward()
    return y.item(), x.grad.copy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_graph_of_scalars_runs_on_a_tape_and_equals_eager(dtype):
    f = scalars(60)
    x = eo.tensor(np.array([0.3, -0.7, 1.1]), dtype=dtype, requires_grad=True)
    want, want_grad = gradient(f, x)
    compiled = eo.compile(f)
    for _ in range(3):
        value, grad = gradient(compiled, x)
        np.testing.assert_allclose(value, want, rtol=1e-5 if dtype == "float32" else 1e-12)
        np.testing.assert_allclose(grad, want_grad, rtol=1e-4 if dtype == "float32" else 1e-10)
    assert any(g.kind == "tape" for g in compiled.explain().schedule.groups)


def test_the_number_of_kernels_does_not_grow_with_the_length_of_a_scalar_loop():
    def kernels(n):
        compiled = eo.compile(scalars(n))
        compiled.warmup(eo.tensor(np.array([0.3, -0.7, 1.1])))
        return compiled.cache_info().kernels

    assert kernels(400) == kernels(100)


@pytest.mark.parametrize("mood", ["tame", "exact"])
def test_every_scalar_of_a_random_program_may_go_on_a_tape(mood, monkeypatch):
    monkeypatch.setattr(tape, "LENGTH", 1)
    taped = 0
    for seed in range(60):
        graph, arrays = random_graph(seed, 12, mood, 60)
        schedule = cpu.Program(graph, jit=False).schedule
        taped += sum(g.kind == "tape" for g in schedule.groups)
        compare(graph, arrays, run(graph, arrays, jit=False))
    assert taped > 20


def article(x, shifts):
    """A published benchmark of scalars: softplus, sums, products and a softmax in turns. A shift is
    added to every value, so that its gradient is that of the value."""
    nodes, made = [x[i] for i in range(len(x))], []

    def add(value):
        made.append(value + shifts[len(made)])
        nodes.append(made[-1])

    while len(made) + 7 <= len(shifts):
        add(eo.softplus(nodes[-10]))
        add(nodes[-30] + nodes[-25] + nodes[-20] + nodes[-15])
        add(nodes[-20] * nodes[-10])
        powers = [eo.exp(v) for v in nodes[-4:]]
        total = powers[0] + powers[1] + powers[2] + powers[3]
        for p in powers:
            add(p / total)
    return made


@pytest.mark.parametrize("rolled", [False, True], ids=["tape", "scan"])
def test_values_and_gradients_of_a_long_graph_are_those_of_eager_code(rolled, monkeypatch):
    if not rolled:
        monkeypatch.setattr(place, "LOOPS", passes.PIPELINE)

    def f(x, shifts):
        x.grad = shifts.grad = None
        made = article(x, shifts)
        made[-1].backward()
        return eo.stack(made)

    x = eo.tensor(np.linspace(-0.5, 0.5, 30), requires_grad=True)
    shifts = eo.tensor(np.zeros(350), requires_grad=True)
    values = f(x, shifts).data.copy()
    grads = x.grad.copy(), shifts.grad.copy()
    compiled = eo.compile(f)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x, shifts).data, values, rtol=1e-12)
        np.testing.assert_allclose(x.grad, grads[0], rtol=1e-10)
        np.testing.assert_allclose(shifts.grad, grads[1], rtol=1e-10)
    assert np.count_nonzero(grads[1]) > 250
    kinds = [g.kind for g in compiled.explain().schedule.groups]
    assert kinds.count("scan") >= 2 if rolled else "scan" not in kinds
    nodes = (g.nodes for g in compiled.explain().schedule.groups if g.kind == "tape")
    longest = max(map(len, nodes))
    assert longest < 800 if rolled else longest > 2000


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_a_tape_are_of_one_operation_and_operands_come_first(seed):
    graph, _ = random_graph(seed, 40, "tame", 1)
    nodes = [n for n in ir.walk(graph.roots) if n.op in ir.POINTWISE and n.inputs]
    found = tape.runs({n: list(n.inputs) for n in nodes})
    done = []
    for kind, same in found:
        for n in same:
            assert (n.op, n.inputs[0].dtype, n.dtype) == kind
            assert all(o in done for o in n.inputs if o in nodes)
            done.append(n)
    assert len(done) == len(nodes) == len(set(done))


# Gradients of slices


def test_gradients_of_slices_meet_in_one_array():
    def f(x):
        q, k, v = x[0], x[1], x[2]
        return (q * k + v * q + eo.exp(v)).sum()

    x = eo.tensor(np.random.default_rng(0).normal(size=(3, 4, 5)), requires_grad=True)
    want = gradient(f, x)
    compiled = eo.compile(lambda x: gradient_step(f, x))
    compiled(x)
    np.testing.assert_allclose(x.grad, want[1], rtol=1e-12)
    nodes = ir.walk(compiled.explain().graph.roots)
    assert sum(n.op == "assemble" for n in nodes) == 1


def gradient_step(f, x):
    x.grad = None
    y = f(x)
    y.backward()
    return y


def test_a_sum_with_zeros_loses_the_sign_of_negative_zero():
    """Where only one of two summed arrays has a piece, x + 0.0 is computed: -0.0 becomes 0.0."""
    table = ir.Table()
    x, y = table.input((2,), "f8"), table.input((2,), "f8")
    zeros = table.make(
        "broadcast", table.make("reshape", table.const(0.0, "f8"), shape=(1,)), shape=(4,)
    )
    left = table.make("assemble", zeros, x, starts=((0,),), steps=((1,),))
    right = table.make("assemble", zeros, y, starts=((2,),), steps=((1,),))
    graph = ir.Graph("f", (x, y), (table.make("add", left, right),))
    small = passes.run(graph)
    assert sum(n.op == "assemble" for n in ir.walk(small.roots)) == 1
    arrays = [np.array([-0.0, 1.0]), np.array([-0.0, -2.0])]
    for a, b in zip(interpret(graph, arrays)[0], interpret(small, arrays)[0], strict=True):
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
        np.testing.assert_array_equal(a, b)
