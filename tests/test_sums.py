"""Sums of arrays that are zero outside a few boxes: one array, the same bits, in linear time."""

import random
import sys

import numpy as np
import pytest
from ir_compare import assert_same_bits

from everyo.compile import boxes, ir, passes
from everyo.compile.interpret import interpret
from everyo.compile.ir import F64, I64, Graph, Table

SHAPE = (12, 4)


def piece_in(table, box, values):
    """An array of zeros but for a box."""
    starts, steps, sizes = box
    zero = table.make("const", value=values.dtype.type(0).item(), dtype=values.dtype)
    zeros = table.make("broadcast", table.make("reshape", zero, shape=(1, 1)), shape=SHAPE)
    x = table.input(sizes, values.dtype)
    return table.make("assemble", zeros, x, starts=(starts,), steps=(steps,))


def row(i):
    return (i, 0), (1, 1), (1, 4)


def some_box(draw, kind):
    """Rows in a line, places anywhere, boxes with gaps."""
    if kind == "rows":
        size = draw.choice([1, 1, 1, 2])
        return (draw.randrange(13 - size), 0), (1, 1), (size, 4)
    if kind == "places":
        return (draw.randrange(12), draw.randrange(4)), (1, 1), (1, 1)
    step, first = draw.choice([1, 2, 3]), draw.randrange(3)
    return (first, draw.randrange(2)), (step, 2), (draw.randrange(1, 4), draw.randrange(1, 3))


@pytest.mark.parametrize("dtype", [F64, I64], ids=str)
@pytest.mark.parametrize("kind", ["rows", "places", "gaps"])
def test_sums_of_pieces_keep_every_bit(kind, dtype):
    """Chains and trees, some sums read twice or returned, the same box more than once."""
    gathered = 0
    for seed in range(150):
        draw, table = random.Random(seed), Table()
        terms, arrays = [], []
        for _ in range(draw.randrange(2, 14)):
            box = some_box(draw, kind)
            values = np.array([-0.0, 0.0, 1.5, -2.0, 1e16, np.inf, 0.1])
            arrays.append(np.array(draw.choices(range(7), k=box[2][0] * box[2][1])))
            values = values if dtype == F64 else np.arange(-3, 4)
            arrays[-1] = values[arrays[-1]].reshape(box[2]).astype(dtype)
            terms.append(piece_in(table, box, arrays[-1]))
        roots = []
        while len(terms) > 1:
            i = 0 if draw.random() < 0.7 else draw.randrange(len(terms) - 1)
            a, b = terms.pop(i), terms.pop(i)
            total = table.make("add", *((a, b) if draw.random() < 0.5 else (b, a)))
            terms.insert(i, total)
            if draw.random() < 0.1:
                terms.insert(0, total)
            if draw.random() < 0.1:
                roots.append(total)
            if len(terms) > 20:
                break
        graph = Graph("f", tuple(table.inputs), (*roots, *terms))
        after = passes.run(graph)
        ir.check(after)
        assert_same_bits(interpret(after, arrays), interpret(graph, arrays), f"{seed}\n{graph}")
        gathered += not any(n.op == "add" and n.shape == SHAPE for n in after.order)
    assert gathered >= 10


def elements(box):
    at = [[a + k * s for k in range(n)] for a, s, n in zip(*box, strict=True)]
    return {(i, j) for i in at[0] for j in at[1]}


@pytest.mark.parametrize("kind", ["rows", "places", "gaps"])
def test_boxes_said_to_be_disjoint_are(kind):
    told = 0
    for seed in range(800):
        draw = random.Random(seed)
        found = [some_box(draw, kind) for _ in range(draw.randrange(1, 6))]
        points = [p for box in found for p in elements(box)]
        apart = len(points) == len(set(points))
        if kind == "gaps":  # of steps that differ it may not be told
            assert apart or not boxes.disjoint(found)
        else:
            assert boxes.disjoint(found) == apart
        told += boxes.disjoint(found) and len(found) > 1
    assert told > 50


def calls(function):
    """How many Python functions are called meanwhile."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


ORDERS = {
    "first to last": lambda terms: (terms[:-1], terms[-1:]),
    "last to first": lambda terms: (terms[:1], terms[1:]),
    "halves": lambda terms: (terms[: len(terms) // 2], terms[len(terms) // 2 :]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_gradient_of_many_slices_is_gathered_in_linear_time(order):
    def work(n):
        table = Table()
        zero = table.make("const", value=0.0, dtype=F64)
        zeros = table.make("broadcast", table.make("reshape", zero, shape=(1, 1)), shape=(n, 4))
        x = table.input((n, 1, 4), F64)
        terms = []
        for i in range(n):
            part = table.make("slice", x, starts=(i, 0, 0), steps=(1, 1, 1), sizes=(1, 1, 4))
            part = table.make("exp", table.make("reshape", part, shape=(1, 4)))
            at, steps, _ = row(i)
            terms.append(table.make("assemble", zeros, part, starts=(at,), steps=(steps,)))

        def total(terms):
            stack = [[*terms]]
            done = []
            while stack:
                top = stack.pop()
                if top is None:
                    b, a = done.pop(), done.pop()
                    done.append(table.make("add", a, b))
                elif len(top) == 1:
                    done += top
                else:
                    left, right = ORDERS[order](top)
                    stack += [None, right, left]
            return done[0]

        graph = Graph("f", (x,), (total(terms),))
        after = passes.simplify(graph)
        whole = [node for node in after.order if node.op == "assemble"]
        assert len(whole) == 1 and len(whole[0].inputs) == n + 1
        return calls(lambda: passes.simplify(graph))

    once, twice = work(100), work(200)
    assert twice < 2.3 * once
