"""What this machine can do, measured once per process when `explain(profile=True)` first asks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from everyo.compile.blas import ONE_THREAD

COPIED = 32 << 20  # bytes; larger than the caches
SIDE = 512  # of the square matrices
ROUNDS = 5


@dataclass(frozen=True)
class Machine:
    """Bytes per second of a plain copy (read and written), and operations per second of a product
    on one thread."""

    bandwidth: float
    flops: float


@cache
def machine() -> Machine:
    """The measured rates of this machine."""
    source, target = np.ones(COPIED // 8), np.empty(COPIED // 8)
    a = np.ones((SIDE, SIDE), np.float32)
    bandwidth = 2 * COPIED / _best(lambda: np.copyto(target, source))
    with ONE_THREAD:  # as products in programs run
        return Machine(bandwidth, 2 * SIDE**3 / _best(lambda: np.matmul(a, a)))


def _best(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
