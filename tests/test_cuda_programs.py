"""Programs on the emulated device compute what their graphs mean.

The ordinary run takes some random programs, `pytest -m slow tests/test_cuda_programs.py` many more.
"""

import numpy as np
import pytest
from ir_builder import Builder
from ir_compare import compare
from ir_programs import random_graph

from everyo.compile import ir, passes
from everyo.compile.cuda import toolchain
from everyo.compile.interpret import interpret
from everyo.compile.ir import BOOL, F32, F64, I64, Graph

pytestmark = pytest.mark.skipif(
    toolchain.missing() is not None, reason=f"no CUDA compiler: {toolchain.missing()}"
)

if toolchain.missing() is None:
    from everyo.compile.cuda import emulator, gemm, heads, plan
    from everyo.compile.cuda.emulator import EmulatedRuntime
    from everyo.compile.cuda.program import Program
    from everyo.compile.cuda.ptx import PTXError
    from everyo.compile.cuda.runtime import Buffer, Gemm
    from everyo.core.device_array import DeviceArray

LENGTHS = (1, 31, 33, 1025)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")


def run(graph, arrays, runtime=None):
    """Outputs and written values of a graph on an emulated device of its own."""
    live = [np.array(a) if a.flags.c_contiguous else a.copy() for a in arrays]
    program = Program(graph, runtime or emulator.runtime())
    outputs = [o.numpy() for o in program(live)]
    return outputs, [live[graph.inputs.index(t)] for t, _ in graph.writes]


def holds(seeds, mood, ops=10, points=300):
    for seed in seeds:
        graph, arrays = random_graph(seed, ops, mood, points)
        graph = passes.run(graph)
        try:
            compare(graph, arrays, run(graph, arrays))
        except Exception as error:
            pytest.fail(f"random_graph({seed}, {ops}, {mood!r}, {points})\n{graph}\n{error}")


@pytest.mark.parametrize("mood", ["tame", "exact"])
def test_kernels_compute_what_the_graph_means(mood):
    holds(range(24), mood)


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["tame", "exact"])
def test_kernels_on_many_programs(mood):
    holds(range(24, 300), mood, ops=14, points=600)


def one(build, *arrays):
    """The single result of a graph that `build` makes of inputs like these arrays."""
    b = Builder()
    inputs = [b.input(a.shape, a.dtype) for a in arrays]
    out = build(b, *inputs)
    graph = passes.run(Graph("one", tuple(b.table.inputs), (out,)))
    (got,), _ = run(graph, list(arrays))
    (want,), _ = interpret(graph, list(arrays))
    return got, want


@pytest.mark.parametrize("n", LENGTHS)
def test_reductions_of_every_length(n):
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)

    def both(b, x):
        rows, columns = b.reduce("sum", x, (1,), True), b.reduce("max", x, (0,), True)
        whole = b.reduce("sum", b.reshape(x, (x.size,)), (0,))
        return b.op("add", b.op("subtract", b.op("multiply", x, rows), columns), whole)

    got, want = one(both, x)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-5 * n**0.5)


def test_sums_of_many_floats_are_as_good_as_in_float64():
    x = np.random.default_rng(0).standard_normal((3, 20_001)).astype(np.float32) + 1000
    exact = x.astype(np.float64)
    for axes, want in (((1,), exact.sum(1)), ((0,), exact.sum(0)), ((0, 1), exact.sum())):
        got, _ = one(lambda b, x, axes=axes: b.reduce("sum", x, axes), x)
        np.testing.assert_array_equal(got, want.astype(np.float32))


def test_infinities_and_nan_survive_sums_and_extremes():
    x = np.ones((4, 9), np.float32)
    x[0, 3], x[1, 4], x[2, 5], x[2, 6] = np.inf, np.nan, np.inf, -np.inf
    for name in ("sum", "max", "min"):
        got, want = one(lambda b, x, name=name: b.reduce(name, x, (1,)), x)
        np.testing.assert_array_equal(got, want, name)


@pytest.mark.parametrize("short", [4, 1024])
def test_sorting_is_stable_with_nan_last(short, monkeypatch):
    monkeypatch.setattr(plan, "SHORT", short)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (3, 37)).astype(np.float32)
    x[1, ::7] = np.nan
    got, want = one(lambda b, x: b.make("argsort", x), x)
    np.testing.assert_array_equal(got, want)
    index = rng.integers(-2, 9, 50)  # indices outside are clamped
    updates = rng.standard_normal((50, 3)).astype(np.float32)
    got, want = one(lambda b, i, u: b.make("scatter_add", i, u, rows=7), index, updates)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", LENGTHS)
def test_cumulative_sums(n):
    x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
    got, _ = one(lambda b, x: b.make("cumsum", x), x)
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64), 1), rtol=1e-6, atol=1e-6)
    whole = np.arange(2 * n).reshape(2, n)
    got, want = one(lambda b, x: b.make("cumsum", x), whole)
    np.testing.assert_array_equal(got, want)


def test_equal_calls_give_equal_bits_also_on_unaligned_arrays():
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    b = Builder()
    a = b.input((1000,))
    graph = Graph("sums", (a,), (b.op("exp", a), b.reduce("sum", b.op("tanh", a), (0,))))
    runtime = emulator.runtime()
    program = Program(graph, runtime)
    buffer = Buffer(runtime, 4100)
    runtime.upload(buffer.address + 4, x)
    shifted = DeviceArray(buffer, (1000,), F32, None, 4)  # 4 bytes off what vectors need
    first = [o.numpy() for o in program([x])]
    for arrays in ([x], [shifted], [shifted], [shifted]):
        again = [o.numpy() for o in program(arrays)]
        for p, q in zip(first, again, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-6)
    np.testing.assert_array_equal(first[0], again[0])


def test_vector_kernels_move_16_bytes_at_a_time():
    runtime = EmulatedRuntime()
    b = Builder()
    x, y = b.input((1027,)), b.input((1027,))
    program = Program(Graph("add", (x, y), (b.op("add", x, y),)), runtime)
    arrays = [np.ones(1027, np.float32), np.arange(1027, dtype=np.float32)]
    np.testing.assert_array_equal(program(arrays)[0].numpy(), arrays[0] + arrays[1])
    assert runtime.counts["global loads of 128 bits"] >= 2 * (1024 // 128)
    assert runtime.counts["global load bytes"] == 2 * 4 * 1027
    assert runtime.counts["global load sectors"] <= 2 * (4 * 1027 // 32 + 2)


def test_checks_come_before_writes_and_host_state_is_written_back():
    b = Builder()
    x, bound = b.input((4,)), b.input(())
    bad = b.reduce("max", b.op("greater", x, bound), (0,))
    checks = (ir.Check(bad, ValueError, "too large"),)
    graph = Graph("step", (x, bound), (), ((x, b.op("multiply", x, 2.0)),), checks)
    program = Program(graph, emulator.runtime())
    state = np.arange(4, dtype=np.float32)
    program([state, np.float32(10)])
    np.testing.assert_array_equal(state, [0, 2, 4, 6])
    with pytest.raises(ValueError, match="too large"):
        program([state, np.float32(5)])
    np.testing.assert_array_equal(state, [0, 2, 4, 6])


def test_a_flag_that_is_a_result_too_is_read():
    b = Builder()
    x, bound = b.input((4,)), b.input(())
    bad = b.reduce("max", b.op("greater", x, bound), (0,))
    graph = Graph("step", (x, bound), (bad,), (), (ir.Check(bad, ValueError, "too large"),))
    program = Program(graph, emulator.runtime())
    state = np.arange(4, dtype=np.float32)
    assert not program([state, np.float32(10)])[0].numpy()
    with pytest.raises(ValueError, match="too large"):
        program([state, np.float32(2)])


def test_long_graphs_of_scalars():
    b = Builder()
    x = b.input(())
    y = x
    for _ in range(100):
        y = b.op("add", b.op("multiply", y, 0.99), b.op("tanh", y))
    graph = Graph("long", (x,), (y,))
    arrays = [np.array(0.1, np.float32)]
    compare(graph, arrays, run(graph, arrays))


def many_updates(sizes):
    """Several arrays, each updated in the same way, and the arrays."""
    b = Builder()
    rng = np.random.default_rng(0)
    arrays = [np.float32(0.5), *(rng.standard_normal(n).astype(np.float32) for n in sizes)]
    rate, *states = [b.input(np.shape(a)) for a in arrays]
    writes = tuple((x, b.op("subtract", x, b.op("multiply", b.op("exp", x), rate))) for x in states)
    return Graph("updates", (rate, *states), (), writes), [np.array(a) for a in arrays]


@pytest.mark.parametrize("vector", [True, False])
def test_equal_updates_of_many_arrays_are_one_launch(vector):
    graph, arrays = many_updates([2, 7, 1024, 1025, 3000, 4, 33])
    (step,) = plan.Plan(graph, vector).steps
    assert (step.rows, step.blocks) == (7, 10 if vector else 25)
    assert vector == ("ld4(p" in step.text) == ("st4(p" in step.text)
    compare(graph, arrays, run(graph, arrays))
    graph, arrays = many_updates([5, 4 * 256 * plan.FEW + 1])
    assert [s.rows for s in plan.Plan(graph).steps] == [1, 1]


def side_by_side(graph, arrays, copies=3):
    """A graph that does the same for several sets of inputs, node by node."""
    b = Builder()
    made = [
        {n: b.input(n.shape, n.dtype, n.param("strides")) for n in graph.inputs}
        for _ in range(copies)
    ]
    for n in ir.walk(graph.roots):
        for nodes in made:
            if n not in nodes:
                nodes[n] = b.make(n.op, *(nodes[o] for o in n.inputs), **dict(n.params))
    inputs = tuple(m[n] for m in made for n in graph.inputs)
    outputs = tuple(m[n] for m in made for n in graph.outputs)
    writes = tuple((m[t], m[v]) for m in made for t, v in graph.writes)
    return Graph("side by side", inputs, outputs, writes), arrays * copies


def tables_change_no_bit(seeds, mood, monkeypatch):
    """Results of launches with tables and without; how many tables there were."""
    rows = 0
    for seed in seeds:
        graph, arrays = side_by_side(*random_graph(seed, 8, mood, 300))
        graph = passes.run(graph)
        rows += sum(s.rows > 1 for s in plan.Plan(graph).steps)
        together = run(graph, arrays)
        with monkeypatch.context() as patch:
            patch.setattr(plan, "FEW", -1)
            assert all(s.rows == 1 for s in plan.Plan(graph).steps)
            apart = run(graph, arrays)
        for a, b in zip(together[0] + together[1], apart[0] + apart[1], strict=True):
            assert a.tobytes() == b.tobytes(), f"random_graph({seed}, 8, {mood!r}, 300)"
    return rows


@pytest.mark.parametrize("mood", ["tame", "exact"])
def test_launches_of_tables_change_no_bit(mood, monkeypatch):
    assert tables_change_no_bit(range(6), mood, monkeypatch) > 6


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["tame", "exact"])
def test_launches_of_tables_change_no_bit_in_many_programs(mood, monkeypatch):
    assert tables_change_no_bit(range(6, 80), mood, monkeypatch) > 70


@pytest.mark.parametrize(
    ("right", "wrong"), [("<= own", "< own"), ("u32(own - ld(table, row))", "u32(own)")],
    ids=["a wrong row", "wrong blocks"],
)  # fmt: skip
def test_a_wrong_head_of_a_table_is_caught(right, wrong, monkeypatch):
    assert right in heads.TABLE
    monkeypatch.setattr(heads, "TABLE", heads.TABLE.replace(right, wrong))
    graph, arrays = many_updates([1024, 1025, 3000])
    with pytest.raises((AssertionError, PTXError)):
        compare(graph, arrays, run(graph, arrays))


def test_equal_addresses_are_replayed_as_graphs():
    b = Builder()
    x, bound = b.input((6,)), b.input(())
    bad = b.reduce("max", b.op("greater", x, bound), (0,))
    result = b.reduce("sum", x, (0,))
    checks = (ir.Check(bad, ValueError, "too large"),)
    graph = Graph("step", (x, bound), (result,), ((x, b.op("add", x, 1.0)),), checks)
    runtime = EmulatedRuntime()
    program = Program(graph, runtime)
    state, most = Buffer(runtime, 24), Buffer(runtime, 4)
    runtime.upload(state.address, np.zeros(6, np.float32))
    runtime.upload(most.address, np.float32(4))
    arrays = [DeviceArray(state, (6,), F32), DeviceArray(most, (), F32)]
    sums = [program(arrays)[0].numpy().item() for _ in range(5)]
    assert sums == [0, 6, 12, 18, 24]
    assert runtime.counts["replays"] == 8  # before and after the check, from the second call on
    with pytest.raises(ValueError, match="too large"):
        program(arrays)
    np.testing.assert_array_equal(arrays[0].numpy(), np.full(6, 5))


def test_numbers_of_the_host_are_sent_when_they_change():
    b = Builder()
    x, rate = b.input((4,)), b.input(())
    graph = Graph("scaled", (x, rate), (b.op("multiply", x, rate),))
    runtime = EmulatedRuntime()
    program = Program(graph, runtime)
    there = Buffer(runtime, 16)
    runtime.upload(there.address, np.arange(4, dtype=np.float32))
    arrays = [DeviceArray(there, (4,), F32), np.array(2, np.float32)]
    sent = []
    for rate in (2, 2, 3, 3, 2):
        arrays[1][...] = rate
        before = runtime.counts["uploads"]
        np.testing.assert_array_equal(program(arrays)[0].numpy(), rate * np.arange(4))
        sent.append(runtime.counts["uploads"] - before)
    assert sent == [1, 0, 1, 0, 1]


def test_overlapping_written_arrays_work_on_copies():
    b = Builder()
    x, y = b.input((6,)), b.input((6,))
    graph = Graph("shift", (x, y), (), ((x, b.op("add", y, 1.0)),))
    runtime = emulator.runtime()
    buffer = Buffer(runtime, 32)
    runtime.upload(buffer.address, np.arange(8, dtype=np.float32))
    target, source = (DeviceArray(buffer, (6,), F32, None, 4 * k) for k in (2, 0))
    Program(graph, runtime)([target, source])
    got = runtime.download(buffer.address, 32).view(np.float32)
    np.testing.assert_array_equal(got, [0, 1, 1, 2, 3, 4, 5, 6])


def test_random_words_are_those_of_numpy():
    state = np.array([5, 7, 2**64 - 3, 2**64 - 1, 1, 0], np.uint64).view(np.int64)
    for dtype in (F32, F64):
        got, want = one(lambda b, s, d=dtype: b.make("random", s, shape=(11,), dtype=d), state)
        np.testing.assert_array_equal(got, want)


PRODUCTS = [  # m, n, k, turned a, turned b
    (5, 7, 3, False, False), (33, 40, 65, True, False), (70, 65, 20, False, True),
    (4, 4, 4, True, True),
]  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_our_own_products(case, kind):
    m, n, k, turn_a, turn_b = case
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, m, k)).astype(kind), rng.standard_normal((2, k, n)).astype(kind)
    held = a.swapaxes(1, 2) if turn_a else a
    other = b.swapaxes(1, 2) if turn_b else b

    def product(g, x, y):
        return g.make("matmul", g.swap(x) if turn_a else x, g.swap(y) if turn_b else y)

    b_ = Builder()
    inputs = [b_.input(x.shape, x.dtype) for x in (held, other)]
    graph = Graph("product", tuple(inputs), (product(b_, *inputs),))
    arrays = [np.ascontiguousarray(held), np.ascontiguousarray(other)]
    (got,), _ = run(graph, arrays, EmulatedRuntime(library=False))
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)


def test_large_tiles_of_products():
    p = Gemm(F32, 130, 129, 19, False, 19, False, 129, 129, ((1, (0, 0, 0)), (1, (0, 0, 0))))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((130, 19), (19, 129)))
    runtime = EmulatedRuntime()
    text = gemm.kernel(p, gemm.LARGE)
    places = [runtime.allocate(x.nbytes) for x in (a, b)]
    out = runtime.allocate(4 * 130 * 129)
    for place, x in zip(places, (a, b), strict=True):
        runtime.upload(place, x)
    code = toolchain.compile_ptx(text.text, text.params, runtime.cc)
    runtime.launch(runtime.load(code), text.blocks, text.threads, [*places, out])
    got = runtime.download(out, 4 * 130 * 129).view(np.float32).reshape(130, 129)
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def softmax_rows(b):
    return b.softmax(b.input((6, 130)))


def doubled(b):
    return b.op("multiply", b.input((1027,)), 2.0)


def column_sums(b):
    return b.reduce("sum", b.input((70, 40)), (0,))


def total(b):
    x = b.op("exp", b.input((3000,)))
    return b.reduce("sum", x, (0,))


def running_sums(b):
    return b.make("cumsum", b.input((2, 300)))


def wide_rows(b):
    """Rows of more than a warp, with scratch in shared memory."""
    x = b.input((4, 257))
    centred = b.op("subtract", x, b.mean(x, (1,), True))
    return b.op("multiply", centred, b.reduce("max", centred, (1,), True))


PLANTED = {  # the program, what its kernels say, what a wrong compiler would say
    "a missing barrier": (softmax_rows, "cuda.syncthreads()", "pass"),
    "a missing barrier between warps": (wide_rows, "cuda.syncthreads()", "pass"),
    "a missing barrier of a scan": (running_sums, "cuda.syncthreads()", "pass"),
    "a wrong shuffle": (softmax_rows, ", 16)", ", 8)"),
    "a wrong shuffle of partial sums": (column_sums, "mask, t, 4)", "mask, t, 2)"),
    "a shuffle for too few lanes": (column_sums, "u32(65535)", "u32(4095)"),
    "a row too short": (softmax_rows, "c0 < u32(130)", "c0 < u32(128)"),
    "a row too long": (softmax_rows, "c0 < u32(130)", "c0 < u32(134)"),
    "vectors beyond the end": (doubled, "whole = u32(n - n % u32(4))", "whole = n"),
    "a tail left out": (doubled, "if c0 < n:", "if False:"),
    "a tail too long": (doubled, "if c0 < n:", "if c0 <= n:"),
    "vectors out of step": (doubled, "ld4(p0, c0)", "ld4(p0, c0 + u32(1))"),
    "a row left out": (column_sums, "r < u32(70)", "r < u32(69)"),
    "a row too many": (column_sums, "r < u32(70)", "r < u32(71)"),
    "partial sums left out": (column_sums, "j < u32(16)", "j < u32(15)"),
    "partial sums that nobody wrote": (total, "while j < u32(", "while j < u32(1) + u32("),
    "two teams in one place": (column_sums, "at(p1, chunk * u64(80))", "at(p1, chunk * u64(40))"),
    "a second word forgotten": (column_sums, "c0 + u64(40), (a3e", "c0 + u64(40), (a3"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_bugs_planted_in_kernels_of_programs_are_caught(bug, monkeypatch):
    make, right, wrong = PLANTED[bug]
    b = Builder()
    result = make(b)
    graph = Graph("planted", tuple(b.table.inputs), (result,))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) + 3 for n in graph.inputs]
    compare(graph, arrays, run(graph, arrays))
    compiled, planted = toolchain.compile_ptx, []

    def wrong_compiler(text, params, cc):
        planted.append(right in text)
        return compiled(text.replace(right, wrong), params, cc)

    monkeypatch.setattr(toolchain, "compile_ptx", wrong_compiler)
    with pytest.raises((AssertionError, PTXError)):
        compare(graph, arrays, run(graph, arrays))
    assert any(planted)


def test_bools_and_whole_numbers():
    x = np.random.default_rng(0).integers(-5, 5, (7, 33))
    got, want = one(lambda b, x: b.reduce("max", b.op("greater", x, 3), (1,)), x)
    assert got.dtype == BOOL
    np.testing.assert_array_equal(got, want)
    got, want = one(lambda b, x: b.reduce("prod", b.op("remainder", x, 3), (0,)), x)
    assert got.dtype == I64
    np.testing.assert_array_equal(got, want)
