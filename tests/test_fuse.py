"""Fusion: which kernels a graph becomes, when values move, where they lie."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_builder import Builder
from steps import training_step

import everyo as eo
from everyo.compile import cpu, fuse, ir, legalize, memory, space, tape
from everyo.compile.interpret import interpret
from everyo.compile.ir import F32, I64


def loops_of(graph):
    """The loop groups of a graph, as text; checked."""
    schedule = fuse.fuse(graph)
    fuse.check(schedule)
    return [str(g) for g in schedule.groups if g.kind == "loop"]


# Groups


def cross_entropy():
    b = Builder()
    x, y = b.input((64, 50)), b.input((64,), I64)
    p = b.softmax(x)
    loss = b.mean(b.op("log", b.pick(p, y)), (0,))
    hot = b.cast(b.op("equal", b.iota(x.shape, 1), b.reshape(y, (64, 1))), F32)
    return b.graph(loss, b.op("multiply", b.op("subtract", p, hot), 1 / 64))


def layer_norm():
    """Forward, and the gradients of input, weight and bias."""
    b = Builder()
    x, w, c, g = b.input((64, 50)), b.input((50,)), b.input((50,)), b.input((64, 50))
    centred = b.op("subtract", x, b.mean(x, (1,), keep=True))
    var = b.op("add", b.mean(b.op("multiply", centred, centred), (1,), keep=True), 1e-5)
    scale = b.op("divide", 1.0, b.op("sqrt", var))
    unit = b.op("multiply", centred, scale)
    gw, gc = b.make("sum", b.op("multiply", g, unit), axes=(0,)), b.make("sum", g, axes=(0,))
    h = b.op("multiply", g, w)
    along = b.op("multiply", unit, b.mean(b.op("multiply", h, unit), (1,), keep=True))
    rest = b.op("subtract", b.op("subtract", h, b.mean(h, (1,), keep=True)), along)
    y = b.op("add", b.op("multiply", unit, w), c)
    return b.graph(y, b.op("multiply", rest, scale), gw, gc)


def softmax_of_columns():
    b = Builder()
    x = b.input((50, 64))
    return b.graph(b.swap(b.softmax(b.swap(x))))


def batch_norm():
    b = Builder()
    x, w = b.input((8, 16, 5, 5)), b.input((1, 16, 1, 1))
    axes = (0, 2, 3)
    centred = b.op("subtract", x, b.mean(x, axes, keep=True))
    var = b.mean(b.op("multiply", centred, centred), axes, keep=True)
    y = b.op("multiply", b.op("divide", centred, b.op("sqrt", var)), w)
    return b.graph(b.op("maximum", y, 0.0))


def gelu():
    b = Builder()
    x, g = b.input((1000,)), b.input((1000,))
    cube = b.op("multiply", b.op("multiply", x, x), x)
    t = b.op("tanh", b.op("multiply", b.op("add", x, b.op("multiply", cube, 0.0447)), 0.7979))
    slope = b.op("subtract", 1.0, b.op("multiply", t, t))
    y = b.op("multiply", b.op("multiply", x, 0.5), b.op("add", t, 1.0))
    return b.graph(y, b.op("multiply", g, b.op("multiply", b.op("multiply", x, 0.5), slope)))


def heads():
    """(B, T, H·d) -> (B, H, T, d) and back around a pointwise op."""
    b = Builder()
    x = b.input((4, 6, 15))
    split = b.make("transpose", b.reshape(x, (4, 6, 3, 5)), axes=(0, 2, 1, 3))
    back = b.make("transpose", b.op("exp", split), axes=(0, 2, 1, 3))
    return b.graph(b.op("add", b.reshape(back, (24, 15)), 1.0))


ONE_KERNEL = [layer_norm, softmax_of_columns, batch_norm, gelu, heads]


@pytest.mark.parametrize("make", ONE_KERNEL)
def test_what_shares_a_space_is_one_kernel(make):
    assert len(loops_of(make())) == 1


def test_cross_entropy_is_a_row_kernel_and_a_scalar():
    row, scalar = loops_of(cross_entropy())
    assert row.startswith("row 64 x 50") and "1 x 1" in scalar


def test_a_diagonal_is_no_common_space():
    """x + x.T of a computed x needs two elements of x at one point."""
    b = Builder()
    x = b.op("exp", b.input((5, 5)))
    assert len(loops_of(b.graph(b.op("add", x, b.swap(x))))) == 2


def test_a_slice_of_a_computed_value_is_a_barrier():
    b = Builder()
    x = b.op("exp", b.input((10,)))
    assert len(loops_of(b.graph(b.op("add", b.slice(x, (0, 1, 9)), b.slice(x, (1, 1, 9)))))) == 2


def test_slices_and_turns_of_inputs_are_index_arithmetic():
    b = Builder()
    x = b.input((10, 4))
    turned = b.slice(b.swap(x), (3, -1, 4), (9, -2, 5))
    schedule = fuse.fuse(b.graph(b.op("add", turned, 1.0)))
    assert [n.op for g in schedule.groups for n in g.nodes] == ["add"]


def test_a_matmul_result_is_stored_as_its_consumers_want_it():
    """Attention: no copy between the products."""
    b = Builder()
    x, w = b.input((2, 6, 8)), b.input((8, 8))
    flat = b.reshape(x, (12, 8))

    def split(y):
        return b.make("transpose", b.reshape(y, (2, 6, 2, 4)), axes=(0, 2, 1, 3))

    q, k, v = (split(b.make("matmul", flat, m)) for m in (w, b.swap(w), b.input((8, 8))))
    a = b.make("matmul", b.softmax(b.make("matmul", q, b.swap(k))), v)
    joined = b.reshape(b.make("transpose", a, axes=(0, 2, 1, 3)), (12, 8))
    graph = b.graph(b.make("matmul", joined, w))
    copies = [n for n in ir.walk(legalize.legalize(graph).graph.roots) if n.op == "copy"]
    assert not copies


def test_a_cheap_value_is_computed_again_and_a_costly_one_stored():
    b = Builder()
    x, w = b.input((40, 30)), b.input((30, 20))
    h = b.op("multiply", b.op("exp", x), 2.0)
    y = b.make("matmul", x, w)
    again = b.op("multiply", h, b.make("sum", b.op("multiply", y, y), axes=(0, 1)))
    schedule = fuse.fuse(b.graph(again, b.make("sum", h, axes=(0,)), y))
    stored = [n.op for g in schedule.groups for n in g.stores]
    assert stored.count("multiply") == 1  # the result; h itself is never stored


# Size


@pytest.mark.parametrize("ops", [300, 1200])
def test_a_long_chain_is_cut_into_kernels_of_bounded_size(ops):
    b = Builder()
    x = y = b.input((100,))
    for i in range(ops):
        y = b.op(("add", "multiply", "maximum", "subtract")[i % 4], y, x)
    schedule = fuse.fuse(b.graph(y))
    assert all(len(g.nodes) <= fuse.MAX_OPS for g in schedule.groups)
    assert len(schedule.groups) <= 2 * ops / fuse.MAX_OPS + 1
    assert sum(len(g.nodes) for g in schedule.groups) <= 1.3 * ops


def test_a_value_used_twice_at_every_step_is_not_multiplied():
    """t = sin(t) * 1.01 + t * 0.5, again and again."""

    def work(steps):
        b = Builder()
        t = b.input((100,))
        for _ in range(steps):
            t = b.op("add", b.op("multiply", b.op("sin", t), 1.01), b.op("multiply", t, 0.5))
        kernel = cpu.Program(b.graph(t), jit=False)
        return sum(len(g.nodes) for g in kernel.schedule.groups), {r.text for r in kernel.kernels}

    (once, few), (twice, texts) = work(160), work(320)
    assert twice <= 2.1 * once
    assert len(texts) <= len(few) + 1


def test_many_operands_are_spread_over_kernels():
    b = Builder()
    total = b.input((8,))
    for _ in range(200):
        total = b.op("add", total, b.op("exp", b.input((8,))))
    schedule = fuse.fuse(b.graph(total))
    reads = [
        {space.chain(o)[0] for n in g.nodes for o in n.inputs} - set(g.nodes)
        for g in schedule.groups
    ]
    assert all(
        len(r) + len(g.stores) <= fuse.MAX_SLOTS
        for r, g in zip(reads, schedule.groups, strict=True)
    )


# Schedules


def test_a_schedule_prints_one_group_a_line():
    text = str(fuse.fuse(cross_entropy()))
    assert len(text.splitlines()) == 2
    assert text.splitlines()[0].startswith("  0 row 64 x 50: max subtract exp sum")


def test_groups_that_write_come_after_the_checks():
    b = Builder()
    x, w = b.input((6, 6)), b.input((6, 6))
    g = b.make("matmul", x, x)
    bad = b.make("max", b.op("isnan", b.make("cumsum", b.op("exp", g))), axes=(0, 1))
    new = b.op("subtract", w, g)
    graph = b.graph(writes=((w, new),), checks=(ir.Check(bad, ValueError, "nan"),))
    schedule = fuse.fuse(graph)
    homes = memory.homes(schedule)
    (value,) = homes.direct
    steps = [i for i, group in enumerate(schedule.groups) if value in group.stores]
    assert steps[0] > homes.guard


def test_the_checker_catches_a_wrong_schedule():
    schedule = fuse.fuse(cross_entropy())
    backwards = fuse.Schedule(schedule.legal, schedule.groups[::-1])
    with pytest.raises(ir.IRError, match="before it is stored"):
        fuse.check(backwards)
    with pytest.raises(ir.IRError, match="stored twice"):
        fuse.check(fuse.Schedule(schedule.legal, schedule.groups + schedule.groups[-1:]))
    with pytest.raises(ir.IRError, match="never stored"):
        fuse.check(fuse.Schedule(schedule.legal, schedule.groups[:1]))


# Axes and memory


def views(draw, b, x):
    """A random chain of views above x."""
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("transpose", "reshape", "slice", "window", "broadcast")))
        if kind == "transpose":
            x = b.make("transpose", x, axes=tuple(draw(st.permutations(range(x.ndim)))))
        elif kind == "reshape":
            factors = [f for f in range(1, x.size + 1) if x.size % f == 0]
            rows = draw(st.sampled_from(factors))
            x = b.reshape(
                x, draw(st.sampled_from([(rows, x.size // rows), (rows, 1, x.size // rows)]))
            )
        elif kind == "slice":
            boxes = []
            for n in x.shape:
                start, step = draw(st.integers(0, n - 1)), draw(st.sampled_from((1, 1, -1, 2, -2)))
                most = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
                boxes.append((start, step, draw(st.integers(1, most))))
            x = b.slice(x, *boxes)
        elif kind == "window":
            axis = draw(st.integers(0, x.ndim - 1))
            step, spacing = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            size = draw(st.integers(1, (x.shape[axis] - 1) // spacing + 1))
            most = (x.shape[axis] - 1 - (size - 1) * spacing) // step + 1
            count = draw(st.integers(1, most))
            x = b.make("window", x, axis=axis, count=count, size=size, step=step, spacing=spacing)
        elif x.size < 200:
            x = b.to(x, tuple(3 if n == 1 else n for n in x.shape))
    return x


@given(st.data())
def test_pushing_strides_through_views_finds_the_elements(data):
    """Where an operand has a strided form, that form names its elements in order."""
    b = Builder()
    x = b.input(tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))))
    view = views(data.draw, b, x)
    found = space.strided(view, lambda n: space.contiguous(n.shape))
    if found is None:
        return
    _, dims, offset = found
    pairs = [p for d in dims for p in space.spread(d)]
    steps = itertools.product(*([k * s for k in range(axis.size)] for axis, s in pairs))
    where = [offset + sum(step) for step in steps]
    (want,), _ = interpret(b.graph(view), [np.arange(x.size, dtype="f4").reshape(x.shape)])
    np.testing.assert_array_equal(where, want.ravel())


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_values_that_live_at_the_same_time_do_not_share_bytes(lives):
    requests = [memory.Request(i, n, min(a, b), max(a, b)) for i, (n, a, b) in enumerate(lives)]
    offsets, total = memory.place(requests)
    for r in requests:
        assert offsets[r.name] % memory.ALIGN == 0 and offsets[r.name] + r.size <= total
    for r, s in itertools.combinations(requests, 2):
        if r.first <= s.last and s.first <= r.last:
            low, high = sorted((r, s), key=lambda q: offsets[q.name])
            assert offsets[low.name] + max(low.size, 1) <= offsets[high.name]


def test_an_arena_is_shared_by_values_that_die():
    b = Builder()
    x = b.input((64, 64))
    for _ in range(10):
        x = b.make("matmul", x, x)
    assert cpu.Program(b.graph(x), jit=False).arena_bytes <= 2 * 64 * 64 * 4


def test_numbers_that_one_kernel_reads_are_made_by_one_kernel():
    model = eo.Sequential(eo.Linear(8, 16), eo.Tanh(), eo.Linear(16, 4))
    step = training_step(model, eo.Adam(model.parameters()))
    step.warmup(eo.tensor(np.ones((8, 8), np.float32)))
    groups = step.explain().schedule.groups
    numbers = [g for g in groups if g.kind == "loop" and all(n.size == 1 for n in g.nodes)]
    assert sum("power" in str(g) for g in numbers) == 1
    assert len([g for g in numbers if "cast" in str(g)]) == 1


@pytest.mark.parametrize("scalars", [False, True], ids=["kernels", "a tape"])
@pytest.mark.parametrize("axis", range(3))
def test_an_index_is_read_through_any_views(axis, scalars, monkeypatch):
    """An iota has no memory: what has no strided form over its values is made first."""
    if scalars:
        monkeypatch.setattr(tape, "LENGTH", 1)
    b = Builder()
    index = b.make("iota", shape=(2, 4, 3), axis=axis)
    row = b.make("slice", b.reshape(index, (24,)), starts=(5,), sizes=(11,), steps=(1,))
    one = b.make("slice", index, starts=(1, 2, 1), sizes=(1, 1, 1), steps=(1, 1, 1))
    back = b.make("slice", b.reshape(index, (24,)), starts=(20,), sizes=(1,), steps=(-1,))
    turned = b.make("transpose", index, axes=(2, 0, 1))
    graph = b.graph(row, one, back, turned, b.op("add", back, back))
    want, _ = interpret(graph, [])
    for jit in (False, True):
        for got, expected in zip(cpu.Program(graph, jit=jit)([]), want, strict=True):
            np.testing.assert_array_equal(got, expected)
