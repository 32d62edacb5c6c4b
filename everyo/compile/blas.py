"""NumPy's own BLAS: found through its extension module, called by address, on one thread.

Inside a program BLAS runs single-threaded on slices that the executor hands out. The user's own
thread setting is put back when the last program that needs it ends.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath

# (symbol, whether its integers have 64 bits); OpenBLAS as wheels ship it comes first
SYMBOLS = (
    ("scipy_cblas_{0}gemm64_", True), ("cblas_{0}gemm64_", True), ("cblas_{0}gemm", False),
)  # fmt: skip
THREADS = ("scipy_openblas_{0}_num_threads64_", "openblas_{0}_num_threads64_", "openblas_{0}_num_threads")


@dataclass(frozen=True)
class Blas:
    """`addresses` of the products by dtype; `wide` integers have 64 bits."""

    addresses: dict[np.dtype, int]
    wide: bool
    get_threads: Any = None
    set_threads: Any = None


def find(path: str = _multiarray_umath.__file__) -> Blas | None:
    """The BLAS that the library at `path` is linked to, None if it has none."""
    library = ctypes.CDLL(path)
    for symbol, wide in SYMBOLS:
        names = {np.dtype("float32"): symbol.format("s"), np.dtype("float64"): symbol.format("d")}
        if all(hasattr(library, name) for name in names.values()):
            found = {t: ctypes.cast(getattr(library, n), ctypes.c_void_p).value for t, n in names.items()}
            return Blas(found, wide, _threads(library, "get"), _threads(library, "set"))
    return None


def _threads(library: ctypes.CDLL, what: str) -> Any:
    names = [name.format(what) for name in THREADS]
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


BLAS = find()
_lock = threading.Lock()
_running = 0
_users_threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS uses one thread until the last of the overlapping contexts ends."""
    global _running, _users_threads
    if BLAS is None or BLAS.set_threads is None or BLAS.get_threads is None:
        yield
        return
    with _lock:
        if _running == 0:
            _users_threads = BLAS.get_threads()
            if _users_threads != 1:
                BLAS.set_threads(1)
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0 and _users_threads != 1:
                BLAS.set_threads(_users_threads)
