"""On which device a compiled version runs, and the program for it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everyo import cuda
from everyo.compile import passes
from everyo.compile.cpu import Program
from everyo.compile.ir import Graph
from everyo.compile.roll import LOOPS
from everyo.compile.staged import Staged, has_exchanges
from everyo.core.device import CPU, Device
from everyo.core.device_array import DeviceArray, place_of
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryODeviceError


def common_device(
    name: str, sources: Iterable[Any], leaves: Sequence[Any], wanted: Device | None
) -> Device:
    """The device of all tensors that a version reads, or the one that was asked for.

    NumPy arrays and numbers go anywhere, and so does state of whole numbers (step counts, random
    states). Floating tensors on two devices are an error that names both.
    """
    places: dict[Device, tuple[int, ...]] = {} if wanted is None else {wanted: ()}
    for source in sources:
        data = source.fetch(leaves)
        tensor = source.kind in ("data", "grad") or (
            source.kind in ("arg", "arg_grad") and isinstance(leaves[source.owner], Tensor)
        )
        if type(data) is DeviceArray:
            places.setdefault(data.device, data.shape)
        elif tensor and isinstance(data, np.ndarray) and data.ndim and data.dtype.kind == "f":
            places.setdefault(CPU, data.shape)
    if len(places) > 1:
        (first, _), (second, shape) = list(places.items())[:2]
        raise EveryODeviceError(
            f"{name}: one tensor is on {first}, another, of shape {shape}, on {second}; move one "
            f"with .to({str(first)!r}), a model with model.to({str(first)!r})"
        )
    return next(iter(places), CPU)


def prepared(graph: Graph, device: Device) -> Graph:
    """The graph after all passes; for the CPU with its loops rolled back."""
    return passes.run(graph) if device.is_cuda else passes.run(graph, LOOPS)


def make_program(graph: Graph, device: Device, keep: bool) -> Any:
    """The compiled graph, for the CPU or a CUDA device."""
    if has_exchanges(graph):
        return Staged(graph, lambda part: make_program(part, device, keep))
    if device.is_cuda:
        return cuda.backend().program(graph, device)
    return Program(graph, keep=keep)


def is_on(data: Any, device: Device) -> bool:
    """Whether an array can be an input of a program on a device: NumPy's can be one anywhere."""
    return type(data) is np.ndarray or (type(data) is DeviceArray and place_of(data) == device)
