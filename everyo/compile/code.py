"""Kernel text -> function: machine code from the disk or through LLVM, or plain Python.

Equal kernels of all programs are one function. Whoever runs its address holds the function, which
owns the machine code; the ones asked for last are kept beyond that. Machine code is linked by
`everyo.compile.elf`, and by LLVM where that cannot; Numba (for its types) and LLVM are imported
only when something must be compiled.
"""

import ctypes
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from everyo.compile import cache as disk
from everyo.compile import elf
from everyo.core.forks import renewed

RECENT = 1024  # functions kept whether or not anybody uses them
PER_ENGINE = 16  # kernels that one LLVM engine links
Call = Callable[[int, int, int], None]


@dataclass(frozen=True, eq=False)
class Function:
    """A function in memory, for as long as this object lives."""

    address: int
    owner: Any  # frees the code when it dies

    def native(self, locked: bool = False) -> Call:
        """To be called from Python, without the GIL or (`locked`) with it; holds the function."""
        call: Any = _signature(locked)(self.address)
        call.function = self
        return cast(Call, call)


@cache
def _signature(locked: bool) -> Any:
    kind = ctypes.PYFUNCTYPE if locked else ctypes.CFUNCTYPE
    return kind(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Code:
    """The functions of this process by their text: those in use, and the ones asked for last."""

    def __init__(self, make: Callable[[str, bool], Function]) -> None:
        self.make = make
        self.known: weakref.WeakValueDictionary[str, Function] = weakref.WeakValueDictionary()
        self.recent: OrderedDict[str, Function] = OrderedDict()
        # a destructor that runs meanwhile in this thread may compile as well
        self.lock = renewed(threading.RLock())

    def function(self, text: str, keep: bool = True) -> Function:
        """The function of a text; `keep` says whether it may go to the disk."""
        with self.lock:
            found = self.known.get(text)
            if found is None:
                found = self.known[text] = self.make(text, keep)
            self.recent[text] = found
            self.recent.move_to_end(text)
            while len(self.recent) > RECENT:
                self.recent.popitem(last=False)
        return found


def _native(text: str, keep: bool) -> Function:
    name = disk.key(text) if keep and disk.folder() is not None else None
    stored = disk.load(name) if name else None
    made = None if stored is None else _link(stored)
    if made is None:
        module, stored = compiled(text)
        made = _link(stored) or _linked_by_llvm(
            stored.symbol, lambda engine: engine.add_module(module)
        )
        if name and _linkable(stored.code):
            disk.store(name, text, stored)
    return made


def compiled(text: str) -> tuple[Any, disk.Stored]:
    """The optimised LLVM module of a kernel, and its machine code."""
    import llvmlite.binding as llvm
    from llvmlite.binding.newpassmanagers import NewPassManager

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
    NewPassManager._dispose(passes)  # llvmlite frees it only if its base classes are in this order
    passes.detach()
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


def _link(stored: disk.Stored) -> Function | None:
    """The function of object code, None if it cannot be linked here."""
    try:
        return Function(*elf.link(stored.code, stored.symbol, _find))
    except elf.NotLinkable:
        if not _linkable(stored.code):
            return None
    import llvmlite.binding as llvm

    code = llvm.ObjectFileRef.from_data(stored.code)
    return _linked_by_llvm(stored.symbol, lambda engine: engine.add_object_file(code))


class _Engine:
    """An LLVM engine. It frees what it has linked when it dies, all at once: so each links a few
    kernels. One for each kernel takes seven times as long."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        machine = _target().create_target_machine()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.symbols: set[str] = set()

    def link(self, symbol: str, add: Callable[[Any], None]) -> Function:
        """The function of what `add` gives to the engine."""
        add(self.engine)
        self.engine.finalize_object()
        self.symbols.add(symbol)
        return Function(self.engine.get_function_address(symbol), self)


_ENGINES: list[_Engine] = []  # the one that links next; `Code.lock` is held


def _linked_by_llvm(symbol: str, add: Callable[[Any], None]) -> Function:
    if not _ENGINES or len(_ENGINES[0].symbols) == PER_ENGINE or symbol in _ENGINES[0].symbols:
        _ENGINES[:] = [_Engine()]
    return _ENGINES[0].link(symbol, add)


def _load_plain(text: str, keep: bool) -> Function:
    from everyo.compile import plain

    names = plain.scope(text)
    exec(text, names)
    kernel = names.pop("kernel")
    return Function(plain.enter(kernel), kernel)


NATIVE = Code(_native)
PLAIN = Code(_load_plain)
