"""Limits on gradients, between `backward()` and `step()`."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOGradientError

__all__ = ["clip_grad_norm", "clip_grad_value"]


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Any]]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    found = []
    for p in {id(p): p for p in given}.values():
        gradient = p.grad
        if gradient is not None:
            found.append((p, gradient.data if isinstance(gradient, Tensor) else gradient))
    return found


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients together so that their norm is at most `max_norm`.

    Returns the norm before, 0-d float64. `norm_type` is the order of the norm, which may be
    infinite. With `error_if_nonfinite` a norm that is infinite or NaN raises `EveryOGradientError`.
    """
    if issubclass(type(max_norm), int | float) and not max_norm > 0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    if not norm_type > 0:
        raise ValueError(f"norm_type must be positive, got {norm_type}")
    xp = namespace()
    found = _with_gradients(parameters)
    with np.errstate(all="ignore"):
        norm = _norm(xp, [g for _, g in found], norm_type)
        if error_if_nonfinite:
            xp.require(
                xp.isfinite(norm),
                EveryOGradientError,
                "clip_grad_norm: the norm of the gradients is infinite or NaN",
            )
        factor = xp.minimum(xp.divide(max_norm, xp.add(norm, 1e-6)), 1.0)
        scaled = [(p, xp.multiply(g, xp.astype(factor, g.dtype))) for p, g in found]
    for p, gradient in scaled:
        p.grad = gradient
    return Tensor._wrap(xp.asarray(norm))


def _norm(xp: Any, gradients: list[Any], order: float) -> Any:
    """The norm of all elements together, a float64 scalar."""
    total = xp.zeros((), np.dtype(np.float64))
    for g in gradients:
        axes = tuple(range(len(g.shape)))
        if order == float("inf"):
            total = xp.maximum(total, xp.max(xp.abs(g), axis=axes, keepdims=False))
            continue
        powers = xp.multiply(g, g) if order == 2 else xp.power(xp.abs(g), order)
        total = xp.add(total, xp.sum(powers, axis=axes, keepdims=False))
    if order == float("inf"):
        return total
    return xp.sqrt(total) if order == 2 else xp.power(total, 1.0 / order)


def clip_grad_value(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value]."""
    if issubclass(type(clip_value), int | float) and not clip_value > 0:
        raise ValueError(f"clip_value must be positive, got {clip_value}")
    xp = namespace()
    for p, gradient in _with_gradients(parameters):
        p.grad = xp.minimum(xp.maximum(gradient, -clip_value), clip_value)
