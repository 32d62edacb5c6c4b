"""NumPy's own BLAS: found through its extension module, called by address, on one thread.

Inside a program BLAS runs single-threaded on slices that the executor hands out. The user's own
thread setting is put back when the last program that needs it ends.
"""

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from everyo.core.forks import renewed

# (symbol, whether its integers have 64 bits); OpenBLAS as wheels ship it comes first
SYMBOLS = (
    ("scipy_cblas_{0}gemm64_", True), ("cblas_{0}gemm64_", True), ("cblas_{0}gemm", False),
)  # fmt: skip
THREADS = (
    "scipy_openblas_{0}_num_threads64_",
    "openblas_{0}_num_threads64_",
    "openblas_{0}_num_threads",
)


@dataclass(frozen=True)
class Blas:
    """`addresses` of the products by dtype; `wide` integers have 64 bits."""

    addresses: dict[Any, int]
    wide: bool
    get_threads: Any = None
    set_threads: Any = None


def find(path: str = _multiarray_umath.__file__) -> Blas | None:
    """The BLAS that the library at `path` is linked to, None if it has none."""
    library = ctypes.CDLL(path)
    for symbol, wide in SYMBOLS:
        names = {np.dtype("float32"): symbol.format("s"), np.dtype("float64"): symbol.format("d")}
        if all(hasattr(library, name) for name in names.values()):
            found = {t: _address(getattr(library, name)) for t, name in names.items()}
            return Blas(found, wide, _threads(library, "get"), _threads(library, "set"))
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _threads(library: ctypes.CDLL, what: str) -> Any:
    names = [name.format(what) for name in THREADS]
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


BLAS = find()


class OneThread:
    """A context in which BLAS uses one thread; contexts of several threads may overlap.

    The setting is the whole process's, so the first context that opens sets it and the last one
    that closes restores what the user had.
    """

    def __init__(self, blas: Blas | None) -> None:
        self.get: Any = blas.get_threads if blas else None
        self.set: Any = blas.set_threads if blas else None
        self.adjustable = self.get is not None and self.set is not None
        self.lock = renewed(threading.Lock())
        self.open = 0
        self.users = 1

    def __enter__(self) -> None:
        if self.adjustable:
            with self.lock:
                if self.open == 0:
                    self.users = self.get()
                    if self.users != 1:
                        self.set(1)
                self.open += 1

    def __exit__(self, *error: object) -> None:
        if self.adjustable:
            with self.lock:
                self.open -= 1
                if self.open == 0 and self.users != 1:
                    self.set(self.users)

    def after_fork(self) -> None:
        """In the child: the programs of other threads have not come along."""
        if self.open:
            self.open = 0
            self.set(self.users)


ONE_THREAD = OneThread(BLAS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ONE_THREAD.after_fork)
