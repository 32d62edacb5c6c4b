"""Adagrad: steps scaled by the sum of all squared gradients so far."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from everyo.core.state import Scalar
from everyo.core.tensor import Tensor
from everyo.optim.optimizer import LEARNING_RATE, NOT_NEGATIVE, POSITIVE, Check, Optimizer

__all__ = ["Adagrad", "adagrad_update"]


def adagrad_update(
    xp: Any, p: Any, g: Any, total: Any, *, rate: Any, eps: Any, weight_decay: Any = None
) -> tuple[Any, ...]:
    """(parameter, sum of g**2) after a step: p <- p - rate * g / (sqrt(total) + eps)."""
    if weight_decay is not None:
        g = xp.add(g, xp.multiply(p, weight_decay))
    total = xp.add(total, xp.multiply(g, g))
    along = xp.divide(g, xp.add(xp.sqrt(total), eps))
    return xp.subtract(p, xp.multiply(along, xp.astype(rate, p.dtype))), total


class Adagrad(Optimizer):
    """Adagrad; the rate at step t is lr / (1 + (t - 1) * lr_decay)."""

    lr, lr_decay, weight_decay, eps = Scalar(), Scalar(), Scalar(), Scalar()
    initial_accumulator_value: float
    _config = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": LEARNING_RATE,
        "lr_decay": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
        "eps": POSITIVE,
    }
    _structural = ("weight_decay",)

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.01,
        *,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        if not initial_accumulator_value >= 0:
            raise ValueError(
                f"initial_accumulator_value must be non-negative, got {initial_accumulator_value!r}"
            )
        super().__init__(
            parameters,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )

    def _slots(self) -> tuple[str, ...]:
        return ("total",)

    def _initial(self, slot: str) -> float:
        return self.initial_accumulator_value

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        before = xp.astype(xp.subtract(steps, 1), np.float64)
        return {
            "rate": xp.divide(self.lr, xp.add(xp.multiply(before, self.lr_decay), 1.0)),
            "eps": self.eps,
            "weight_decay": self._if_on("weight_decay"),
        }

    _update = staticmethod(adagrad_update)
