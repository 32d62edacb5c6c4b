"""Kernel text -> function: machine code from the disk or through LLVM, or plain Python.

Functions are made once per process and text, so equal kernels of all programs are one. Machine code
is linked by `everyo.compile.elf`, and by LLVM where that cannot; Numba (for its types) and LLVM are
imported only when something must be compiled.
"""

import ctypes
import hashlib
import os
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
    name = disk.key(text) if keep and disk.folder() is not None else None
    stored = disk.load(name) if name else None
    made = None if stored is None else _link(stored)
    if made is None:
        module, stored = compiled(text)
        made = _link(stored) or _linked_by_llvm(module, stored.symbol)
        if name and _linkable(stored.code):
            disk.store(name, text, stored)
    return made


def compiled(text: str) -> tuple[Any, disk.Stored]:
    """The optimised LLVM module of a kernel, and its machine code."""
    import llvmlite.binding as llvm

    from everyo.compile.translate import translate

    # a name of its own: symbols of different kernels must differ when they meet in one process
    symbol = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    machine = _machine()
    module = llvm.parse_assembly(str(translate(text, symbol, llvm.get_process_triple())))
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization, options.slp_vectorization = True, False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module, disk.Stored(symbol, machine.emit_object(module))


def assembly(text: str) -> str:
    """The machine code of a kernel, to read."""
    listing: str = _machine().emit_assembly(compiled(text)[0])
    return listing


def _target() -> Any:
    """LLVM, ready for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


@cache
def _machine() -> Any:
    """Code for this very processor, or for the one that Numba's variables name, at any distance
    from what it calls."""
    import llvmlite.binding as llvm

    target = _target()
    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM does not know this system
        features = ""
    return target.create_target_machine(
        cpu=os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(),
        features=os.environ.get("NUMBA_CPU_FEATURES") or features,
        opt=3, jit=True, codemodel="jitdefault",
        reloc="static" if target.name.startswith("x86") else "default",
    )  # fmt: skip


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
        function = getattr(ctypes.pythonapi, name)
    except AttributeError:
        raise elf.NotLinkable(f"this process has no {name}") from None
    address: int = ctypes.cast(function, ctypes.c_void_p).value or 0
    return address


def _link(stored: disk.Stored) -> Made | None:
    """The function of object code, None if it cannot be linked here."""
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


def _linked_by_llvm(module: Any, symbol: str) -> Made:
    engine = _engine()
    engine.add_module(module)
    engine.finalize_object()
    return engine.get_function_address(symbol), engine


@cache
def _engine() -> Any:
    """The one LLVM engine that links: an engine for each kernel takes ten times as long."""
    import llvmlite.binding as llvm

    machine = _target().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _load_plain(text: str, keep: bool) -> Made:
    from everyo.compile import plain

    names = plain.scope(text)
    exec(text, names)
    plain.FUNCTIONS.append(names["kernel"])
    return len(plain.FUNCTIONS) - 1, names["kernel"]


NATIVE = Code(_native)
PLAIN = Code(_load_plain)
