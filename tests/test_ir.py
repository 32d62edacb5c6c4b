"""The IR: what each op gives and refuses, interning, printing, checking, and the interpreter."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from ir_builder import Builder
from ir_compare import compare, same_bits
from ir_drawer import SIZES
from ir_programs import programs, random_graph

from everyo.compile import ir, passes
from everyo.compile.interpret import interpret
from everyo.compile.ir import BOOL, F32, F64, I32, I64, Graph, IRError, Table

# op, operands (shape, dtype), params, result (shape, dtype)
GIVES = [
    ("negative", [((2, 3), I32)], {}, ((2, 3), I32)),
    ("exp", [((2, 0), F32)], {}, ((2, 0), F32)),
    ("isnan", [((), F64)], {}, ((), BOOL)),
    ("logical_not", [((4,), BOOL)], {}, ((4,), BOOL)),
    ("add", [((4,), F64)] * 2, {}, ((4,), F64)),
    ("less", [((4,), BOOL)] * 2, {}, ((4,), BOOL)),
    ("where", [((4,), BOOL), ((4,), I32), ((4,), I32)], {}, ((4,), I32)),
    ("cast", [((4,), BOOL)], {"dtype": F32}, ((4,), F32)),
    ("iota", [], {"shape": (2, 3), "axis": 1}, ((2, 3), I64)),
    ("take", [((5, 2), F32), ((3, 4), I64)], {}, ((3, 4, 2), F32)),
    ("reshape", [((2, 6), F32)], {"shape": (3, 1, 4)}, ((3, 1, 4), F32)),
    ("transpose", [((2, 3, 4), F32)], {"axes": (2, 0, 1)}, ((4, 2, 3), F32)),
    ("broadcast", [((1, 3), F32)], {"shape": (0, 3)}, ((0, 3), F32)),
    ("slice", [((7,), F32)], {"starts": (6,), "steps": (-3,), "sizes": (3,)}, ((3,), F32)),
    ("slice", [((7,), F32)], {"starts": (9,), "steps": (1,), "sizes": (0,)}, ((0,), F32)),
    (
        "window", [((2, 8), F32)],
        {"axis": 1, "count": 2, "size": 3, "step": 3, "spacing": 2}, ((2, 2, 3), F32),
    ),
    ("sum", [((2, 3, 4), F32)], {"axes": (0, 2)}, ((3,), F32)),
    ("max", [((2, 3), BOOL)], {"axes": (0, 1)}, ((), BOOL)),
    ("matmul", [((5, 2, 3), F64), ((5, 3, 4), F64)], {}, ((5, 2, 4), F64)),
    ("scatter_add", [((3,), I64), ((3, 2), F32)], {"rows": 7}, ((7, 2), F32)),
    ("scatter_add", [((), I64), ((2,), I32)], {"rows": 1}, ((1, 2), I32)),
    (
        "assemble", [((4, 2), F32), ((2, 2), F32)], {"starts": ((3, 0),), "steps": ((-2, 1),)},
        ((4, 2), F32),
    ),
    ("cumsum", [((2, 3), I32)], {}, ((2, 3), I32)),
    ("argsort", [((2, 3), BOOL)], {}, ((2, 3), I64)),
    ("random", [((6,), I64)], {"shape": (2, 2), "dtype": F32}, ((2, 2), F32)),
]  # fmt: skip

# op, operands, params: what inference refuses
REFUSES = [
    ("negative", [((2,), BOOL)], {}),
    ("exp", [((2,), I64)], {}),
    ("logical_not", [((2,), F32)], {}),
    ("exp", [((2,), F32)] * 2, {}),
    ("add", [((2,), F32)], {}),
    ("add", [((2,), F32), ((2,), F64)], {}),
    ("add", [((2,), F32), ((1,), F32)], {}),
    ("add", [((2,), BOOL)] * 2, {}),
    ("divide", [((2,), I64)] * 2, {}),
    ("logical_and", [((2,), I64)] * 2, {}),
    ("where", [((2,), I32), ((2,), F32), ((2,), F32)], {}),
    ("where", [((2,), BOOL), ((2,), F32), ((2,), F64)], {}),
    ("where", [((1,), BOOL), ((2,), F32), ((2,), F32)], {}),
    ("cast", [((2,), F32)], {"dtype": F32}),
    ("cast", [((2,), F32)], {"dtype": np.dtype("int8")}),
    ("iota", [], {"shape": (2,), "axis": 1}),
    ("take", [((2,), F32), ((2,), I32)], {}),
    ("take", [((), F32), ((2,), I64)], {}),
    ("reshape", [((2, 3), F32)], {"shape": (5,)}),
    ("transpose", [((2, 3), F32)], {"axes": (0, 0)}),
    ("broadcast", [((2, 3), F32)], {"shape": (4, 3)}),
    ("broadcast", [((3,), F32)], {"shape": (4, 3)}),
    ("slice", [((7,), F32)], {"starts": (5,), "steps": (1,), "sizes": (3,)}),
    ("slice", [((7,), F32)], {"starts": (1,), "steps": (-1,), "sizes": (3,)}),
    ("slice", [((7,), F32)], {"starts": (1,), "steps": (0,), "sizes": (1,)}),
    ("window", [((7,), F32)], {"axis": 0, "count": 2, "size": 3, "step": 3, "spacing": 2}),
    ("window", [((7,), F32)], {"axis": 0, "count": 0, "size": 3, "step": 1, "spacing": 1}),
    ("window", [((7,), F32)], {"axis": 1, "count": 1, "size": 1, "step": 1, "spacing": 1}),
    ("sum", [((2, 3), F32)], {"axes": ()}),
    ("sum", [((2, 3), F32)], {"axes": (1, 0)}),
    ("sum", [((2, 3), F32)], {"axes": (2,)}),
    ("sum", [((2, 3), BOOL)], {"axes": (0,)}),
    ("matmul", [((2, 3), F32), ((2, 3), F32)], {}),
    ("matmul", [((2, 3), I64), ((3, 2), I64)], {}),
    ("matmul", [((4, 2, 3), F32), ((3, 2), F32)], {}),
    ("scatter_add", [((3,), I64), ((2, 2), F32)], {"rows": 7}),
    ("scatter_add", [((3,), I64), ((3,), BOOL)], {"rows": 7}),
    ("assemble", [((4,), F32)], {"starts": (), "steps": ()}),
    ("assemble", [((4,), F32), ((3,), F32)], {"starts": ((2,),), "steps": ((1,),)}),
    ("assemble", [((4,), F32), ((3,), F64)], {"starts": ((0,),), "steps": ((1,),)}),
    ("cumsum", [((), F32)], {}),
    ("argsort", [((), F32)], {}),
    ("random", [((5,), I64)], {"shape": (), "dtype": F32}),
    ("random", [((6,), I64)], {"shape": (), "dtype": I64}),
    ("fused_softmax", [((2,), F32)], {}),
]


def name_of(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("op", "operands", "params", "result"), GIVES, ids=name_of)
def test_every_op_infers_shape_and_dtype(op, operands, params, result):
    table = Table()
    node = table.make(op, *[table.input(*o) for o in operands], **params)
    assert (node.shape, node.dtype) == result


@pytest.mark.parametrize(("op", "operands", "params"), REFUSES, ids=name_of)
def test_every_op_refuses_what_it_has_no_meaning_for(op, operands, params):
    table = Table()
    nodes = [table.input(*o) for o in operands]
    with pytest.raises(IRError):
        table.make(op, *nodes, **params)


def test_the_tables_name_every_op():
    ops = {op for op, *_ in GIVES}
    named = {"where", "cast", "take"} | ir.VIEWS | ir.OPAQUE | {"iota"}
    named -= {"scan"}  # see test_roll
    assert named <= ops
    assert ir.POINTWISE >= {*ir.UNARY, *ir.BINARY}


# Interning


def test_equal_nodes_are_one_node():
    table = Table()
    x = table.input((2,), F32)
    assert table.make("exp", x) is table.make("exp", x)
    assert table.make("reshape", x, shape=(2, 1)) is table.make("reshape", x, shape=(2, 1))
    assert table.make("reshape", x, shape=(2, 1)) is not table.make("reshape", x, shape=(1, 2))
    assert table.input((2,), F32) is not x


LITERALS = [
    (1, I64), (1, I32), (True, BOOL), (1.0, F32), (1.0, F64), (0.0, F64), (-0.0, F64), (0, I64),
    (False, BOOL), (math.nan, F64), (math.nan, F32), (math.inf, F64), (-math.inf, F64), (0.1, F32),
    (0.1, F64),
]  # fmt: skip


def test_constants_that_compare_equal_are_distinct_nodes():
    table = Table()
    nodes = [table.const(v, d) for v, d in LITERALS]
    assert len({*nodes}) == len(LITERALS)
    assert [table.const(v, d) for v, d in LITERALS] == nodes
    for node, (value, dtype) in zip(nodes, LITERALS, strict=True):
        (got,), _ = interpret(Graph("literal", (), (node,)), [])
        np.testing.assert_array_equal(got, np.asarray(value, dtype))
        assert got.dtype == dtype
        assert np.signbit(float(got)) == np.signbit(value)


# Long graphs


def long_chain(length):
    b = Builder()
    x = y = b.input((2,))
    for i in range(length):
        y = b.make("add" if i % 2 else "subtract", y, x)
    return b.graph(y)


def test_no_walk_recurses():
    graph = long_chain(100_000)
    assert len(ir.walk(graph.roots)) == 100_001
    ir.check(graph)
    assert str(graph).count("\n") == 100_002
    np.testing.assert_array_equal(interpret(graph, [np.ones(2, "f")])[0][0], np.ones(2, "f"))
    assert len(ir.walk(passes.run(long_chain(20_000)).roots)) == 20_001


# Printing and checking


def test_a_graph_prints_its_nodes_lines_writes_and_checks():
    b = Builder()
    x = b.input((2, 3), F32, strides=(1, 2))
    t = b.input((), I64)
    y = b.reduce("sum", b.op("multiply", x, 2.0), (1,))
    bad = b.op("less", t, 0)
    graph = b.graph(
        y, b.make("cast", y, dtype=F64), name="step",
        writes=((t, b.op("add", t, 1)),),
        checks=(ir.Check(bad, ValueError, "t is negative"),),
        lines={y: "model.py:7"},
    )  # fmt: skip
    assert str(graph) == (
        "graph step:\n"
        "  %0: float32[2,3] = input(dtype=float32, index=0, strides=(1, 2))\n"
        "  %1: int64[] = input(dtype=int64, index=1)\n"
        "  %2: float32[] = const(dtype=float32, value=2.0)\n"
        "  %3: float32[1,1] = reshape(%2)\n"
        "  %4: float32[2,3] = broadcast(%3)\n"
        "  %5: float32[2,3] = multiply(%0, %4)\n"
        "  %6: float32[2] = sum(%5, axes=(1,))   # model.py:7\n"
        "  %7: float64[2] = cast(%6, dtype=float64)\n"
        "  %8: int64[] = const(dtype=int64, value=1)\n"
        "  %9: int64[] = add(%1, %8)\n"
        "  %10: int64[] = const(dtype=int64, value=0)\n"
        "  %11: bool[] = less(%1, %10)\n"
        "  write %1 <- %9\n"
        "  check %11: ValueError: t is negative\n"
        "  return %6, %7"
    )
    ir.check(graph)


def test_check_refuses_a_broken_graph():
    b = Builder()
    x, y = b.input((2,)), b.input((2,))
    z = b.op("add", x, y)
    wrong = replace(z, shape=(3,))
    always = ir.Check(z, ValueError, "")
    broken = {
        "inference": b.graph(wrong),
        "below": b.graph(b.make("exp", wrong)),
        "input": Graph("g", (x,), (z,)),
        "target": b.graph(z, writes=((z, z),)),
        "dtype": b.graph(z, writes=((x, b.cast(z, F64)),)),
        "twice": b.graph(z, writes=((x, z), (x, z))),
        "check": b.graph(z, checks=(always,)),
    }
    for what, graph in broken.items():
        with pytest.raises(IRError):
            ir.check(graph)
            pytest.fail(what)


# The interpreter


def one(b, node, *arrays, **options):
    (out,), _ = interpret(b.graph(node), arrays, **options)
    return out


FLOATS = np.array([-np.inf, -2.5, -1.0, -0.0, 0.0, 0.3, 1.0, 2.5, np.inf, np.nan])
INTS = np.array([-(2**31), -7, -1, 0, 1, 2, 7, 2**31 - 1])
EDGES = {
    F32: FLOATS.astype(F32), F64: FLOATS, I32: INTS.astype(I32), I64: INTS * 2**32 + INTS,
    BOOL: np.array([False, True]),
}  # fmt: skip


@pytest.mark.parametrize("op", [*ir.UNARY, *ir.BINARY])
def test_pointwise_ops_mean_what_numpy_means(op):
    own = {"erf": np.vectorize(math.erf, otypes=[float]), "sigmoid": lambda x: 1 / (1 + np.exp(-x))}
    takes, _ = ir.UNARY.get(op) or ir.BINARY[op]
    for dtype, x in EDGES.items():
        if dtype.kind not in takes:
            continue
        a, c = (v.ravel() for v in np.meshgrid(x, x))
        if op == "power" and dtype.kind == "i":
            c = abs(c) % 5
        args = (a,) if op in ir.UNARY else (a, c)
        b = Builder()
        got = one(b, b.make(op, *[b.input(a.shape, dtype) for _ in args]), *args)
        with np.errstate(all="ignore"):
            want = (own.get(op) or getattr(np, op))(*args)
        if op in own:
            np.testing.assert_allclose(got, want.astype(dtype), rtol=4 * np.finfo(dtype).eps)
        else:
            np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype or op in own


def test_sigmoid_does_not_overflow_and_erf_is_accurate():
    b = Builder()
    x = b.input((4,), F64)
    points = np.array([-800.0, -1.0, 1.0, 800.0])
    np.testing.assert_allclose(
        one(b, b.op("sigmoid", x), points), [0, 0.2689414213699951, 0.7310585786300049, 1]
    )
    np.testing.assert_allclose(
        one(b, b.op("erf", x), points), [-1, -0.8427007929497149, 0.8427007929497149, 1], rtol=1e-15
    )


def test_random_is_numpys_philox():
    b = Builder()
    state = b.input((6,), I64)
    draws = [b.make("random", state, shape=(5, 2), dtype=d) for d in (F64, F32)]
    words = np.array([7, -3, 2**63 - 1, -1, -1, 5])  # the counter carries over two words
    raw = words.view(np.uint64)
    ((wide, narrow), _) = interpret(b.graph(*draws), [words])
    bits = np.random.Philox(key=raw[:2], counter=raw[2:]).random_raw(10).reshape(5, 2)
    np.testing.assert_array_equal(wide, (bits >> np.uint64(11)) * 2.0**-53)
    halves = [int(h) >> 8 for w in bits.ravel()[:5] for h in (int(w) % 2**32, int(w) >> 32)]
    np.testing.assert_array_equal(narrow.ravel(), np.array(halves) * 2.0**-24)
    generator = np.random.Generator(np.random.Philox(key=raw[:2], counter=raw[2:]))
    np.testing.assert_array_equal(wide, generator.random((5, 2)))


def test_take_and_scatter_add_clamp_their_indices():
    b = Builder()
    table, index = b.input((3,), F32), b.input((4,), I64)
    updates = b.input((4,), F32)
    values = np.array([10, 20, 30], "f"), np.array([-5, 1, 2, 9]), np.array([1, 2, 4, 8], "f")
    outputs = b.make("take", table, index), b.make("scatter_add", index, updates, rows=3)
    (taken, added), _ = interpret(b.graph(*outputs), values)
    np.testing.assert_array_equal(taken, [10, 20, 30, 30])
    np.testing.assert_array_equal(added, [1, 2, 12])


def test_later_pieces_of_an_assembly_hide_earlier_ones():
    b = Builder()
    base, piece = b.input((5,), I64), b.input((3,), I64)
    node = b.make("assemble", base, piece, piece, starts=((4,), (0,)), steps=((-2,), (1,)))
    np.testing.assert_array_equal(one(b, node, np.zeros(5, int), np.arange(1, 4)), [1, 2, 3, 0, 1])


def test_a_check_that_fires_raises_its_error():
    b = Builder()
    x = b.input((3,))
    bad = b.reduce("max", b.op("isnan", x), (0,))
    graph = b.graph(x, checks=(ir.Check(bad, FloatingPointError, "x has NaN"),))
    interpret(graph, [np.ones(3, "f")])
    with pytest.raises(FloatingPointError, match="x has NaN"):
        interpret(graph, [np.array([1, np.nan, 2], "f")])


def test_real_computes_every_float_in_that_dtype():
    b = Builder()
    x = b.input((1,))
    y = b.op("subtract", b.op("add", x, 1e-9), 1.0)
    assert one(b, y, np.ones(1, "f")) == 0
    wide = one(b, y, np.ones(1, "f"), real=np.float64)
    assert wide.dtype == F64
    assert wide == pytest.approx(1e-9, rel=1e-6)


@given(programs("wild"))
@settings(max_examples=150, deadline=None)
def test_interpreting_leaves_the_inputs_alone_and_returns_fresh_arrays(case):
    graph, arrays = case.build()
    ir.check(graph)
    before = [a.copy() for a in arrays]
    outputs, writes = interpret(graph, arrays)
    for node, value in zip(
        (*graph.outputs, *(v for _, v in graph.writes)), outputs + writes, strict=True
    ):
        assert (value.shape, value.dtype) == (node.shape, node.dtype)
        assert not any(np.shares_memory(value, a) for a in arrays)
    for a, kept in zip(arrays, before, strict=True):
        assert same_bits(a, kept)


# The random programs themselves


def test_random_programs_reach_every_op_layout_and_size():
    ops, sizes, layouts = set(), set(), set()
    for mood in ("tame", "exact", "wild"):
        for seed in range(250):
            graph, _ = random_graph(seed, mood=mood)
            order = ir.walk(graph.roots)
            ops |= {n.op for n in order}
            sizes |= {s for n in order for s in n.shape}
            layouts |= {
                np.sign(s) for n in order if n.op == "input" for s in n.param("strides") or ()
            }
    every = ir.POINTWISE | ir.VIEWS | {*ir.REDUCTIONS} | ir.LEAVES | ir.OPAQUE
    every -= {"scan"}  # see test_roll
    assert every <= ops
    assert {*SIZES} <= sizes
    assert layouts == {-1, 0, 1}


def test_a_shorter_random_program_is_a_prefix():
    long, short = (random_graph(5, ops)[0] for ops in (12, 6))
    names = [(n.op, n.shape, n.dtype) for n in sorted(ir.walk(short.inputs), key=lambda n: n.index)]
    assert names == [(n.op, n.shape, n.dtype) for n in long.inputs[: len(names)]]


@given(programs("tame"))
@settings(max_examples=150, deadline=None)
def test_the_comparison_accepts_the_interpreter_and_refuses_an_error(case):
    graph, arrays = case.build()
    outputs, writes = interpret(graph, arrays)
    compare(graph, arrays, (outputs, writes))
    if any(n.dtype == ir.F16 for n in ir.walk(graph.roots)):
        return  # an error of 1 may be rounding where halves are added
    for i, value in enumerate(outputs):
        if not value.size:
            continue
        wrong = value.copy()
        wrong.flat[-1] = (
            not wrong.flat[-1]
            if value.dtype == BOOL
            else wrong.flat[-1] + 1 + abs(wrong.flat[-1]) // 8
        )
        with pytest.raises(AssertionError):
            compare(graph, arrays, ([*outputs[:i], wrong, *outputs[i + 1 :]], writes))
