"""Random programs: the interpreter, every pass, the kernels in plain Python and compiled agree.

The ordinary run takes some of the programs; `pytest -m slow tests/test_random_programs.py` takes
many more. A failure prints the call that makes the program and the smallest part that still fails.
"""

import traceback
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from ir_compare import Arrays, assert_same_bits, compare, smallest
from ir_programs import Grower, random_graph
from numpy.lib.stride_tricks import as_strided

from everyo.compile import cpu, fuse, loops, parts, passes, products, rows, sizes, tape, tiles
from everyo.compile.interpret import interpret
from everyo.compile.ir import BOOL, Check, Graph

# Limits under which even the smallest programs have many chunks, blocks, kernels and slices.
TINY = [
    (loops, "CHUNK", 4), (loops, "BLOCK", 8), (loops, "DEEP", 2), (loops, "FLAT_UNIT", 4),
    (loops, "RUNTIME", 3), (sizes, "RUNTIME", 3), (loops, "WIDE_PARTIALS", 4),
    (rows, "COPY_CHUNK", 8),
    (rows, "PARALLEL_NS", 0), (products, "SLICE_FLOPS", 64), (products, "SLICE_UNIT", 2),
    (products, "CHUNK_FLOPS", 64), (tiles, "DEPTH", 3), (tiles, "BLOCK", 1),
    (tiles, "own_limit", lambda: 256),
    (fuse, "MAX_OPS", 6), (fuse, "MAX_SLOTS", 7), (fuse, "AGAIN_BYTES", 64), (tape, "LENGTH", 3),
    (parts, "RUN", 1), (parts, "ALIGNED", 1),
]  # fmt: skip


@pytest.fixture(params=["usual", "tiny"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tiny":
        for module, name, value in TINY:
            monkeypatch.setattr(module, name, value)
    return request.param


def run(graph: Graph, arrays: Arrays, jit: bool) -> tuple[Arrays, Arrays]:
    """Outputs and written values of the compiled graph, called twice on copies of the arrays."""
    program = cpu.Program(graph, jit=jit)
    first, second = (call(program, arrays) for _ in range(2))
    assert_same_bits(second, first, f"the second call\n{graph}")
    return first


def call(program: cpu.Program, arrays: Arrays) -> tuple[Arrays, Arrays]:
    graph, live = program.graph, copies(arrays)
    outputs = program(live)
    written = [live[graph.inputs.index(target)] for target, _ in graph.writes]
    for new, old in zip(live, arrays, strict=True):
        if not any(np.shares_memory(new, w) for w in written):
            np.testing.assert_array_equal(new, old, "an input changed that is not written")
    return outputs, written


def copies(arrays: Arrays) -> Arrays:
    """The arrays in memory of their own, which they share among each other as before."""
    owned: dict[int, np.ndarray] = {}
    out = []
    for a in arrays:
        owner = a
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        flat = as_strided(owner, (owner.size,), (owner.itemsize,))
        buffer = owned.setdefault(id(owner), flat.copy())
        start = a.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        view = np.ndarray(a.shape, a.dtype, buffer, start, a.strides) if a.size else a.copy()
        out.append(view)
    return out


def law(graph: Graph, arrays: Arrays, jit: bool) -> None:
    """The four meanings of a program are one."""
    want = interpret(graph, arrays)
    for step in passes.PIPELINE:
        assert_same_bits(interpret(step(graph), arrays), want, (step.__name__, graph))
    compare(graph, arrays, run(passes.run(graph), arrays, jit))


def holds(seeds: Iterable[int], mood: str, jit: bool, ops: int = 16, points: int = 200) -> None:
    for seed in seeds:
        graph, arrays = random_graph(seed, ops, mood, points)
        try:
            law(graph, arrays, jit)
        except Exception as error:
            call = f"random_graph({seed}, {ops}, {mood!r}, {points})"
            pytest.fail(f"{call}\n{report(graph, arrays, jit, error)}")


def report(graph: Graph, arrays: Arrays, jit: bool, error: Exception) -> str:
    """The smallest part of a program that fails in the same place, and the values it fails on."""

    def place(error: Exception) -> tuple[type[Exception], str, int | None]:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return type(error), last.filename, last.lineno

    def fails(graph: Graph, arrays: Arrays) -> bool:
        try:
            law(graph, arrays, jit)
        except Exception as other:
            return place(other) == place(error)
        return False

    text = "".join(traceback.format_exception(error)[-3:])
    graph, arrays = smallest(graph, arrays, fails)
    values = "\n".join(f"input {i}: {a!r}" for i, a in enumerate(arrays))
    return f"{graph}\n{values}\n{text}"


@pytest.mark.parametrize("mood", ["tame", "exact", "odd"])
def test_kernels_in_plain_python_compute_what_the_graph_means(mood, limits):
    holds(range(170), mood, jit=False)


@pytest.mark.parametrize("mood", ["tame", "exact", "odd"])
def test_compiled_kernels_compute_what_the_graph_means(mood, limits):
    holds(range(34), mood, jit=True, points=600)


def test_a_check_that_fires_leaves_every_array_as_it_was():
    writes = 0
    for seed in range(150):
        grower = Grower(seed, "tame", 100)
        graph, arrays = grower.grow(12)
        fires = grower.input((), BOOL)
        checks = (*graph.checks, Check(fires, KeyError, "fires"))
        graph = replace(graph, inputs=(*graph.inputs, fires), checks=checks)
        program = cpu.Program(passes.run(graph), jit=False)
        call(program, [*arrays, np.array(False)])
        live = copies([*arrays, np.array(True)])
        with pytest.raises(KeyError, match="fires"):
            program(live)
        for new, old in zip(live, arrays, strict=False):
            np.testing.assert_array_equal(new, old)
        writes += len(graph.writes)
    assert writes > 100


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["tame", "exact", "odd"])
def test_kernels_in_plain_python_on_many_programs(mood, limits):
    holds(range(170, 17_000), mood, jit=False, ops=20)


@pytest.mark.slow
@pytest.mark.parametrize("mood", ["tame", "exact", "odd"])
def test_compiled_kernels_on_many_programs(mood, limits):
    holds(range(34, 870), mood, jit=True, ops=20, points=2000)


def test_a_wrong_kernel_is_found_and_made_small(monkeypatch):
    monkeypatch.setattr(passes, "PIPELINE", (lambda graph: passes.rewrite(graph, minus_is_plus),))
    with pytest.raises(pytest.fail.Exception) as failure:
        holds(range(250), "exact", jit=False)
    text = str(failure.value)
    assert "subtract(" in text
    assert text.count(" = ") < 12


def minus_is_plus(node, make):
    return make("add", *node.inputs) if node.op == "subtract" else None
