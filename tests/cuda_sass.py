"""Facts about kernels' machine code, read without a GPU: assembled, disassembled, counted.

Kernels of one architecture are linked into one cubin under names of their own, so that the tools
run once for all of them.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everyo.compile.cuda import toolchain
from everyo.compile.cuda.toolchain import Code

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T0-9]\s+)?([A-Z][A-Z0-9_.]*)")
DOUBLE = re.compile(r"^(D(ADD|MUL|FMA|SETP|MNMX)|F2F\.F64|F2F\.F32\.F64|I2F\.F64|F2I\.\w*F64)")
LOCAL = re.compile(r"^(LDL|STL)")
USAGE = re.compile(r"Function kernel(\d+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")

Kernel = tuple[str, tuple[str, ...]]  # text and kinds of parameters


@dataclass(frozen=True)
class Facts:
    """Registers per thread, bytes of stack, of shared and of local memory, instructions by name."""

    registers: int
    stack: int
    shared: int
    local: int
    instructions: Counter

    def count(self, pattern: str) -> int:
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))


def tool(name: str) -> str:
    from cuda import pathfinder

    found = pathfinder.find_nvidia_binary_utility(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def facts(kernels: Sequence[Kernel], cc: tuple[int, int]) -> list[Facts]:
    """What the machine code of each kernel holds on one architecture."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cubin"
        codes = [_named(toolchain.compile_ptx(*k, cc), i) for i, k in enumerate(kernels)]
        file.write_bytes(toolchain.link(codes, cc))
        listing = _run(tool("nvdisasm"), "-c", str(file))
        usage = _run(tool("cuobjdump"), "-res-usage", str(file))
    _, *parts = re.split(r"\.section\s+\.text\.([\w$]+)", listing)
    named = zip(parts[::2], parts[1::2], strict=True)
    code = {
        int(name.removeprefix("kernel")): Counter(INSTRUCTION.findall(text))
        for name, text in named
        if name.startswith("kernel")  # others are called by several kernels
    }
    sizes = {int(m[1]): [int(n) for n in m.groups()[1:]] for m in USAGE.finditer(usage)}
    assert sorted(code) == sorted(sizes) == list(range(len(kernels))), (sorted(code), usage)
    return [Facts(*sizes[i], code[i]) for i in range(len(kernels))]


def _named(code: Code, i: int) -> Code:
    """The kernel under a name of its own."""
    return Code(f"kernel{i}", re.sub(r"\bkernel(?=\b|_param)", f"kernel{i}", code.ptx))


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
