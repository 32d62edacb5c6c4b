"""How one side is timed: the first call alone, then the median of many."""

import time
from collections.abc import Callable
from typing import Any

SECONDS = 1.0  # per workload and round
CALLS = 3000


def measure(
    step: Callable[[], Any], wait: Callable[[Any], Any] = lambda r: r
) -> tuple[float, float]:
    """(seconds of the first call, median seconds of the later ones); `wait` waits for a result."""
    start = time.perf_counter()
    wait(step())
    first = time.perf_counter() - start
    for _ in range(4):
        wait(step())
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while (time.perf_counter() < end or len(times) < 5) and len(times) < CALLS:
        start = time.perf_counter()
        wait(step())
        times.append(time.perf_counter() - start)
    return first, sorted(times)[len(times) // 2]
