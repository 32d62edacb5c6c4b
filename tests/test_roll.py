"""Loops of scalars: found where they are, rolled without a change of meaning, run as one kernel."""

import math

import numpy as np
import pytest
from ir_compare import assert_same_bits, compare
from test_random_programs import run

import everyo as eo
from everyo import nn, optim
from everyo.compile import cpu, ir, passes, scan_rows
from everyo.compile.interpret import interpret
from everyo.compile.ir import F32, F64, Graph, Node, Table
from everyo.compile.roll import LOOPS, roll, roll_arrays
from everyo.compile.rows import every
from everyo.compile.scan import Body, Past, Read, Scan, Series

UNARY = ("sin", "tanh", "negative", "abs", "sigmoid")
BINARY = ("add", "subtract", "multiply", "maximum")


class Loops:
    """A random graph in which iterations repeat, with other scalars between them."""

    shape: tuple[int, ...] = ()

    def __init__(self, seed: int, dtype: np.dtype, ops: tuple[str, ...] = (*UNARY, *BINARY)):
        self.rng = rng = np.random.default_rng(seed)
        self.ops, self.dtype = ops, dtype
        self.table = Table()
        self.count = int(rng.integers(12, 40))
        self.array = self.table.input((3, 40), dtype)
        self.numbers = [self.table.input(self.shape, dtype) for _ in range(4)]
        self.prepare()
        self.wanted: list[Node] = []
        first = self.loop(int(rng.integers(3, 9)), [])
        self.loose(int(rng.integers(0, 6)), first[-1])
        second = self.loop(int(rng.integers(3, 9)), first)
        self.loose(int(rng.integers(0, 6)), second[-1])
        self.wanted += [second[-1][-1], first[-1][-1]]
        for values in (first, second):
            for _ in range(int(rng.integers(0, 3))):
                self.wanted.append(values[rng.integers(len(values))][0])
        self.graph = Graph("loops", tuple(self.table.inputs), tuple(self.wanted))
        self.arrays = [
            rng.uniform(-1, 1, n.shape).astype(n.dtype) for n in self.graph.inputs
        ]  # fmt: skip

    def prepare(self) -> None:
        """More inputs, for loops of arrays."""

    def element(self, row: int, column: int) -> Node:
        x = self.table.make("slice", self.array, starts=(row, column), steps=(1, 1), sizes=(1, 1))
        return self.table.make("reshape", x, shape=())

    def loose(self, count: int, known: list[Node]) -> None:
        """Scalars that no loop has."""
        value = known[0]
        for k in range(count):
            value = self.apply(self.ops[k % len(self.ops)], [value, self.numbers[k % 4]])
            self.wanted.append(value)

    def apply(self, op: str, operands: list[Node]) -> Node:
        make = self.table.make
        if op in BINARY:
            return make(op, *operands[:2])
        if op == "where":
            return make("where", make("less", *operands[:2]), *operands[1:3])
        return make(op, operands[0])

    def loop(self, period: int, other: list[list[Node]]) -> list[list[Node]]:
        """The values of all iterations. How an operand moves is drawn once for all of them."""
        rng, plan = self.rng, []
        ways = ["own", "past", "fixed", "element", "number"] + ["through"] * 2 * bool(other)
        for _ in range(period):
            op = str(rng.choice(self.ops))
            moves = []
            for _operand in range(2):
                moves.append((str(rng.choice(ways)), *rng.integers(0, 1 << 16, 3).tolist()))
            plan.append((op, moves))
        values: list[list[Node]] = []
        begin = [[self.numbers[k % 4] for k in range(period)] for _ in range(3)]
        for i in range(self.count):
            now: list[Node] = []
            values.append(now)
            before = [*begin, *values[:-1]]
            for op, moves in plan:
                chain = now[-1] if now else before[-1][-1]
                operands = [self.operand(m, i, now, before, other) for m in moves]
                now.append(self.apply(op, [chain, *operands]))
        return values

    def operand(self, move, i, now, before, other) -> Node:
        way, a, b, c = move
        if way == "own" and now:
            return now[a % len(now)]
        if way == "past" or way == "own":
            row = before[-1 - b % 3]
            return row[a % len(row)]
        if way == "element":
            return self.element(a % 3, (i if b % 2 else self.count - 1 - i))
        if way == "through":
            row = other[i if b % 4 == 0 else len(other) - 1 - i]
            return row[a % len(row)]
        if way == "fixed":
            return self.numbers[a % 4]
        return self.number(float(c % 5) / 4 + (i * i % 7) * (b % 2))

    def number(self, value: float) -> Node:
        return self.table.const(value, self.dtype)


class ArrayLoops(Loops):
    """The same with matrices, with products and views of many kinds."""

    shape = (4, 4)

    def prepare(self) -> None:
        n, m = self.shape
        self.sequences = [self.table.input(s, self.dtype) for s in ((40, n, m), (n, 40, m))]
        self.weights = [self.table.input((n, m), self.dtype) for _ in range(2)]

    def element(self, row: int, column: int) -> Node:
        make, axis = self.table.make, row % 2
        sizes = tuple(1 if i == axis else n for i, n in enumerate(self.sequences[axis].shape))
        starts = tuple(column if i == axis else 0 for i in range(3))
        part = make(
            "slice", self.sequences[axis], starts=starts, steps=(1,) * 3, sizes=sizes
        )  # fmt: skip
        part = make("reshape", part, shape=self.shape)
        turned = row == 2 and self.shape == (4, 4)
        return make("transpose", part, axes=(1, 0)) if turned else part

    def number(self, value: float) -> Node:
        return self.spread(super().number(value), (1, 1))

    def spread(self, x: Node, shape: tuple[int, ...]) -> Node:
        x = self.table.make("reshape", x, shape=shape)
        return self.table.make("broadcast", x, shape=self.shape)

    def apply(self, op: str, operands: list[Node]) -> Node:
        make, x, y = self.table.make, operands[0], operands[-1]
        match op:
            case "product":
                return make("tanh", make("matmul", x, y))
            case "turned":
                return make("matmul", make("transpose", x, axes=(1, 0)), self.weights[0])
            case "total":
                return make("multiply", y, self.spread(make("sum", x, axes=(1,)), (4, 1)))
            case "largest":
                return make("subtract", x, self.spread(make("max", y, axes=(0,)), (1, 4)))
            case "part":
                part = make("slice", y, starts=(2, 0), steps=(-1, 2), sizes=(2, 2))
                part = make("tanh", part)
                return make("assemble", x, part, starts=((1, 1),), steps=((1, 1),))
        return super().apply(op, operands)


class ElementLoops(ArrayLoops):
    """Loops in which every element goes its own way."""

    shape = (6, 300)

    def apply(self, op: str, operands: list[Node]) -> Node:
        if op == "bias":
            first = self.table.make(
                "slice", self.weights[0], starts=(1, 0), steps=(1, 1), sizes=(1, 300)
            )  # fmt: skip
            return self.table.make("add", operands[0], self.spread(first, (1, 300)))
        return Loops.apply(self, op, operands)


ALONE = (*UNARY, *BINARY, "where", "bias")
MATRIX = ("tanh", "product", "turned", "total", "largest", "part", "where", "add", "multiply")


def scans(graph: Graph) -> list[Node]:
    return [n for n in graph.order if n.op == "scan"]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("seed", range(25))
def test_rolling_keeps_every_bit_of_a_random_loop(seed, dtype):
    loops = Loops(seed, dtype)
    rolled = roll(loops.graph)
    ir.check(rolled)
    both = [interpret(g, loops.arrays) for g in (loops.graph, rolled)]
    assert_same_bits(both[1], both[0], rolled)


def test_random_loops_are_found():
    found = [len(scans(roll(Loops(seed, F64).graph))) for seed in range(60)]
    assert sum(n >= 1 for n in found) > 55
    assert sum(n >= 2 for n in found) > 35


EXACT = ("negative", "abs", *BINARY, "where")  # rounded in one way only


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "native"])
def test_kernels_of_random_loops_have_the_bits_of_unrolled_ones(jit):
    for seed in range(12 if jit else 25):
        loops = Loops(seed, (F32, F64)[seed % 2], EXACT)
        got = run(roll(loops.graph), loops.arrays, jit)
        assert_same_bits(got, run(loops.graph, loops.arrays, jit), loops.graph)


def test_programs_of_rolled_and_simplified_loops_are_right():
    for seed in range(20):
        loops = Loops(seed, (F32, F64)[seed % 2], (*UNARY, *BINARY, "where"))
        graph = passes.run(loops.graph, LOOPS)
        compare(loops.graph, loops.arrays, run(graph, loops.arrays, jit=seed < 8))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("seed", range(25))
def test_rolling_keeps_every_bit_of_a_random_loop_of_arrays(seed, dtype):
    loops = ArrayLoops(seed, dtype, MATRIX)
    rolled = roll_arrays(loops.graph)
    ir.check(rolled)
    both = [interpret(g, loops.arrays) for g in (loops.graph, rolled)]
    assert_same_bits(both[1], both[0], rolled)


def test_random_loops_of_arrays_are_found():
    graphs = [roll_arrays(ArrayLoops(seed, F64, MATRIX).graph) for seed in range(60)]
    found = [len(scans(g)) for g in graphs]
    assert sum(n >= 1 for n in found) > 40
    assert sum(n >= 2 for n in found) > 25


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "native"])
def test_programs_of_loops_of_arrays_are_right(jit):
    for seed in range(12 if jit else 10):
        loops = ArrayLoops(seed, (F32, F64)[seed % 2], MATRIX)
        graph = passes.run(loops.graph, LOOPS)
        compare(loops.graph, loops.arrays, run(graph, loops.arrays, jit))


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "native"])
def test_elements_that_go_their_own_way_do_so_in_chunks(jit, monkeypatch):
    if not jit:
        monkeypatch.setattr(ElementLoops, "shape", (3, 300))
        monkeypatch.setattr(scan_rows, "LANE", 200)
    cut = 0
    for seed in (2, 3, 4, 7) if jit else (2,):
        loops = ElementLoops(seed, (F32, F64)[seed % 2], ALONE)
        rolled = roll_arrays(loops.graph)
        assert_same_bits(
            interpret(rolled, loops.arrays), interpret(loops.graph, loops.arrays), seed
        )
        program = cpu.Program(rolled, jit=jit)
        cut += sum(row.chunks > 1 for row in program.kernels if row.inner)
        got = run(rolled, loops.arrays, jit)
        assert_same_bits(got, run(loops.graph, loops.arrays, jit), seed)
    assert cut


# What a scan refuses


def scan_params(**changes):
    """x, y = x + a[1 + 2 * i], y * x over 5 iterations; of y the last value is kept."""
    table = Table()
    a, x, y = (table.input((), F64) for _ in range(3))
    body = Graph("body", (a, x, y), (table.make("add", x, a), table.make("multiply", y, x)))
    good = {
        "body": Body(body), "count": 5, "reads": (Read(0, 1, 2), Past(0, 1), Past(1, 1)),
        "series": (Series((1,), True), Series((1,), False)), "lists": (), "dtype": F64,
    }  # fmt: skip
    return good | changes


def make_scan(**changes):
    table = Table()
    a, one = table.input((10,), F64), table.input((), F64)
    node = table.make("scan", a, one, **scan_params(**changes))
    return Graph("f", (a, one), (node,))


def test_a_scan_is_its_series_one_behind_the_other():
    a = np.arange(10.0)
    (got,), _ = interpret(make_scan(), [a, np.array(2.0)])
    x = 2 + np.concatenate(([0], np.cumsum(a[1::2])))
    np.testing.assert_array_equal(got, [*x, 2 * np.prod(x[:-2]), 2 * np.prod(x[:-1])])


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 6}, {"count": 0}, {"dtype": F32}, {"reads": (Read(0, 1, 2), Past(0, 1))},
        {"reads": (Read(0, 3, -1), Past(0, 1), Past(1, 1))},
        {"reads": (Read(0, 1, 2), Past(0, 2), Past(1, 1))},
        {"series": (Series((0,), True), Series((1,), False))},
        {"series": (Series((1,), True), Series((), False))},
        {"series": (Series((1,), True), Series((7,), False))},
        {"series": (Series((1,), True),)},
        {"reads": (Read(-1, 0, 1), Past(0, 1), Past(1, 1)), "lists": ((1.0, 2.0),)},
    ],
    ids=str,
)  # fmt: skip
def test_a_scan_whose_parts_do_not_fit_is_refused(changes):
    with pytest.raises(ir.IRError):
        make_scan(**changes)


def test_values_of_other_dtypes_cross_loops():
    """A comparison of the first loop is asked for by the second, in another order."""
    table = Table()
    x = table.input((50,), F32)
    element = [
        table.make("slice", x, starts=(i,), steps=(1,), sizes=(1,)) for i in range(50)
    ]  # fmt: skip
    value, above = element[0], []
    for e in element:
        value = table.make("sin", table.make("add", value, e))
        above.append((table.make("greater", value, e), value))
    total = value
    for bad, v in reversed(above):
        total = table.make("where", bad, table.make("multiply", total, v), total)
    graph = Graph("f", (x,), (total,))
    rolled = roll(graph)
    assert len(scans(rolled)) == 2
    array = np.random.default_rng(0).uniform(-1, 1, 50).astype(F32)
    assert_same_bits(interpret(rolled, [array]), interpret(graph, [array]), rolled)
    assert_same_bits(run(rolled, [array], True), run(graph, [array], True), rolled)


def test_numbers_in_arrays_of_one_element_are_numbers():
    table = Table()
    x, zero = table.input((1,), F64), table.make("reshape", table.const(0.25, F64), shape=(1,))
    value = x
    for _ in range(80):
        flat = table.make("reshape", value, shape=(1, 1))
        value = table.make("add", table.make("reshape", flat, shape=(1,)), zero)
        value = table.make("reshape", table.make("sin", value), shape=(1,))
    graph = Graph("f", (x,), (value,))
    rolled = roll(graph)
    (node,) = scans(rolled)
    assert Scan.of(dict(node.params)).scalar
    array = np.array([0.5])
    assert_same_bits(interpret(rolled, [array]), interpret(graph, [array]), rolled)
    assert_same_bits(run(rolled, [array], True), run(graph, [array], True), rolled)


# What users write


def pendulum(steps):
    def angle(p):
        theta, omega = eo.tensor(1.0), eo.tensor(0.0)
        for _ in range(steps):
            omega = omega + 0.01 * (-p[2] / p[0] * eo.sin(theta) - p[1] * omega)
            theta = theta + 0.01 * omega
        return theta * theta

    return angle


def filtered(x, a):
    """A recursive filter along a sequence."""
    y, z = x[0], x[1]
    total = y
    for t in range(2, len(x)):
        y, z = a[0] * y - a[1] * z + x[t], y
        total = total + eo.where(y > z, y, 0.5 * y * z)
    return total


def driven(x, k):
    """An oscillator that is pushed at times that Python knows."""
    v = eo.zeros_like(x)
    for t in range(80):
        v = v + 0.05 * (math.sin(0.3 * t) - k * x)
        x = x + 0.05 * v
    return (x * x).sum()


def derived(f):
    def step(*args):
        for a in args:
            a.grad = None
        y = f(*args)
        y.backward()
        return y

    return step


def recurrent(x, w, u):
    """A recurrent cell, of which every step's state counts."""
    h = eo.zeros((x.shape[0], u.shape[0]), dtype=x.dtype)
    total = h.sum()
    for t in range(x.shape[1]):
        h = eo.tanh(x[:, t] @ w + h @ u)
        total = total + eo.where(h > 0, h, 0.1 * h).sum()
    return total


def weights(n):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s) * 0.3 for s in ((3, n, 4), (4, 5), (5, 5))]


CASES = {
    "driven": (lambda n: driven, lambda n: [np.linspace(-1, 1, 7), np.linspace(1, 2, 7)]),
    "driven number": (lambda n: driven, lambda n: [np.array([0.5]), np.array([1.5])]),
    "recurrent": (lambda n: recurrent, weights),
    "pendulum": (lambda n: pendulum(n), lambda n: [np.array([1.0, 0.1, 9.8])]),
    "filter": (lambda n: filtered, lambda n: [np.sin(np.arange(n)), np.array([0.4, 0.3])]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_rolled_loops_and_their_gradients_equal_eager_ones(name, dtype):
    make, data = CASES[name]
    args = [eo.tensor(a, dtype=dtype, requires_grad=True) for a in data(120)]
    step = derived(make(120))
    want = step(*args).item(), *(a.grad.copy() for a in args)
    compiled = eo.compile(step)
    for _ in range(4):
        got = compiled(*args).item(), *(a.grad.copy() for a in args)
        for x, y in zip(got, want, strict=True):
            close = 2e-4 if dtype == "float32" else 1e-11
            np.testing.assert_allclose(x, y, rtol=close, atol=close)
    assert len(scans(compiled.explain().graph)) >= 2


@pytest.mark.parametrize("name", ["pendulum", "filter", "recurrent"])
def test_a_longer_loop_is_not_a_larger_program(name):
    make, data = CASES[name]

    def size(n):
        compiled = eo.compile(derived(make(n)))
        compiled.warmup(*[eo.tensor(a, requires_grad=True) for a in data(n)])
        rows = compiled.explain().rows
        return len(compiled.explain().graph.order), len(rows), {row.text for row in every(rows)}

    assert size(400) == size(100)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_recurrent_layer_is_trained_over_a_long_sequence_as_unrolled(kind):
    x = eo.tensor(np.sin(np.arange(2 * 60 * 3)).reshape(2, 60, 3))

    def losses(wrap):
        eo.manual_seed(0)
        layer = getattr(nn, kind)(3, 4)
        rule = optim.Adam(layer.parameters(), lr=0.01)

        def step(x):
            rule.zero_grad()
            result = layer(x)
            loss = (result[0] if isinstance(result, tuple) else result).square().mean()
            loss.backward()
            rule.step()
            return loss

        step = wrap(step)
        return [step(x).item() for _ in range(6)], step

    want, _ = losses(lambda step: step)
    got, step = losses(eo.compile)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert [n.param("count") > 50 for n in scans(step.explain().graph)] == [True, True]


def test_threads_share_the_rows_of_an_iteration_without_a_change_of_bits():
    rng = np.random.default_rng(0)
    x = eo.tensor(rng.standard_normal((64, 40, 96)).astype(np.float32))
    w, u = (
        eo.tensor(rng.standard_normal((96, 96)).astype(np.float32) * 0.1, requires_grad=True)
        for _ in range(2)
    )
    step = eo.compile(derived(recurrent))
    before, found = eo.get_num_threads(), []
    x.requires_grad = True
    try:
        for n in (1, 2, 3):
            eo.set_num_threads(n)
            y = step(x, w, u)
            found.append([y.numpy().tobytes(), *(a.grad.tobytes() for a in (x, w, u))])
    finally:
        eo.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    assert len(scans(step.explain().graph)) == 2
