"""What happens with one batch: a step of training, or of evaluation, compiled or eager.

A step is compiled when a shape of batch has come `OFTEN` times, so that what is rare (the short
last batch of an epoch, a single evaluation) costs no compilation; and for `MOST_SHAPES` shapes
only, so that data of ever new shapes does not compile for ever. Which shapes those are is part of a
run's checkpoint: a resumed run computes every batch in the same way.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from everyo.compile import CompiledFunction
from everyo.compile import compile as compiled
from everyo.core.autograd import no_grad
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError, EveryOShapeError
from everyo.optim.gradients import clip_grad_norm
from everyo.training.metrics import Metric

__all__ = ["Steps", "Totals"]

OFTEN = 16  # a program takes as long to compile as many eager steps
MOST_SHAPES = 4  # per step; each is a program of its own
COUNTED = 64  # shapes whose batches are counted, those seen longest ago are forgotten

Shapes = tuple[tuple[int, ...], str, tuple[int, ...], str]


class Steps:
    """The two steps for a model, an optimizer and a loss; with `compile` off, both are eager."""

    def __init__(self, model: Any, optimizer: Any, loss_fn: Any, *, compile: bool) -> None:  # noqa: A002
        self.parts = (model, optimizer, loss_fn)

        def train_step(x: Tensor, y: Any, clip: float | None, keep: bool) -> tuple[Tensor, Any]:
            optimizer.zero_grad()
            output = model(x)
            loss = loss_fn(output, y)
            loss.backward()
            if clip is not None:
                clip_grad_norm(optimizer.parameters, clip)
            optimizer.step()
            return loss.detach(), _detached(output) if keep else None

        def evaluation_step(x: Tensor, y: Any, keep: bool) -> tuple[Tensor, Any]:
            output = model(x)
            loss = loss_fn(output, y)
            return loss, output if keep else None

        self.compile = compile
        self.train_step = train_step if not compile else compiled(train_step, fallback="eager")
        self.evaluation_step = (
            evaluation_step if not compile else compiled(evaluation_step, fallback="eager")
        )
        self._counts: dict[str, dict[Shapes, int]] = {"train": {}, "evaluation": {}}

    def train(self, x: Tensor, y: Any, clip: float | None, keep: bool) -> tuple[float, Any]:
        """One step of the optimizer: the loss, and the output if it is to be kept."""
        step = self._choose("train", self.train_step, x, y)
        loss, output = step(x, y, clip, keep)
        return loss.item(), output

    def evaluate(self, x: Tensor, y: Any, keep: bool) -> tuple[float, Any]:
        """The loss, and the output if it is to be kept; nothing changes."""
        step = self._choose("evaluation", self.evaluation_step, x, y)
        with no_grad():
            loss, output = step(x, y, keep)
        return loss.item(), output

    def _choose(self, name: str, step: Callable[..., Any], x: Tensor, y: Any) -> Callable[..., Any]:
        """The compiled step for the shapes that have one, the eager step for all others."""
        if not isinstance(step, CompiledFunction):
            return step
        shapes = (x.shape, x.dtype, y.shape, y.dtype)
        counts = self._counts[name]
        count = counts.pop(shapes, 0) + 1
        if count == OFTEN and sum(n >= OFTEN for n in counts.values()) == MOST_SHAPES:
            count -= 1
        counts[shapes] = min(count, OFTEN)
        if len(counts) > COUNTED:
            del counts[next(old for old, n in counts.items() if n < OFTEN)]
        return step if counts[shapes] == OFTEN else step.__wrapped__

    def state_dict(self) -> dict[str, Any]:
        """How often each shape has come, up to the number that decides."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compile for the same shapes as the run that was saved."""
        self._counts = {name: dict(state[name]) for name in self._counts}


class Totals:
    """What the batches of an epoch add up to: the loss per sample, and metrics over all outputs."""

    def __init__(self, metrics: Mapping[str, Metric], reduction: str) -> None:
        self.metrics, self.reduction = metrics, reduction
        self.loss, self.samples = 0.0, 0
        self._outputs: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []

    def add(self, loss: float, samples: int, output: Any, targets: Any) -> None:
        """A batch more."""
        self.loss += loss if self.reduction == "sum" else loss * samples
        self.samples += samples
        if self.metrics:
            if not isinstance(output, Tensor):
                raise EveryOError(
                    f"metrics need a model that returns a tensor, got {type(output).__name__}"
                )
            self._outputs.append(output.numpy())
            self._targets.append(np.asarray(targets))

    def result(self) -> dict[str, float]:
        """The loss and the metrics by name."""
        if self.samples == 0:
            raise EveryOError("the loader gave no batches; its data set may be empty")
        found = {"loss": self.loss / self.samples}
        if self.metrics:
            outputs, targets = joined(self._outputs), joined(self._targets)
            found |= {name: float(m(outputs, targets)) for name, m in self.metrics.items()}
        return found


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Batches as one array."""
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise EveryOShapeError(
            f"batches with samples of different shapes, {sorted(shapes)}, cannot be put together; "
            "pad them to one length"
        )
    return np.concatenate(parts)


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output
