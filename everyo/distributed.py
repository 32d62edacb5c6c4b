"""Several processes, on one machine or many: gradients averaged over MPI.

Every process runs the same program on its own share of the data: `mpiexec -n 4 python train.py`,
where `world()` is the group of all of them. `average_gradients` packs the gradients of each dtype
into one flat buffer and adds it up with a single all-reduce, after which every rank holds the same
bits; inside a compiled step too. A rank that fails stops the others with its message. `spawn`
starts local ranks from inside a program. Needs the extra `[mpi]`.
"""

import importlib
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everyo.compile.staged import exchange, register
from everyo.core.autograd import current_trace
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError

__all__ = [
    "DistributedError", "Group", "all_reduce_mean", "available_workers", "average_gradients",
    "shard_indices", "spawn", "world",
]  # fmt: skip

START_METHODS = (None, "spawn", "fork", "forkserver")
MAIN = "__mp_main__"  # what a program is called where a rank imports it: `if __name__ ==` is false
TASK = "task.pickle"


class DistributedError(EveryOError):
    """A group of processes that cannot be formed, or a rank that failed."""


class Group:
    """The processes that work together: `rank` of `world_size`; rank 0 is the main one."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank: int = communicator.Get_rank()
        self.world_size: int = communicator.Get_size()
        self._layout: list[tuple[str, int]] | None = None  # of the first all-reduce
        self._numbers: dict[tuple[tuple[str, int], ...], int] = {}

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._open().Barrier()

    def all_reduce_mean(self, arrays: Sequence[Any]) -> None:
        """Replace each array by its mean over the ranks, in place, dtypes kept.

        All calls of a group exchange equally many elements, so that ranks that have lost step are
        found: another number raises `DistributedError`.
        """
        communicator, found = self._open(), [_writable(a) for a in arrays]
        if self.world_size == 1:
            return
        by_dtype = _by_dtype(found)
        self._check_layout([(dtype.name, sum(a.size for a in group)) for dtype, group in by_dtype])
        for dtype, group in by_dtype:
            flat = np.concatenate([a.reshape(-1) for a in group]).astype(_exchanged(dtype))
            communicator.Allreduce(_in_place(), flat)
            _unpack(flat / self.world_size, group)

    def broadcast(self, arrays: Sequence[Any], src: int = 0) -> None:
        """Replace each array by that of rank `src`, in place."""
        communicator = self._open()
        if not 0 <= src < self.world_size:
            raise DistributedError(f"rank must be in [0, {self.world_size}), got src={src}")
        for array in map(_writable, arrays):
            whole = np.ascontiguousarray(array)
            communicator.Bcast(whole.view(np.uint8) if whole.ndim else whole.reshape(1), src)
            array[...] = whole

    def close(self) -> None:
        """End the group; it can exchange nothing afterwards."""
        self._communicator = None

    def _open(self) -> Any:
        if self._communicator is None:
            raise DistributedError(f"the group of rank {self.rank} is closed")
        return self._communicator

    def _exchange_number(self, layout: list[tuple[str, int]]) -> int:
        """The number, for compiled steps, of the function that averages arrays of this layout."""
        key = tuple(layout)
        if key not in self._numbers:

            def average(flat: np.ndarray) -> np.ndarray:
                communicator = self._open()
                self._check_layout(layout)
                total = flat.copy()
                communicator.Allreduce(_in_place(), total)
                return total / self.world_size

            self._numbers[key] = register(average)
        return self._numbers[key]

    def _check_layout(self, layout: list[tuple[str, int]]) -> None:
        """Raise if this call exchanges anything else than the first, or than other ranks do."""
        if self._layout is None:
            everywhere = self._open().allgather(layout)
            if any(other != everywhere[0] for other in everywhere):
                raise DistributedError(
                    f"the ranks have different numbers of elements to average: {everywhere}"
                )
            self._layout = layout
        elif layout != self._layout:
            raise DistributedError(
                f"rank {self.rank} has {layout} elements to average, the first call had "
                f"{self._layout}; every call of a group exchanges the same"
            )

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, world_size={self.world_size})"


def world() -> Group:
    """The group of all processes that `mpiexec` has started; of one without it.

    From now on an exception that nobody catches stops every rank. Raises `DistributedError`
    without the package mpi4py.
    """
    communicator = _mpi().COMM_WORLD
    if communicator.Get_size() > 1 and sys.excepthook is not _stop_all:
        sys.excepthook = _stop_all
    return Group(communicator)


def average_gradients(parameters: Sequence[Tensor], group: Group) -> None:
    """Replace the gradient of every parameter by its mean over the ranks.

    A rank without a gradient counts as zeros; a parameter that has none anywhere keeps none. In a
    compiled step every rank must have gradients of the same parameters.
    """
    group._open()
    if group.world_size == 1:
        return
    wanted = [p for p in parameters if p.requires_grad]
    trace = current_trace()
    if trace is not None:
        _average_traced(trace, [p for p in wanted if p.grad is not None], group)
        return
    given = [p.grad.data if isinstance(p.grad, Tensor) else p.grad for p in wanted]
    sent = [
        np.zeros(p.shape, p.dtype) if g is None else g for p, g in zip(wanted, given, strict=True)
    ]
    present = np.array([float(g is not None) for g in given])
    group.all_reduce_mean([*sent, present])
    for parameter, gradient, share in zip(wanted, sent, present, strict=True):
        if share > 0:
            parameter.grad = gradient


def _average_traced(trace: Any, parameters: Sequence[Tensor], group: Group) -> None:
    """`average_gradients` in a compiled step: one exchange per dtype between two of its stages."""
    xp = trace.xp
    given = [p.grad.data if isinstance(p.grad, Tensor) else p.grad for p in parameters]
    dtypes = sorted({np.dtype(g.dtype) for g in given}, key=lambda dtype: dtype.name)
    members = {d: [k for k, g in enumerate(given) if g.dtype == d] for d in dtypes}
    layout = [(d.name, sum(given[k].size for k in members[d])) for d in dtypes]
    number = group._exchange_number(layout)
    for dtype in dtypes:
        flats = [xp.reshape(given[k], (-1,)) for k in members[dtype]]
        flat = xp.astype(xp.merge(*flats, axis=0), _exchanged(dtype))
        mean = xp.astype(exchange(trace, flat, number), dtype)
        at = 0
        for k in members[dtype]:
            end = at + given[k].size
            piece = xp.getitem(mean, (slice(at, end),))
            parameters[k].grad = xp.copy(xp.reshape(piece, given[k].shape))
            at = end


def all_reduce_mean(arrays: Sequence[Any], group: Group) -> None:
    """`group.all_reduce_mean(arrays)`."""
    group.all_reduce_mean(arrays)


def available_workers() -> int:
    """How many processor cores this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


def shard_indices(count: int, rank: int, world_size: int, *, drop_last: bool = True) -> np.ndarray:
    """The indices of `count` samples that belong to a rank: contiguous blocks.

    With `drop_last` all blocks are equally long and the remainder is left out; otherwise the first
    ranks have one more.

    >>> [len(shard_indices(10, rank, 3, drop_last=False)) for rank in range(3)]
    [4, 3, 3]
    """
    _check_world(world_size)
    if not 0 <= rank < world_size:
        raise DistributedError(f"rank must be in [0, {world_size}), got {rank}")
    each, more = divmod(count, world_size)
    if count < 0 or (drop_last and each == 0):
        raise DistributedError(
            f"{count} samples cannot be split over {world_size} ranks; use fewer ranks, or "
            "drop_last=False"
        )
    if drop_last:
        more = 0
    start = rank * each + min(rank, more)
    return np.arange(start, start + each + (rank < more))


def _check_world(world_size: int) -> None:
    if world_size < 1:
        raise DistributedError(f"world_size must be at least 1, got {world_size}")


# ---------------------------------------------------------------------------------- flat buffers


def _writable(array: Any) -> np.ndarray:
    array = array.data if isinstance(array, Tensor) else array
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise DistributedError(
            f"only arrays of numbers are exchanged, got {getattr(array, 'dtype', type(array))}"
        )
    if not array.flags.writeable:
        raise DistributedError(f"an array of shape {array.shape} is read-only")
    return array


def _by_dtype(arrays: Sequence[np.ndarray]) -> list[tuple[np.dtype, list[np.ndarray]]]:
    """The arrays of each dtype, in an order that is the same on every rank."""
    found: dict[np.dtype, list[np.ndarray]] = {}
    for array in arrays:
        found.setdefault(array.dtype, []).append(array)
    return sorted(found.items(), key=lambda item: item[0].name)


def _exchanged(dtype: np.dtype) -> np.dtype:
    """The dtype in which arrays are added up: MPI has no halves, integers need a fraction."""
    if dtype.kind != "f":
        return np.dtype(np.float64)
    return np.promote_types(dtype, np.float32)


def _unpack(flat: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    at = 0
    for array in arrays:
        piece = flat[at : at + array.size].reshape(array.shape)
        array[...] = piece if array.dtype.kind == "f" else np.rint(piece)
        at += array.size


# ---------------------------------------------------------------------------------- MPI


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DistributedError(
            f"several processes need MPI: pip install 'everyo[mpi]' ({error})"
        ) from None
    return MPI


def _in_place() -> Any:
    return _mpi().IN_PLACE


def _stop_all(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """The hook for exceptions that nobody catches: print it with the rank and stop every rank."""
    communicator = _mpi().COMM_WORLD
    text = "".join(traceback.format_exception(kind, error, trace))
    print(f"rank {communicator.Get_rank()}: {text}", file=sys.stderr, flush=True)
    communicator.Abort(1)


def _mpiexec() -> str:
    """The launcher that belongs to the MPI of this environment."""
    scripts = Path(sysconfig.get_path("scripts"))
    places = [scripts, Path(sys.prefix) / "Library" / "bin"]
    for place in places:
        found = shutil.which("mpiexec", path=str(place))
        if found:
            return found
    found = shutil.which("mpiexec")
    if found is None:
        raise DistributedError("mpiexec was not found: pip install 'everyo[mpi]'")
    return found


# ---------------------------------------------------------------------------------- spawn


def spawn(
    function: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    start_method: str | None = None,
    timeout: float = 600.0,
) -> list[Any]:
    """Run `function(group, *args, **kwargs)` in `world_size` new local processes; what they return,
    by rank.

    The function must be importable by name; arguments and results are pickled. Ranks are always
    fresh processes, whichever `start_method` code written for other libraries asks for. Raises
    `DistributedError` with the ranks and messages of those that fail, or after `timeout` seconds.
    """
    _check_world(world_size)
    if start_method not in START_METHODS:
        raise DistributedError(f"Unknown start_method {start_method!r}; use one of {START_METHODS}")
    _mpi()
    task = {"function": _name_of(function), "path": sys.path, "main": _main_file(function)}
    with tempfile.TemporaryDirectory(prefix="everyo-ranks-") as place:
        folder = Path(place)
        try:
            payload = pickle.dumps((tuple(args), dict(kwargs or {})))
        except Exception as error:  # pickling raises whatever the objects raise
            raise DistributedError(f"the arguments cannot be pickled: {error}") from None
        (folder / TASK).write_bytes(pickle.dumps((task, payload)))
        code = f"from everyo.distributed import _run_rank; _run_rank({place!r})"
        sys.modules.setdefault(MAIN, sys.modules["__main__"])  # where results come from
        command = [_mpiexec(), "-n", str(world_size), sys.executable, "-c", code]
        status = _run(command, timeout)
        return [_result(folder, rank, world_size, status) for rank in range(world_size)]


def _run(command: Sequence[str], timeout: float) -> int:
    """Run the launcher; if it takes too long, end it and all it has started."""
    process = subprocess.Popen(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=os.name == "posix",
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise DistributedError(f"the ranks did not end within {timeout} seconds") from None
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    process.terminate()  # the launcher ends its ranks when it is told to
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """The environment without what an outer `mpiexec` has put there, and with our modules."""
    outer = ("PMI", "HYD", "OMPI_", "PRTE_", "MPIR_", "MPIEXEC_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    more = "OMPI_MCA_rmaps_base_oversubscribe", "PRTE_MCA_rmaps_default_mapping_policy"
    kept |= dict(zip(more, ("1", ":oversubscribe"), strict=True))
    return kept | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """(module, name) under which a rank imports the function."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not name or found is not function:
        raise DistributedError(
            f"{function!r} must be importable by name: a function at the top level of a module"
        )
    return module, name


def _main_file(function: Callable[..., Any]) -> str | None:
    """The file of the running program, if the function is defined there."""
    if function.__module__ != "__main__":
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise DistributedError("a function typed in interactively is not importable by name")
    return os.path.abspath(file)


def _run_rank(place: str) -> None:
    """What every process that `spawn` starts does."""
    folder = Path(place)
    communicator = _mpi().COMM_WORLD
    rank = communicator.Get_rank()
    try:
        task, payload = pickle.loads((folder / TASK).read_bytes())
        sys.path[:] = task["path"]
        module, name = task["function"]
        if task["main"] is None:
            found: Any = importlib.import_module(module)
        else:
            found = _program(task["main"])
        for part in name.split("."):
            found = getattr(found, part)
        args, kwargs = pickle.loads(payload)
        group = Group(communicator)
        result = pickle.dumps(found(group, *args, **kwargs))
        group.close()
        _leave(folder / f"{rank}.result", result)
    except BaseException as error:
        text = f"rank {rank}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        _leave(folder / f"{rank}.error", text.encode())
        communicator.Abort(1)


def _program(file: str) -> Any:
    """A program as a module, so that what it pickles is found again."""
    module = type(sys)(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    module.__dict__.update(runpy.run_path(file, run_name=MAIN))
    return module


def _leave(path: Path, data: bytes) -> None:
    """Write a file that is complete when it appears."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(data)
    temporary.rename(path)


def _result(folder: Path, rank: int, world_size: int, status: int) -> Any:
    """What a rank returned; `DistributedError` with the messages of all that failed."""
    errors = [folder / f"{r}.error" for r in range(world_size)]
    texts = [e.read_text(errors="replace") for e in errors if e.exists()]
    if texts:
        raise DistributedError("\n".join(texts))
    path = folder / f"{rank}.result"
    if not path.exists():
        raise DistributedError(f"rank {rank} ended without a result (mpiexec: {status})")
    return pickle.loads(path.read_bytes())
