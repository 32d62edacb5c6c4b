"""Kernel text -> function: machine code through Numba, or plain Python.

Functions are compiled once per process and text, so equal kernels of all programs are one.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Code:
    """Compiled functions by text, one per process: equal kernels of all programs are one."""

    make: Callable[[str], tuple[int, Any]]
    known: dict[str, tuple[int, Any]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def address(self, text: str) -> int:
        if text not in self.known:
            with self.lock:
                if text not in self.known:
                    self.known[text] = self.make(text)
        return self.known[text][0]


def _compile(text: str) -> tuple[int, Any]:
    """(address, what keeps it alive) of the C function of a kernel's text."""
    from numba import cfunc

    from everyo.compile import prelude

    names = prelude.scope(text)
    exec(text, names)
    compiled: Any = cfunc(prelude.KERNEL, error_model="numpy")(names["kernel"])
    return compiled.address, compiled


def _load_plain(text: str) -> tuple[int, Any]:
    from everyo.compile import plain

    names = plain.scope(text)
    exec(text, names)
    plain.FUNCTIONS.append(names["kernel"])
    return len(plain.FUNCTIONS) - 1, names["kernel"]


NATIVE = Code(_compile)
PLAIN = Code(_load_plain)
