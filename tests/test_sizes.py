"""Sizes at run time: other lengths, widths and numbers need no new machine code, change no bit."""

import gc
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_builder import Builder
from test_kernels import random, run

import everyo as eo
from everyo.compile import api, code, cpu, loops, sizes
from everyo.compile.ir import F32, F64, I64
from everyo.compile.program import Literal

# Division by an inverse, numbers as words


@given(st.integers(sizes.RUNTIME, sizes.MOST_ROWS - 1), st.integers(0, sizes.MOST_ROWS - 1))
def test_the_inverse_of_a_size_divides(size, x):
    assert x * sizes.inverse(size) >> 64 == x // size
    last = (sizes.MOST_ROWS - 1) // size * size  # where a quotient is about to change
    for y in (last, last - 1):
        assert y * sizes.inverse(size) >> 64 == y // size


@pytest.mark.parametrize("size", [16, 17, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_inverse_fits_a_word_of_the_table(size):
    assert 0 < sizes.inverse(size) < 2**63


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@given(st.floats())
def test_the_bits_of_a_number_are_that_number(dtype, v):
    with np.errstate(over="ignore"):
        word, value = sizes.bits(v, dtype), dtype.type(v)
    back = np.array(word, f"i{dtype.itemsize}").view(dtype)
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize("v", [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 8.0, np.inf, -np.inf, np.nan])
def test_numbers_with_a_shortcut_stay_in_the_text(v):
    assert not sizes.varies(v, False)


@pytest.mark.parametrize("v", [16.0, 64.0, 1 / 32, 0.1, 3.0, 40.0, -0.7])
def test_other_numbers_leave_the_text(v):
    assert sizes.varies(v, False)
    assert sizes.varies(v, True) == (np.frexp(abs(v))[0] != 0.5)  # a division by two is a product


# Texts


def row_kernels(rows, width, batch=3):
    """Softmax with a mask per position, sums over columns, a mean."""
    b = Builder()
    x, mask, c = b.input((batch, rows, width)), b.input((rows, width)), b.input((width,))
    y = b.softmax(b.op("add", b.op("multiply", x, 0.35), mask))
    h = b.op("maximum", b.op("add", x, c), 0.0)
    return b.graph(y, h, b.mean(x, (0, 1, 2)), b.make("sum", h, axes=(0, 1)))


def turned(rows, width):
    """The innermost loop takes steps of a row."""
    b = Builder()
    x = b.input((3, rows, width))
    return b.graph(b.op("exp", b.swap(x)))


def texts(graph):
    return {row.text for row in cpu.Program(graph, jit=False).kernels}


def test_sizes_are_not_in_the_texts():
    known = texts(row_kernels(30, 40))
    for rows in (17, 20, 27, 31, 63):
        for width in (22, 41, 58):
            assert texts(row_kernels(rows, width)) == known


def test_steps_of_the_innermost_loop_stay_literal():
    """Otherwise LLVM gives up vectors: exp of a turned matrix takes nine times as long."""
    (known,) = texts(turned(30, 40))
    assert "* usz(40)" in known
    assert texts(turned(31, 40)) == {known} != texts(turned(30, 41))


def test_a_planted_literal_is_caught(monkeypatch):
    monkeypatch.setattr(loops, "sized", lambda kernel: kernel)
    assert texts(row_kernels(30, 40)) != texts(row_kernels(31, 40))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("rows, width", [(17, 19), (16, 16), (33, 70), (5, 3), (1, 40), (300, 21)])
def test_programs_of_all_sizes_mean_what_the_graph_means(rows, width, jit):
    if jit or rows * width < 1000:
        graph = row_kernels(rows, width)
        run(graph, [random(*n.shape, seed=i) for i, n in enumerate(graph.inputs)], jit)


@pytest.mark.parametrize("make", [row_kernels, turned])
def test_sizes_at_run_time_change_no_bit(make, monkeypatch):
    graph = make(37, 50)
    arrays = [random(*n.shape, seed=i) for i, n in enumerate(graph.inputs)]
    one = [out.tobytes() for out in cpu.Program(graph)(arrays)]
    monkeypatch.setattr(loops, "sized", lambda kernel: kernel)
    assert [out.tobytes() for out in cpu.Program(graph)(arrays)] == one


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("op", ["exp", "tanh", "log1p", "sigmoid", "sin"])
def test_long_loops_give_each_element_the_bits_that_short_ones_give(op, dtype):
    """Whether vectors run abreast, in the rest of such a loop, or not at all."""

    def program(size):
        b = Builder()
        return cpu.Program(b.graph(b.op(op, b.input((size,), dtype))))

    x = random(loops.LONG + 100, dtype=dtype)
    long, short = program(x.size), program(loops.LONG - 1)
    assert "abreast" in long.source() and "abreast" not in short.source()
    (whole,) = long([x])
    for start in (0, x.size - short.graph.inputs[0].size):
        part = np.ascontiguousarray(x[start : start + loops.LONG - 1])
        assert short([part])[0].tobytes() == whole[start : start + part.size].tobytes()


@pytest.mark.parametrize("jit", [False, True])
def test_indices_in_long_tables_are_clamped(jit):
    b = Builder()
    table, i = b.input((40, 30)), b.input((50,), I64)
    graph = b.graph(b.op("multiply", b.make("take", table, i), 0.3))
    ids = np.arange(-5, 45)
    ids[:2] = -(2**63), 2**63 - 1
    run(graph, [random(40, 30), ids], jit)


def test_equal_numbers_of_different_kinds_are_kept_apart():
    kernel = loops.Kernel((), (), 1, (), 0.0)
    table = sizes._Sizes(kernel)
    whole, short = Literal(40, I64), Literal(40, np.dtype("int32"))
    assert table.number(whole) != table.number(short)
    assert table.number(whole) == table.number(whole)
    assert table.number(Literal(0.3, F32)) != table.number(Literal(0.3, F64))


# Functions whose shapes change


def attention(width=16):
    weights = [eo.tensor(random(width, width, seed=s), requires_grad=True) for s in range(3)]

    @eo.compile(check=False)
    def step(x):
        n = x.shape[1]
        q, k, v = ((x @ w).reshape(2, n, 2, width // 2).transpose(0, 2, 1, 3) for w in weights)
        p = eo.softmax(q @ k.transpose(0, 1, 3, 2) * 0.35, axis=-1)
        o = (p @ v).transpose(0, 2, 1, 3).reshape(2, n, width) + x
        loss = (o * o).mean()
        for w in weights:
            w.grad = None
        loss.backward()
        return loss

    return step


@pytest.mark.filterwarnings("ignore:step was traced")
def test_growing_sequences_compile_no_machine_code_per_length():
    step = attention()
    counts = []
    for n in range(37, 49):
        before = len(code.NATIVE.known)
        step(eo.tensor(random(2, n, 16)))
        counts.append(len(code.NATIVE.known) - before)
    assert sum(counts[1:]) <= 2  # where a length meets another size of the program
    assert step.cache_info().traces == len(counts)


def test_a_ragged_last_batch_costs_one_more_trace():
    net = eo.nn.Sequential(eo.nn.Linear(6, 20), eo.nn.Tanh(), eo.nn.Linear(20, 3))
    optimizer = eo.optim.Adam(net.parameters(), lr=0.01)
    traced = []

    @eo.compile(check=False)
    def step(x, y):
        traced.append(x.shape)
        optimizer.zero_grad()
        loss = eo.nn.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = random(150, 6), np.arange(150) % 3
    for _ in range(3):
        for i in range(0, 150, 40):  # 40, 40, 40, 30
            step(eo.tensor(x[i : i + 40]), eo.tensor(y[i : i + 40]))
            if i == 80:
                before = len(code.NATIVE.known)
        assert len(code.NATIVE.known) == before
    assert traced == [(40, 6), (30, 6)]
    assert step.cache_info()[:3] == (2, 2, 12)


# What is kept


@pytest.mark.filterwarnings("ignore:<lambda> was traced")
def test_the_least_recently_used_version_goes_first(monkeypatch):
    monkeypatch.setattr(api, "KEYS", 3)
    monkeypatch.setattr(api, "LAUNCHERS", 0)  # every call takes the general path
    f = eo.compile(lambda x: x * 2.0, check=False)

    def call(n):
        return f(eo.tensor(np.ones(n))).shape == (n,)

    assert call(1) and call(2) and call(3) and call(1) and call(4)
    assert f.cache_info()[:2] == (4, 3)
    assert call(1) and call(3) and call(4)
    assert f.cache_info().traces == 4
    assert call(2)
    assert f.cache_info()[:2] == (5, 3)


def test_equal_kernels_of_all_functions_are_one():
    x = eo.tensor(np.ones(20))
    make = [eo.compile(lambda x: eo.tanh(x) + eo.cos(x)) for _ in range(5)]
    make[0](x)
    before = len(code.NATIVE.known)
    for f in make:
        f(x)
        assert f.cache_info().kernels == 1
    assert len(code.NATIVE.known) == before


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def tiny_step():
    net = eo.nn.Linear(4, 2)
    optimizer = eo.optim.Adam(net.parameters(), lr=1e-3)
    x, y = eo.tensor(random(8, 4)), eo.tensor(random(8, 2))

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        d = net(x) - y
        loss = (d * d).mean()
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x, y)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("collect", [True, False], ids=["collected", "gc off"])
def test_memory_stays_flat_over_many_steps(collect):
    step = tiny_step()
    for _ in range(3000):
        step()
    gc.collect()
    if not collect:
        gc.disable()
    try:
        before = resident()
        for _ in range(100_000):
            step()
        assert resident() - before < 2 << 20
    finally:
        gc.enable()


def test_the_peak_is_what_the_plan_says():
    """Activations of a deep network: 1.2 times the arena and the results at most."""
    net = eo.nn.Sequential(*[m for _ in range(6) for m in (eo.nn.Linear(64, 64), eo.nn.Tanh())])
    x = eo.tensor(random(8192, 64))

    def step(x):
        loss = (net(x) ** 2).mean()
        for p in net.parameters():
            p.grad = None
        loss.backward()
        return loss

    eo.compile(step)(x)  # what Numba needs to make the kernels is not what this is about
    step = eo.compile(step, check=False)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            step(x)
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    (versions,) = step._entries.values()
    program = versions[0].program
    results = sum(np.prod(shape) * dtype.itemsize for shape, dtype in program.fresh)
    activations = 6 * 8192 * 64 * 4
    assert activations <= program.arena_bytes < 1.7 * activations
    assert peak <= 1.2 * (program.arena_bytes + 2 * results) + (1 << 20)  # trace and plan included
