"""The engine: tensors, the graph, op records, dtypes, devices, random numbers."""

from everyo.core import autograd, device, dtype, op, random, tensor

__all__ = ["autograd", "device", "dtype", "op", "random", "tensor"]
