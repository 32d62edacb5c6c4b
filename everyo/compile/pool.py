"""The thread pool: worker threads that take chunks of a program's rows.

Workers are ordinary Python threads inside one native function, the GIL released. While a program
runs they spin on a shared word and claim chunks by compare-and-exchange; the thread that runs the
program works on every row itself and only waits for chunks that were claimed, so a worker that is
late or asleep costs nothing. Through long rows of a program that they cannot share they nap; a
short while after the last program they go back to Python and sleep. Which thread computes a chunk
never changes a bit of it.
"""

import atexit
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from everyo.compile.emit import HEAD
from everyo.core.forks import renewed

# the shared words, 64 bytes apart; YIELD and what follows it do not change
NEXT, COUNT, FUNCTION, TABLE, DONE, BUSY, RUNNING, STOP, YIELD, WORDS = range(0, 10 * 64, 64)
LOOKS, NAP, NAP_TIME = YIELD + 8, YIELD + 16, YIELD + 24
CLOSED = 0xFFFFFFFF  # no chunk to claim; the upper half counts the launches
SPIN_NS = 200_000  # a worker looks for work so long before it sleeps
AWAKE = 5  # times as long while a program runs; then it naps between looks
NAP_NS = 50_000
PATIENCE = 2000  # looks before the one who waits for a claimed chunk offers its processor to others
WAKE_NS = 60_000  # a program whose shared rows are worth less does not wake sleeping workers
MOST = 16  # threads by default: programs have few rows of more chunks
LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds per period

# Run the chunks of one row with the pool; names `pool function table n` are given.
SHARE = f"""
                launch = ((atomic_load(pool + {NEXT}) >> 32) + 1) & {0x3FFFFFFF}
                atomic_store(pool + {NEXT}, (launch << 32) | {CLOSED})
                atomic_store(pool + {FUNCTION}, function)
                atomic_store(pool + {TABLE}, table)
                atomic_store(pool + {COUNT}, n)
                atomic_store(pool + {DONE}, 0)
                atomic_store(pool + {NEXT}, launch << 32)
                while True:
                    word = atomic_load(pool + {NEXT})
                    c = word & {CLOSED}
                    if c >= n:
                        break
                    if atomic_claim(pool + {NEXT}, word, word + 1):
                        call(function, table, c, n)
                        atomic_add(pool + {DONE}, 1)
                looks = 0
                while atomic_load(pool + {DONE}) < n:
                    pause()
                    looks += 1
                    if looks > {PATIENCE} and peek(pool + {YIELD}) != 0:
                        call(peek(pool + {YIELD}), 0, 0, 0)
                atomic_store(pool + {BUSY}, 0)
"""

# P[0]: address of the shared words. A claimed word says that the fields read before it belong to
# it: they change only while the word is closed.
WORKER = f"""{HEAD}
    pool = P[0]
    idle, most = 0, peek(pool + {LOOKS})
    while atomic_load(pool + {STOP}) == 0:
        word = atomic_load(pool + {NEXT})
        n = atomic_load(pool + {COUNT})
        c = word & {CLOSED}
        if c < n:
            function = atomic_load(pool + {FUNCTION})
            table = atomic_load(pool + {TABLE})
            if atomic_claim(pool + {NEXT}, word, word + 1):
                call(function, table, c, n)
                atomic_add(pool + {DONE}, 1)
            idle = 0
        else:
            pause()
            idle += 1
            if idle >= most and atomic_load(pool + {RUNNING}) == 0:
                break
            if idle >= {AWAKE} * most and peek(pool + {NAP}) != 0:
                call(peek(pool + {NAP}), peek(pool + {NAP_TIME}), 0, 0)
"""


class Pool:
    """`threads - 1` workers beside the thread that runs a program."""

    def __init__(self, threads: int) -> None:
        from everyo.compile.code import NATIVE

        self._memory = np.zeros(WORDS // 8 + 8, np.int64)
        start = self._memory.ctypes.data
        self.address = start + -start % 64
        self._words = self._memory.data[(self.address - start) // 8 :]
        self._argument = np.array([self.address], np.int64)
        self._native = NATIVE.function(WORKER).native()
        self._words[YIELD // 8] = _yield_address()
        self._words[NAP // 8], self._words[NAP_TIME // 8] = _nap_address()
        self._words[LOOKS // 8] = self._looks()
        self._asleep: list[Any] = []  # the locks that sleeping workers wait for
        self._calls: list[None] = []  # one per program that wants them awake
        self._workers: list[threading.Thread] = []
        for i in range(threads - 1):
            worker = threading.Thread(target=self._work, name=f"everyo-{i + 1}", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system gives no more threads: fewer do the same
                break
            self._workers.append(worker)

    def begin(self) -> None:
        """Keep the workers at their word until `end`. One that is just leaving it sees the call
        before it sleeps, or is seen asleep."""
        self._calls.append(None)
        self.wake()

    def end(self) -> None:
        self._calls.pop()

    def wake(self) -> None:
        """Send the workers that sleep back to their word."""
        while self._asleep:
            try:
                self._asleep.pop().release()
            except IndexError:  # another thread was faster
                return

    def close(self) -> None:
        """Send the workers home."""
        self._words[STOP // 8] = 1
        self.wake()

    def join(self, seconds: float) -> None:
        """Close, and wait until the workers have gone."""
        self.close()
        for worker in self._workers:
            worker.join(seconds)

    @property
    def idle(self) -> bool:
        """Whether every worker sleeps."""
        return len(self._asleep) == len(self._workers)

    def _looks(self) -> int:
        """How many looks at the shared word take SPIN_NS: instructions for waiting loops take from
        one to a hundred cycles. Nothing shares the word yet."""
        few, many = 200, 2200
        each = (self._spun(many) - self._spun(few)) / (many - few)  # the call itself cancels
        return max(few, int(SPIN_NS / max(each, 1)))

    def _spun(self, looks: int) -> int:
        """Nanoseconds of so many looks, the best of a few tries."""
        self._words[LOOKS // 8] = looks
        tries = []
        for _ in range(5):
            start = time.perf_counter_ns()
            self._native(self._argument.ctypes.data, 0, 1)
            tries.append(time.perf_counter_ns() - start)
        return min(tries)

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while not self._words[STOP // 8]:
            self._native(self._argument.ctypes.data, 0, 1)
            self._asleep.append(gate)  # before the last look: who wants it sees one or the other
            if self._words[STOP // 8] or self._calls:
                try:
                    self._asleep.remove(gate)
                    continue
                except ValueError:  # somebody is about to release it
                    pass
            gate.acquire()


def _yield_address() -> int:
    """The address of the system's function that lets other threads run, 0 if there is none. Kernels
    call it with three integers that it ignores, as every 64-bit calling convention allows."""
    try:
        if sys.platform == "win32":
            function = ctypes.WinDLL("kernel32").SwitchToThread
        else:
            function = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_TIME = np.array([0, NAP_NS], np.int64)  # a timespec: seconds and nanoseconds


def _nap_address() -> tuple[int, int]:
    """The address of the system's function that sleeps and the argument for a nap, called like
    `sched_yield` above; (0, 0) if there is none."""
    try:
        if sys.platform == "win32":
            function, argument = ctypes.WinDLL("kernel32").Sleep, 1  # milliseconds
        else:
            function, argument = ctypes.CDLL(None).nanosleep, _TIME.ctypes.data
    except (AttributeError, OSError):
        return 0, 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0, argument


class _Threads:
    """How many threads programs use, and the pool, made when first needed."""

    def __init__(self) -> None:
        self.count = _default()
        self.pool: Pool | None = None
        self.lock = renewed(threading.Lock())

    def get(self) -> Pool | None:
        """The pool, or None if one thread is to do everything."""
        if self.count < 2:
            return None
        if self.pool is None:
            with self.lock:
                if self.pool is None and self.count > 1:
                    self.pool = Pool(self.count)
        return self.pool

    def set(self, count: int) -> Pool | None:
        """Use so many threads from now on; the pool that was used before, closed."""
        with self.lock:
            if count == self.count:
                return None
            pool, self.pool, self.count = self.pool, None, count
        if pool is not None:
            pool.close()  # a program that still runs with it finishes by itself
        return pool

    def after_fork(self) -> None:
        """In the child: no worker has come along, and siblings share the processors."""
        self.pool, self.count = None, 1

    def at_exit(self) -> None:
        """Before the interpreter goes: no worker may be left inside machine code."""
        pool = self.set(1)
        if pool is not None:
            pool.join(1.0)


def processors() -> int:
    """The processors this process may use, MOST at most."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(MOST, len(affinity(0)) if affinity else os.cpu_count() or 1, _quota())


def _default() -> int:
    """The processors, or fewer if NUMBA_NUM_THREADS or OMP_NUM_THREADS say so."""
    count = processors()
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        given = os.environ.get(name, "").split(",")[0].strip()
        if given.isdigit() and int(given) > 0:
            count = min(count, int(given))
    return count


def _quota() -> int:
    """The processors that the container's share of time amounts to."""
    try:
        quota, period = LIMIT.read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or no limit
        return MOST


THREADS = _Threads()
atexit.register(THREADS.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THREADS.after_fork)


def set_num_threads(n: int) -> None:
    """Use `n` threads in compiled functions. The number never changes a result.

    Starts at the processors of the process (16 at most), or NUMBA_NUM_THREADS or OMP_NUM_THREADS if
    smaller; in a forked child at 1.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of threads is a positive int, got {n!r}")
    THREADS.set(n)


def get_num_threads() -> int:
    """The number of threads that compiled functions use."""
    return THREADS.count
