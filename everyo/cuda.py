"""CUDA availability. None of the questions here ever raises."""

import os
from typing import Any

import numpy as np

from everyo.exceptions import EveryOCudaError

__all__ = [
    "add", "device_count", "is_available", "matmul", "multiply", "relu", "runtime_info", "sum_all",
    "unavailable_reason",
]  # fmt: skip


def unavailable_reason() -> str | None:
    """Why CUDA cannot be used here, or None if it can."""
    if os.environ.get("EVERYO_DISABLE_CUDA") == "1":
        return "switched off by EVERYO_DISABLE_CUDA=1"
    return "this version of EveryO computes on the CPU only"


def is_available() -> bool:
    """Whether tensors can live on a CUDA device."""
    return unavailable_reason() is None


def device_count() -> int:
    """The number of usable CUDA devices."""
    return 0


def runtime_info() -> dict[str, Any]:
    """What is known about CUDA here: `available`, `device_count`, `devices` and, without CUDA, `reason`."""
    return {
        "available": is_available(),
        "device_count": device_count(),
        "devices": [],
        "reason": unavailable_reason(),
    }


def _host(name: str, strict: bool) -> None:
    if strict:
        raise EveryOCudaError(f"cuda.{name} with strict=True: {unavailable_reason()}")


def add(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a + b`, on the device if there is one."""
    _host("add", strict)
    return np.add(a, b)


def multiply(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a * b`, on the device if there is one."""
    _host("multiply", strict)
    return np.multiply(a, b)


def matmul(a: np.ndarray, b: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`a @ b`, on the device if there is one."""
    _host("matmul", strict)
    return np.matmul(a, b)


def relu(a: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """`max(a, 0)`, on the device if there is one."""
    _host("relu", strict)
    return np.maximum(a, 0)


def sum_all(a: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """The sum of all elements, on the device if there is one."""
    _host("sum_all", strict)
    return np.sum(a)
