"""What `everyo.cuda` reaches when a device is asked for: runtimes, programs, the eager
namespace."""

import os
from typing import Any

import numpy as np

from everyo.compile.cuda import device, emulator, toolchain
from everyo.compile.cuda.runtime import Buffer, Runtime
from everyo.compile.ir import Graph
from everyo.core.device import Device


def emulated() -> bool:
    """Whether the emulator was asked for."""
    return os.environ.get("EVERYO_CUDA", "").lower() == "emulator"


def reason() -> str | None:
    """Why no device can be used, or None."""
    return toolchain.missing() if emulated() else device.reason()


class Backend:
    """The devices of this process."""

    reason = staticmethod(reason)

    def runtime(self, index: int = 0) -> Runtime:
        """The runtime of a device."""
        return emulator.runtime() if emulated() else device.runtime(index)

    def buffer(self, index: int, size: int) -> Buffer:
        """New bytes on a device."""
        return Buffer(self.runtime(index), size)

    def shared(self, index: int, address: int, size: int, owner: Any) -> Buffer:
        """The bytes of another library on a device."""
        return Buffer(self.runtime(index), size, address, owner)

    def devices(self) -> list[dict[str, Any]]:
        """Name, compute capability and whether it is emulated, for each device."""
        if emulated():
            return [{"name": "emulator", "capability": emulator.CC, "emulated": True}]
        return [
            {"name": r.device.name, "capability": r.cc, "emulated": False}
            for r in map(device.runtime, range(device.count()))
        ]

    def allow_tf32(self, allowed: bool) -> None:
        """Whether float32 products may round their operands to 10 bits, on every device."""
        for index in range(len(self.devices())):
            self.runtime(index).allow_tf32(allowed)

    def program(self, graph: Graph, where: Device) -> Any:
        """A compiled graph for a device."""
        from everyo.compile.cuda.program import Program

        return Program(graph, self.runtime(where.index))

    def namespace_on(self, index: int) -> Any:
        """The array namespace that computes on the arrays of a device."""
        if index not in self._namespaces:
            from everyo.compile.cuda.eager import DeviceNamespace

            self._namespaces[index] = DeviceNamespace(self, Device("cuda", index))
        return self._namespaces[index]

    def __init__(self) -> None:
        self._namespaces: dict[int, Any] = {}

    def on_arrays(self, name: str, arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        """An operation on NumPy arrays, by way of the device."""
        from everyo.core.device_array import DeviceArray

        xp, where = self.namespace_on(0), Device("cuda", 0)
        held = [DeviceArray.upload(np.asarray(a), where) for a in arrays]
        if name == "relu":
            return xp.maximum(held[0], 0).numpy()
        if name == "sum":
            return xp.sum(held[0], axis=tuple(range(held[0].ndim)), keepdims=False).numpy()[()]
        return getattr(xp, name)(*held).numpy()


BACKEND = Backend()
