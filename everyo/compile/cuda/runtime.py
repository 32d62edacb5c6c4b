"""What programs need of a device: one small protocol with two implementations.

`emulator.EmulatedRuntime` executes the emitted PTX on the CPU with every check, `DeviceRuntime` of
`device` drives a GPU through cuda.core. Addresses are plain integers; one stream orders everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from everyo.compile.cuda.toolchain import Code


@dataclass(frozen=True)
class Gemm:
    """c (m, n) = a (m, k) @ b (k, n), row-major, for every (i, j) of two batch loops.

    a is at `a[i * strides..]`; a turned matrix is stored by columns. Leads and strides in elements.
    """

    dtype: np.dtype
    m: int
    n: int
    k: int
    turn_a: bool
    lead_a: int
    turn_b: bool
    lead_b: int
    lead_c: int
    loops: tuple[tuple[int, tuple[int, int, int]], ...]


class Runtime(Protocol):
    """A device. `cc` is its compute capability, `index` its number."""

    name: str
    cc: tuple[int, int]
    index: int

    def allocate(self, size: int) -> int:
        """The address of new bytes, aligned to 256."""

    def free(self, address: int) -> None:
        """Give bytes back, once what was launched so far has run."""

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy host bytes to the device; the array may change afterwards."""

    def download(self, address: int, size: int) -> np.ndarray:
        """Copy device bytes to the host, after everything launched so far."""

    def load(self, code: Code) -> Any:
        """A kernel that can be launched."""

    def launch(
        self, kernel: Any, blocks: int, threads: int, args: Sequence[int], name: str = ""
    ) -> None:
        """Run a kernel; every argument is a pointer or an unsigned number of 64 bits. `name` is for
        errors."""

    def gemm(self, product: Gemm, a: int, b: int, c: int) -> bool:
        """Multiply matrices with the vendor's library; False if there is none."""

    def allow_tf32(self, allowed: bool) -> None:
        """Whether `gemm` may round float32 operands to 10 bits of mantissa."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What `run` launches, recorded as a graph: calling the result launches it again."""

    @property
    def stream_number(self) -> int | None:
        """The stream of the array interface."""

    def exported(self, array: Any, stream: int | None) -> Any:
        """An object that exports a device array by DLPack, to be used on a stream."""

    def interface(self, source: Any) -> tuple[Any, dict[str, Any]]:
        """An owner and the array interface of an array on this device that only has DLPack."""

    def wait_for(self, stream: int) -> None:
        """Let what is launched from now on wait for another library's stream."""

    def event(self) -> Any:
        """A mark in the stream."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two marks."""

    def synchronize(self) -> None:
        """Wait for everything launched so far."""


class Buffer:
    """Device bytes that are given back when nobody holds them; those of an `owner` are its own."""

    __slots__ = ("__weakref__", "address", "owner", "runtime", "size")

    def __init__(
        self, runtime: Runtime, size: int, address: int | None = None, owner: Any = None
    ) -> None:
        self.runtime, self.size, self.owner = runtime, size, owner
        self.address = runtime.allocate(size) if address is None else address

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None and self.owner is None:
            self.runtime.free(address)
