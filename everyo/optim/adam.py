"""Adam and AdamW: steps scaled by running averages of the gradient and of its square."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from everyo.core.state import Scalar
from everyo.core.tensor import Tensor
from everyo.optim.optimizer import (
    FRACTION,
    LEARNING_RATE,
    NOT_NEGATIVE,
    POSITIVE,
    Betas,
    Check,
    Optimizer,
)

__all__ = ["Adam", "AdamW", "adam_update", "corrections"]


def corrections(xp: Any, t: Any, lr: Any, beta1: Any, beta2: Any) -> tuple[Any, Any]:
    """(lr / (1 - beta1**t), sqrt(1 - beta2**t)): averages that began at 0 are still too small."""
    t = xp.astype(t, np.float64)
    rate = xp.divide(lr, xp.subtract(1.0, xp.power(beta1, t)))
    return rate, xp.sqrt(xp.subtract(1.0, xp.power(beta2, t)))


def adam_update(
    xp: Any,
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    top: Any = None,
    *,
    lr: Any,
    rate: Any,
    root: Any,
    beta1: Any,
    beta2: Any,
    eps: Any,
    weight_decay: Any = None,
    decoupled: bool = False,
) -> tuple[Any, ...]:
    """(parameter, m, v) after a step: p <- p - rate * m / (sqrt(v) / root + eps).

    `rate` and `root` are the `corrections` of the step. `top` keeps the largest v so far (AMSGrad)
    and is returned too. The decay is part of the gradient, or if `decoupled` shrinks the parameter.
    """
    if weight_decay is not None and decoupled:
        p = xp.multiply(p, 1 - lr * weight_decay)
    elif weight_decay is not None:
        g = xp.add(g, xp.multiply(p, weight_decay))
    m = xp.add(xp.multiply(m, beta1), xp.multiply(g, 1 - beta1))
    v = xp.add(xp.multiply(v, beta2), xp.multiply(xp.multiply(g, g), 1 - beta2))
    largest = v if top is None else xp.maximum(top, v)
    rate, root = xp.astype(rate, p.dtype), xp.astype(root, p.dtype)  # do not widen the parameter
    scale = xp.add(xp.divide(xp.sqrt(largest), root), eps)
    p = xp.subtract(p, xp.divide(xp.multiply(m, rate), scale))
    return (p, m, v) if top is None else (p, m, v, largest)


class Adam(Optimizer):
    """Adam; `weight_decay` is an L2 penalty, added to the gradient.

    >>> w = Tensor([1.0], requires_grad=True)
    >>> w.grad = [0.5]
    >>> Adam([w], lr=0.1).step()
    >>> round(w.item(), 6)
    0.9
    """

    lr, beta1, beta2, eps, weight_decay = Scalar(), Scalar(), Scalar(), Scalar(), Scalar()
    betas = Betas("beta1", "beta2")
    amsgrad: bool
    _config = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    _checks: ClassVar[Mapping[str, Check]] = {
        "lr": LEARNING_RATE,
        "beta1": FRACTION,
        "beta2": FRACTION,
        "eps": POSITIVE,
        "weight_decay": NOT_NEGATIVE,
    }
    _structural = ("weight_decay", "amsgrad")
    _decoupled = False

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )

    @property
    def m(self) -> list[Any]:
        """The averages of the gradients, one array per parameter."""
        return [t.data for t in self._state["m"]]

    @property
    def v(self) -> list[Any]:
        """The averages of the squared gradients, one array per parameter."""
        return [t.data for t in self._state["v"]]

    def _slots(self) -> tuple[str, ...]:
        return ("m", "v", "top") if "amsgrad" in self.structure else ("m", "v")

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        lr, beta1, beta2 = self.lr, self.beta1, self.beta2
        rate, root = corrections(xp, steps, lr, beta1, beta2)
        return {
            "lr": lr,
            "rate": rate,
            "root": root,
            "beta1": beta1,
            "beta2": beta2,
            "eps": self.eps,
            "weight_decay": self._if_on("weight_decay"),
            "decoupled": self._decoupled,
        }

    _update = staticmethod(adam_update)


class AdamW(Adam):
    """Adam with decoupled weight decay: a step first shrinks the parameter by lr * weight_decay."""

    _decoupled = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
