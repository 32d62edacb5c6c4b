"""Lion: every element moves by the same amount, in the direction of a sign."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from everyo.core.state import Scalar
from everyo.core.tensor import Tensor
from everyo.optim.optimizer import (
    FRACTION,
    LEARNING_RATE,
    NOT_NEGATIVE,
    Betas,
    Check,
    Optimizer,
)

__all__ = ["Lion", "lion_update"]


def lion_update(
    xp: Any,
    p: Any,
    g: Any,
    m: Any,
    *,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any = None,
) -> tuple[Any, ...]:
    """(parameter, m) after a step: p <- p - lr * sign(beta1 * m + (1 - beta1) * g).

    Weight decay is decoupled: the parameter first shrinks by lr * weight_decay.
    """
    if weight_decay is not None:
        p = xp.multiply(p, 1 - lr * weight_decay)
    along = xp.sign(xp.add(xp.multiply(m, beta1), xp.multiply(g, 1 - beta1)))
    m = xp.add(xp.multiply(m, beta2), xp.multiply(g, 1 - beta2))
    return xp.subtract(p, xp.multiply(along, lr)), m


class Lion(Optimizer):
    """Lion, with decoupled weight decay; its rates are some ten times smaller than Adam's."""

    lr, beta1, beta2, weight_decay = Scalar(), Scalar(), Scalar(), Scalar()
    betas = Betas("beta1", "beta2")
    _config = ("lr", "betas", "weight_decay")
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": LEARNING_RATE,
        "beta1": FRACTION,
        "beta2": FRACTION,
        "weight_decay": NOT_NEGATIVE,
    }
    _structural = ("weight_decay",)

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay)

    def _slots(self) -> tuple[str, ...]:
        return ("m",)

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "weight_decay": self._if_on("weight_decay"),
        }

    _update = staticmethod(lion_update)
