"""Kernel text -> function: machine code from the disk or through Numba, or plain Python.

Functions are made once per process and text, so equal kernels of all programs are one. Machine code
found on disk is linked by `everyo.compile.elf`, and by LLVM where that cannot; Numba is imported
only when something must be compiled.
"""

import ctypes
import gc
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from everyo.compile import cache as disk
from everyo.compile import elf
from everyo.core.forks import renewed

Made = tuple[int, Any]  # address, and what keeps it alive


@dataclass
class Code:
    """Functions by text, one per process."""

    make: Callable[[str, bool], Made]
    known: dict[str, Made] = field(default_factory=dict)
    lock: Any = field(default_factory=lambda: renewed(threading.Lock()))

    def address(self, text: str, keep: bool = True) -> int:
        """The address of the function of a text; `keep` says whether it may go to the disk."""
        if text not in self.known:
            with self.lock:
                if text not in self.known:
                    self.known[text] = self.make(text, keep)
        return self.known[text][0]


def _native(text: str, keep: bool) -> Made:
    if not keep or disk.folder() is None:
        return _compile(text)[0]
    name = disk.key(text)
    stored = disk.load(name)
    made = None if stored is None else _link(stored)
    if made is not None:
        return made
    made, stored = _compile(text)
    if stored is not None:
        disk.store(name, text, stored)
    return made


def _compile(text: str) -> tuple[Made, disk.Stored | None]:
    """Machine code through Numba, and what can be stored of it."""
    from numba import cfunc

    from everyo.compile import prelude

    names = prelude.scope(text)
    exec(text, names)
    kernel = names["kernel"]
    # a name of its own: symbols of different kernels must differ when they meet in one process
    kernel.__name__ = kernel.__qualname__ = (
        f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    )
    compiled: Any = cfunc(prelude.KERNEL, error_model="numpy")(kernel)
    gc.collect(0)  # Numba leaves cycles, and the collector may be paused
    return (compiled.address, compiled), _storable(compiled)


# What Numba's wrappers call when a function raises, which kernels never do; see `_engine`.
_GIVEN = {"numba_gil_ensure": "PyGILState_Ensure", "numba_gil_release": "PyGILState_Release"}


def _linkable(code: bytes) -> bool:
    """Whether object code refers only to what every Python process has."""
    try:
        for name in elf.undefined(code):
            _find(name)
    except elf.NotLinkable:
        return False
    return True


def _find(name: str) -> int:
    """The address of what every Python process has under a name."""
    try:
        function = getattr(ctypes.pythonapi, _GIVEN.get(name, name))
    except AttributeError:
        raise elf.NotLinkable(f"this process has no {name}") from None
    address: int = ctypes.cast(function, ctypes.c_void_p).value or 0
    return address


def _storable(compiled: Any) -> disk.Stored | None:
    """The object code of a compiled function, through Numba's internals; None if they have changed
    or if the code refers to something that another process may not have."""
    try:
        symbol, code = compiled._wrapper_name, bytes(compiled._library._get_compiled_object())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
    return disk.Stored(symbol, code) if _linkable(code) else None


def _link(stored: disk.Stored) -> Made | None:
    """The function of stored object code, None if it cannot be linked here."""
    try:
        return elf.link(stored.code, stored.symbol, _find)
    except elf.NotLinkable:
        if not _linkable(stored.code):
            return None
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(stored.code))
    engine.finalize_object()
    return engine.get_function_address(stored.symbol), engine


@cache
def _engine() -> Any:
    """The one LLVM engine that links what was stored: an engine for each takes ten times as
    long."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in _GIVEN:
        if not llvm.address_of_symbol(name):
            llvm.add_symbol(name, _find(name))
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _load_plain(text: str, keep: bool) -> Made:
    from everyo.compile import plain

    names = plain.scope(text)
    exec(text, names)
    plain.FUNCTIONS.append(names["kernel"])
    return len(plain.FUNCTIONS) - 1, names["kernel"]


NATIVE = Code(_native)
PLAIN = Code(_load_plain)
