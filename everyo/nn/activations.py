"""Activations as modules; each is the op of the same name."""

from typing import Any

from everyo.core.tensor import Tensor
from everyo.nn.module import Module, register_module
from everyo.ops import activations, reduce, transcendental

__all__ = [
    "ELU", "GELU", "LeakyReLU", "LogSigmoid", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax",
    "Softplus", "Tanh",
]  # fmt: skip


@register_module
class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Tensor:
        return activations.relu(x)


@register_module
class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Tensor:
        return activations.sigmoid(x)


@register_module
class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Tensor:
        return transcendental.tanh(x)


@register_module
class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Any) -> Tensor:
        return activations.silu(x)


@register_module
class Softplus(Module):
    """log(1 + exp(x))."""

    def forward(self, x: Any) -> Tensor:
        return activations.softplus(x)


@register_module
class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Any) -> Tensor:
        return activations.log_sigmoid(x)


@register_module
class GELU(Module):
    """x times the normal distribution function at x, or with `approximate="tanh"` nearly that."""

    _config = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Tensor:
        return activations.gelu(x, self.approximate)


@register_module
class LeakyReLU(Module):
    """x where positive, else x * negative_slope."""

    _config = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Tensor:
        return activations.leaky_relu(x, self.negative_slope)


@register_module
class ELU(Module):
    """x where positive, else alpha * (exp(x) - 1)."""

    _config = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Any) -> Tensor:
        return activations.elu(x, self.alpha)


@register_module
class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis."""

    _config = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Any) -> Tensor:
        return reduce.softmax(x, self.axis)


@register_module
class LogSoftmax(Module):
    """log(softmax(x)) along an axis."""

    _config = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Any) -> Tensor:
        return reduce.log_softmax(x, self.axis)
