"""The thread pool: worker threads that take chunks of a program's rows.

Workers are ordinary Python threads inside one native function, the GIL released. While a program runs
they spin on a shared word and claim chunks by compare-and-exchange; the thread that runs the program
works on every row itself and only waits for chunks that were claimed, so a worker that is late or
asleep costs nothing. After a short while without work they go back to Python and sleep. Which thread
computes a chunk never changes a bit of it.
"""

import ctypes
import os
import threading
import weakref
from typing import Any

import numpy as np

from everyo.compile.emit import HEAD

# the shared words, 64 bytes apart
NEXT, COUNT, FUNCTION, TABLE, DONE, BUSY, STOP, AWAKE, WORDS = range(0, 9 * 64, 64)
CLOSED = 0xFFFFFFFF  # no chunk to claim; the upper half counts the launches
SPINS = 4000  # looks at the shared word before a worker sleeps: some 100 to 200 microseconds
WAKE_NS = 60_000  # a program whose shared rows are worth less does not wake sleeping workers

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
                while atomic_load(pool + {DONE}) < n:
                    pause()
                atomic_store(pool + {BUSY}, 0)
"""

# P[0]: address of the shared words. A claimed word says that the fields read before it belong to it:
# they change only while the word is closed.
WORKER = f"""{HEAD}
    pool = P[0]
    atomic_add(pool + {AWAKE}, 1)
    idle = 0
    while idle < {SPINS}:
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
        if atomic_load(pool + {STOP}) != 0:
            idle = {SPINS}
    atomic_add(pool + {AWAKE}, -1)
"""


class Pool:
    """`threads - 1` workers beside the thread that runs a program."""

    def __init__(self, threads: int) -> None:
        from everyo.compile.code import NATIVE

        self.threads = threads
        self._memory = np.zeros(WORDS // 8 + 8, np.int64)
        start = self._memory.ctypes.data
        self.address = start + -start % 64
        words = memoryview(self._memory)
        first = (self.address - start) // 8
        self._awake = words[first + AWAKE // 8 : first + AWAKE // 8 + 1]
        self._stop = words[first + STOP // 8 : first + STOP // 8 + 1]
        self._argument = np.array([self.address], np.int64)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._native = kind(NATIVE.address(WORKER))  # ctypes releases the GIL
        self._gate = threading.Semaphore(0)
        for i in range(threads - 1):
            threading.Thread(target=self._work, name=f"everyo-{i + 1}", daemon=True).start()

    def wake(self) -> None:
        """See that the workers are at their word."""
        for _ in range(self.threads - 1 - self._awake[0]):
            self._gate.release()

    def close(self) -> None:
        """Send the workers home."""
        self._stop[0] = 1
        for _ in range(self.threads - 1):
            self._gate.release()

    def _work(self) -> None:
        while not self._stop[0]:
            self._gate.acquire()
            if not self._stop[0]:
                self._native(self._argument.ctypes.data, 0, 1)


class _Threads:
    """How many threads programs use, and the pool, made when first needed."""

    def __init__(self) -> None:
        self.count = _default()
        self.pool: Pool | None = None
        self.lock = threading.Lock()
        self.locks: weakref.WeakSet[Any] = weakref.WeakSet()  # owners of `lock`s to renew after a fork

    def get(self) -> Pool | None:
        """The pool, or None if one thread is to do everything."""
        if self.count < 2:
            return None
        if self.pool is None:
            with self.lock:
                if self.pool is None:
                    self.pool = Pool(self.count)
        return self.pool

    def set(self, count: int) -> None:
        with self.lock:
            pool, self.pool, self.count = self.pool, None, count
        if pool is not None:
            pool.close()

    def after_fork(self) -> None:
        """In the child: no worker has come along, and no lock is held by anybody who still exists."""
        self.lock = threading.Lock()
        self.pool = None
        for owner in self.locks:
            owner.lock._at_fork_reinit()


def _default() -> int:
    """The processors this process may use, or fewer if NUMBA_NUM_THREADS or OMP_NUM_THREADS say so."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        given = os.environ.get(name, "").split(",")[0].strip()
        if given.isdigit() and int(given) > 0:
            count = min(count, int(given))
    return count


THREADS = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=THREADS.after_fork)


def set_num_threads(n: int) -> None:
    """Use `n` threads in compiled functions. The number never changes a result.

    Starts at the processors of the process, or NUMBA_NUM_THREADS or OMP_NUM_THREADS if smaller.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of threads is a positive int, got {n!r}")
    THREADS.set(n)


def get_num_threads() -> int:
    """The number of threads that compiled functions use."""
    return THREADS.count
