"""CUDA availability. None of the questions here ever raises.

What drives a device is registered by the compiler when the package is imported, and loaded when it
is first asked for: without a CUDA request nothing of it is imported.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from everyo.exceptions import EveryOCudaError

__all__ = [
    "add", "allow_tf32", "backend", "device_count", "is_available", "matmul", "multiply", "relu",
    "runtime_info", "sum_all", "unavailable_reason",
]  # fmt: skip

_LOADERS: list[Callable[[], Any]] = []


def register(loader: Callable[[], Any]) -> None:
    """Say what returns the backend when one is needed."""
    _LOADERS[:] = [loader]


def backend() -> Any:
    """What drives the devices; `EveryOCudaError` where there are none."""
    reason = unavailable_reason()
    if reason is not None:
        raise EveryOCudaError(f"CUDA is not available: {reason}")
    return _LOADERS[0]()


def allow_tf32(allowed: bool = True) -> None:
    """Let float32 products round their operands to 10 bits of mantissa (TF32), which tensor cores
    multiply several times as fast. Off by default: products are full float32."""
    backend().allow_tf32(allowed)


def unavailable_reason() -> str | None:
    """Why CUDA cannot be used here, or None if it can."""
    if os.environ.get("EVERYO_DISABLE_CUDA") == "1":
        return "switched off by EVERYO_DISABLE_CUDA=1"
    try:
        return _LOADERS[0]().reason()
    except Exception as error:
        return f"its support could not be loaded ({type(error).__name__}: {error})"


def is_available() -> bool:
    """Whether tensors can live on a CUDA device."""
    return unavailable_reason() is None


def device_count() -> int:
    """The number of usable CUDA devices."""
    return len(_devices())


def runtime_info() -> dict[str, Any]:
    """What is known about CUDA here: `available`, `device_count`, `devices` (a name and a compute
    capability each), `emulated`, and, without CUDA, `reason`."""
    devices = _devices()
    return {
        "available": is_available(),
        "device_count": len(devices),
        "devices": devices,
        "emulated": any(d["emulated"] for d in devices),
        "reason": unavailable_reason(),
    }


def _devices() -> list[dict[str, Any]]:
    try:
        return backend().devices()
    except Exception:
        return []


def _on_device(name: str, arrays: tuple[np.ndarray, ...], strict: bool) -> np.ndarray:
    """An operation on NumPy arrays, computed on the device if there is one."""
    if is_available():
        return backend().on_arrays(name, arrays)
    if strict:
        raise EveryOCudaError(f"cuda.{name} with strict=True: {unavailable_reason()}")
    return _HOST[name](*arrays)


_HOST: dict[str, Callable[..., Any]] = {
    "add": np.add, "multiply": np.multiply, "matmul": np.matmul, "sum": np.sum,
    "relu": lambda a: np.maximum(a, np.asarray(a).dtype.type(0)),
}  # fmt: skip


def add(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a + b`, on the device if there is one."""
    return _on_device("add", (a, b), strict)


def multiply(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a * b`, on the device if there is one."""
    return _on_device("multiply", (a, b), strict)


def matmul(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a @ b`, on the device if there is one."""
    return _on_device("matmul", (a, b), strict)


def relu(a: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`max(a, 0)`, on the device if there is one."""
    return _on_device("relu", (a,), strict)


def sum_all(a: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """The sum of all elements, on the device if there is one."""
    return _on_device("sum", (a,), strict)
