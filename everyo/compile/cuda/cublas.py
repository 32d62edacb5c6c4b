"""Products by cuBLAS, through ctypes: its library as any CUDA installation has it, on our pointers.

cuBLAS stores matrices by columns. Our row-major c = a @ b is its c' = b' @ a', so operands change
places and turned ones lose their turn. `arguments` works that out and is all that can be wrong
without a GPU; a test gives its result to a BLAS on the host.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.compile.cuda.runtime import Gemm

NO_TURN, TURN = 0, 1
DEFAULT_MATH, TF32_MATH = 0, 3
WORKSPACE = 32 << 20  # bytes; a workspace of our own lets products be part of graphs
SYMBOLS = {
    np.dtype("float32"): ("cublasSgemmStridedBatched", ctypes.c_float),
    np.dtype("float64"): ("cublasDgemmStridedBatched", ctypes.c_double),
}


@dataclass(frozen=True)
class Call:
    """Arguments of a batched product by columns: op and leading dimension of both operands, sizes,
    and strides of the batch, for (first, second) = (b, a)."""

    turn_first: int
    turn_second: int
    m: int
    n: int
    k: int
    lead_first: int
    lead_second: int
    lead_result: int
    stride_first: int
    stride_second: int
    stride_result: int
    count: int


def arguments(p: Gemm) -> tuple[Call, list[tuple[int, int, int]]]:
    """The call for one round of the outer batch loop, and the offsets of a, b, c of each round."""
    (outer, far), (inner, near) = p.loops
    call = Call(
        TURN if p.turn_b else NO_TURN, TURN if p.turn_a else NO_TURN, p.n, p.m, p.k,
        max(1, p.lead_b), max(1, p.lead_a), max(1, p.lead_c), near[1], near[0], near[2], inner,
    )  # fmt: skip
    return call, [(i * far[0], i * far[1], i * far[2]) for i in range(outer)]


class Library:
    """A cuBLAS handle on one stream."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, workspace: int) -> None:
        self.library, self.handle, self.workspace = library, handle, workspace
        self.one = {np.dtype("float32"): ctypes.c_float(1), np.dtype("float64"): ctypes.c_double(1)}
        self.zero = {
            np.dtype("float32"): ctypes.c_float(0),
            np.dtype("float64"): ctypes.c_double(0),
        }

    @classmethod
    def open(cls, stream: int, allocate: Callable[[int], int]) -> "Library | None":
        """The library on a stream, or None if it is not installed."""
        library = find()
        if library is None:
            return None
        handle = ctypes.c_void_p()
        if library.cublasCreate_v2(ctypes.byref(handle)):
            return None
        opened = cls(library, handle, allocate(WORKSPACE))
        opened.use(stream)
        return opened

    def use(self, stream: int) -> None:
        """Launch on this stream from now on. Changing it takes the workspace away."""
        place = ctypes.c_void_p(self.workspace)
        self._check(self.library.cublasSetStream_v2(self.handle, ctypes.c_void_p(stream)))
        self._check(
            self.library.cublasSetWorkspace_v2(self.handle, place, ctypes.c_size_t(WORKSPACE))
        )

    def allow_tf32(self, allowed: bool) -> None:
        """Whether float32 products may round their operands to 10 bits; full precision by
        default."""
        mode = TF32_MATH if allowed else DEFAULT_MATH
        self._check(self.library.cublasSetMathMode(self.handle, mode))

    def multiply(self, p: Gemm, a: int, b: int, c: int) -> None:
        symbol, _ = SYMBOLS[p.dtype]
        function = getattr(self.library, symbol)
        call, rounds = arguments(p)
        item = p.dtype.itemsize
        one, zero = ctypes.byref(self.one[p.dtype]), ctypes.byref(self.zero[p.dtype])
        wide, pointer = ctypes.c_longlong, ctypes.c_void_p
        for at_a, at_b, at_c in rounds:
            self._check(
                function(
                    self.handle, call.turn_first, call.turn_second, call.m, call.n, call.k, one,
                    pointer(b + item * at_b), call.lead_first, wide(call.stride_first),
                    pointer(a + item * at_a), call.lead_second, wide(call.stride_second), zero,
                    pointer(c + item * at_c), call.lead_result, wide(call.stride_result),
                    call.count,
                )
            )  # fmt: skip

    def _check(self, status: int) -> None:
        if status:
            self.library.cublasGetStatusString.restype = ctypes.c_char_p
            text = self.library.cublasGetStatusString(status).decode()
            raise RuntimeError(f"cuBLAS answered {status}: {text}")


def find() -> Any:
    """The library, or None."""
    try:
        from cuda import pathfinder

        pathfinder.load_nvidia_dynamic_lib("cublasLt")
        found = pathfinder.load_nvidia_dynamic_lib("cublas")
        library = ctypes.CDLL(found.abs_path)
        names = ("cublasCreate_v2", "cublasSetStream_v2", *(name for name, _ in SYMBOLS.values()))
        return library if all(hasattr(library, name) for name in names) else None
    except Exception:
        return None
