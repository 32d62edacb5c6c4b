"""PTX text -> a kernel that can be interpreted: parameters, memory, registers, instructions.

Only the part of the language that NVVM emits for generated kernels is read; anything else is an
error that names the line. What the instructions do is in `lanes` (arithmetic) and `machine`.
"""

import re
from dataclasses import dataclass

import numpy as np

TYPES = {
    "s8": np.int8, "u8": np.uint8, "b8": np.uint8, "s16": np.int16, "u16": np.uint16,
    "b16": np.uint16, "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "s64": np.int64,
    "u64": np.uint64, "b64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "pred": np.bool_,
}  # fmt: skip
# How registers are kept: by their size, floats as floats.
STORED = {
    "pred": np.bool_, "b16": np.uint16, "s16": np.uint16, "u16": np.uint16, "b32": np.uint32,
    "s32": np.uint32, "u32": np.uint32, "b64": np.uint64, "s64": np.uint64, "u64": np.uint64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{", re.S)
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.ptr[^,)]*?)?\s+([\w$]+)")
ARRAY = r"\.{space}\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]"
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(%[\w$]+)(?:<(\d+)>)?\s*;")
DIRECTIVE = re.compile(r"^\s*\.(?:loc\b[^\n]*|(?:reg|local|shared|pragma|file)\b[^;]*;)", re.M)
LABEL = re.compile(r"^([\w$]+):\s*")
STATEMENT = re.compile(r"^(?:@(!?)(%[\w$]+)\s+)?([\w.:]+)\s*(.*)$", re.S)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
BOUNDS = re.compile(r"\.maxntid\s+(\d+)")


class PTXError(Exception):
    """A kernel that does what no kernel may, or PTX that cannot be interpreted."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`op` are the parts between the dots; a guard is (register, whether it must be false)."""

    op: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    text: str


@dataclass(frozen=True, eq=False)
class Kernel:
    """One entry of a PTX module. Arrays are given by their offsets in the space of a block (shared)
    or thread (local)."""

    name: str
    params: tuple[tuple[str, str], ...]  # (name, type)
    shared: dict[str, int]
    shared_bytes: int
    local: dict[str, int]
    local_bytes: int
    registers: dict[str, str]  # a register, or the prefix of many, to its type
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    threads: int  # the largest block that it was compiled for, 0 if not said


def parse(text: str) -> Kernel:
    """The first kernel of a module."""
    text = COMMENT.sub("", text)
    entry = ENTRY.search(text)
    if entry is None:
        raise PTXError("no .entry in this PTX")
    bounds = BOUNDS.search(entry[3])
    body = _body(text, entry.end())
    shared, shared_bytes = _arrays(text, "shared")
    local, local_bytes = _arrays(body, "local")
    registers = {m[2]: m[1] for m in REGISTERS.finditer(body)}
    code, labels = _code(DIRECTIVE.sub("", body))
    return Kernel(
        entry[1], tuple((name, kind) for kind, name in PARAMETER.findall(entry[2])), shared,
        shared_bytes, local, local_bytes, registers, code, labels, int(bounds[1]) if bounds else 0,
    )  # fmt: skip


def _body(text: str, start: int) -> str:
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return text[start:i]
    raise PTXError("a kernel without an end")


def _arrays(text: str, space: str) -> tuple[dict[str, int], int]:
    """Offsets of the arrays of a memory space, and the bytes of all of them."""
    offsets: dict[str, int] = {}
    end = 0
    for m in re.finditer(ARRAY.format(space=space), text):
        align, size = int(m[1]), int(m[3])
        offsets[m[2]] = end = -(-end // align) * align
        end += size
    return offsets, end


def _code(body: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for part in re.split(r";|(?<=:)\s", body):
        line = part.strip()
        while label := LABEL.match(line):
            labels[label[1]] = len(code)
            line = line[label.end() :].strip()
        line = line.lstrip("{} \n\t")  # scopes mean nothing here: register names are unique
        if not line:
            continue
        m = STATEMENT.match(line)
        if m is None:
            raise PTXError(f"cannot read {line!r}")
        operands = tuple(o.strip() for o in OPERAND.findall(m[4]))
        guard = (m[2], m[1] == "!") if m[2] else None
        code.append(Instruction(tuple(m[3].split(".")), operands, guard, " ".join(line.split())))
    return tuple(code), labels


def names_of(group: str) -> list[str]:
    """The operands within braces, or the one operand."""
    return [name.strip() for name in group.strip("{}").split(",")]
