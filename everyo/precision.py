"""Mixed precision training: `autocast`, and a scaler that keeps small gradients from vanishing.

Half precision ends at 6e-8: gradients below are lost. `GradScaler` multiplies the loss before
`backward()` and divides the gradients before the step. If the scale was too large, gradients
overflow: then the step leaves every value as it was and `update()` lowers the scale; after many
good steps it raises it again. All of its state is tensors, so it works inside a compiled step.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from everyo.core.autocast import autocast, autocast_dtype, is_autocast_enabled
from everyo.core.autograd import current_trace, namespace
from everyo.core.dtype import FLOAT32
from everyo.core.state import Tracked, check_names
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOSerializationError
from everyo.optim import Optimizer

__all__ = ["GradScaler", "autocast", "autocast_dtype", "is_autocast_enabled"]

COUNTS = ("skipped_steps", "applied_steps", "growth_tracker")
OPTIONS = ("growth_factor", "backoff_factor", "growth_interval")
LEAST = 1.0  # the scale never falls below


class GradScaler(Tracked):
    """Scales a loss so that its gradients fit half precision.

    `with autocast(): loss = ...`, then `scaler.scale(loss).backward()`, `scaler.step(optimizer)`
    and `scaler.update()`. A step with a gradient that is infinite or NaN is skipped and the scale
    multiplied by `backoff_factor`; after `growth_interval` good steps in a row it is multiplied by
    `growth_factor`. With `enabled=False` nothing is scaled. Raises `ValueError` for values out of
    range.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self.growth_factor, self.backoff_factor = float(growth_factor), float(backoff_factor)
        self.growth_interval, self.enabled = int(growth_interval), bool(enabled)
        self._scale = _scalar(_checked_scale(init_scale), np.float64)
        self._check_options()
        self._counts = {name: _scalar(0, np.int64) for name in COUNTS}
        self._good, self._bad = _scalar(False, bool), _scalar(False, bool)  # since `update`
        self._unscaled: weakref.WeakKeyDictionary[Any, Tensor] = weakref.WeakKeyDictionary()

    def _check_options(self) -> None:
        if not self.growth_factor > 1:
            raise ValueError(f"growth_factor must be greater than 1, got {self.growth_factor}")
        if not 0 < self.backoff_factor < 1:
            raise ValueError(f"backoff_factor must lie in (0, 1), got {self.backoff_factor}")
        if self.growth_interval <= 0:
            raise ValueError(f"growth_interval must be positive, got {self.growth_interval}")

    # ------------------------------------------------------------------ the loss

    def get_scale(self) -> float:
        """The present scale; 1 if the scaler is disabled."""
        return float(self._scale) if self.enabled else 1.0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in float32 at least; the loss itself if disabled."""
        if not self.enabled:
            return loss
        xp = namespace()
        dtype = np.promote_types(loss._data.dtype, FLOAT32)
        with np.errstate(over="ignore"):
            return loss * Tensor._wrap(xp.asarray(xp.astype(self._scale.data, dtype)))

    def backward(self, loss: Tensor) -> None:
        """`scale(loss).backward()`."""
        self.scale(loss).backward()

    # ------------------------------------------------------------------ the step

    def unscale_(self, optimizer: Optimizer) -> Any:
        """Divide the gradients by the scale, once per step, e.g. to clip them; whether all of them
        are finite. In a compiled function the answer is a 0-d bool tensor."""
        if not self.enabled:
            return True
        return _answer(self._unscale(optimizer))

    def _unscale(self, optimizer: Optimizer) -> Any:
        xp = namespace()
        done = self._mark(optimizer)
        factor = xp.where(done.data, 1.0, xp.divide(1.0, self._scale.data))
        finite = xp.full((), True, bool)
        with np.errstate(all="ignore"):
            for parameter in optimizer.parameters:
                gradient = parameter.grad
                if gradient is None:
                    continue
                g = gradient.data if isinstance(gradient, Tensor) else gradient
                g = xp.multiply(g, xp.astype(factor, g.dtype))
                parameter.grad = g
                axes = tuple(range(len(g.shape)))
                finite = xp.logical_and(finite, xp.all(xp.isfinite(g), axis=axes, keepdims=False))
        done._write(True)
        self._good._write(xp.logical_or(self._good.data, finite))
        self._bad._write(xp.logical_or(self._bad.data, xp.logical_not(finite)))
        return finite

    def step(self, optimizer: Optimizer) -> Any:
        """Unscale the gradients, unless `unscale_` has, and take the step if all are finite;
        whether it was taken. In a compiled function the answer is a 0-d bool tensor."""
        if not self.enabled:
            optimizer.step()
            return True
        xp = namespace()
        finite = self._unscale(optimizer)
        if current_trace() is not None:
            optimizer.step(when=finite)
        elif finite:
            optimizer.step()
        self._mark(optimizer)._write(False)
        taken = xp.astype(finite, np.int64)
        self._add("applied_steps", taken)
        self._add("skipped_steps", xp.subtract(1, taken))
        return _answer(finite)

    def _mark(self, optimizer: Optimizer) -> Tensor:
        """Whether the gradients of an optimizer are unscaled already."""
        if optimizer not in self._unscaled:
            self._unscaled[optimizer] = _scalar(False, bool)
        return self._unscaled[optimizer]

    def _add(self, name: str, amount: Any) -> None:
        count = self._counts[name]
        count._write(namespace().add(count.data, amount))

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the scale to what the steps since the last call met, or set it."""
        if not self.enabled:
            return
        xp = namespace()
        for mark in self._unscaled.values():
            mark._write(False)
        scale, tracker = self._scale.data, self._counts["growth_tracker"].data
        if new_scale is None:
            good, bad = self._good.data, self._bad.data
            tracker = xp.where(bad, 0, xp.add(tracker, xp.astype(good, np.int64)))
            full = xp.greater_equal(tracker, self.growth_interval)
            lower = xp.maximum(xp.multiply(scale, self.backoff_factor), LEAST)
            lower = xp.minimum(lower, scale)  # a scale that began below stays there
            with np.errstate(over="ignore"):
                higher = xp.multiply(scale, self.growth_factor)
            higher = xp.where(xp.isfinite(xp.astype(higher, FLOAT32)), higher, scale)
            scale = xp.where(bad, lower, xp.where(full, higher, scale))
            tracker = xp.where(full, 0, tracker)
        else:
            scale, tracker = _checked_scale(new_scale), 0
        self._scale._write(scale)
        self._counts["growth_tracker"]._write(tracker)
        self._good._write(False)
        self._bad._write(False)

    @property
    def skipped_steps(self) -> int:
        """How many steps were left out."""
        return int(self._counts["skipped_steps"])

    @property
    def applied_steps(self) -> int:
        """How many steps were taken."""
        return int(self._counts["applied_steps"])

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The scale, the counts and the options."""
        counts = {name: int(tensor) for name, tensor in self._counts.items()}
        options = {name: getattr(self, name) for name in OPTIONS}
        return {"scale": float(self._scale), **counts, **options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; `EveryOSerializationError`, and no change, if it is not
        one."""
        check_names({"scale", *COUNTS, *OPTIONS}, set(state), True, "GradScaler")
        try:
            fresh = GradScaler(state["scale"], **{name: state[name] for name in OPTIONS})
            counts = {name: int(state[name]) for name in COUNTS}
        except (ValueError, TypeError, OverflowError) as error:
            raise EveryOSerializationError(
                f"GradScaler: a stored value is wrong: {error}"
            ) from None
        if any(n < 0 for n in counts.values()):
            raise EveryOSerializationError(f"GradScaler: a stored count is negative: {counts}")
        for name in OPTIONS:
            setattr(self, name, getattr(fresh, name))
        self._scale._write(fresh._scale._data)
        for name, n in counts.items():
            self._counts[name]._write(n)

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={getattr(self, name)}" for name in OPTIONS)
        return f"GradScaler(scale={self._scale._data!s}, {state}, enabled={self.enabled})"


def _scalar(value: Any, dtype: Any) -> Tensor:
    return Tensor._wrap(np.array(value, dtype))


def _checked_scale(value: Any) -> float:
    if not 0 < float(value) < np.inf:
        raise ValueError(f"the scale must be positive and finite, got {value}")
    return float(value)


def _answer(finite: Any) -> Any:
    """A bool, or what stands for one while tracing."""
    return bool(finite) if current_trace() is None else Tensor._wrap(finite)
