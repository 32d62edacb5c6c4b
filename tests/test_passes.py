"""Passes and rules: each keeps every bit of every value, and does what it is for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from ir_builder import Builder
from ir_compare import assert_same_bits, same_bits
from ir_programs import programs, random_graph

from everyo.compile import ir, joining, passes, rules, sums
from everyo.compile.interpret import interpret
from everyo.compile.ir import BOOL, F32, F64, I32, I64, Graph, Node

PASSES = {
    **{
        rule.__name__: lambda graph, rule=rule: passes.rewrite(graph, rule) for rule in passes.RULES
    },
    **{step.__name__: step for step in passes.PIPELINE},
    **{
        rule.__name__: lambda graph, rule=rule: passes.rewrite(graph, rule)
        for rule in (joining.nested_pieces, joining.parts_in_a_row)
    },
    "run": passes.run,
}


@pytest.mark.parametrize("mood", ["tame", "wild"])
@pytest.mark.parametrize("name", PASSES)
def test_every_pass_preserves_meaning(name, mood):
    @given(programs(mood, ops=20))
    @settings(max_examples=60, deadline=None)
    def law(case):
        graph, arrays = case.build()
        after = PASSES[name](graph)
        ir.check(after)
        assert_same_bits(interpret(after, arrays), interpret(graph, arrays), f"{case!r}{after}")

    law()


@pytest.mark.slow
def test_every_pass_preserves_meaning_on_many_programs():
    for seed in range(20_000):
        for mood in ("tame", "exact", "wild"):
            graph, arrays = random_graph(seed, 20, mood)
            want = interpret(graph, arrays)
            for name, step in PASSES.items():
                assert_same_bits(interpret(step(graph), arrays), want, (name, seed, mood))


# Wrong rules, each true for real numbers


def drop_plus_zero(node, make):
    return node.inputs[0] if node.op == "add" and rules.literal(node.inputs[1]) == 0 else None


def times_zero(node, make):
    zero = node.op == "multiply" and rules.literal(node.inputs[1]) == 0
    return rules.full(make, 0, node) if zero else None


def minus_itself(node, make):
    same = node.op == "subtract" and node.inputs[0] is node.inputs[1]
    return rules.full(make, 0, node) if same else None


def zero_minus(node, make):
    zero = node.op == "subtract" and rules.literal(node.inputs[0]) == 0
    return make("negative", node.inputs[1]) if zero else None


def times_a_third(node, make):
    third = node.op == "divide" and rules.literal(node.inputs[1]) == 3
    return make("multiply", node.inputs[0], rules.full(make, 1 / 3, node)) if third else None


def swapped_subtract(node, make):
    x, y = (*node.inputs, None, None)[:2]
    return make("subtract", y, x) if node.op == "subtract" and x.index > y.index else None


def not_less(node, make):
    less = node.op == "logical_not" and node.inputs[0].op == "less"
    return make("greater_equal", *node.inputs[0].inputs) if less else None


def any_cast_chain(node, make):
    chain = node.op == "cast" and node.inputs[0].op == "cast"
    source = node.inputs[0].inputs[0] if chain else None
    return make("cast", source, dtype=node.dtype) if chain and source.dtype != node.dtype else None


def slices_swap(node, make):
    if node.op != "slice" or node.inputs[0].op != "slice":
        return None
    inner = dict(node.inputs[0].params)
    add = [a + b for a, b in zip(inner["starts"], node.param("starts"), strict=True)]
    steps = node.inputs[0].param("steps")
    return make("slice", node.inputs[0].inputs[0], starts=tuple(add), steps=steps, sizes=node.shape)


def first_piece_wins(node, make):
    whole = node.op == "assemble" and node.inputs[1].shape == node.shape
    return node.inputs[1] if whole else None


WRONG = [
    drop_plus_zero, times_zero, minus_itself, zero_minus, times_a_third, swapped_subtract, not_less,
    any_cast_chain, slices_swap, first_piece_wins,
]  # fmt: skip


@pytest.mark.parametrize("rule", WRONG, ids=lambda r: r.__name__)
def test_a_wrong_pass_is_caught(rule):
    for seed in range(5000):
        graph, arrays = random_graph(seed, 14, "wild")
        try:
            after = passes.rewrite(graph, rule)
            results = interpret(after, arrays), interpret(graph, arrays)
            if not all(map(same_bits, *([*outputs, *writes] for outputs, writes in results))):
                return
        except ir.IRError:
            return
    pytest.fail("5000 random programs did not tell")


# What must stay, and what must go


ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 5e-324, 1e-310, 1e16, 1.7e308, 0.1])
ODD32 = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 1e-45, 1e-39, 1e16, 3e38, 0.1], F32
)

STAYS = [
    ("multiply", "x", 0.0), ("subtract", "x", "x"), ("divide", "x", "x"), ("add", "x", 0.0),
    ("subtract", 0.0, "x"), ("multiply", 0.0, "x"), ("divide", "x", 3.0), ("divide", "x", 0.0),
    ("divide", "x", math.inf), ("divide", "x", 2.0**-1074), ("divide", "x", 2.0**1023),
    ("power", "x", 0.5), ("power", "x", 3.0), ("power", 1.0, "x"), ("equal", "x", "x"),
    ("less_equal", "x", "x"), ("maximum", "x", math.inf), ("maximum", "x", -0.0),
    ("minimum", 0.0, "x"), ("add", "x", math.nan), ("floor_divide", "x", 1.0),
    ("remainder", "x", 1.0), ("arctan2", 0.0, "x"),
]  # fmt: skip


def apply(form, dtype, shape):
    """The graph of one op on x and literals."""
    b = Builder()
    x = b.input(shape, dtype)
    args = [x if a == "x" else a for a in form[1:]]
    if "x" not in form[1:]:
        raise ValueError(form)
    return b.graph(b.op(form[0], *args))


@pytest.mark.parametrize("form", STAYS, ids=str)
def test_algebra_that_is_only_true_for_real_numbers_is_left_alone(form):
    graph = passes.run(apply(form, F64, ODD.shape))
    assert form[0] in {n.op for n in ir.walk(graph.roots)}
    assert_same_bits(interpret(graph, [ODD]), interpret(apply(form, F64, ODD.shape), [ODD]), graph)


# form, dtype, the ops that remain (literals and views left out)
GOES = [
    (("multiply", "x", 1.0), F64, []),
    (("multiply", 1.0, "x"), F32, []),
    (("divide", "x", 1.0), F64, []),
    (("subtract", "x", 0.0), F64, []),
    (("add", "x", -0.0), F64, []),
    (("add", "x", 0), I64, []),
    (("subtract", -0.0, "x"), F64, ["negative"]),
    (("subtract", 0, "x"), I64, ["negative"]),
    (("multiply", "x", -1.0), F64, ["negative"]),
    (("multiply", "x", 0), I64, []),
    (("subtract", "x", "x"), I64, []),
    (("divide", "x", 4.0), F64, ["multiply"]),
    (("divide", "x", -0.125), F32, ["multiply"]),
    (("divide", "x", 2.0**1022), F64, ["multiply"]),
    (("floor_divide", "x", 1), I64, []),
    (("remainder", "x", 1), I64, []),
    (("power", "x", 2), I64, ["multiply"]),
    (("maximum", "x", -math.inf), F64, []),
    (("minimum", "x", "x"), F64, []),
    (("equal", "x", "x"), I64, []),
    (("less", "x", "x"), F64, []),
    (("logical_and", "x", True), BOOL, []),
    (("logical_or", "x", True), BOOL, []),
    (("logical_xor", "x", "x"), BOOL, []),
    (("logical_xor", True, "x"), BOOL, ["logical_not"]),
    (("equal", "x", True), BOOL, []),
    (("not_equal", "x", True), BOOL, ["logical_not"]),
    (("copy", "x"), F32, []),
]


def computed(graph: Graph) -> list[str]:
    return [n.op for n in ir.walk(graph.roots) if n.op not in ir.VIEWS | ir.LEAVES]


@pytest.mark.parametrize(("form", "dtype", "left"), GOES, ids=str)
def test_identities_that_hold_for_every_value_are_used(form, dtype, left):
    values = {
        F64: ODD, F32: ODD32, BOOL: np.array([True, False]),
        I64: np.array([0, 1, -1, 7, -(2**63), 2**63 - 1]),
    }[dtype]  # fmt: skip
    before = apply(form, dtype, values.shape)
    after = passes.run(before)
    assert computed(after) == left
    assert_same_bits(interpret(after, [values]), interpret(before, [values]), after)


def chain(*steps):
    """x through a chain of unary ops, casts and views."""
    b = Builder()
    y = x = b.input((4, 1, 3), F64)
    for op, params in steps:
        y = b.make(op, y, **params)
    return b, x, y


CAST = {d.name: ("cast", {"dtype": d}) for d in ir.DTYPES}
NEG, ABS, RINT, FLOOR = (("negative", {}), ("abs", {}), ("rint", {}), ("floor", {}))
CHAINS = [
    ([NEG, NEG], []),
    ([NEG, ABS, ABS], ["abs"]),
    ([RINT, FLOOR], ["rint"]),
    ([CAST["float32"], CAST["float64"], CAST["float32"]], ["cast"]),
    ([CAST["float32"], CAST["float64"]], ["cast", "cast"]),
    ([CAST["bool"], CAST["int32"], CAST["float32"], CAST["float64"]], ["cast", "cast"]),
    ([CAST["bool"], CAST["int64"], CAST["bool"]], ["cast"]),
    ([("isnan", {}), ("logical_not", {}), ("logical_not", {})], ["isnan"]),
    ([("reshape", {"shape": (12,)}), ("reshape", {"shape": (4, 1, 3)})], []),
    ([("transpose", {"axes": (2, 0, 1)}), ("transpose", {"axes": (1, 2, 0)})], []),
    ([("sum", {"axes": (1,)})], ["add"]),
    ([("max", {"axes": (1,)})], []),
    ([("prod", {"axes": (0, 1)})], ["prod"]),
    ([("max", {"axes": (2,)}), ("max", {"axes": (0,)})], ["max"]),
    ([("sum", {"axes": (2,)}), ("sum", {"axes": (0,)})], ["sum", "sum"]),
]


@pytest.mark.parametrize(("steps", "left"), CHAINS, ids=lambda v: "-".join(map(str, v))[:60])
def test_chains_collapse_where_nothing_is_lost(steps, left):
    b, _, y = chain(*steps)
    after = passes.run(b.graph(y))
    assert computed(after) == left
    x = np.random.default_rng(0).standard_normal((4, 1, 3))
    assert_same_bits(interpret(after, [x]), interpret(b.graph(y), [x]), after)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(
    ("exponent", "left"), [(0, []), (1, []), (2, ["multiply"]), (-1, ["divide"])]
)
def test_small_powers_stay_within_an_ulp(exponent, left, dtype):
    b = Builder()
    x = b.input((2000,), dtype)
    graph = b.graph(b.op("power", x, exponent))
    values = np.random.default_rng(0).standard_normal(2000).astype(dtype) * 100
    values[: len(ODD)] = ODD32 if dtype == F32 else ODD
    after = passes.run(graph)
    assert computed(after) == left
    (got,), _ = interpret(after, [values])
    (want,), _ = interpret(graph, [values])
    np.testing.assert_array_max_ulp(got[len(ODD) :], want[len(ODD) :], 1)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-44 if dtype == F32 else 5e-324)


@pytest.mark.parametrize(
    ("condition", "x", "y", "left"),
    [
        ("c", "x", "x", []),
        (True, "x", "y", []),
        (False, "x", "y", []),
        ("not c", "x", "y", ["where"]),
        ("c", True, False, []),
        ("c", False, True, ["logical_not"]),
        ("c", "where c", "y", ["where"]),
        ("c", "y", "where c", []),
        ("c", "where not c", "y", []),
        ("not c", "where c", "x", ["where"]),
        ("c", "x", 0.0, ["where"]),
    ],
)
def test_choices_that_are_known_are_taken(condition, x, y, left):
    b = Builder()
    c, *operands = b.input((2,), BOOL), b.input((2,)), b.input((2,))
    named: dict[object, Node] = {"c": c, "not c": b.op("logical_not", c)}
    named |= dict(zip("xy", operands, strict=True))
    named["where c"] = b.op("where", c, *operands)
    named["where not c"] = b.op("where", named["not c"], *operands)
    dtype = F32 if "x" in (x, y) or "y" in (x, y) else BOOL
    one, two, three = (
        named[v] if v in named else b.to(b.table.const(v, d), (2,))
        for v, d in ((condition, BOOL), (x, dtype), (y, dtype))
    )
    graph = b.graph(b.make("where", one, two, three))
    after = passes.run(graph)
    assert computed(after) == left
    values = [np.array([True, False]), np.array([1, 2], "f"), np.array([3, 4], "f")]
    assert_same_bits(interpret(after, values), interpret(graph, values), after)


# Golden prints: the interface for people


def test_a_scaled_softmax_prints_simplified():
    b = Builder()
    x = b.input((5, 3))
    y = b.softmax(b.op("divide", b.op("multiply", x, 1.0), 2.0))
    assert str(passes.run(b.graph(y, lines={y: "net.py:3"}))) == (
        "graph test:\n"
        "  %0: float32[5,3] = input(dtype=float32, index=0)\n"
        "  %1: float32[] = const(dtype=float32, value=0.5)\n"
        "  %2: float32[1,1] = reshape(%1)\n"
        "  %3: float32[5,3] = broadcast(%2)\n"
        "  %4: float32[5,3] = multiply(%0, %3)\n"
        "  %5: float32[5] = max(%4, axes=(1,))\n"
        "  %6: float32[5,1] = reshape(%5)\n"
        "  %7: float32[5,3] = broadcast(%6)\n"
        "  %8: float32[5,3] = subtract(%4, %7)\n"
        "  %9: float32[5,3] = exp(%8)\n"
        "  %10: float32[5] = sum(%9, axes=(1,))\n"
        "  %11: float32[5,1] = reshape(%10)\n"
        "  %12: float32[5,3] = broadcast(%11)\n"
        "  %13: float32[5,3] = divide(%9, %12)   # net.py:3\n"
        "  return %13"
    )


def test_repeated_operands_are_computed_once_and_constants_now():
    b = Builder()
    row = b.input((3,))
    wide = b.to(row, (5, 3))
    y = b.op("multiply", b.op("exp", wide), b.op("sqrt", b.to(b.table.const(4, F32), (5, 3))))
    assert str(passes.run(b.graph(y))) == (
        "graph test:\n"
        "  %0: float32[3] = input(dtype=float32, index=0)\n"
        "  %1: float32[1,3] = reshape(%0)\n"
        "  %2: float32[1,3] = exp(%1)\n"
        "  %3: float32[] = const(dtype=float32, value=2.0)\n"
        "  %4: float32[1,1] = reshape(%3)\n"
        "  %5: float32[1,3] = broadcast(%4)\n"
        "  %6: float32[1,3] = multiply(%2, %5)\n"
        "  %7: float32[5,3] = broadcast(%6)\n"
        "  return %7"
    )


def test_gates_are_sliced_before_they_are_computed():
    b = Builder()
    z, bias = b.input((4, 6)), b.input((6,))
    gates = b.op("add", z, bias)
    left, right = (b.slice(gates, (0, 1, 4), (s, 1, 3)) for s in (0, 3))
    y = b.op("multiply", b.op("sigmoid", left), b.op("tanh", right))
    after = passes.run(b.graph(y))
    below = ir.walk(n for n in ir.walk(after.roots) if n.op == "slice")
    assert {n.op for n in below} == {"slice", "reshape", "input"}
    assert sum(n.op == "add" for n in ir.walk(after.roots)) == 2


def test_slices_that_overlap_do_not_compute_anything_twice():
    b = Builder()
    y = b.op("exp", b.input((8,)))
    ends = b.op("subtract", b.slice(y, (1, 1, 7)), b.slice(y, (0, 1, 7)))
    assert sum(n.op == "exp" for n in ir.walk(passes.run(b.graph(ends)).roots)) == 1


# The driver


def test_rewriting_keeps_order_names_lines_writes_and_checks():
    b = Builder()
    x, t = b.input((2,)), b.input((), I32)
    unused = b.input((5,), BOOL)
    z = b.op("multiply", b.op("exp", x), 1.0)
    new = b.op("add", t, 1)
    check = ir.Check(b.op("less", t, 0), ValueError, "negative")
    graph = b.graph(z, z, writes=((t, new),), checks=(check,), lines={z: "a.py:1", new: "a.py:2"})
    after = passes.run(graph)
    assert after.name == graph.name
    assert [n.param("index") for n in after.inputs] == [0, 1, 2]
    assert after.inputs[2].dtype == unused.dtype
    assert after.outputs[0] is after.outputs[1]
    assert after.writes[0][0] is after.inputs[1]
    assert (after.checks[0].error, after.checks[0].message) == (ValueError, "negative")
    assert after.lines[after.writes[0][1]] == "a.py:2"
    order = sorted(ir.walk(after.roots), key=lambda n: n.index)
    assert all(i.index < n.index for n in order for i in n.inputs)
    assert [n.op for n in order if n.op in ("exp", "add")] == ["exp", "add"]


def test_sums_in_both_orders_are_one_node():
    b = Builder()
    x, y = b.input((3,)), b.input((3,))
    after = passes.run(b.graph(b.op("add", x, y), b.op("add", y, x)))
    assert after.outputs[0] is after.outputs[1]


def test_the_pipeline_checks_itself_when_asked(monkeypatch):
    def spoil(graph: Graph) -> Graph:
        wrong = replace(graph.outputs[0], shape=(9,))
        return replace(graph, outputs=(wrong,))

    b = Builder()
    graph = b.graph(b.op("exp", b.input((2,))))
    monkeypatch.setattr(passes, "PIPELINE", (spoil,))
    monkeypatch.setenv("EVERYO_CHECK", "0")
    passes.run(graph)
    monkeypatch.setenv("EVERYO_CHECK", "1")
    with pytest.raises(ir.IRError, match="inference"):
        passes.run(graph)


@pytest.mark.parametrize("rule", passes.RULES, ids=lambda r: r.__name__)
def test_no_rule_touches_inputs_or_opaque_nodes_without_need(rule):
    b = Builder()
    x = b.input((3, 3))
    node: Node = b.make("matmul", b.make("cumsum", x), x)
    assert computed(passes.rewrite(b.graph(node), rule)) == ["cumsum", "matmul"]


# Parts of a flat array side by side


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 3), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("there", [1, 2, -1, -3])
@pytest.mark.parametrize("here", [1, 2, -1, -2])
def test_parts_in_a_row_become_one_piece(here, there, shape):
    size = math.prod(shape)
    table = ir.Table()
    x, base = table.input((24 * size,), F64), table.input((2, 15, 3), F64)
    first, place = (20 if there < 0 else 2), (13 if here < 0 else 1)
    pieces, starts = [], []
    for i in range(6):
        begin = (first + i * there) * size
        piece = table.make("slice", x, starts=(begin,), steps=(1,), sizes=(size,))
        pieces.append(table.make("reshape", piece, shape=shape))
        starts.append((0, place + i * here, 0))
    steps = ((1, 1, 1),) * 6
    whole = table.make("assemble", base, *pieces, starts=tuple(starts), steps=steps)
    before = Graph("f", (x, base), (whole,))
    after = passes.run(before)
    (left,) = (n for n in after.order if n.op == "assemble")
    assert len(left.inputs) == (2 if size == 1 or abs(there) == 1 else 7)
    arrays = [np.arange(24.0 * size), -np.ones((2, 15, 3))]
    assert_same_bits(interpret(after, arrays), interpret(before, arrays), after)


def test_pieces_of_pieces_are_pieces():
    table = ir.Table()
    x, zeros = table.input((48,), F64), table.input((4, 3), F64)
    parts = [table.make("slice", x, starts=(6 * i,), steps=(1,), sizes=(3,)) for i in range(8)]
    rows = [table.make("reshape", part, shape=(1, 3)) for part in parts]

    def halves(parts):
        if len(parts) == 1:
            return parts[0]
        n = len(parts) // 2
        base = table.make("broadcast", table.make("slice", zeros, starts=(0, 0), steps=(1, 1),
                          sizes=(1, 3)), shape=(len(parts), 3))  # fmt: skip
        pieces = halves(parts[:n]), halves(parts[n:])
        return table.make(
            "assemble", base, *pieces, starts=((0, 0), (n, 0)), steps=((1, 1),) * 2
        )  # fmt: skip

    before = Graph("f", (x, zeros), (halves(rows),))
    after = passes.join_parts(before)
    (left,) = (n for n in after.order if n.op == "assemble")
    assert len(left.inputs) == 9
    arrays = [np.arange(48.0), np.zeros((4, 3))]
    assert_same_bits(interpret(after, arrays), interpret(before, arrays), after)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("seed", range(30))
def test_parts_that_lie_anyhow_keep_their_places(seed, size):
    rng = np.random.default_rng(seed)
    table = ir.Table()
    sources = [table.input((9 * size,), F64), table.input((9 * size,), F64)]
    base = table.input((3, 9, size), F64)
    pieces, starts, steps, at, row, column = [], [], [], 0, 0, 0
    for _ in range(14):
        if rng.random() < 0.3:
            at, row, column = (int(rng.integers(n)) for n in (9, 3, 9))
        x = sources[int(rng.random() < 0.2)]
        piece = table.make("slice", x, starts=(at * size,), steps=(1,), sizes=(size,))
        pieces.append(table.make("reshape", piece, shape=(1, 1, size)))
        back = size > 1 and rng.random() < 0.2
        starts.append((row, column, size - 1 if back else 0))
        steps.append((1, 1, -1 if back else 1))
        at, column = (at + int(rng.choice([1, 1, 2]))) % 9, (column + 1) % 9
    whole = table.make("assemble", base, *pieces, starts=tuple(starts), steps=tuple(steps))
    before = Graph("f", (*sources, base), (whole,))
    arrays = [rng.standard_normal(n.shape) for n in before.inputs]
    after = passes.run(before)
    assert_same_bits(interpret(after, arrays), interpret(before, arrays), after)


# Minus zero


@pytest.mark.parametrize("seed", range(40))
def test_what_is_known_to_have_no_minus_zero_has_none(seed):
    rng = np.random.default_rng(seed)
    b = Builder()
    values = [b.input((7,), F64), b.input((7,), F64)]
    start = len(values)
    values += [b.op("add", values[0], z) for z in (0.0, -0.0)] + [b.make("abs", values[1])]
    for _ in range(12):
        x, y = (values[int(k)] for k in rng.integers(len(values), size=2))
        values.append(b.make(str(rng.choice(["add", "add", "add", "multiply"])), x, y))
    known = [n for n in values[start:] if sums.unsigned(n)]
    odd = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    arrays = [odd, rng.permutation(odd)]
    for n, v in zip(known, interpret(b.graph(*known), arrays)[0], strict=True):
        assert not (np.signbit(v) & (v == 0)).any(), n
    assert known[0].op == "add" and len(known) >= 2


def test_a_long_sum_is_known_to_have_no_minus_zero_at_no_cost():
    b = Builder()
    x = b.input((), F64)
    y = b.op("add", x, 0.0)
    for _ in range(2000):
        y = b.make("add", y, x)
        assert sums.unsigned(y)
