"""Callbacks: what happens at the beginning and end of training, of epochs and of batches.

The trainer calls every hook of the callbacks in list order. `logs` of an epoch is one dict for all
of them: what one callback puts in, the later ones see. Epochs count from 1, batches from 0. A
callback with `state_dict` and `load_state_dict` is part of a run's checkpoint.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from everyo.optim.plateau import ReduceLROnPlateau
from everyo.optim.schedulers import Schedule
from everyo.serialization import save
from everyo.training.history import History, PathLike, check_mode, csv_text
from everyo.training.progress import epoch_line

if TYPE_CHECKING:
    from everyo.training.trainer import Trainer

__all__ = [
    "CSVLogger", "Callback", "EarlyStopping", "LearningRateScheduler", "ModelCheckpoint",
    "ProgressLogger", "ScheduleStepper",
]  # fmt: skip

Logs = dict[str, Any]


class Callback:
    """Base of callbacks; every hook does nothing."""

    def on_train_begin(self, trainer: "Trainer") -> None:
        """Before the first epoch."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last epoch, also after an early stop."""

    def on_epoch_begin(self, trainer: "Trainer", epoch: int) -> None:
        """Before an epoch."""

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        """After an epoch; `logs` is its row of the history."""

    def on_batch_begin(self, trainer: "Trainer", batch: int) -> None:
        """Before a training batch."""

    def on_batch_end(self, trainer: "Trainer", batch: int, logs: Logs) -> None:
        """After a training batch; `logs` holds its loss."""


class _Monitor(Callback):
    """What watches a column of the logs for a new best value."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        check_mode(mode)
        self.monitor, self.mode, self.min_delta = monitor, mode, abs(min_delta)
        self.best = math.inf if mode == "min" else -math.inf

    def on_train_begin(self, trainer: "Trainer") -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self._warned = False

    def _value(self, logs: Logs) -> float | None:
        """The watched value; None, with one warning, where the logs lack it."""
        if self.monitor in logs:
            return float(logs[self.monitor])
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} watches {self.monitor!r}, but the logs have only "
                f"{', '.join(logs)}; pass validation_loader= to fit, or another monitor",
                stacklevel=4,
            )
        return None

    def _improved(self, value: float) -> bool:
        """Whether the value is better than the best one so far, which it then becomes."""
        sign = 1 if self.mode == "min" else -1
        better = sign * value < sign * self.best - self.min_delta
        if better:
            self.best = value
        return better


class EarlyStopping(_Monitor):
    """Stops the training when `monitor` has not improved in more than `patience` epochs.

    An improvement is better than the best value by more than `min_delta`. When it stops, the
    weights of the best epoch come back, unless `restore_best_weights` is off.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "min",
        restore_best_weights: bool = True,
        verbose: bool = True,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if patience < 0:
            raise ValueError(f"patience must not be negative, got {patience}")
        self.patience, self.verbose = patience, verbose
        self.restore_best_weights = restore_best_weights
        self._reset()

    def _reset(self) -> None:
        self.best_epoch = self.wait = self.stopped_epoch = 0
        self._weights: dict[str, np.ndarray] | None = None

    def on_train_begin(self, trainer: "Trainer") -> None:
        super().on_train_begin(trainer)
        self._reset()

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        value = self._value(logs)
        if value is None:
            return
        if self._improved(value):
            self.best_epoch, self.wait = epoch, 0
            if self.restore_best_weights:
                self._weights = trainer.model.state_dict()
            return
        self.wait += 1
        if self.wait > self.patience:
            self._stop(trainer, epoch)

    def _stop(self, trainer: "Trainer", epoch: int) -> None:
        trainer.stop_training = True
        self.stopped_epoch = epoch
        text = f"Early stopping at epoch {epoch}: the best {self.monitor} is of epoch "
        text += str(self.best_epoch)
        if self._weights is not None:
            trainer.model.load_state_dict(self._weights)
            text += f"\nRestored the best weights from epoch {self.best_epoch}"
        if self.verbose:
            print(text)

    def state_dict(self) -> dict[str, Any]:
        """The best value and its epoch, the count of epochs since, and the best weights."""
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "wait": self.wait,
            "stopped_epoch": self.stopped_epoch,
            "weights": self._weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.wait, self.stopped_epoch = state["wait"], state["stopped_epoch"]
        self._weights = state["weights"]


class ModelCheckpoint(_Monitor):
    """Saves the model to `path` when `monitor` improves, or with save_best_only=False each epoch.

    `saved_epochs` lists the epochs that were saved.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        monitor: str = "val_loss",
        mode: str = "min",
        save_best_only: bool = True,
    ) -> None:
        super().__init__(monitor, mode)
        self.path, self.save_best_only = Path(path), save_best_only
        self.saved_epochs: list[int] = []

    def on_train_begin(self, trainer: "Trainer") -> None:
        super().on_train_begin(trainer)
        self.saved_epochs = []

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        if self.save_best_only:
            value = self._value(logs)
            if value is None or not self._improved(value):
                return
        numbers = {k: v for k, v in logs.items() if isinstance(v, float) and math.isfinite(v)}
        save(trainer.model, self.path, metadata={**numbers, "epoch": epoch})
        self.saved_epochs.append(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far and the epochs that were saved."""
        return {"best": self.best, "saved_epochs": list(self.saved_epochs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.best, self.saved_epochs = state["best"], list(state["saved_epochs"])


class CSVLogger(Callback):
    """Writes a header and a line per epoch to `path`, complete after every epoch.

    The file always shows the rows of one training: it begins anew with each, and a run that is
    resumed goes on where its checkpoint was written.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._history = History()

    def on_train_begin(self, trainer: "Trainer") -> None:
        self._history = History()

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        columns, row = self._history.keys, self._history.append(**{"epoch": epoch, **logs})
        if set(row) <= set(columns):
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(csv_text(columns, [row], header=False))
        else:
            self._history.to_csv(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The rows that were written."""
        return self._history.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after these rows."""
        self._history.load_state_dict(state)
        if len(self._history):
            self._history.to_csv(self.path)


class LearningRateScheduler(Callback):
    """Sets the learning rate to `schedule(epoch, lr)` at the beginning of every epoch."""

    def __init__(self, schedule: Callable[[int, float], float]) -> None:
        if not callable(schedule):
            raise TypeError(
                f"schedule must be a function (epoch, lr) -> lr, got {type(schedule).__name__}; "
                "for a scheduler of everyo.optim use ScheduleStepper"
            )
        self.schedule = schedule

    def on_epoch_begin(self, trainer: "Trainer", epoch: int) -> None:
        trainer.optimizer.lr = float(self.schedule(epoch, trainer.optimizer.lr))


class ScheduleStepper(Callback):
    """Steps a scheduler of `everyo.optim` after every epoch, or with every="batch" every batch.

    `ReduceLROnPlateau` is given the value of `monitor`.
    """

    def __init__(
        self, scheduler: Schedule, *, every: str = "epoch", monitor: str = "val_loss"
    ) -> None:
        if every not in ("epoch", "batch"):
            raise ValueError(f"every must be 'epoch' or 'batch', got {every!r}")
        self.scheduler, self.every, self.monitor = scheduler, every, monitor

    def on_batch_end(self, trainer: "Trainer", batch: int, logs: Logs) -> None:
        if self.every == "batch":
            self._step(logs)

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        if self.every == "epoch":
            self._step(logs)

    def _step(self, logs: Logs) -> None:
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()  # type: ignore[attr-defined]
        elif self.monitor in logs:
            self.scheduler.step(logs[self.monitor])
        else:
            raise KeyError(f"No metric {self.monitor!r} in the logs: {', '.join(logs)}")

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the scheduler from a `state_dict`."""
        self.scheduler.load_state_dict(state)


class ProgressLogger(Callback):
    """Collects a line for every `every`-th epoch in `lines`, and prints it if `stream`."""

    def __init__(self, every: int = 1, *, stream: bool = True) -> None:
        if every < 1:
            raise ValueError(f"every must be positive, got {every}")
        self.every, self.stream = every, stream
        self.lines: list[str] = []

    def on_epoch_end(self, trainer: "Trainer", epoch: int, logs: Logs) -> None:
        if epoch % self.every == 0:
            line = epoch_line(epoch, trainer.total_epochs, logs)
            self.lines.append(line)
            if self.stream:
                print(line, flush=True)
