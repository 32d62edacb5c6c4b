"""Learning rates that change with the step: each scheduler is a formula for the rate at step t.

`step()` counts on and sets `optimizer.lr`. The formula starts from the rate that the optimizer had
when its first scheduler was made, so schedulers may be combined in `SequentialLR`; a rate that the
user has set since then is the new start. A scheduler runs in Python, outside of a compiled step,
and never makes one compile again.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from everyo.core.state import Tracked, check_names
from everyo.exceptions import EveryOSerializationError
from everyo.optim.optimizer import Optimizer

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "SequentialLR",
    "StepLR",
]

# optimizer -> (the rate before any schedule, the rate that a scheduler set last)
_SCHEDULED: WeakKeyDictionary[Optimizer, tuple[float, float]] = WeakKeyDictionary()


class Schedule(Tracked):
    """What sets the rate of an optimizer: its attributes are its state, and can be saved."""

    _not_saved: tuple[str, ...] = ("optimizer",)
    _changes_often = True

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(self).__name__} takes an Optimizer, got {type(optimizer).__name__}"
            )
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        """The learning rate now, in a list."""
        return [self.optimizer.lr]

    def state_dict(self) -> dict[str, Any]:
        """Settings and counters, without the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k not in self._not_saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; `EveryOSerializationError` if it has other entries."""
        check_names(set(self.state_dict()), set(state), True, type(self).__name__)
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({shown})"


class LRScheduler(Schedule):
    """Base of the formulas: a subclass defines `rate(t)`, from `self.base_lr`."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        base, last = _SCHEDULED.get(optimizer, (optimizer.lr, optimizer.lr))
        self.base_lr = base if last == optimizer.lr else optimizer.lr
        self.last_epoch = 0
        self._apply()

    def rate(self, t: int) -> float:
        """The learning rate after t steps."""
        raise NotImplementedError

    def step(self) -> None:
        """Count a step (or epoch) and set the learning rate."""
        self.last_epoch += 1
        self._apply()

    def _apply(self) -> None:
        self.optimizer.lr = self.rate(self.last_epoch)
        _SCHEDULED[self.optimizer] = (self.base_lr, self.optimizer.lr)


def _positive_steps(owner: str, **steps: int) -> None:
    for name, n in steps.items():
        if isinstance(n, bool) or not isinstance(n, int) or n <= 0:
            raise ValueError(f"{owner}: {name} must be a positive int, got {n!r}")


class LambdaLR(LRScheduler):
    """base * lr_lambda(t). The function itself is not saved."""

    _not_saved = ("optimizer", "lr_lambda")

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * self.lr_lambda(t)


class StepLR(LRScheduler):
    """base * gamma ** (t // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        _positive_steps("StepLR", step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * self.gamma ** (t // self.step_size)


class MultiStepLR(LRScheduler):
    """base * gamma ** (how many milestones have been reached)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * self.gamma ** bisect.bisect_right(self.milestones, t)


class ConstantLR(LRScheduler):
    """base * factor for the first `total_iters` steps, then base."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * (self.factor if t < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """base times a factor that goes from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        if not (0 < start_factor <= 1 and 0 <= end_factor <= 1):
            raise ValueError(
                f"LinearLR: factors must lie in [0, 1], the first above 0, got {start_factor} and "
                f"{end_factor}"
            )
        _positive_steps("LinearLR", total_iters=total_iters)
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        part = min(t, self.total_iters) / self.total_iters
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * part)


class ExponentialLR(LRScheduler):
    """base * gamma ** t."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * self.gamma**t


class PolynomialLR(LRScheduler):
    """base * (1 - t / total_iters) ** power, 0 from `total_iters` on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        _positive_steps("PolynomialLR", total_iters=total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return self.base_lr * (1 - min(t, self.total_iters) / self.total_iters) ** self.power


def _cosine(start: float, end: float, part: float) -> float:
    """From `start` at 0 to `end` at 1, along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


class CosineAnnealingLR(LRScheduler):
    """From base to `eta_min` along half a cosine of `T_max` steps, and back."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        _positive_steps("CosineAnnealingLR", T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        return _cosine(self.base_lr, self.eta_min, t / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines from base to `eta_min`: the first of `T_0` steps, each `T_mult` times longer."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0
    ) -> None:
        _positive_steps("CosineAnnealingWarmRestarts", T_0=T_0, T_mult=T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            t %= length
        while t >= length:
            t, length = t - length, length * self.T_mult
        return _cosine(self.base_lr, self.eta_min, t / length)


class OneCycleLR(LRScheduler):
    """Up to `max_lr` in the first `pct_start` of the steps, then down to almost 0.

    The rate starts at max_lr / div_factor and ends at max_lr / (div_factor * final_div_factor);
    with `three_phase` it first comes down as fast as it went up. `cycle_momentum` moves momentum
    (the first beta) the other way. Give `total_steps`, or `epochs` and `steps_per_epoch`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch")
            _positive_steps("OneCycleLR", epochs=epochs, steps_per_epoch=steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        _positive_steps("OneCycleLR", total_steps=total_steps)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must lie in [0, 1], got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}"
            )
        names = [n for n in ("momentum", "beta1") if n in optimizer._checks]
        if cycle_momentum and not names:
            raise ValueError(
                f"OneCycleLR: {type(optimizer).__name__} has no momentum; use cycle_momentum=False"
            )
        self.total_steps, self.anneal_strategy = total_steps, anneal_strategy
        self.momentum_name = names[0] if cycle_momentum else None
        start, end = max_lr / div_factor, max_lr / div_factor / final_div_factor
        up = pct_start * total_steps - 1
        if three_phase:  # (last step, rate at it, momentum at it) of each phase
            down = 2 * pct_start * total_steps - 2
            phases = [(up, max_lr, base_momentum), (down, start, max_momentum)]
        else:
            phases = [(up, max_lr, base_momentum)]
        self.phases = [*phases, (total_steps - 1, end, max_momentum)]
        self.start = (start, max_momentum)
        super().__init__(optimizer)

    def _at(self, t: int, which: int) -> float:
        """The rate (0) or momentum (1) at step t."""
        begin, value = 0.0, self.start[which]
        for end, *targets in self.phases:
            if t <= end or end == self.phases[-1][0]:
                part = min((t - begin) / (end - begin), 1.0) if end > begin else 1.0
                target = targets[which]
                if self.anneal_strategy == "cos":
                    return _cosine(value, target, part)
                return value + (target - value) * part
            begin, value = end, targets[which]
        return value

    def rate(self, t: int) -> float:
        if t > self.total_steps:
            raise ValueError(f"OneCycleLR: step {t} of a cycle of {self.total_steps} steps")
        return self._at(t, 0)

    def _apply(self) -> None:
        super()._apply()
        if self.momentum_name is not None:
            setattr(self.optimizer, self.momentum_name, self._at(self.last_epoch, 1))


class SequentialLR(LRScheduler):
    """Several schedulers, one after the other: the next takes over at each milestone."""

    _not_saved = ("optimizer", "schedulers")

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if not schedulers or len(schedulers) != len(milestones) + 1:
            raise ValueError(
                f"SequentialLR needs one milestone between any two schedulers, got "
                f"{len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        if any(s.optimizer is not optimizer for s in schedulers):
            raise ValueError("SequentialLR: all schedulers must have the same optimizer")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)

    def rate(self, t: int) -> float:
        i = bisect.bisect_right(self.milestones, t)
        return self.schedulers[i].rate(t - (self.milestones[i - 1] if i else 0))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names(set(self.state_dict()), set(state), True, "SequentialLR")
        stored = state["schedulers"]
        if len(stored) != len(self.schedulers):
            raise EveryOSerializationError(
                f"SequentialLR has {len(self.schedulers)} schedulers, the state {len(stored)}"
            )
        for scheduler, entry in zip(self.schedulers, stored, strict=True):
            check_names(set(scheduler.state_dict()), set(entry), True, type(scheduler).__name__)
        for scheduler, entry in zip(self.schedulers, stored, strict=True):
            scheduler.load_state_dict(entry)
        for name, value in state.items():
            if name != "schedulers":
                setattr(self, name, value)
