"""`ReduceLROnPlateau`: a learning rate that follows a metric instead of a formula."""

import math
from typing import Any

from everyo.optim.optimizer import Optimizer
from everyo.optim.schedulers import Schedule

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(Schedule):
    """Multiplies the rate by `factor` when a metric has not improved in more than `patience` steps.

    An improvement is better than the best by `threshold` ("rel": as a fraction of it, "abs": as it
    is). After a reduction `cooldown` steps do not count. The rate never falls below `min_lr`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                "ReduceLROnPlateau: mode must be 'min' or 'max' and threshold_mode 'rel' or 'abs', "
                f"got {mode!r} and {threshold_mode!r}"
            )
        super().__init__(optimizer)
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: Any) -> None:
        """Take the metric of an epoch (a number or a 0-d tensor) into account."""
        value = float(metrics)
        self.last_epoch += 1
        if self._better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lower = max(self.optimizer.lr * self.factor, self.min_lr)
            if self.optimizer.lr - lower > self.eps:
                self.optimizer.lr = lower
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _better(self, value: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        margin = self.threshold
        if self.threshold_mode == "rel" and math.isfinite(self.best):
            margin *= abs(self.best)
        return sign * value < sign * self.best - margin
