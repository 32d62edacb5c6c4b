"""Programs: what is written and when, aliasing, checks, threads, the machine around the kernels."""

import threading

import numpy as np
import pytest
from ir_builder import Builder
from test_kernels import random, run

from everyo.compile import blas, code, cpu, emit, ir, rows
from everyo.compile.interpret import interpret
from everyo.compile.ir import F32, F64, I64

# Writes and checks


def swap():
    b = Builder()
    x, y = b.input((4, 9)), b.input((4, 9))
    return b.graph(b.op("add", x, y), writes=((x, y), (y, x)))


def feedback():
    """Every way in which an old value is read after or beside its update."""
    b = Builder()
    w, v = b.input((6, 6)), b.input((6, 6))
    new = b.op("subtract", w, b.op("multiply", b.swap(w), 0.5))
    mean = b.mean(new, (0, 1))
    late = b.op("add", b.make("matmul", w, v), mean)
    row = b.op("subtract", v, b.reduce("max", v, (1,), keep=True))
    return b.graph(late, b.make("cumsum", w), writes=((w, new), (v, row)))


def turned_write():
    b = Builder()
    w = b.input((5, 5))
    return b.graph(writes=((w, b.swap(w)),), name="turned")


def reshaped_write():
    b = Builder()
    w, x = b.input((3, 8)), b.input((24,))
    return b.graph(writes=((w, b.reshape(b.op("multiply", x, b.reshape(w, (24,))), (3, 8))),))


def matmul_write():
    b = Builder()
    w, x = b.input((5, 5)), b.input((5, 5))
    return b.graph(writes=((w, b.make("matmul", w, x)), (x, b.make("matmul", x, x))))


def repeated_write():
    """A written value that has fewer axes than the loop it is computed in."""
    b = Builder()
    s, x = b.input((7,)), b.input((5, 7))
    new = b.op("add", s, 1.0)
    return b.graph(b.op("multiply", x, new), writes=((s, new),))


def scalar_write():
    b = Builder()
    t, x = b.input(()), b.input((50,))
    new = b.op("add", t, 1.0)
    return b.graph(b.op("multiply", x, new), b.op("add", x, t), writes=((t, new),))


WRITES = [swap, feedback, turned_write, reshaped_write, matmul_write, repeated_write, scalar_write]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("make", WRITES)
def test_writes_store_what_the_old_values_give(make, jit):
    graph = make()
    run(graph, [random(*n.shape, seed=i) for i, n in enumerate(graph.inputs)], jit)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("make", WRITES)
def test_overlapping_arrays_are_read_as_they_were(make, jit):
    """Every pair of inputs of one shape is passed the same memory, or memory that overlaps."""
    graph = make()
    for shift in (0, 1):
        memory = random(200)
        arrays = [memory[: n.size].reshape(n.shape) for n in graph.inputs]
        if shift and len(arrays) > 1:
            arrays[1] = memory[shift : shift + arrays[1].size].reshape(arrays[1].shape)
        outputs, written = interpret(graph, [a.copy() for a in arrays])
        before = memory.copy()
        got = cpu.Program(graph, jit=jit)(arrays)
        for g, w in zip(got, outputs, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
        want = before
        for (target, _), w in zip(
            graph.writes, written, strict=True
        ):  # in order: the last one wins
            i = graph.inputs.index(target)
            start = shift if i == 1 else 0
            want[start : start + w.size] = w.ravel()
        np.testing.assert_allclose(memory, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("bad", [None, 0, 1])
def test_a_failed_check_raises_its_error_and_nothing_is_written(bad, jit):
    b = Builder()
    x, w = b.input((40,)), b.input((40,))
    new = b.op("add", w, x)
    large = b.make("max", b.op("greater", b.op("abs", x), 10.0), axes=(0,))
    lost = b.make("max", b.op("isnan", new), axes=(0,))  # a check of the new value itself
    checks = (ir.Check(large, ValueError, "x is large"), ir.Check(lost, KeyError, "nan"))
    graph = b.graph(b.op("exp", x), writes=((w, new), (x, b.op("multiply", x, 0.5))), checks=checks)
    arrays = [random(40), random(40, seed=1)]
    if bad is not None:
        arrays[bad][7] = 11.0 if bad == 0 else np.nan
    live = [a.copy() for a in arrays]
    kernel = cpu.Program(graph, jit=jit)
    if bad is None:
        kernel(live)
        np.testing.assert_allclose(live[1], arrays[0] + arrays[1], rtol=1e-6)
        return
    with pytest.raises(checks[bad].error, match=checks[bad].message):
        kernel(live)
    for a, old in zip(live, arrays, strict=True):
        np.testing.assert_array_equal(a, old)


# The machine


def training_step(width=8):
    """A dense layer with cross-entropy and two Adam updates."""
    b = Builder()
    x, y = b.input((16, 12)), b.input((16,), I64)
    w, c = b.input((12, width)), b.input((width,))
    t = b.input(())
    h = b.op("add", b.make("matmul", x, w), c)
    p = b.softmax(h)
    loss = b.op("negative", b.mean(b.op("log", b.pick(p, y)), (0,)))
    hot = b.cast(b.op("equal", b.iota(h.shape, 1), b.reshape(y, (16, 1))), F32)
    g = b.op("multiply", b.op("subtract", p, hot), 1 / 16)
    gw, gc = b.make("matmul", b.swap(x), g), b.make("sum", g, axes=(0,))
    step = b.op("add", t, 1.0)
    writes = [(t, step)]
    for p_, g_ in ((w, gw), (c, gc)):
        m, v = b.input(p_.shape), b.input(p_.shape)
        writes += zip((p_, m, v), b.adam(p_, g_, m, v, step), strict=True)
    arrays = [abs(random(*n.shape, seed=i)) for i, n in enumerate(b.table.inputs)]
    arrays[1] = np.arange(16) % width
    return b.graph(loss, writes=tuple(writes)), arrays


def test_a_training_step_computes_what_the_graph_means():
    run(*training_step(), jit=True)


def test_a_program_runs_in_several_threads():
    b = Builder()
    x, w = b.input((64, 64)), b.input((64, 64))
    graph = b.graph(b.make("matmul", b.op("tanh", x), w), b.make("sum", x, axes=(0, 1)))
    kernel = cpu.Program(graph)
    arrays = [[random(64, 64, seed=i), random(64, 64, seed=9)] for i in range(4)]
    want = [kernel(a) for a in arrays]
    wrong = []

    def work(i):
        for _ in range(50):
            got = kernel(arrays[i])
            if not all(np.array_equal(g, w) for g, w in zip(got, want[i], strict=True)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not blas.ONE_THREAD.adjustable, reason="this BLAS has no thread setting")
def test_the_users_blas_threads_are_put_back():
    one = blas.ONE_THREAD
    before = one.get()
    try:
        one.set(2)
        with one:
            with one:
                assert one.get() == 1
            assert one.get() == 1
        assert one.get() == 2
    finally:
        one.set(before)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_products_without_a_blas_are_the_same(dtype, monkeypatch):
    assert blas.find(None) is None or blas.BLAS is not None
    monkeypatch.setattr(rows, "BLAS", None)
    b = Builder()
    x, y = b.input((3, 9, 6), dtype), b.input((3, 6, 20), dtype)
    z = b.make("matmul", x, y)
    graph = b.graph(z, b.make("matmul", b.swap(y), b.swap(x)), b.make("matmul", z, b.swap(z)))
    run(graph, [random(3, 9, 6, dtype=dtype), random(3, 6, 20, dtype=dtype)], jit=True)


@pytest.mark.parametrize("m, n, k", [(300, 40, 70), (40, 300, 70), (64, 64, 200), (1, 200, 300)])
def test_slices_of_a_product_are_the_product(m, n, k, monkeypatch):
    monkeypatch.setattr(rows.products, "SLICE_FLOPS", 1)
    monkeypatch.setattr(rows.products, "SLICE_UNIT", 4)
    b = Builder()
    x, y = b.input((m, k)), b.input((k, n))
    run(b.graph(b.make("matmul", x, y)), [random(m, k), random(k, n)], jit=True)


def test_loads_carry_alias_scopes_and_loops_fill_vectors():
    b = Builder()
    x, y = b.input((1000,)), b.input((1000,))
    graph = b.graph(b.op("add", b.op("multiply", x, y), x), b.op("maximum", x, y))
    text = str(code.compiled(cpu.Program(graph).kernels[0].text)[0])
    assert "!alias.scope" in text and "!noalias" in text
    assert " x float>" in text


def test_profile_times_every_row_and_leaves_the_arrays_alone():
    graph, arrays = training_step()
    kernel = cpu.Program(graph)
    live = [a.copy() for a in arrays]
    times = kernel.profile(live, repeats=2)
    assert len(times) == len(kernel.kernels) and all(t >= 0 for t in times)
    for a, old in zip(live, arrays, strict=True):
        np.testing.assert_array_equal(a, old)
    run(graph, arrays, jit=True)


def test_a_row_says_what_it_moves():
    b = Builder()
    x, w = b.input((100, 50)), b.input((100, 50))
    graph = b.graph(b.make("sum", x, axes=(1,)), writes=((w, b.op("multiply", w, x)),))
    (row,) = cpu.Program(graph, jit=False).kernels
    assert row.bytes == 3 * 20_000 + 400
    assert row.flops == 2 * 5_000


def test_the_source_holds_every_kernel_once():
    kernel = cpu.Program(training_step()[0])
    source = kernel.source()
    assert all(source.count(row.text) == 1 for row in kernel.kernels)
    assert source.count(emit.HEAD) == len({row.text for row in kernel.kernels})


def test_equal_layers_share_their_kernels():
    b = Builder()
    h = x = b.input((32, 24))
    for _ in range(6):
        h = b.op("tanh", b.op("add", b.make("matmul", h, b.input((24, 24))), b.input((24,))))
    kernel = cpu.Program(b.graph(h), jit=False)
    assert len(kernel.kernels) == 12
    assert len({row.text for row in kernel.kernels}) == 2
    assert x.shape == (32, 24)


def test_updates_of_all_parameters_are_one_text():
    graph, _ = training_step()
    rows = cpu.Program(graph, jit=False).kernels
    updates = [r.text for r in rows if "sqrt" in r.name]
    assert len(updates) == 2 and len(set(updates)) == 1
