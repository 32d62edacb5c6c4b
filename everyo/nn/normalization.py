"""Normalisation: batch statistics per feature, or statistics of each sample by itself."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.dtype import FLOAT32
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.nn.checks import last_axis, positive_sizes
from everyo.nn.initialization import claim
from everyo.nn.layers import new_weight, zero_bias
from everyo.nn.module import Module, register_module
from everyo.ops.composite import normalize
from everyo.ops.reduce import mean_over

__all__ = ["BatchNorm1D", "BatchNorm2D", "LayerNorm"]


def _positive_eps(owner: str, eps: float) -> float:
    if not eps > 0:
        raise ValueError(f"{owner}: eps must be positive, got {eps}")
    return eps


class _BatchNorm(Module):
    """What both batch normalisations share: everything but the rank of the input."""

    _config: tuple[str, ...] = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    _rank = 0

    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        positive_sizes(name, num_features=num_features)
        if not 0 <= momentum <= 1:
            raise ValueError(f"{name}: momentum must lie in [0, 1], got {momentum}")
        self.num_features, self.eps = num_features, _positive_eps(name, eps)
        self.momentum, self.affine = momentum, bool(affine)
        self.track_running_stats = bool(track_running_stats)
        if affine:
            self.weight = new_weight("ones", (num_features,), None)
            self.bias = zero_bias(num_features)
        if track_running_stats:
            claim((2, num_features))
            self.register_buffer("running_mean", np.zeros(num_features, FLOAT32))
            self.register_buffer("running_var", np.ones(num_features, FLOAT32))
            self.register_buffer("num_batches_tracked", np.zeros((), np.int64))

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        name = type(self).__name__
        if x.ndim != self._rank:
            layout = "(batch, features)" if self._rank == 2 else "(batch, height, width, features)"
            raise EveryOShapeError(
                f"{name} expects a {self._rank}-D input {layout}, got shape {x.shape}"
            )
        last_axis(name, x, self.num_features, "num_features")
        if self.training or not self.track_running_stats:
            axes = tuple(range(x.ndim - 1))
            if self.track_running_stats:
                self._track(x.data, axes)
            y = normalize(x, axes, self.eps)
        else:
            y = self._by_running_statistics(x)
        return y * self.weight + self.bias if self.affine else y

    def _track(self, x: Any, axes: tuple[int, ...]) -> None:
        """Move the running statistics towards those of the batch."""
        xp = namespace()
        n = math.prod(x.shape[:-1])
        mean = mean_over(xp, x, axes)
        d = xp.subtract(x, mean)
        variance = mean_over(xp, xp.multiply(d, d), axes)
        unbiased = xp.multiply(variance, n / max(n - 1, 1))
        for name, batch in (("running_mean", mean), ("running_var", unbiased)):
            old = getattr(self, name)
            kept, taken = xp.multiply(old, 1 - self.momentum), xp.multiply(batch, self.momentum)
            setattr(self, name, xp.astype(xp.add(kept, taken), old.dtype))
        self.num_batches_tracked = xp.add(self.num_batches_tracked, 1)

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        xp = namespace()
        dtype = np.promote_types(np.dtype(x.dtype), FLOAT32)
        mean, variance = (xp.astype(b, dtype) for b in (self.running_mean, self.running_var))
        scale = xp.divide(1.0, xp.sqrt(xp.add(variance, self.eps)))
        return ((x - Tensor._wrap(mean)) * Tensor._wrap(scale)).astype(x.dtype)


@register_module
class BatchNorm1D(_BatchNorm):
    """Each feature to mean 0 and variance 1 over the batch: (N, F) -> (N, F), then scale and shift.

    In training the statistics are those of the batch and move the running ones, which evaluation
    uses. The stored variance is the unbiased one.
    """

    _rank = 2


@register_module
class BatchNorm2D(_BatchNorm):
    """`BatchNorm1D` for images (N, H, W, F): each feature over the batch and all positions."""

    _rank = 4


@register_module
class LayerNorm(Module):
    """Each sample to mean 0 and variance 1 over the trailing axes, then scale and shift."""

    _config = ("normalized_shape", "eps", "affine")

    def __init__(
        self, normalized_shape: int | Sequence[int], *, eps: float = 1e-5, affine: bool = True
    ) -> None:
        super().__init__()
        given = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        if not given or any(n <= 0 for n in given):
            raise EveryOShapeError(
                f"LayerNorm needs a positive normalized_shape, got {normalized_shape!r}"
            )
        self.normalized_shape, self.eps = given, _positive_eps("LayerNorm", eps)
        self.affine = bool(affine)
        if affine:
            self.weight = new_weight("ones", given, None)
            self.bias = new_weight("zeros", given, None)

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        rank = len(self.normalized_shape)
        if x.shape[-rank:] != self.normalized_shape:
            raise EveryOShapeError(
                f"LayerNorm: the trailing axes of the input must be {self.normalized_shape}, got "
                f"shape {x.shape}"
            )
        y = normalize(x, tuple(range(x.ndim - rank, x.ndim)), self.eps)
        return y * self.weight + self.bias if self.affine else y
