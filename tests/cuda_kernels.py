"""Small kernels in the language of the generated ones, and what runs them in the interpreter."""

import textwrap

import numpy as np

from everyo.compile.cuda import toolchain
from everyo.compile.cuda.machine import Launch
from everyo.compile.cuda.memory import DeviceMemory
from everyo.compile.cuda.ptx import parse

CC = (9, 0)


def launched(body, arrays, blocks=1, threads=64, kinds=None, checks=True):
    """Run `body` on copies of the arrays in device memory; the arrays afterwards, and the
    launch."""
    kinds = kinds or ["f32"] * len(arrays)
    names = ", ".join(f"p{i}" for i in range(len(arrays)))
    text = f"def kernel({names}):\n    t = u32(cuda.threadIdx.x)\n" + textwrap.indent(
        textwrap.dedent(body).strip("\n"), "    "
    )
    code = toolchain.compile_ptx(text + "\n", tuple(f"{k}*" for k in kinds), CC)
    memory = DeviceMemory()
    places = [memory.allocate(a.nbytes) for a in arrays]
    for place, a in zip(places, arrays, strict=True):
        if not np.isnan(a).all():  # all NaN: not written yet
            memory.write(place, a)
    launch = Launch(parse(code.ptx), memory, (blocks,), (threads,), places, checks).run()
    found = []
    for place, a in zip(places, arrays, strict=True):
        block = memory.find(place, a.nbytes)
        found.append(block.data[: a.nbytes].copy().view(a.dtype).reshape(a.shape))
    return found, launch


def unset(n):
    """An array whose device copy is never written by the host."""
    return np.full(n, np.nan, np.float32)
