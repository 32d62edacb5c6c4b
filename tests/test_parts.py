"""Pieces of assembled arrays: made in their place, without copies, wherever that is possible."""

import numpy as np
import pytest
from ir_compare import compare
from test_random_programs import run

import everyo as eo
from everyo.compile import cpu, fuse, ir, legalize, parts, passes
from everyo.compile.ir import F32
from everyo.compile.space import chain
from everyo.compile.tracing import trace_call


def graph_of(function, *args):
    compiled = eo.compile(function)
    leaves, _, rebuild = compiled._signature(args, {})
    return passes.run(trace_call("function", compiled._caller(rebuild), leaves).graph)


def tensor(*shape):
    return eo.tensor(np.random.default_rng(0).normal(size=shape).astype(F32), requires_grad=True)


def copies(graph):
    return [row.name for row in cpu.Program(graph, jit=False).kernels if "copy" in row.name]


def joined(x, y):
    return eo.concatenate([eo.exp(x), eo.tanh(y), x @ y], axis=0)


def side_by_side(x, y):
    return eo.concatenate([eo.exp(x), x @ y, eo.tanh(y)], axis=1) * 2


def stacked(x, y):
    return eo.stack([eo.exp(x), eo.tanh(y)], axis=1).sum(axis=2)


def one_by_one(x, y):
    """A list that grows."""
    out = eo.exp(x)
    for _ in range(6):
        out = eo.concatenate([out, eo.tanh(out[-len(y) :] * y)], axis=0)
    return out


def read_again(x, y):
    """Pieces that others read, too: as they are, transposed, and in a product."""
    a, b = eo.exp(x), x @ y
    both = eo.concatenate([a, b], axis=1)
    return both * 2, a.T @ y, b.sum(axis=0), eo.tanh(a) @ b


def gates(x, y):
    """The gradient of a split is a concatenation."""
    x.grad = y.grad = None
    i, f, g, o = eo.split(eo.concatenate([x @ y, x * y], axis=1), 4, axis=1)
    (eo.sigmoid(i) * eo.tanh(g) + eo.sigmoid(f) * eo.sigmoid(o)).sum().backward()
    return x.grad, y.grad


def heads(x, y):
    """The gradients of three slices, which are seen in another order."""
    x.grad = y.grad = None
    qkv = eo.concatenate([x, y, x], axis=1).reshape(2, 16, 3, 2, 16).transpose(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    (eo.softmax(q @ k.transpose(0, 1, 3, 2), axis=-1) @ v).sum().backward()
    return x.grad


CASES = [joined, side_by_side, stacked, one_by_one, read_again, gates]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_nothing_is_copied(case):
    graph = graph_of(case, tensor(32, 32), tensor(32, 32))
    assert any(n.op == "assemble" for n in ir.walk(graph.roots))
    assert not copies(graph)


@pytest.mark.parametrize(
    ("case", "size"), [*((c, n) for c in CASES for n in (16, 32)), (heads, 32)]
)
def test_pieces_have_their_values(case, size):
    graph = graph_of(case, tensor(size, size), tensor(size, size))
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=n.shape).astype(n.dtype) for n in graph.inputs]
    compare(graph, arrays, run(graph, arrays, jit=False))


def test_the_steps_of_a_recurrent_layer_copy_nothing():
    layer = eo.nn.LSTM(16, 32, return_sequences=False)

    def step(x):
        for p in layer.parameters():
            p.grad = None
        loss = layer(x).square().sum()
        loss.backward()
        return loss

    graph = graph_of(step, tensor(8, 12, 16))
    assert not [name for name in copies(graph) if name.startswith("copy")]


def test_parts_of_one_array_do_not_meet():
    """Elements of different pieces are different ones of the root, and those of the whole."""
    for case in [*CASES, heads]:
        graph = graph_of(case, tensor(32, 32), tensor(32, 32))
        legal = fuse.fuse(graph).legal
        leaves = {}
        for n, part in legal.parts.items():
            if not any(chain(o)[0] in legal.parts for o in n.inputs if n.op == "assemble"):
                leaves.setdefault(part.root, []).append((n, part))
        for root, found in leaves.items():
            taken = np.zeros(root.size, int)
            for n, part in found:
                np.add.at(taken, elements(n, part), 1)
            assert taken.max() == 1


def elements(n, part):
    index = np.full(n.shape, part.offset)
    for axis, stride in enumerate(part.strides):
        index += stride * np.arange(n.shape[axis]).reshape([-1] + [1] * (n.ndim - axis - 1))
    return index.ravel()


def test_a_small_or_crooked_piece_is_copied():
    narrow = graph_of(lambda x, y: eo.concatenate([eo.exp(x), eo.tanh(y)], axis=1),
                      tensor(40, 3), tensor(40, 3))  # fmt: skip
    assert not legalize.legalize(narrow).parts
    assert len(copies(narrow)) == 2
    padded = graph_of(lambda x: eo.pad(eo.exp(x), ((0, 3), (0, 0))), tensor(32, 32))
    assert not legalize.legalize(padded).parts


def test_a_written_array_is_assembled_after_its_last_reader():
    """Its old contents are needed until then, so no piece lies in it."""

    def step(state, x):
        fresh = eo.concatenate([eo.exp(x), eo.tanh(x)], axis=0)
        use = (state * 2).sum()
        state.data[...] = fresh.data
        return use

    state, x = eo.tensor(np.ones((64, 32), F32)), eo.tensor(np.ones((32, 32), F32))
    graph = graph_of(step, state, x)
    assert not legalize.legalize(graph).parts
    assert parts.covered(next(n for n in ir.walk(graph.roots) if n.op == "assemble"))
