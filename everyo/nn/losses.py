"""Losses: functions of (prediction, target), and the same as modules with a fixed reduction.

The reduction is "mean", "sum" or "none". Elementwise losses want equal shapes, for a broadcast here
is almost always a mistake. Values are checked by `require`, which raises at once in eager mode and
when the compiled call ends otherwise.
"""

from collections.abc import Callable
from typing import Any

from everyo.core.autograd import namespace
from everyo.core.namespace import all_hold, kind_of
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.nn.checks import whole_numbers
from everyo.nn.module import Module
from everyo.ops import composite
from everyo.ops.elementwise import abs as absolute
from everyo.ops.elementwise import clip, square
from everyo.ops.reduce import log_softmax, mean
from everyo.ops.reduce import sum as total
from everyo.ops.transcendental import log

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "Loss", "MAELoss", "MSELoss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "mae_loss",
    "mse_loss",
]  # fmt: skip

TINY = 1e-7  # probabilities are kept this far from 0 and 1


def _unreduced(values: Tensor) -> Tensor:
    return values


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": mean,
    "sum": total,
    "none": _unreduced,
}


def _reduction(name: str) -> Callable[[Tensor], Tensor]:
    try:
        return REDUCTIONS[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"Unknown reduction {name!r}; use one of {', '.join(map(repr, REDUCTIONS))}"
        ) from None


def _pair(name: str, prediction: Any, target: Any) -> tuple[Tensor, Tensor]:
    prediction = as_tensor(prediction)
    target = as_tensor(target)
    if prediction.shape != target.shape:
        raise EveryOShapeError(
            f"{name}: prediction and target must have the same shape, got {prediction.shape} "
            f"and {target.shape}"
        )
    return prediction, target


def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """The squared error (prediction - target)**2."""
    reduce = _reduction(reduction)
    prediction, target = _pair("mse_loss", prediction, target)
    return reduce(square(prediction - target))


def mae_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """The absolute error |prediction - target|."""
    reduce = _reduction(reduction)
    prediction, target = _pair("mae_loss", prediction, target)
    return reduce(absolute(prediction - target))


def binary_cross_entropy(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """-t log(p) - (1 - t) log(1 - p) for probabilities p, which are kept 1e-7 away from 0 and 1.

    Raises `EveryOShapeError` for predictions or targets outside [0, 1].
    """
    reduce = _reduction(reduction)
    prediction, target = _pair("binary_cross_entropy", prediction, target)
    for name, values in (("predictions", prediction), ("targets", target)):
        _require_probabilities(name, values)
    p = clip(prediction, TINY, 1 - TINY)
    return reduce(-(target * log(p) + (1 - target) * log(1 - p)))


def _require_probabilities(name: str, values: Tensor) -> None:
    xp, data = namespace(), values.data
    outside = xp.logical_or(xp.less(data, 0), xp.greater(data, 1))
    xp.require(
        all_hold(xp, xp.logical_not(outside)),
        EveryOShapeError,
        f"binary_cross_entropy: {name} must be probabilities in [0, 1]; for raw scores use "
        "binary_cross_entropy_with_logits",
    )


def binary_cross_entropy_with_logits(
    prediction: Any, target: Any, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of sigmoid(prediction), stable for any score."""
    reduce = _reduction(reduction)
    prediction, target = _pair("binary_cross_entropy_with_logits", prediction, target)
    return reduce(composite.binary_cross_entropy_with_logits(prediction, target))


def cross_entropy(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """-log softmax(prediction)[target] per row of raw scores (batch, classes).

    Targets are class indices, (batch,) or (batch, 1), or rows of probabilities (batch, classes).
    """
    reduce = _reduction(reduction)
    prediction = as_tensor(prediction)
    if prediction.ndim != 2:
        raise EveryOShapeError(
            f"cross_entropy: prediction must be raw scores of shape (batch, classes), got shape "
            f"{prediction.shape}"
        )
    batch, classes = prediction.shape
    values = target.data if isinstance(target, Tensor) else namespace().asarray(target)
    shape = tuple(values.shape)
    if shape == (batch, classes) and classes > 1:
        target = target if isinstance(target, Tensor) else Tensor._wrap(values)
        if kind_of(target) != "f":
            target = target.astype(prediction.dtype)
        return reduce(-total(target * log_softmax(prediction), axis=1))
    if shape not in ((batch,), (batch, 1)):
        raise EveryOShapeError(
            f"cross_entropy: targets of shape {shape} do not fit {batch} rows of {classes} "
            f"classes; they must be indices ({batch},) or rows ({batch}, {classes})"
        )
    labels = whole_numbers(namespace().reshape(values, (batch,)), "cross_entropy: targets")
    return reduce(composite.cross_entropy(prediction, labels))


class Loss(Module):
    """A loss with a reduction: "mean", "sum" or "none"."""

    _config = ("reduction",)
    function: Callable[..., Tensor]

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        _reduction(reduction)
        self.reduction = reduction

    def forward(self, prediction: Any, target: Any) -> Tensor:
        return type(self).function(prediction, target, self.reduction)


class MSELoss(Loss):
    """The squared error."""

    function = mse_loss


class MAELoss(Loss):
    """The absolute error."""

    function = mae_loss


class BCELoss(Loss):
    """Binary cross-entropy of probabilities."""

    function = binary_cross_entropy


class BCEWithLogitsLoss(Loss):
    """Binary cross-entropy of raw scores."""

    function = binary_cross_entropy_with_logits


class CrossEntropyLoss(Loss):
    """Cross-entropy of raw scores (batch, classes) and class indices or rows of probabilities."""

    function = cross_entropy
