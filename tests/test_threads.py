"""Threads: the number of them never changes a bit, and nobody else notices that they are there."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ir_builder import Builder

import everyo as eo
from everyo.compile import blas, cpu, interpret, pool, products, rows
from everyo.compile.ir import F32, F64, I64

COUNTS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def threads():
    """The number of threads, put back afterwards."""
    before = eo.get_num_threads()
    yield
    eo.set_num_threads(before)


def values(*shape, dtype=F32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# The same bits


def elementwise(b):
    x, y = b.input((150_001,)), b.input((150_001,))
    return [b.op("multiply", b.op("tanh", x), b.op("exp", y))]


def normalised_rows(b):
    x = b.input((1201, 130))
    return [b.softmax(x), b.op("subtract", x, b.mean(x, (1,), keep=True))]


def column_sums(b):
    x = b.input((3000, 65))
    return [b.make("sum", x, axes=(0,)), b.make("max", x, axes=(0,))]


def whole_sums(b):
    x, y = b.input((400_003,)), b.input((400_003,), F64)
    return [b.make("sum", x, axes=(0,)), b.make("sum", y, axes=(0,))]


def product(b):
    return [b.make("matmul", b.input((190, 257)), b.input((257, 130)))]


def wide_product(b):
    return [b.make("matmul", b.input((40, 600), F64), b.input((600, 300), F64))]


def batched_products(b):
    return [b.make("matmul", b.input((5, 7, 33, 20)), b.input((5, 7, 20, 41)))]


def copies(b):
    x = b.input((700, 330))
    return [b.swap(x), b.make("cumsum", x)]


def layers(b):
    h = b.input((256, 200))
    for _ in range(3):
        h = b.op("add", b.make("matmul", h, b.input((200, 200))), b.input((200,)))
        h = b.op("maximum", h, 0.0)
    return [h, b.make("sum", h, axes=(0,)), b.make("sum", h, axes=(0, 1))]


PROGRAMS = [
    elementwise, normalised_rows, column_sums, whole_sums, product, wide_product,
    batched_products, copies, layers,
]  # fmt: skip


def bits(program, arrays, count):
    eo.set_num_threads(count)
    return [out.tobytes() for out in program(arrays)]


@pytest.mark.parametrize("processors", [2, 8])
@pytest.mark.parametrize("make", PROGRAMS)
def test_the_number_of_threads_changes_no_bit(make, processors, monkeypatch):
    monkeypatch.setattr(rows, "PARALLEL_NS", 0)
    monkeypatch.setattr(products, "PROCESSORS", processors)
    monkeypatch.setattr(products, "MANY_FLOPS", 1e5)
    b = Builder()
    graph = b.graph(*make(b))
    arrays = [values(*n.shape, dtype=n.dtype, seed=i) for i, n in enumerate(graph.inputs)]
    program = cpu.Program(graph)
    assert any(row.parallel for row in program.kernels)
    one = bits(program, arrays, 1)
    for count in COUNTS * 2:
        assert bits(program, arrays, count) == one


def classifier():
    net = eo.nn.Sequential(
        eo.nn.Linear(64, 300, seed=0), eo.nn.ReLU(), eo.nn.Linear(300, 10, seed=1)
    )
    x, y = eo.tensor(values(256, 64)), eo.tensor(np.arange(256) % 10)
    return net, lambda: eo.nn.cross_entropy(net(x), y)


def attention():
    names = [eo.tensor(values(32, 32, seed=s), requires_grad=True) for s in range(4)]
    x = eo.tensor(values(8, 40, 32))

    def loss():
        q, k, v = ((x @ w).reshape(8, 40, 4, 8).transpose(0, 2, 1, 3) for w in names[:3])
        p = eo.softmax(q @ k.transpose(0, 1, 3, 2) * 0.3, axis=-1)
        h = (p @ v).transpose(0, 2, 1, 3).reshape(8, 40, 32) @ names[3] + x
        return (h * h).mean()

    return names, loss


def trained(make, count):
    """Weights after some steps with so many threads."""
    eo.set_num_threads(count)
    model, loss = make()
    weights = model.parameters() if isinstance(model, eo.nn.Module) else model
    weights = list(weights)
    optimizer = eo.optim.Adam(weights, lr=0.01)

    @eo.compile
    def step():
        optimizer.zero_grad()
        out = loss()
        out.backward()
        optimizer.step()
        return out

    losses = [step().item() for _ in range(4)]
    assert losses[-1] < losses[0]
    return [losses, *(w.numpy().tobytes() for w in weights)]


@pytest.mark.parametrize("make", [classifier, attention])
def test_whole_training_steps_are_the_same_bits(make):
    one = trained(make, 1)
    for count in COUNTS[1:]:
        assert trained(make, count) == one


# Many at once


def test_many_threads_call_one_function_and_different_ones():
    functions = [
        lambda x: (x * 2.0 + 1.0) / (1.0 + x * x) - x.mean(),
        lambda x: eo.exp(-x * x).sum(),
        lambda x: eo.softmax(x.reshape(50, 40), axis=-1).max(),
        lambda x: (x.reshape(50, 40) @ x.reshape(40, 50)).sum(axis=0),
    ]
    compiled = [eo.compile(f) for f in functions]
    arguments = [eo.tensor(np.linspace(-1.0, 1.0 + k, 2000)) for k in range(8)]
    want = [[f(x).numpy() for x in arguments] for f in functions]
    eo.set_num_threads(3)
    wrong = []

    def work(k):
        for i in range(1000):
            f = 0 if i % 2 else (k + i) % len(functions)
            got = compiled[f](arguments[k]).numpy()
            if not np.allclose(got, want[f][k], rtol=1e-10, atol=1e-12):
                wrong.append((k, i))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_the_number_of_threads_may_change_while_programs_run(monkeypatch):
    monkeypatch.setattr(rows, "PARALLEL_NS", 0)
    b = Builder()
    x = b.input((40_000,))
    program = cpu.Program(b.graph(b.op("exp", x), b.make("sum", x, axes=(0,))))
    array = values(40_000)
    want = [out.tobytes() for out in program([array])]
    wrong, done = [], threading.Event()

    def work():
        while not done.is_set():
            if [out.tobytes() for out in program([array])] != want:
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for w in workers:
        w.start()
    for i in range(60):
        eo.set_num_threads(1 + i % 4)
        time.sleep(0.002)
    done.set()
    for w in workers:
        w.join()
    assert not wrong
    assert wait(lambda: ours() <= 3)  # closed pools send their workers home


def ours():
    """How many workers are alive."""
    return sum(t.name.startswith("everyo-") for t in threading.enumerate())


def wait(condition, seconds=20.0):
    """Whether a condition comes true."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


# The setting


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_a_number_of_threads_is_a_positive_int(wrong):
    before = eo.get_num_threads()
    with pytest.raises(ValueError, match="positive int"):
        eo.set_num_threads(wrong)
    assert eo.get_num_threads() == before


ENVIRONMENTS = [
    ({"NUMBA_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "2,1"}, 2),
    ({"NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3), ({"NUMBA_NUM_THREADS": "100"}, 8),
    ({"OMP_NUM_THREADS": "many"}, 8), ({"OMP_NUM_THREADS": "0"}, 8), ({}, 8),
]  # fmt: skip


@pytest.mark.parametrize("environment, count", ENVIRONMENTS, ids=str)
def test_the_environment_limits_the_number(environment, count, monkeypatch):
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(pool, "_quota", lambda: 16)
    assert pool._default() == count


def test_the_share_of_a_container_limits_the_number(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS and Windows
    monkeypatch.setattr(pool, "LIMIT", tmp_path / "cpu.max")
    for text, count in [
        (None, 16), ("max 100000\n", 16), ("300000 100000\n", 3), ("50000 100000\n", 1), ("?", 16),
    ]:  # fmt: skip
        if text is not None:
            (tmp_path / "cpu.max").write_text(text)
        assert pool._default() == count


def test_a_system_that_gives_no_more_threads_is_no_error(monkeypatch):
    started = []

    def start(thread):
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    real = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    few = pool.Pool(5)
    assert len(few._workers) == 1
    few.join(10)


@pytest.mark.parametrize("platform", ["win32", "darwin", "linux"])
def test_waiting_yields_where_the_system_can(platform, monkeypatch):
    """Without a function to yield with the address is 0, and who waits goes on looking."""
    monkeypatch.setattr(sys, "platform", platform)
    assert (pool._yield_address() != 0) == (platform != "win32")
    assert (pool._nap_address() != (0, 0)) == (platform != "win32")


def test_programs_run_without_a_way_to_yield_or_nap(monkeypatch):
    monkeypatch.setattr(rows, "PARALLEL_NS", 0)
    monkeypatch.setattr(pool, "_yield_address", lambda: 0)
    monkeypatch.setattr(pool, "_nap_address", lambda: (0, 0))
    b = Builder()
    program = cpu.Program(b.graph(b.op("exp", b.input((100_000,)))))
    array = values(100_000)
    one = bits(program, [array], 1)
    for _ in range(20):
        assert bits(program, [array], 4) == one


# Workers


def shared_program():
    b = Builder()
    x = b.input((300_000,))
    return cpu.Program(b.graph(b.op("tanh", b.op("exp", x)))), [values(300_000)]


def test_idle_workers_sleep_and_use_no_time():
    program, arrays = shared_program()
    eo.set_num_threads(4)
    for _ in range(50):
        program(arrays)
    workers = pool.THREADS.pool
    assert workers is not None and wait(lambda: workers.idle)
    before = time.process_time()
    time.sleep(0.5)
    assert workers.idle
    assert time.process_time() - before < 0.25  # three workers that spin would use 0.5 and more
    program(arrays)
    assert wait(lambda: workers.idle)


def test_workers_do_not_go_home_while_a_program_runs():
    """However long the rows that they cannot share take; they nap meanwhile."""
    workers = pool.Pool(3)
    assert wait(lambda: workers.idle)  # nobody is on the way home
    running = workers._words[pool.RUNNING // 8 :]
    running[0] = 1
    workers.wake()
    before = time.process_time()
    time.sleep(0.5)
    assert not workers._asleep
    assert time.process_time() - before < 0.4  # two that spin would use 1.0
    running[0] = 0
    assert wait(lambda: workers.idle)
    workers.join(1.0)


def test_a_worker_that_is_about_to_sleep_sees_that_it_is_wanted():
    """A call that begins while it is on the way from its word to its bed does not miss it."""
    workers = pool.Pool(2)
    assert wait(lambda: workers.idle)
    looks, leave = threading.Semaphore(0), threading.Semaphore(0)

    def native(*_):
        looks.release()
        leave.acquire()

    workers._native = native
    workers.wake()
    assert looks.acquire(timeout=10)
    workers.begin()  # it is not asleep yet, so nobody can wake it
    leave.release()
    assert looks.acquire(timeout=10)
    workers.end()
    leave.release()
    assert wait(lambda: workers.idle)
    workers._words[pool.STOP // 8] = 1
    leave.release()
    workers.join(10.0)


def test_a_program_says_that_it_runs_and_that_it_does_no_more():
    b = Builder()
    x = b.input((300_000,))
    good = cpu.Program(b.graph(b.op("exp", b.make("cumsum", x))))
    eo.set_num_threads(2)
    good([values(300_000)])
    running = pool.THREADS.pool._words[pool.RUNNING // 8 :]
    assert running[0] == 0
    thread = threading.Thread(target=lambda: [good([values(300_000)]) for _ in range(200)])
    thread.start()
    assert wait(lambda: running[0] == 1)
    thread.join()
    assert running[0] == 0

    @eo.compile
    def taken(x, ids):
        return eo.exp(x)[ids].sum()

    x, ids = eo.tensor(values(300_000)), np.arange(5)
    taken(x, ids)
    with pytest.raises(IndexError):
        taken(x, ids + 299_998)
    assert running[0] == 0


def test_workers_are_daemons_and_have_names():
    program, arrays = shared_program()
    eo.set_num_threads(3)
    program(arrays)
    workers = [t for t in threading.enumerate() if t in pool.THREADS.pool._workers]
    assert [t.name for t in workers] == ["everyo-1", "everyo-2"]
    assert all(t.daemon for t in workers)
    eo.set_num_threads(1)
    assert wait(lambda: not any(t.is_alive() for t in workers))


def test_many_wakings_do_not_add_up():
    """A worker that is woken often before it comes sleeps again as soon as there is no work."""
    workers = pool.Pool(3)
    assert wait(lambda: workers.idle)
    for _ in range(10_000):
        workers.wake()
    assert wait(lambda: workers.idle, 2.0)
    workers.join(10)
    assert not any(t.is_alive() for t in workers._workers)


# Processes

HEAD = """
import os, sys, threading, time
import numpy as np, everyo as eo
eo.set_num_threads(4)
f = eo.compile(lambda x: (eo.tanh(x) * x).sum())
x = eo.tensor(np.linspace(0, 1, 400_000))
want = f(x).item()
"""
FORK = """
import faulthandler, signal
faulthandler.dump_traceback_later(100, exit=True)
busy = threading.Thread(target=lambda: [f(x) for _ in range(400)])
busy.start()
children = []
for i in range(6):
    time.sleep(0.003)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        fine = eo.get_num_threads() == 1 and f(x).item() == want
        g = eo.compile(lambda x: eo.exp(x * 0.5).max())     # a new trace, under fresh locks
        fine = fine and abs(g(x).item() - np.exp(0.5)) < 1e-12
        eo.set_num_threads(2)
        fine = fine and f(x).item() == want
        os._exit(0 if fine else 1)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
busy.join()
assert f(x).item() == want and eo.get_num_threads() == 4
print(codes)
"""
LEAVE = """
threading.Thread(target=lambda: [f(x) for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.05)
f(x)
print("leaving")
"""
FORKED_EXIT = """
pid = os.fork()
if pid == 0:
    assert f(x).item() == want
    sys.exit(0)
print(os.waitpid(pid, 0)[1])
"""
NUMBA = """
import numba
from everyo.compile import blas
@numba.njit(parallel=True)
def mine(a):
    t = 0.0
    for i in numba.prange(a.size):
        t += a[i]
    return t
a = np.ones(100_000)
numba.set_num_threads(1)
one = blas.ONE_THREAD
one.set(2)
w = eo.tensor(np.ones((300, 300)))
g = eo.compile(lambda w: (w @ w).sum())
for _ in range(20):
    assert mine(a) == 100_000.0 and f(x).item() == want and g(w).item() == 300.0**3
print(numba.get_num_threads(), one.get())
"""


def python(script, **environment):
    """The output of a script in a process of its own."""
    root = str(Path(eo.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, **environment}
    command = [sys.executable, "-c", HEAD + script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.strip()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@needs_fork
def test_a_forked_child_computes_and_the_parent_goes_on():
    assert python(FORK) == str([0] * 6)


@needs_fork
def test_a_forked_child_exits():
    assert python(FORKED_EXIT) == "0"


def test_the_interpreter_exits_while_threads_compute():
    for _ in range(3):
        assert python(LEAVE) == "leaving"


@pytest.mark.skipif(not blas.ONE_THREAD.adjustable, reason="this BLAS has no thread setting")
def test_the_users_numba_and_blas_keep_their_threads():
    assert python(NUMBA) == "1 2"


def test_random_numbers_are_the_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(rows, "PARALLEL_NS", 0)
    for dtype in (F32, F64):
        b = Builder()
        draw = b.make("random", b.input((6,), I64), shape=(100_003,), dtype=dtype)
        program, state = cpu.Program(b.graph(draw)), np.arange(6)
        assert program.kernels[0].chunks > 4
        one = bits(program, [state], 1)
        for count in COUNTS:
            assert bits(program, [state], count) == one
        np.testing.assert_array_equal(
            program([state])[0], interpret.uniform(state, (100_003,), dtype)
        )
