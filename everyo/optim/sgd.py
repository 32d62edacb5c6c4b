"""Stochastic gradient descent, with momentum."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from everyo.core.state import Scalar
from everyo.core.tensor import Tensor
from everyo.optim.optimizer import FRACTION, LEARNING_RATE, NOT_NEGATIVE, Check, Optimizer

__all__ = ["SGD", "sgd_update"]


def sgd_update(
    xp: Any,
    p: Any,
    g: Any,
    velocity: Any = None,
    *,
    lr: Any,
    momentum: Any = None,
    weight_decay: Any = None,
    nesterov: bool = False,
) -> tuple[Any, ...]:
    """(parameter, velocity) after a step: v <- momentum * v + g, p <- p - lr * v.

    With `nesterov` the parameter moves along g + momentum * v instead. None leaves a part out.
    """
    if weight_decay is not None:
        g = xp.add(g, xp.multiply(p, weight_decay))
    if momentum is None:
        return (xp.subtract(p, xp.multiply(g, lr)),)
    velocity = xp.add(xp.multiply(velocity, momentum), g)
    along = xp.add(g, xp.multiply(velocity, momentum)) if nesterov else velocity
    return xp.subtract(p, xp.multiply(along, lr)), velocity


class SGD(Optimizer):
    """Gradient descent; `weight_decay` is an L2 penalty, added to the gradient.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> w.grad = [0.5]
    >>> SGD([w], lr=0.1).step()
    >>> round(w.item(), 6)
    0.95
    """

    lr, momentum, weight_decay = Scalar(), Scalar(), Scalar()
    nesterov: bool
    _config = ("lr", "momentum", "weight_decay", "nesterov")
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": LEARNING_RATE,
        "momentum": FRACTION,
        "weight_decay": NOT_NEGATIVE,
    }
    _structural = ("momentum", "weight_decay", "nesterov")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.01,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
        )

    def _check_structure(self, on: tuple[str, ...]) -> None:
        if "nesterov" in on and "momentum" not in on:
            raise ValueError("Nesterov momentum needs momentum > 0")

    def _slots(self) -> tuple[str, ...]:
        return ("velocity",) if "momentum" in self.structure else ()

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "momentum": self._if_on("momentum"),
            "weight_decay": self._if_on("weight_decay"),
            "nesterov": "nesterov" in self.structure,
        }

    _update = staticmethod(sgd_update)
