"""Kernels: what a compiled program computes, stores and leaves alone, op by op and edge by edge.

Most laws hold for the kernels in plain Python, where every address is checked; a few programs that
contain everything are compiled as well. Random programs are in test_random_programs.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from ir_builder import Builder
from ir_compare import compare

from everyo.compile import code, cpu, fuse, ir, loops, native, plain, program
from everyo.compile.ir import BOOL, F32, F64, I32, I64

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.25, np.nan, np.inf, -np.inf, 1e-3, 0.99, -0.75, 2.0)
INTS = (0, 1, -1, 2, -3, 7, 100, -128, 5, 3, 64, -17, 12, 2)
# Operands at which NumPy, rounding differently, does not jump.
TAME = (0.3, 0.7, -0.4, 0.9, -0.85, 0.11, 0.52, -0.2, 0.66, 0.25, -0.6, 0.8, 0.05, -0.95)
SMOOTH = {
    "exp", "expm1", "log", "log1p", "log2", "log10", "cbrt", "sin", "cos", "tan", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "erf", "sigmoid", "power", "arctan2",
}  # fmt: skip


def samples(dtype, tame=False, shift=0):
    values = (False, True) * 7 if dtype == BOOL else INTS if dtype.kind == "i" else FLOATS
    values = TAME if tame and dtype.kind == "f" else values
    return np.roll(np.array(values).astype(dtype), shift)


def run(graph, arrays, jit=False):
    """(outputs, written) of the compiled graph on copies, compared with the interpreter."""
    live = [cpu.like(np.asarray(a)) for a in arrays]
    outputs = cpu.Program(graph, jit=jit)(live)
    written = [live[graph.inputs.index(t)] for t, _ in graph.writes]
    compare(graph, arrays, (outputs, written))
    return outputs, written


def random(*shape, dtype=F32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Ops


def pointwise(op):
    """(graph, arrays) of one op for all its dtypes, on all pairs of edges."""
    takes = (ir.UNARY.get(op) or ir.BINARY.get(op))[0]
    b, arrays, outputs = Builder(), [], []
    for dtype in (t for t in ir.DTYPES if t.kind in takes):
        n = 1 if op in ir.UNARY else 14
        left = np.concatenate([samples(dtype, op in SMOOTH, k) for k in range(n)])
        right = np.tile(samples(dtype, op in SMOOTH), n)
        if op == "power" and dtype.kind == "i":
            right = abs(right) % 5
        operands = [left] if op in ir.UNARY else [left, right.astype(dtype)]
        operands = [a.astype(dtype) for a in operands]
        if op in ("log", "log2", "log10", "power"):
            operands[0] = abs(operands[0])
        if op in ("maximum", "minimum"):  # NumPy does not say which zero is the larger
            operands = [np.where(a == 0, abs(a), a) if dtype.kind == "f" else a for a in operands]
        arrays += operands
        outputs.append(b.make(op, *[b.input(a.shape, dtype) for a in operands]))
    return b.graph(*outputs), arrays


@pytest.mark.parametrize("op", [*ir.UNARY, *ir.BINARY])
def test_every_pointwise_op_means_what_numpy_means(op):
    run(*pointwise(op))


@pytest.mark.parametrize("ops", [[*ir.UNARY], [*ir.BINARY]], ids=["unary", "binary"])
def test_every_pointwise_op_compiled_means_what_numpy_means(ops):
    for op in ops:
        run(*pointwise(op), jit=True)


@pytest.mark.parametrize("jit", [False, True])
def test_every_cast_and_choice_means_what_numpy_means(jit):
    b, arrays, outputs = Builder(), [], []
    for of in ir.DTYPES:
        values = samples(of)
        arrays.append(values)
        x = b.input(values.shape, of)
        outputs += [
            b.cast(x, to) for to in ir.DTYPES if to == BOOL or of.kind != "f" or to.kind == "f"
        ]
        outputs.append(b.make("where", b.cast(x, BOOL), x, b.to(b.table.const(1, of), x.shape)))
    tame = b.input((6,), F64)
    arrays.append(np.array([0.0, -0.9, 3.99, -7.5, 2.0**31 - 1, -(2.0**31)]))
    outputs += [b.cast(tame, I32), b.cast(tame, I64), b.cast(b.cast(tame, F32), I64)]
    run(b.graph(*outputs), arrays, jit)


def test_a_cast_of_nan_to_an_integer_does_not_crash():
    b = Builder()
    x = b.input((3,), F64)
    for jit in (False, True):
        got = cpu.Program(b.graph(b.cast(x, I32), b.cast(x, I64)), jit=jit)
        assert got([np.array([np.nan, np.inf, -np.inf])])[0].shape == (3,)


REDUCED = [(s, a) for s, a in [
    ((5,), (0,)), ((4, 6), (0,)), ((4, 6), (1,)), ((4, 6), (0, 1)), ((3, 1, 5), (1,)),
    ((3, 4, 5), (0, 2)), ((3, 4, 5), (1,)), ((1, 1), (0, 1)), ((2, 3, 2, 3), (1, 3)),
]]  # fmt: skip


@pytest.mark.parametrize("shape, axes", REDUCED)
def test_every_reduction_of_every_dtype_means_what_numpy_means(shape, axes, monkeypatch):
    monkeypatch.setattr(loops, "BLOCK", 4)
    monkeypatch.setattr(loops, "CHUNK", 4)
    b, arrays, outputs = Builder(), [], []
    for dtype in ir.DTYPES:
        values = np.resize(samples(dtype, tame=True), shape).astype(dtype)
        arrays.append(values)
        x = b.input(shape, dtype)
        for op in (op for op, takes in ir.REDUCTIONS.items() if dtype.kind in takes):
            outputs.append(b.make(op, x, axes=axes))
    run(b.graph(*outputs), arrays)
    if shape == (4, 6):
        run(b.graph(*outputs), arrays, jit=True)


@pytest.mark.parametrize("jit", [False, True])
def test_max_and_sum_keep_nan_and_infinity(jit):
    values = np.zeros((4, 33), "f4")
    values[0, 17], values[1, 3], values[2, 5], values[2, 6] = np.nan, np.inf, np.inf, -np.inf
    b = Builder()
    x = b.input(values.shape)
    graph = b.graph(*(b.make(op, x, axes=(1,)) for op in ("sum", "max", "min")))
    total, top, low = cpu.Program(graph, jit=jit)([values])
    np.testing.assert_array_equal(total, [np.nan, np.inf, np.nan, 0])
    np.testing.assert_array_equal(top, [np.nan, np.inf, np.inf, 0])
    np.testing.assert_array_equal(low, [np.nan, 0, -np.inf, 0])


def test_integer_sums_and_products_wrap_in_their_own_dtype():
    b = Builder()
    x = b.input((3,), I32)
    big = np.array([2**31 - 1, 5, 7], "i4")
    with np.errstate(over="ignore"):
        run(b.graph(b.make("sum", x, axes=(0,)), b.make("prod", x, axes=(0,))), [big], jit=True)


def test_a_difference_of_equal_products_is_zero():
    """No multiplication and addition is contracted into one rounding."""
    b = Builder()
    x, y = b.input((1000,)), b.input((1000,))
    p = b.op("multiply", x, y)
    z = b.op("subtract", b.op("multiply", x, y), b.input((1000,)))
    arrays = [random(1000), random(1000, seed=1)]
    arrays.append(arrays[0] * arrays[1])
    got = cpu.Program(b.graph(z, b.op("subtract", p, p)))(arrays)
    assert not got[0].any() and not got[1].any()


def test_random_draws_are_the_words_of_numpys_generator():
    state = np.array([3, -4, 2**63 - 1, -1, -1, 9])  # the counter carries over
    key, counter = state.view(np.uint64)[:2], state.view(np.uint64)[2:]
    words = np.random.Philox(key=key, counter=counter).random_raw(1001)
    b = Builder()
    s = b.input((6,), I64)
    draws = [b.make("random", s, shape=(7, 143), dtype=t) for t in (F32, F64)]
    for jit in (False, True):
        single, double = cpu.Program(b.graph(*draws), jit=jit)([state])
        np.testing.assert_array_equal(double.ravel(), (words >> np.uint64(11)) * 2.0**-53)
        halves = np.stack([words & np.uint64(2**32 - 1), words >> np.uint64(32)], -1).ravel()[:1001]
        np.testing.assert_array_equal(single.ravel(), (halves >> np.uint64(8)) * 2.0**-24)


@pytest.mark.parametrize("dtype", ir.DTYPES, ids=str)
def test_argsort_is_stable_and_puts_nan_last(dtype):
    b = Builder()
    values = np.resize(samples(dtype), (3, 27))
    graph = b.graph(b.make("argsort", b.input(values.shape, dtype)))
    run(graph, [values], jit=dtype == F32)


@pytest.mark.parametrize("jit", [False, True])
def test_indices_outside_a_table_are_clamped(jit):
    b = Builder()
    table, i = b.input((4, 3)), b.input((5,), I64)
    ids = np.array([-(2**63), -1, 2, 4, 2**63 - 1])
    rows = b.make("take", table, i)
    graph = b.graph(rows, b.make("scatter_add", i, rows, rows=4))
    run(graph, [random(4, 3), ids], jit)


# Accuracy


def sum_error(values, axes):
    """Relative errors of the compiled sum and of NumPy's."""
    b = Builder()
    graph = b.graph(b.make("sum", b.input(values.shape, values.dtype), axes=axes))
    exact = np.sum(values.astype(np.longdouble), axis=axes)
    results = cpu.Program(graph)([values])[0], np.sum(values, axis=axes)
    return [float(np.max(abs((r - exact) / exact))) for r in results]


LONG = [((4_000_000,), (0,)), ((400_000, 10), (0,)), ((7, 100_003), (1,)), ((999, 999), (0, 1))]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("shape, axes", LONG)
def test_sums_are_no_worse_than_numpys(shape, axes, dtype):
    ours, numpys = sum_error(random(*shape, dtype=dtype) ** 2, axes)
    assert ours <= max(1.5 * numpys, 2 * np.finfo(dtype).eps)


# Shapes and layouts


LAYOUTS = {
    "turned": ((5, 7), (1, 5), 0), "backwards": ((5, 7), (-7, -1), 34),
    "every second": ((5, 7), (28, 2), 0), "rows repeated": ((5, 7), (0, 1), 0),
    "one element": ((5, 7), (0, 0), 3), "odd": ((5, 7), (-1, 11), 4),
}  # fmt: skip


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_are_read_with_their_strides(name, jit):
    shape, strides, start = LAYOUTS[name]
    memory = random(200)
    bytes_ = tuple(4 * s for s in strides)
    x = np.ndarray(shape, F32, memory, 4 * start, bytes_)
    b = Builder()
    a, c = b.input(shape, F32, strides), b.input(shape)
    product = b.make("matmul", a, b.swap(c))
    out = b.op("add", a, c)
    graph = b.graph(out, b.reshape(b.swap(a), (35,)), b.make("sum", a, axes=(0,)), product)
    y = random(*shape, seed=1)
    compare(graph, [x, y], (cpu.Program(graph, jit=jit)([x, y]), []))


@pytest.mark.parametrize("jit", [False, True])
def test_strided_inputs_are_written_in_place(jit):
    """The elements between those of a written view stay as they are."""
    memory = random(3, 40)
    before = memory.copy()
    view = memory[::-1, 1:31:3]
    b = Builder()
    x = b.input((3, 10), F32, (-40, 3))
    graph = b.graph(x, writes=((x, b.op("multiply", x, 2.0)),))
    (old,) = cpu.Program(graph, jit=jit)([view])
    np.testing.assert_array_equal(old, before[::-1, 1:31:3])
    before[::-1, 1:31:3] *= 2
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("ndim", [12, 32])
def test_many_dimensions_turned_around(ndim):
    b = Builder()
    shape = (2,) * 12 + (1,) * (ndim - 12)
    x = b.input(shape)
    turned = b.make("transpose", x, axes=tuple(reversed(range(ndim))))
    y = b.op("add", turned, 1.0) if ndim == 12 else b.op("add", b.reshape(turned, (2,) * 12), 1.0)
    kept = b.make("sum", b.op("multiply", y, b.reshape(x, (2,) * 12)), axes=(1, 3, 5, 7, 9, 11))
    run(b.graph(y, kept, turned), [random(*shape)], jit=True)


def many_batch_axes(b):
    axes = (3, 1, 2, 0, 4, 5)
    x, y = (b.make("transpose", b.input((2, 3, 2, 2, *s)), axes=axes) for s in ((4, 5), (5, 3)))
    z = b.make("matmul", x, y)
    turned = b.make("transpose", z, axes=(1, 0, 2, 3, 5, 4))
    return b.op("exp", turned), b.make("sum", z, axes=(0, 2, 4))


def repeated_batch(b):
    return (b.make("matmul", b.to(b.input((1, 4, 5)), (6, 4, 5)), b.input((6, 5, 3))),)


def every_second_axis(b):
    x = b.input((2,) * 10)
    turned = b.make("transpose", x, axes=tuple(reversed(range(10))))
    return (
        b.make("sum", b.op("multiply", x, turned), axes=tuple(range(0, 10, 2))),
        b.make("max", b.op("subtract", x, turned), axes=tuple(range(5))),
    )


def tables_seen_through_views(b):
    t, i = b.input((6, 4, 5)), b.input((3, 2), I64)
    some = b.slice(t, (5, -2, 3), (1, 1, 3), (0, 2, 3))
    tables = b.make("transpose", t, axes=(2, 0, 1)), some, b.reshape(b.swap(t), (3, 40))
    return [b.make("take", table, i) for table in tables]


def reshapes_that_do_not_align(b):
    x = b.input((5, 6))
    y, z = b.reshape(b.swap(x), (5, 6)), b.reshape(b.swap(b.reshape(x, (10, 3))), (5, 6))
    back = b.slice(b.reshape(b.swap(x), (2, 15)), (1, -1, 2), (14, -3, 5))
    return b.op("add", y, z), back, b.make("matmul", y, b.swap(z))


AWKWARD = [
    many_batch_axes, repeated_batch, every_second_axis, tables_seen_through_views,
    reshapes_that_do_not_align,
]  # fmt: skip


@pytest.mark.parametrize("make", AWKWARD)
def test_awkward_views_are_read_right(make):
    b = Builder()
    graph = b.graph(*make(b))
    arrays = [random(*n.shape) if n.dtype == F32 else np.arange(-2, 4) for n in graph.inputs]
    run(graph, [a.reshape(n.shape) for a, n in zip(arrays, graph.inputs, strict=True)])


def test_nothing_is_computed_from_nothing():
    b = Builder()
    x, none = b.input((3, 0)), b.input((0,), F64)
    piece = b.slice(x, (0, 1, 2), (0, 1, 0))
    halves = b.make("sum", b.reshape(x, (0, 2, 2)), axes=(2,))
    graph = b.graph(
        b.make("sum", x, axes=(1,)), b.make("prod", x, axes=(1,)), b.make("max", x, axes=(0,)),
        b.make("matmul", x, b.swap(x)), b.make("matmul", b.swap(x), x), b.op("exp", none), none,
        b.make("cumsum", x), b.make("argsort", none), b.reshape(x, (0, 7)),
        b.make("sum", b.op("add", none, 1.0), axes=(0,)),
        b.make("assemble", x, piece, starts=((0, 0),), steps=((1, 1),)),
        b.make("scatter_add", b.input((0,), I64), halves, rows=4),
        writes=((none, b.op("negative", none)),),
    )  # fmt: skip
    arrays = [np.ones((3, 0), "f4"), np.ones(0), np.ones(0, "i8")]
    run(graph, arrays)
    run(graph, arrays, jit=True)


def test_scalars_and_literals_are_results():
    b = Builder()
    x = b.input((), F64)
    one = b.table.const(1.5, F64)
    filled = b.to(b.table.const(True, BOOL), (2, 3))
    graph = b.graph(one, x, b.op("add", x, one), filled, b.iota((2, 3), 1), one)
    run(graph, [np.array(2.0)], jit=True)


def test_outputs_belong_to_the_caller():
    b = Builder()
    x = b.input((6, 4))
    y = b.op("exp", x)
    graph = b.graph(x, b.swap(x), y, y, b.reshape(y, (24,)), b.slice(x, (1, 2, 2), (0, 1, 4)))
    array = random(6, 4)
    kernel = cpu.Program(graph)
    outputs = kernel([array])
    kept = [o.copy() for o in outputs]
    for i, o in enumerate(outputs):
        assert o.flags.owndata and o.flags.c_contiguous
        assert not any(np.shares_memory(o, p) for p in [array, *outputs[:i]])
    kernel([array + 1])
    for o, k in zip(outputs, kept, strict=True):
        np.testing.assert_array_equal(o, k)


# What keeps the compiler honest


def test_a_plain_kernel_cannot_leave_its_arrays():
    here = np.zeros(4, "f4")
    plain.MEMORY.allow([(here.ctypes.data, here.ctypes.data + here.nbytes)])
    p = plain.Pointer(here.ctypes.data, "f32")
    plain.store(p, 3, np.float32(1))
    assert plain.load(p, 3) == 1
    for i in (-1, 4):
        with pytest.raises(IndexError, match="outside the memory"):
            plain.load(p, i)
    with pytest.raises(TypeError, match="stored as"):
        plain.store(p, 0, np.float64(1))


def kernel_of(build):
    b = Builder()
    schedule = fuse.fuse(b.graph(*build(b)))
    return loops.lower(schedule.groups[0], schedule.legal.layout)


def wrong_kernels():
    """(what is wrong, kernel) pairs, each one change away from a right kernel."""
    right = kernel_of(
        lambda b: [b.op("exp", b.input((20, 30))), b.make("sum", b.input((20, 30)), axes=(1,))]
    )
    program.check(right)
    v = program.Let("v99", "exp", ("nobody",), F32, F32)
    yield "unknown name", replace(right, body=(*right.body, v))
    twice = program.Address("h99", program.Index())
    yield "assigned twice", replace(right, body=(*right.body, twice, twice))
    outside = program.Load("v99", len(right.slots), program.Index())
    yield "no slot", replace(right, body=(*right.body, outside))
    other = program.Store(0, program.Index(), program.Literal(1, I64))
    yield "dtype", replace(right, body=(*right.body, other))
    index = program.Load("v98", 0, program.Index((("c77", 1),)))
    yield "not an index", replace(right, body=(*right.body, index))
    mixed = program.Let(
        "v97", "add", (program.Literal(1.0, F32), program.Literal(1.0, F64)), F32, F32
    )
    yield "operands", replace(right, body=(*right.body, mixed))


@pytest.mark.parametrize(
    "what, kernel", list(wrong_kernels()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_the_checker_catches_a_wrong_kernel(what, kernel):
    with pytest.raises(ir.IRError, match=what):
        program.check(kernel)


def test_the_checker_catches_arrays_that_do_not_fit(monkeypatch):
    monkeypatch.setenv("EVERYO_CHECK", "1")
    b = Builder()
    kernel = cpu.Program(b.graph(b.op("negative", b.input((3, 4)))), jit=False)
    for wrong in (np.zeros((4, 3), "f4"), np.zeros((3, 4)), np.zeros((4, 3), "f4").T):
        with pytest.raises(ir.IRError):
            kernel([wrong])
    with pytest.raises(ir.IRError, match="not all arrays"):
        cpu.Program(b.graph(b.op("negative", b.input(()))), jit=False)(
            [np.zeros((3, 4), "f4"), np.float32(1)]
        )


def test_kernels_print_as_loops():
    text = str(kernel_of(lambda b: [b.softmax(b.input((40, 20)))]))
    assert "grid r in low..high:" in text
    assert "inner c0 in 0..n0:" in text
    assert text.startswith("slot0: array f32")


def test_every_native_text_compiles():
    for text in (native.EXECUTOR, *(native.copy_text(t) for t in ir.DTYPES)):
        assert code.NATIVE.function(text).address
