"""A device that is not there: its memory is NumPy's, its kernels are interpreted PTX.

Everything a program does runs as on a GPU, from allocation to launch, and every access is checked
(`machine`). `EVERYO_CUDA=emulator` selects it; `EVERYO_CUDA_CHECKS=0` leaves out the checks for
races and uninitialised reads, which cost about half of the time.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from everyo.compile.cuda.machine import Launch
from everyo.compile.cuda.memory import DeviceMemory
from everyo.compile.cuda.ptx import Kernel, PTXError, parse
from everyo.compile.cuda.runtime import Gemm
from everyo.compile.cuda.toolchain import Code

CC = (9, 0)


class EmulatedRuntime:
    """The protocol on the CPU. `counts` sums what the launches counted."""

    name = "emulator"
    index = 0
    stream_number = None  # of the array interface: nothing runs later here

    def __init__(
        self, cc: tuple[int, int] = CC, checks: bool | None = None, library: bool = True
    ) -> None:
        self.cc, self.library = cc, library
        self.checks = os.environ.get("EVERYO_CUDA_CHECKS") != "0" if checks is None else checks
        self.memory = DeviceMemory()
        self.counts: Counter[str] = Counter()
        self.tf32 = False
        self.recording: list[Callable[[], None]] | None = None

    def allocate(self, size: int) -> int:
        return self.memory.allocate(size)

    def free(self, address: int) -> None:
        self.memory.free(address)

    def upload(self, address: int, data: np.ndarray) -> None:
        self.counts["uploads"] += 1
        self.memory.write(address, data)

    def download(self, address: int, size: int) -> np.ndarray:
        return self.memory.read(address, size)

    def load(self, code: Code) -> Kernel:
        return _parsed(code.ptx)

    def launch(
        self, kernel: Kernel, blocks: int, threads: int, args: Sequence[int], name: str = ""
    ) -> None:
        given = tuple(args)

        def run() -> None:
            launch = Launch(kernel, self.memory, (blocks,), (threads,), given, self.checks)
            try:
                self.counts += launch.run().counts
            except PTXError as error:
                raise PTXError(f"{name or 'kernel'}: {error}") from None
            self.counts["launches"] += 1

        self._do(run)

    def gemm(self, product: Gemm, a: int, b: int, c: int) -> bool:
        if self.library:
            self._do(lambda: self._multiply(product, a, b, c))
        return self.library

    def allow_tf32(self, allowed: bool) -> None:
        self.tf32 = allowed

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        recorded: list[Callable[[], None]] = []
        self.recording = recorded
        try:
            run()
        finally:
            self.recording = None

        def replay() -> None:
            self.counts["replays"] += 1
            for step in recorded:
                step()

        return replay

    def exported(self, array: Any, stream: int | None) -> Any:
        raise BufferError("the memory of the emulated device exists for the emulator only")

    def interface(self, source: Any) -> tuple[Any, dict[str, Any]]:
        raise BufferError("the emulated device cannot reach the memory of a real one")

    def wait_for(self, stream: int) -> None:
        """Nothing runs later here."""

    def event(self) -> float:
        return time.perf_counter()

    def elapsed(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        """Nothing runs later here."""

    def _do(self, step: Callable[[], None]) -> None:
        if self.recording is None:
            step()
        else:
            self.recording.append(step)

    def _multiply(self, p: Gemm, a: int, b: int, c: int) -> None:
        """NumPy in place of the vendor's library."""
        item = p.dtype.itemsize
        (outer, far), (inner, near) = p.loops
        for i in range(outer):
            for j in range(inner):
                at = [item * (i * f + j * n) for f, n in zip(far, near, strict=True)]
                x = self._matrix(a + at[0], p.m, p.k, p.turn_a, p.lead_a, p.dtype)
                y = self._matrix(b + at[1], p.k, p.n, p.turn_b, p.lead_b, p.dtype)
                for row, values in enumerate(x @ y):
                    self.memory.write(c + at[2] + item * row * p.lead_c, values)
        self.counts["products"] += 1

    def _matrix(
        self, address: int, rows: int, columns: int, turned: bool, lead: int, dtype: np.dtype
    ) -> np.ndarray:
        if turned:
            return self._matrix(address, columns, rows, False, lead, dtype).T
        lines = [
            self.memory.read(address + dtype.itemsize * r * lead, dtype.itemsize * columns)
            for r in range(rows)
        ]
        matrix = np.stack(lines).view(dtype).reshape(rows, columns)
        if self.tf32 and dtype == np.float32:
            matrix = ((matrix.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(dtype)
        return matrix


@cache
def _parsed(ptx: str) -> Kernel:
    return parse(ptx)


def runtime() -> Any:
    """The one emulated device of this process."""
    return _one()


@cache
def _one() -> EmulatedRuntime:
    return EmulatedRuntime()
