"""RMSprop: steps scaled by a running average of the squared gradient."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from everyo.core.state import Scalar
from everyo.core.tensor import Tensor
from everyo.optim.optimizer import (
    FRACTION,
    LEARNING_RATE,
    NOT_NEGATIVE,
    POSITIVE,
    Check,
    Optimizer,
)

__all__ = ["RMSprop", "rmsprop_update"]


def rmsprop_update(
    xp: Any,
    p: Any,
    g: Any,
    square: Any,
    *state: Any,
    lr: Any,
    alpha: Any,
    eps: Any,
    weight_decay: Any = None,
    momentum: Any = None,
    centered: bool = False,
) -> tuple[Any, ...]:
    """(parameter, average of g**2, …) after a step: p <- p - lr * g / (sqrt(square) + eps).

    `state` goes on with the average of g if `centered` (the scale is then the standard deviation),
    and with the velocity if there is momentum; both are returned in this order.
    """
    if weight_decay is not None:
        g = xp.add(g, xp.multiply(p, weight_decay))
    square = xp.add(xp.multiply(square, alpha), xp.multiply(xp.multiply(g, g), 1 - alpha))
    new, spread = [square], square
    if centered:
        mean = xp.add(xp.multiply(state[0], alpha), xp.multiply(g, 1 - alpha))
        new.append(mean)
        spread = xp.maximum(xp.subtract(square, xp.multiply(mean, mean)), 0)  # rounding
    along = xp.divide(g, xp.add(xp.sqrt(spread), eps))
    if momentum is not None:
        along = xp.add(xp.multiply(state[-1], momentum), along)
        new.append(along)
    return (xp.subtract(p, xp.multiply(along, lr)), *new)


class RMSprop(Optimizer):
    """RMSprop; `centered` also averages the gradient itself, `momentum` smooths the step."""

    lr, alpha, eps = Scalar(), Scalar(), Scalar()
    weight_decay, momentum = Scalar(), Scalar()
    centered: bool
    _config = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": LEARNING_RATE,
        "alpha": FRACTION,
        "eps": POSITIVE,
        "weight_decay": NOT_NEGATIVE,
        "momentum": FRACTION,
    }
    _structural = ("weight_decay", "momentum", "centered")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.01,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            parameters,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )

    def _slots(self) -> tuple[str, ...]:
        on = self.structure
        mean = ("mean",) if "centered" in on else ()
        return ("square", *mean, "velocity") if "momentum" in on else ("square", *mean)

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "alpha": self.alpha,
            "eps": self.eps,
            "weight_decay": self._if_on("weight_decay"),
            "momentum": self._if_on("momentum"),
            "centered": "centered" in self.structure,
        }

    _update = staticmethod(rmsprop_update)
