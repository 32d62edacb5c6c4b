"""Facts about a kernel's machine code, read without a GPU: assembled, disassembled, counted."""

import functools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from everyo.compile.cuda import toolchain

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T0-9]\s+)?([A-Z][A-Z0-9_.]*)")
DOUBLE = re.compile(r"^(D(ADD|MUL|FMA|SETP|MNMX)|F2F\.F64|F2F\.F32\.F64|I2F\.F64|F2I\.\w*F64)")
LOCAL = re.compile(r"^(LDL|STL)")


@dataclass(frozen=True)
class Facts:
    """Registers per thread, bytes of stack and of shared memory, instructions by name."""

    registers: int
    stack: int
    shared: int
    instructions: Counter

    def count(self, pattern: str) -> int:
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))


def tool(name: str) -> str:
    from cuda import pathfinder

    found = pathfinder.find_nvidia_binary_utility(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


@functools.cache
def facts(text: str, params: tuple[str, ...], cc: tuple[int, int]) -> Facts:
    """What the machine code of a kernel's text holds on one architecture."""
    cubin = toolchain.assemble(toolchain.compile_ptx(text, params, cc), cc)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        code = _run(tool("nvdisasm"), "-c", str(file))
        usage = _run(tool("cuobjdump"), "-res-usage", str(file))
    found = re.search(r"Function kernel:\s*\n?\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    assert found is not None, usage
    names = Counter(INSTRUCTION.findall(code))
    return Facts(int(found[1]), int(found[2]), int(found[3]), names)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
