"""What an object file asks of the process that links it: the names that it does not define.

LLVM ends the process when a symbol is missing, so stored code is looked at before it is linked.
Only the relocatable 64-bit little-endian ELF files that LLVM writes on Linux are understood.
"""

import platform
import struct
from collections.abc import Iterator

MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE, _SYMBOL_TABLE, _UNDEFINED = 1, 2, 0


class NotLinkable(ValueError):
    """This is no object file for this machine."""


def undefined(code: bytes) -> set[str]:
    """The names that an object file for this machine refers to and does not define."""
    try:
        return {name for name, section in _symbols(code) if name and section == _UNDEFINED}
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise NotLinkable(str(error)) from None


def _symbols(code: bytes) -> Iterator[tuple[str, int]]:
    """(name, section) of every symbol."""
    ident, kind, machine, *_, at, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or size != _SECTION.size:
        raise NotLinkable("not a relocatable 64-bit ELF file")
    if machine != MACHINES.get(platform.machine()):
        raise NotLinkable(f"made for another machine ({machine})")
    sections = [_SECTION.unpack_from(code, at + i * size) for i in range(count)]
    for section in sections:
        if section[1] == _SYMBOL_TABLE:
            start, length, link = section[4:7]
            names = sections[link][4]
            for k in range(start, start + length, _SYMBOL.size):
                name, _, _, owner, _, _ = _SYMBOL.unpack_from(code, k)
                end = code.index(b"\0", names + name)
                yield code[names + name : end].decode(), owner
