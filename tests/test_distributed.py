"""Several processes: equal averages everywhere, and a rank that fails stops the others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import everyo as eo
from everyo import distributed
from everyo.distributed import (
    DistributedError,
    all_reduce_mean,
    available_workers,
    average_gradients,
    shard_indices,
    spawn,
    world,
)

EXAMPLES = Path(__file__).parents[1] / "examples"


def has_mpi():
    try:
        distributed._mpi()
        distributed._mpiexec()
    except DistributedError:
        return False
    return True


needs_mpi = pytest.mark.skipif(not has_mpi(), reason="the extra [mpi] is not installed")


# ---------------------------------------------------------------------------------- shards


@pytest.mark.parametrize("count", [0, 1, 3, 10, 64, 65])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shards_are_blocks_that_cover_everything(count, world_size):
    parts = [shard_indices(count, rank, world_size, drop_last=False) for rank in range(world_size)]
    assert np.concatenate(parts).tolist() == list(range(count))
    assert sorted(map(len, parts), reverse=True) == list(map(len, parts))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if count >= world_size:
        equal = [shard_indices(count, rank, world_size) for rank in range(world_size)]
        assert {len(p) for p in equal} == {count // world_size}
        each = np.concatenate(equal)
        assert each.tolist() == list(range(count // world_size * world_size))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shard_indices(10, 3, 3), "rank must be"),
        (lambda: shard_indices(10, -1, 3), "rank must be"),
        (lambda: shard_indices(2, 0, 3), "cannot be split"),
        (lambda: shard_indices(2, 0, 0), "at least 1"),
        (lambda: spawn(share, 0), "at least 1"),
        (lambda: spawn(share, 1, start_method="thread"), "start_method"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(DistributedError, match=message):
        call()


def test_there_is_a_worker():
    assert available_workers() >= 1


# ---------------------------------------------------------------------------------- one process


@needs_mpi
def test_alone_every_exchange_is_a_no_op():
    group = world()
    assert (group.rank, group.world_size, group.is_main) == (0, 1, True)
    a = np.arange(3.0)
    group.all_reduce_mean([a])
    all_reduce_mean([np.ones(5)], group)
    group.broadcast([a])
    group.barrier()
    assert a.tolist() == [0, 1, 2]
    layer = eo.Linear(2, 1)
    average_gradients(layer.parameters(), group)
    assert layer.weight.grad is None
    with pytest.raises(DistributedError, match="rank must be"):
        group.broadcast([a], src=1)
    for wrong in ("text", [1.0], np.array(["a"]), np.array([True]), np.broadcast_to(a, (2, 3))):
        with pytest.raises(DistributedError, match=r"numbers|read-only"):
            group.all_reduce_mean([wrong])
    group.close()
    with pytest.raises(DistributedError, match="closed"):
        group.barrier()


# ---------------------------------------------------------------------------------- ranks


def share(group, factor=1.0):
    return group.rank, group.world_size, os.getpid(), factor


@needs_mpi
@pytest.mark.parametrize("world_size", [1, 3])
def test_spawn_returns_by_rank_from_processes_of_their_own(world_size):
    found = spawn(share, world_size, args=(2.0,), start_method="spawn")
    assert [f[:2] for f in found] == [(rank, world_size) for rank in range(world_size)]
    assert len({f[2] for f in found} | {os.getpid()}) == world_size + 1
    assert [f[3] for f in found] == [2.0] * world_size
    assert spawn(share, 1, kwargs={"factor": 3.0})[0][3] == 3.0


def exchange(group):
    """Means, broadcasts and what happens to other numbers of elements, on every rank."""
    r = group.rank
    arrays = [
        np.full((2, 3), r + 1, np.float32), np.array(float(r)), np.arange(4) * (r + 1),
        np.full(5, r + 0.5, np.float16), np.asfortranarray(np.full((3, 2), 1.0 + r))[:, ::-1],
    ]  # fmt: skip
    kept = [id(a) for a in arrays]
    group.all_reduce_mean(arrays)
    assert kept == [id(a) for a in arrays]
    sent = [np.full(3, r, np.int64), np.array(r / 3), np.full((2, 2), r, np.float32).T]
    group.broadcast(sent, src=group.world_size - 1)
    group.barrier()
    try:
        group.all_reduce_mean([np.ones(3)])
    except DistributedError as error:
        refused = str(error)
    return arrays, sent, refused


@needs_mpi
@pytest.mark.parametrize("world_size", [2, 3])
def test_means_and_broadcasts_arrive_everywhere(world_size):
    found = spawn(exchange, world_size)
    mean = (world_size - 1) / 2
    last = world_size - 1
    for arrays, sent, refused in found:
        expected = [
            np.full((2, 3), mean + 1, np.float32), np.array(mean),
            np.rint(np.arange(4) * (mean + 1)).astype(int), np.full(5, mean + 0.5, np.float16),
            np.full((3, 2), mean + 1),
        ]  # fmt: skip
        for a, e in zip(arrays, expected, strict=True):
            assert a.dtype == e.dtype
            np.testing.assert_allclose(a, e, rtol=1e-6)
        assert sent[0].tolist() == [last] * 3
        assert sent[1] == last / 3
        assert (sent[2] == last).all()
        assert "element" in refused


RUNS = {  # (dtype, momentum) -> how far 40 steps of several ranks may be from those of one process
    ("float64", 0.9): 1e-12,
    ("float32", 0.0): 1e-6,
    ("float32", 0.9): 1e-5,  # momentum adds up the rounding of ten steps, on one process too
}


def data(seed, dtype):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(8, 5)).astype(dtype)
    return x, x.sum(axis=1, keepdims=True) + 1


def trained(group=None, compiled=False, dtype="float32", momentum=0.9, steps=40):
    """The parameters after so many steps; every batch is divided among the ranks."""
    model = eo.Sequential(eo.Linear(5, 7, seed=0), eo.Tanh(), eo.Linear(7, 1, seed=1))
    for layer in (model[0], model[2]):
        layer.weight = eo.Parameter(layer.weight.numpy().astype(dtype))
        layer.bias = eo.Parameter(layer.bias.numpy().astype(dtype))
    model.unused = eo.Parameter(np.ones(3, np.float32))
    model.wide = eo.Parameter(np.ones(1))
    optimizer = eo.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = eo.nn.mse_loss(model(x) + model.wide, y)
        loss.backward()
        if group is not None:
            average_gradients(model.parameters(), group)
        optimizer.step()

    run = eo.compile(step) if compiled else step
    for k in range(steps):
        x, y = data(k, dtype)
        mine = slice(None)
        if group is not None:
            mine = shard_indices(8, group.rank, group.world_size)
        run(eo.tensor(x[mine]), eo.tensor(y[mine]))
    return [p.data.copy() for p in model.parameters()]


@needs_mpi
@pytest.mark.parametrize(
    ("world_size", "compiled", "run"),
    [
        *((2, compiled, run) for run in RUNS for compiled in (False, True)),
        (1, True, ("float32", 0.9)),
        (4, False, ("float64", 0.9)),
        (4, True, ("float32", 0.0)),
    ],
    ids=str,
)
def test_ranks_train_like_one_process_and_hold_the_same_bits(world_size, compiled, run):
    alone, found = trained(None, False, *run), spawn(trained, world_size, args=(compiled, *run))
    largest = max(np.abs(p).max() for p in alone)
    for parameters in found:
        for p, q, first in zip(alone, parameters, found[0], strict=True):
            assert np.abs(q - p).max() <= RUNS[run] * largest
            assert np.array_equal(q, first)
    assert alone[0].tolist() == [1, 1, 1]  # no gradient anywhere: not even decayed


def unequal(group):
    """Ranks whose compiled steps would exchange different numbers of elements."""
    w, v = eo.Parameter(np.ones(2, np.float32)), eo.Parameter(np.ones(3, np.float32))

    @eo.compile
    def step(x):
        (w * x).sum().backward()
        if group.rank:
            v.sum().backward()
        average_gradients([w, v], group)

    step(np.float32(1.0))


def one_sided(group):
    """A parameter that only rank 0 used."""
    w = eo.Parameter(np.float32([1.0, 2.0]))
    if group.is_main:
        (w * 3).sum().backward()
    average_gradients([w], group)
    return w.grad


@needs_mpi
def test_a_rank_without_a_gradient_counts_as_zeros():
    for gradient in spawn(one_sided, 2):
        assert gradient.tolist() == [1.5, 1.5]


# ---------------------------------------------------------------------------------- failures


def fail(group, who):
    if group.rank in who:
        raise ValueError(f"bad luck on {group.rank}")
    group.barrier()
    time.sleep(60)


def leave(group):
    if group.rank == 1:
        os._exit(3)
    group.barrier()


def differ(group):
    group.all_reduce_mean([np.ones(3 + group.rank)])


def sleep(group):
    time.sleep(60)


@needs_mpi
@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (fail, {"args": ([0],)}, "rank 0: ValueError: bad luck on 0"),
        (fail, {"args": ([1],)}, "rank 1: ValueError: bad luck on 1"),
        (leave, {}, "rank . ended without a result"),
        (differ, {}, "element"),
        (unequal, {}, "element"),
        (sleep, {"timeout": 2.0}, "did not end within 2.0 seconds"),
    ],
)
def test_a_rank_that_fails_ends_the_others(function, options, message):
    began = time.monotonic()
    with pytest.raises(DistributedError, match=message):
        spawn(function, 2, **options)
    assert time.monotonic() - began < 45  # nobody slept until the end


@needs_mpi
@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda group: 1, (), "importable by name"),
        (share, (lambda: 1,), "cannot be pickled"),
    ],
    ids=["lambda", "argument"],
)
def test_what_no_rank_could_import_is_refused(function, args, message):
    with pytest.raises(DistributedError, match=message):
        spawn(function, 2, args=args)


# ---------------------------------------------------------------------------------- mpiexec


def under_mpiexec(count, *command):
    environment = distributed._environment() | {"PYTHONPATH": str(Path(eo.__file__).parents[1])}
    return subprocess.run(
        [distributed._mpiexec(), "-n", str(count), sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )


@needs_mpi
def test_the_example_runs_with_two_processes():
    run = under_mpiexec(2, EXAMPLES / "data_parallel.py")
    assert run.returncode == 0, run.stderr
    last = run.stdout.strip().splitlines()[-1]
    assert last.startswith("Test accuracy with 2 processes: ")
    assert float(last.split()[-1].rstrip("%")) > 95


@needs_mpi
def test_an_exception_in_a_program_stops_every_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nfrom everyo.distributed import world\ngroup = world()\n"
        "if group.rank == 1:\n    raise KeyError('lost')\ngroup.barrier()\ntime.sleep(60)\n"
    )
    run = under_mpiexec(2, program)
    assert run.returncode != 0
    assert "rank 1: Traceback" in run.stderr
    assert "KeyError: 'lost'" in run.stderr


@needs_mpi
def test_a_program_spawns_functions_of_its_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from everyo.distributed import spawn\n"
        "class Answer:\n    def __init__(self, n):\n        self.n = n\n"
        "def work(group, answer):\n    return Answer(answer.n + group.rank)\n"
        "if __name__ == '__main__':\n"
        "    print([a.n for a in spawn(work, 2, args=(Answer(40),))])\n"
    )
    run = under_mpiexec(1, program)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[40, 41]"
