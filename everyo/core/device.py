"""Where a tensor lives: the CPU, or a CUDA device where one is available."""

import logging
import re
from dataclasses import dataclass
from typing import Any

from everyo.exceptions import EveryOCudaError, EveryODeviceError

log = logging.getLogger("everyo")


@dataclass(frozen=True, eq=False)
class Device:
    """A device by type ("cpu" or "cuda") and index; equal by value, and to its string."""

    type: str = "cpu"
    index: int = 0

    def __post_init__(self) -> None:
        if self.type not in ("cpu", "cuda"):
            raise EveryODeviceError(f"Unknown device type {self.type!r}; use 'cpu' or 'cuda'")
        if self.index < 0 or (self.type == "cpu" and self.index != 0):
            known = "index 0" if self.type == "cpu" else "index 0, 1, …"
            raise EveryODeviceError(f"A {self.type} device has {known}; got {self.index}")

    @property
    def is_cuda(self) -> bool:
        """Whether this is a CUDA device."""
        return self.type == "cuda"

    def __str__(self) -> str:
        return "cpu" if self.type == "cpu" else f"cuda:{self.index}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return (self.type, self.index) == (other.type, other.index)
        if isinstance(other, str):
            return other == str(self) or (other == "cuda" and str(self) == "cuda:0")
        return NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))


CPU = Device()


def device(spec: Any = "cpu", *, strict: bool = False) -> Device:
    """The device for "cpu", "cuda", "cuda:N", "auto", a `Device` or None.

    Without CUDA, a CUDA request becomes the CPU with a log message; with `strict=True` it raises
    `EveryOCudaError`. Raises `EveryODeviceError` for anything that names no device.
    """
    if isinstance(spec, Device):
        wanted = spec
    elif spec is None:
        return CPU
    elif not isinstance(spec, str):
        raise EveryODeviceError(f"Invalid device string {spec!r}; use 'cpu', 'cuda' or 'cuda:N'")
    else:
        text = spec.strip().lower()
        if text == "auto":
            return device("cuda") if _cuda_reason() is None else CPU
        match = re.fullmatch(r"([a-z]+)(?::(-?\d+))?", text)
        if match is None:
            raise EveryODeviceError(
                f"Invalid device string {spec!r}; use 'cpu', 'cuda' or 'cuda:N'"
            )
        name = "cuda" if match[1] == "gpu" else match[1]
        wanted = Device(name, int(match[2] or 0))
    if not wanted.is_cuda:
        return wanted
    reason = _cuda_reason()
    if reason is None:
        return wanted
    if strict:
        raise EveryOCudaError(f"{wanted} was asked for with strict=True: {reason}")
    log.warning("%s is not available (%s); using the cpu", wanted, reason)
    return CPU


def _cuda_reason() -> str | None:
    from everyo import cuda

    return cuda.unavailable_reason()
