"""Machine code in memory: shared by its text, held by what runs it, given back when nobody does."""

import gc
import itertools
import os
import random
import sys
import threading

import numpy as np
import pytest
from ir_programs import random_graph

import everyo as eo
from everyo.compile import cache, code, cpu, elf, plain

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LINKERS = {"ours": elf.link, "LLVM": lambda *_: _refuse()}


def _refuse():
    raise elf.NotLinkable("LLVM is to link")


@pytest.fixture(params=LINKERS)
def linker(request, monkeypatch):
    """Both ways to link."""
    monkeypatch.setattr(elf, "link", LINKERS[request.param])
    monkeypatch.setattr(code, "_ENGINES", [])
    return request.param


@pytest.fixture
def nothing_kept(monkeypatch):
    """What nobody uses is gone at once."""
    monkeypatch.setattr(code, "RECENT", 0)
    monkeypatch.setattr(code.NATIVE, "recent", type(code.NATIVE.recent)())


def executable():
    """Bytes of this process that are machine code and come from no file."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file]
    spans = [line[0].split("-") for line in lines if "x" in line[1] and len(line) == 5]
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


def text(number):
    """A kernel that stores a number."""
    return f"def kernel(P, chunk, chunks):\n    st0(p_i64(P[0]), usz(0), i64({number}))\n"


def run(function):
    """The number that a kernel stores."""
    out = np.zeros(1, np.int64)
    table = np.array([out.ctypes.data], np.int64)
    function.native()(table.ctypes.data, 0, 1)
    return int(out[0])


@pytest.fixture(scope="module")
def stored():
    return [code.compiled(text(i))[1] for i in range(40)]


def program(seed, jit=True, ops=6):
    """A random program, and a function that gives the bits that it leaves."""
    graph, arrays = random_graph(seed, ops, "exact")
    made = cpu.Program(graph, jit=jit)

    def results():
        given = [cpu.like(a) for a in arrays]
        return [a.tobytes() for a in (*made(given), *given)]

    return made, results


# What is given back


@linux
def test_thousands_of_functions_that_nobody_uses_leave_memory_flat(linker, stored, monkeypatch):
    monkeypatch.setattr(code, "RECENT", 50)
    numbers = itertools.count()
    made = code.Code(lambda text, keep: code._link(stored[next(numbers) % len(stored)]))
    first = made.function("first")
    sizes = []
    for i in range(3000):
        last = made.function(f"text {i}")
        assert run(last) == (i + 1) % len(stored)
        assert len(made.known) <= 50 + 2
        if i % 10 == 0:
            sizes.append(executable())
    assert run(first) == 0
    engines = 4 * code.PER_ENGINE * 4096  # those that are partly used
    assert max(sizes[20:]) <= max(sizes[:20]) + engines
    before = executable()
    made.recent.clear()
    del last
    assert len(made.known) == 1 and executable() <= before - 40 * 4096
    assert run(first) == 0


def test_the_functions_asked_for_last_are_kept(stored, monkeypatch):
    monkeypatch.setattr(code, "RECENT", 3)
    made = code.Code(lambda text, keep: code._link(stored[0]))
    for text in ("a", "b", "c", "a", "d"):
        made.function(text)
    assert sorted(made.known) == ["a", "c", "d"]
    held = made.function("c")
    for text in "xyz":
        made.function(text)
    assert sorted(made.known) == ["c", "x", "y", "z"]
    assert made.function("c") is held


def test_plain_kernels_are_given_back_as_well(monkeypatch):
    monkeypatch.setattr(code, "RECENT", 5)
    made = code.Code(code._load_plain)
    before = len(plain.FUNCTIONS)
    held = made.function(text(7))
    for i in range(100):
        made.function(text(1000 + i))
    assert len(plain.FUNCTIONS) - before <= 5 + 1
    out = np.zeros(1, np.int64)
    table = np.array([out.ctypes.data], np.int64)
    plain.MEMORY.allow([np.lib.array_utils.byte_bounds(out)])
    plain.call(held.address, table.ctypes.data, 0, 1)
    assert out[0] == 7


@linux
def test_compiling_leaves_little_behind():
    """LLVM's pass managers: 57 KB per kernel if they stay."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    for i in range(100):
        code.compiled(text(i))
    before = resident()
    for i in range(200):
        code.compiled(text(1000 + i))
    assert resident() - before < 200 * 16_000


# What is held


def test_a_plan_holds_every_function_that_its_rows_run():
    for seed in range(12):
        plan = program(seed)[0]._plan
        held = {f.address for f in plan.functions}
        assert {row[0] for row in (*plan.rows, *plan.launches)} <= held


@pytest.mark.parametrize("jit", [True, False], ids=["native", "plain"])
def test_programs_compute_whatever_else_is_given_back(jit, linker, nothing_kept, monkeypatch):
    monkeypatch.setattr(code.PLAIN, "recent", type(code.PLAIN.recent)())
    alive = [(results, results()) for _, results in (program(seed, jit) for seed in range(4))]
    for seed in range(10, 18):
        program(seed, jit)[1]()  # made, run and dropped
        gc.collect()
        assert all(results() == want for results, want in alive)


def test_a_launcher_computes_whatever_else_is_given_back(linker, nothing_kept):
    x = eo.tensor(np.linspace(0.1, 1, 50))
    f = eo.compile(lambda x: eo.tanh(x) * x + eo.cos(x))
    want = f(x).numpy()
    for i in range(6):
        eo.compile(lambda x, i=i: eo.exp(x) * x ** (i + 3))(x)
        gc.collect()
        np.testing.assert_array_equal(f(x).numpy(), want)
    assert f._launchers


def test_a_function_that_is_dropped_while_it_runs_ends_well(nothing_kept, stored):
    """Its code lives until it returns, also when others want the room."""
    x = eo.tensor(np.linspace(0.1, 1, 300_000))

    def chain(x):
        for _ in range(30):
            x = eo.sin(x) + eo.exp(-x)
        return x

    want = chain(x).numpy()
    for launcher in (False, True):
        for _ in range(3):
            f = eo.compile(chain, check=False)
            for _ in range(2 if launcher else 0):
                f(x)
            got, begun = [], threading.Event()

            def call(f=f, got=got, begun=begun):
                begun.set()
                got.append(f(x).numpy())

            thread = threading.Thread(target=call)
            del call
            thread.start()
            begun.wait()
            while thread.is_alive():
                f.clear()
                gc.collect()
                code.Code(lambda text, keep: code._link(stored[0])).function("")
            thread.join()
            np.testing.assert_allclose(got[0], want, rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_make_run_and_drop_programs_at_once(threads, nothing_kept):
    """All of one few texts, so that each dies and is made anew while others use it."""
    wants = {seed: program(seed)[1]() for seed in range(4)}
    x = eo.tensor(np.linspace(0.1, 1, 100_000))
    want = (np.tanh(x.numpy()) * x.numpy()).sum()
    failures = []

    def work(start):
        draw = random.Random(start)
        try:
            for _ in range(15):
                seed = draw.randrange(len(wants))
                made, results = program(seed)
                for _ in range(draw.randrange(1, 4)):
                    assert results() == wants[seed]
                del made, results
                f = eo.compile(lambda x: (eo.tanh(x) * x).sum(), check=False)
                for _ in range(draw.randrange(1, 4)):
                    assert abs(f(x).item() - want) < 1e-9 * want
                del f
                gc.collect(0)
        except BaseException as error:
            failures.append(error)

    before = eo.get_num_threads()
    eo.set_num_threads(threads)
    try:
        workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    finally:
        eo.set_num_threads(before)
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_a_forked_child_gives_back_its_parent_keeps(linker, nothing_kept):
    _, results = program(3)
    want = results()
    child = os.fork()
    if child == 0:
        fine = results() == want
        del results
        gc.collect()
        fine = fine and program(3)[1]() == want and program(4)[1]() is not None
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert results() == want


@pytest.mark.slow
@linux
def test_a_thousand_programs_leave_memory_flat(monkeypatch):
    monkeypatch.setattr(code, "RECENT", 100)
    monkeypatch.setenv("EVERYO_CACHE_DIR", "off")
    assert cache.folder() is None
    _, results = program(0)
    want, sizes = results(), []
    texts = set()
    for seed in range(1, 1000):
        made, other = program(seed, ops=10)
        other()
        texts |= {row.text for row in made.kernels}
        del made, other
        sizes.append(executable())
    assert len(texts) > 1000
    assert len(code.NATIVE.known) <= 200
    assert max(sizes[100:]) <= max(sizes[:100]) + (1 << 20)
    assert results() == want
