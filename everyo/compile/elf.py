"""Object files as LLVM writes them for kernels: read, and linked into the process.

A kernel is a few kilobytes with few demands: its sections are laid out in one piece of memory, its
relocations filled in, and what is no data of its own made executable and read-only. This takes
microseconds, where importing an LLVM to do it takes a third of a program's first call. Whatever is
not understood raises `NotLinkable`, and LLVM links it. LLVM ends the process when a symbol is
missing, so stored code is looked at here in any case.
"""

import ctypes
import mmap
import platform
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_RELOCATABLE = 1  # a kind of file
_SYMBOL_TABLE, _RELOCATIONS, _ZEROS = 2, 4, 8  # kinds of sections
_WRITABLE, _LOADED, _EXECUTABLE, _THREAD_LOCAL = 1, 2, 4, 1 << 10  # flags of sections
_UNDEFINED, _COMMON = 0, 0xFFF2  # sections of symbols
# Relocations of x86-64: what they fill in, and whether it is a distance from where they are.
_FORMATS = {1: ("<Q", False), 2: ("<i", True), 4: ("<i", True), 24: ("<q", True)}


class NotLinkable(ValueError):
    """This is no object file for this machine, or it needs a real linker."""


class Section(NamedTuple):
    """One section: its kind, flags, bytes, where it refers to, alignment and size."""

    kind: int
    flags: int
    data: bytes
    link: int
    info: int
    align: int
    size: int


class Symbol(NamedTuple):
    """A name and the section and offset that it stands for; `value` is the alignment of a common
    one."""

    name: str
    section: int
    value: int
    size: int


def undefined(code: bytes) -> set[str]:
    """The names that an object file for this machine refers to and does not define."""
    return {s.name for s in _parsed(code)[1] if s.name and s.section == _UNDEFINED}


def link(code: bytes, name: str, find: Callable[[str], int]) -> tuple[int, Any]:
    """The address of function `name` of an object file, and the memory that it lives in. `find`
    gives the address of a name that the file does not define."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise NotLinkable("relocations are understood on x86-64 only")
    try:
        return _linked(*_parsed(code), name, find)
    except (struct.error, IndexError, KeyError, OverflowError, ValueError, OSError) as error:
        raise NotLinkable(str(error)) from None


def _linked(
    sections: list[Section], symbols: list[Symbol], name: str, find: Callable[[str], int]
) -> tuple[int, Any]:
    loaded = [i for i, s in enumerate(sections) if s.flags & _LOADED and s.size]
    if any(sections[i].flags & _THREAD_LOCAL for i in loaded):
        raise NotLinkable("thread-local data")
    fixed = [i for i in loaded if not sections[i].flags & _WRITABLE]
    at: dict[int, int] = {}  # section or common symbol (by ~number) -> offset in memory
    end = 0
    for i in fixed:
        at[i], end = _placed(end, sections[i].align, sections[i].size)
    locked = end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
    for i in loaded:
        if i not in at:
            at[i], end = _placed(end, sections[i].align, sections[i].size)
    tables = [s for s in sections if s.kind == _RELOCATIONS and s.info in at]
    for k in {info >> 32 for t in tables for _, info, _ in _RELOCATION.iter_unpack(t.data)}:
        if symbols[k].section == _COMMON:
            at[~k], end = _placed(end, symbols[k].value, symbols[k].size)
    memory = mmap.mmap(-1, max(end, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for i in loaded:
        memory[at[i] : at[i] + len(sections[i].data)] = sections[i].data

    def address(k: int) -> int:
        s = symbols[k]
        if s.section == _UNDEFINED:
            return find(s.name)
        if s.section != _COMMON and s.section not in at:
            raise NotLinkable(f"{s.name} lies in section {s.section}")
        return base + (at[~k] if s.section == _COMMON else at[s.section] + s.value)

    for t in tables:
        _fill(memory, base, at[t.info], t.data, address)
    entry = next((k for k, s in enumerate(symbols) if s.name == name and s.section in fixed), None)
    if entry is None or not sections[symbols[entry].section].flags & _EXECUTABLE:
        raise NotLinkable(f"no function {name}")
    if _mprotect()(base, locked, mmap.PROT_READ | mmap.PROT_EXEC):
        raise NotLinkable("memory cannot be made executable here")
    return address(entry), memory


@cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _placed(end: int, align: int, size: int) -> tuple[int, int]:
    """Where something that is aligned starts and ends behind `end`."""
    start = -(-end // max(1, align)) * max(1, align)
    return start, start + size


def _fill(
    memory: Any, base: int, start: int, entries: bytes, address: Callable[[int], int]
) -> None:
    """Fill in the addresses that a section at `start` asks for."""
    for offset, info, addend in _RELOCATION.iter_unpack(entries):
        kind, here = info & 0xFFFFFFFF, start + offset
        value = address(info >> 32) + addend
        if kind not in _FORMATS:
            raise NotLinkable(f"a relocation of kind {kind}")
        form, relative = _FORMATS[kind]
        struct.pack_into(form, memory, here, value - base - here if relative else value)


def _parsed(code: bytes) -> tuple[list[Section], list[Symbol]]:
    """The sections and symbols of an object file for this machine."""
    try:
        sections = list(_sections(code))
        return sections, list(_symbols(sections))
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise NotLinkable(str(error)) from None


def _sections(code: bytes) -> Iterator[Section]:
    ident, kind, machine, *_, at, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or size != _SECTION.size:
        raise NotLinkable("not a relocatable 64-bit ELF file")
    if machine != MACHINES.get(platform.machine()):
        raise NotLinkable(f"made for another machine ({machine})")
    for i in range(count):
        _, kind, flags, _, start, length, link, info, align, _ = _SECTION.unpack_from(
            code, at + i * size
        )
        data = b"" if kind == _ZEROS else code[start : start + length]
        if kind not in (0, _ZEROS) and len(data) != length:
            raise NotLinkable("the file is cut off")
        yield Section(kind, flags, data, link, info, align, length)


def _symbols(sections: list[Section]) -> Iterator[Symbol]:
    for table in sections:
        if table.kind == _SYMBOL_TABLE:
            names = sections[table.link].data
            for name, _, _, section, value, size in _SYMBOL.iter_unpack(table.data):
                yield Symbol(names[name : names.index(b"\0", name)].decode(), section, value, size)
