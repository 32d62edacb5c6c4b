"""`everyo benchmark`: how fast this machine multiplies matrices, with NumPy and compiled.

Each row is the best of several runs of a float32 product of two square matrices.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import everyo as eo

__all__ = ["print_rows", "run_benchmark"]

Row = dict[str, Any]


def run_benchmark(sizes: Sequence[int], repeats: int) -> list[Row]:
    """A row for every size and backend."""
    compiled = eo.compile(eo.matmul)
    rows = []
    for size in sizes:
        for backend, multiply in _backends(size, compiled):
            seconds = _best(multiply, repeats)
            rows.append({
                "benchmark": "matmul", "backend": backend, "size": size, "seconds": seconds,
                "gflops": 2 * size**3 / seconds / 1e9,
            })  # fmt: skip
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    """The rows as a table."""
    print(f"{'backend':<18} {'size':>6} {'ms':>10} {'GFLOP/s':>10}")
    for row in rows:
        milliseconds = 1e3 * row["seconds"]
        print(f"{row['backend']:<18} {row['size']:>6} {milliseconds:>10.3f} {row['gflops']:>10.1f}")


def _backends(
    size: int, compiled: Callable[..., Any]
) -> Iterator[tuple[str, Callable[[], object]]]:
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    x, y = eo.tensor(a), eo.tensor(b)
    yield "numpy-cpu", lambda: a @ b
    yield "everyo-eager", lambda: x @ y
    yield "everyo-compiled", lambda: compiled(x, y)


def _best(run: Callable[[], object], repeats: int) -> float:
    """The shortest time of `repeats` runs, after three that do not count: they compile, check what
    was compiled, and touch the memory."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)  # a clock may stand still
