"""The plain layers: affine map, flattening, dropout."""

from typing import Any

from everyo.core.autocast import narrowed
from everyo.core.autograd import namespace
from everyo.core.device_array import moved
from everyo.core.dtype import FLOAT32
from everyo.core.random import DEFAULT, Generator
from everyo.core.tensor import Tensor, as_tensor
from everyo.nn.checks import last_axis, positive_sizes
from everyo.nn.initialization import get_initializer
from everyo.nn.module import Module, Parameter, register_module
from everyo.ops.contraction import matmul
from everyo.ops.movement import flatten

__all__ = ["Dropout", "Flatten", "Linear"]


def new_weight(initializer: str, shape: tuple[int, ...], seed: Any) -> Parameter:
    """A float32 parameter from the initializer of a name."""
    return Parameter(get_initializer(initializer)(shape, seed=seed), dtype=FLOAT32)


def next_seed(seed: Any, offset: int = 1) -> Any:
    """The seed of another parameter of the same module; a generator simply goes on."""
    return seed + offset if isinstance(seed, int) else seed


def zero_bias(size: int) -> Parameter:
    """A float32 parameter of zeros."""
    return new_weight("zeros", (size,), None)


@register_module
class Linear(Module):
    """Affine map: (..., in) -> (..., out).   y = x @ weight + bias, weight (in, out), bias (out,).

    >>> Linear(4, 2)(as_tensor([[1.0, 2.0, 3.0, 4.0]])).shape
    (1, 2)
    """

    _config = ("in_features", "out_features", "bias", "initializer")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        initializer: str = "he_uniform",
        seed: Any = None,
    ) -> None:
        super().__init__()
        positive_sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.initializer = bool(bias), initializer
        self.weight = new_weight(initializer, (in_features, out_features), seed)
        if bias:
            self.bias = zero_bias(out_features)

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        last_axis("Linear", x, self.in_features, "in_features")
        y = matmul(x, self.weight)
        return y + narrowed(self.bias) if self.use_bias else y


@register_module
class Flatten(Module):
    """The axes from `start_dim` on as one: (N, a, b) -> (N, a * b)."""

    _config = ("start_dim",)

    def __init__(self, start_dim: int = 1) -> None:
        super().__init__()
        self.start_dim = start_dim

    def forward(self, x: Any) -> Tensor:
        return flatten(x, self.start_dim)


@register_module
class Dropout(Module):
    """In training each element is 0 with probability p, else x / (1 - p). Otherwise the identity.

    With `seed`, the layer draws from a generator of its own, else from that of `eo.manual_seed`.
    """

    _config = ("p",)

    def __init__(self, p: float = 0.5, *, seed: int | None = None) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: p must lie in [0, 1), got {p}")
        self.p = p
        self.generator = None if seed is None else Generator(seed)

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        if not self.training or self.p == 0:
            return x
        xp = namespace(x._data)
        drawn = moved((self.generator or DEFAULT).uniform(x.shape, FLOAT32), x.device)
        kept = xp.astype(xp.greater_equal(drawn, self.p), x.dtype)
        return x * Tensor._wrap(xp.multiply(kept, 1 / (1 - self.p)))
