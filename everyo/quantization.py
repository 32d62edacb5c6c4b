"""int8 weights: a quarter of the memory, for inference.

`quantize` maps an array to int8 symmetrically, largest magnitude to 127, with one scale for all or
one per entry of an axis. `quantize_dynamic` replaces the `Linear` layers of a model by layers that
keep their weights so, one scale per output; activations stay floating.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.dtype import FLOAT32
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOError
from everyo.nn.checks import last_axis, positive_sizes
from everyo.nn.initialization import claim
from everyo.nn.layers import Linear
from everyo.nn.module import Module, register_module
from everyo.ops.contraction import matmul

__all__ = [
    "QuantizationError", "QuantizedArray", "QuantizedLinear", "quantize", "quantize_dynamic",
]  # fmt: skip

LARGEST = 127  # -128 has no opposite


class QuantizationError(EveryOError):
    """An array or layer that cannot be quantized."""


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """int8 `values` and their float32 `scale`: 0-d, or shaped to broadcast along `axis`."""

    values: np.ndarray
    scale: np.ndarray
    axis: int | None

    def dequantize(self) -> np.ndarray:
        """The float32 array that this stands for: at most half a scale off the original."""
        return self.values * self.scale

    @property
    def nbytes(self) -> int:
        """Bytes of the values and scales."""
        return self.values.nbytes + self.scale.nbytes


def quantize(array: Any, *, axis: int | None = None) -> QuantizedArray:
    """An array as int8, rounded half to even: zeros stay zero, and the error is half a scale at
    most. With `axis`, each entry of that axis has a scale of its own.

    Raises `QuantizationError` for an empty array, for NaN or infinity, and for an axis that does
    not exist.
    """
    a = np.asarray(array, np.float64)
    if a.size == 0:
        raise QuantizationError(f"cannot quantize an empty array of shape {a.shape}")
    if not np.isfinite(a).all():
        raise QuantizationError(
            "only finite values can be quantized; the array has NaN or infinity"
        )
    if axis is not None and not -a.ndim <= axis < a.ndim:
        raise QuantizationError(f"axis {axis} does not exist in an array of shape {a.shape}")
    kept = None if axis is None else axis % a.ndim
    others = tuple(i for i in range(a.ndim) if i != kept)
    largest = np.abs(a).max(axis=None if kept is None else others, keepdims=kept is not None)
    with np.errstate(over="ignore"):
        scale = np.asarray(largest / LARGEST, FLOAT32)
    if not np.isfinite(scale).all():
        raise QuantizationError(
            f"the values are not finite as float32; the largest is {largest.max()}"
        )
    safe = np.where(scale > 0, scale, 1)  # zeros, or too small for a float32
    values = np.clip(np.rint(a / safe), -LARGEST, LARGEST).astype(np.int8)
    return QuantizedArray(values, scale, kept)


@register_module
class QuantizedLinear(Module):
    """A `Linear` layer with int8 weights, one scale per output: (..., in) -> (..., out).

    Made from a layer, for inference: it has buffers (`qweight`, `weight_scale`, `bias`) and no
    parameters.
    """

    in_features: int
    out_features: int
    use_bias: bool

    def __init__(self, layer: Linear) -> None:
        if not isinstance(layer, Linear):
            raise QuantizationError(f"only Linear layers are quantized, not {type(layer).__name__}")
        quantized = quantize(layer.weight.data, axis=1)
        bias = layer.bias.data.astype(FLOAT32) if layer.use_bias else None
        self._begin(layer.in_features, layer.out_features, quantized, bias)

    def _begin(
        self, inputs: int, outputs: int, weight: QuantizedArray, bias: np.ndarray | None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.use_bias = bias is not None
        self.register_buffer("qweight", weight.values)
        self.register_buffer("weight_scale", weight.scale.reshape(outputs))
        if bias is not None:
            self.register_buffer("bias", bias)
        self.eval()

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        last_axis("QuantizedLinear", x, self.in_features, "in_features")
        xp = namespace()
        weight = Tensor._wrap(xp.astype(self.qweight, np.dtype(x.dtype)))
        y = matmul(x, weight) * Tensor._wrap(xp.asarray(self.weight_scale))
        return y + Tensor._wrap(xp.asarray(self.bias)) if self.use_bias else y

    def get_config(self) -> dict[str, Any]:
        names = ("in_features", "out_features", "use_bias")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: Any) -> "QuantizedLinear":
        inputs, outputs, bias = (config[n] for n in ("in_features", "out_features", "use_bias"))
        positive_sizes(cls.__name__, in_features=inputs, out_features=outputs)
        claim((inputs, outputs))
        zeros = QuantizedArray(np.zeros((inputs, outputs), np.int8), np.zeros(outputs, FLOAT32), 1)
        out = cls.__new__(cls)
        out._begin(inputs, outputs, zeros, np.zeros(outputs, FLOAT32) if bias else None)
        return out


def quantize_dynamic(model: Module, *, inplace: bool = False) -> Module:
    """The model in evaluation mode with every `Linear` below it (or itself) quantized.

    Without `inplace` the model is copied first and stays as it is; with it, its children are
    replaced and the same object is returned (a bare `Linear` gives a new layer).
    """
    if not isinstance(model, Module):
        raise QuantizationError(f"only a Module can be quantized, not {type(model).__name__}")
    target = model if inplace else copy.deepcopy(model)
    if type(target) is Linear:
        return QuantizedLinear(target)
    done: dict[int, QuantizedLinear] = {}  # a layer in two places stays one
    for _, module in list(target.named_modules()):
        for name, child in list(vars(module).items()):
            if type(child) is Linear:
                if id(child) not in done:
                    done[id(child)] = QuantizedLinear(child)
                setattr(module, name, done[id(child)])
    return target.eval()
