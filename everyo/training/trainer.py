"""`Trainer`: the loop around a model, an optimizer and a loss.

`fit` runs epochs over a loader and returns a `History`; `evaluate` and `predict` run the model in
evaluation mode and leave its modes as they were. The steps are compiled (see `steps`); everything
else is plain Python in the order in which it is written. With `checkpoint=` the complete state of
the run is written after every epoch, and a run that is resumed from it continues bit for bit.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from everyo.core.autograd import no_grad
from everyo.core.device import device as find_device
from everyo.core.tensor import Tensor, tensor
from everyo.data.checks import whole
from everyo.data.loader import DataLoader
from everyo.exceptions import EveryOError
from everyo.nn.module import Module
from everyo.serialization.checkpoint import SUFFIX, load_checkpoint, save_checkpoint
from everyo.training.callbacks import Callback
from everyo.training.history import History, PathLike
from everyo.training.metrics import Metric, get_metric
from everyo.training.progress import Bar, epoch_line
from everyo.training.steps import Steps, Totals, joined

__all__ = ["Trainer"]


class Trainer:
    """Trains `model` with `optimizer` to minimise `loss_fn(output, target)`.

    `metrics` are names or functions (prediction, target) -> number. `gradient_clip` is the largest
    allowed L2 norm of all gradients together. Features and targets reach the model and the loss as
    tensors on `device`, integers as float32.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Any,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        metrics: Iterable[str | Metric] = (),
        device: Any = "cpu",
        gradient_clip: float | None = None,
        compile: bool = True,  # noqa: A002
    ) -> None:
        if gradient_clip is not None and not gradient_clip > 0:
            raise ValueError(f"gradient_clip must be positive, got {gradient_clip!r}")
        self.device = find_device(device)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        model.to(self.device)
        given = [metrics] if isinstance(metrics, str) else list(metrics)
        self.metrics = {_metric_name(m): get_metric(m) for m in given}
        self.gradient_clip = gradient_clip
        self.compile = compile
        self.history = History()
        self.stop_training = False
        self.total_epochs = 0
        self._epoch = 0
        self._current: Steps | None = None

    # ------------------------------------------------------------------ training

    def fit(
        self,
        train_loader: Iterable[Any],
        *,
        epochs: int = 10,
        validation_loader: Iterable[Any] | None = None,
        callbacks: Iterable[Callback] = (),
        verbose: bool = True,
        log_every: int = 1,
        checkpoint: PathLike | None = None,
        resume: bool = False,
    ) -> History:
        """Train for `epochs` epochs; the history, a row per epoch.

        With `checkpoint`, the state of the whole run (model, optimizer, loaders, callbacks, random
        generators, history) is written to that file after every epoch. `resume=True` continues
        from the file if it exists, for the epochs that are left, exactly as if the run had never
        stopped: give it the same loaders and callbacks.
        """
        hooks = _checked(callbacks)
        self.total_epochs = whole("epochs", epochs)
        log_every = whole("log_every", log_every)
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=, the file to continue from")
        self.history, self.stop_training, self._epoch = History(), False, 0
        file = None if checkpoint is None else _with_suffix(checkpoint)
        parts = self._parts(train_loader, validation_loader, hooks)
        for hook in hooks:
            hook.on_train_begin(self)
        if resume and file is not None and file.exists():
            load_checkpoint(file, **parts)
        while self._epoch < self.total_epochs and not self.stop_training:
            self._epoch += 1
            self._run_epoch(train_loader, validation_loader, hooks, log_every if verbose else 0)
            if file is not None:
                save_checkpoint(file, **parts)
        for hook in hooks:
            hook.on_train_end(self)
        return self.history

    def _run_epoch(
        self, loader: Any, validation: Any, hooks: list[Callback], log_every: int
    ) -> None:
        epoch, began = self._epoch, time.perf_counter()
        for hook in hooks:
            hook.on_epoch_begin(self, epoch)
        logs: dict[str, Any] = {"epoch": epoch, **self._train(loader, hooks, log_every > 0)}
        if validation is not None:
            logs |= {f"val_{name}": value for name, value in self.evaluate(validation).items()}
        row = self.history.append(**logs, time=time.perf_counter() - began)
        if log_every and (epoch % log_every == 0 or epoch == self.total_epochs):
            print(epoch_line(epoch, self.total_epochs, row), flush=True)
        for hook in hooks:
            hook.on_epoch_end(self, epoch, row)

    def _train(self, loader: Any, hooks: list[Callback], shown: bool) -> dict[str, float]:
        """One epoch over the loader; the loss and metrics of the outputs along the way."""
        self.model.train()
        steps, totals = self._steps, self._totals()
        label = f"Epoch {self._epoch}/{self.total_epochs}"
        bar = Bar(label, len(loader) if hasattr(loader, "__len__") else None, shown=shown)
        try:
            for number, (features, targets) in enumerate(_pairs(loader)):
                for hook in hooks:
                    hook.on_batch_begin(self, number)
                x, y = self._tensor(features), self._tensor(targets)
                loss, output = steps.train(x, y, self.gradient_clip, bool(self.metrics))
                totals.add(loss, len(x), output, targets)
                bar.advance(loss)
                for hook in hooks:
                    hook.on_batch_end(self, number, {"loss": loss})
        finally:
            bar.close()
        return totals.result()

    # ------------------------------------------------------------------ evaluation

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The loss per sample and the metrics over a loader, in evaluation mode."""
        steps, totals = self._steps, self._totals()
        with evaluating(self.model):
            for features, targets in _pairs(loader):
                x, y = self._tensor(features), self._tensor(targets)
                loss, output = steps.evaluate(x, y, bool(self.metrics))
                totals.add(loss, len(x), output, targets)
        return totals.result()

    def predict(self, data: Any, *, batch_size: int = 64) -> np.ndarray:
        """The outputs of the model, in evaluation mode, for an array, tensor, data set or loader.

        Targets, where the data has them, are ignored.
        """
        outputs = []
        with evaluating(self.model), no_grad():
            for features in _features(data, whole("batch_size", batch_size)):
                output = self.model(self._tensor(features))
                if not isinstance(output, Tensor):
                    raise EveryOError(
                        f"predict needs a model that returns a tensor, got {type(output).__name__}"
                    )
                outputs.append(output.numpy())
        if not outputs:
            raise EveryOError("there is nothing to predict: the data gave no batches")
        return joined(outputs)

    def predict_classes(self, data: Any, *, batch_size: int = 64) -> np.ndarray:
        """The class of each sample: its largest output; with a single output, 1 from 0.5 on."""
        outputs = self.predict(data, batch_size=batch_size)
        if outputs.ndim == 1 or outputs.shape[-1] == 1:
            single = outputs if outputs.ndim == 1 else outputs[..., 0]
            return (single >= 0.5).astype(np.int64)
        return outputs.argmax(axis=-1)

    # ------------------------------------------------------------------ parts

    @property
    def train_step(self) -> Any:
        """The training step; compiled, it has `explain()`, `graph()` and `source()`."""
        return self._steps.train_step

    @property
    def evaluation_step(self) -> Any:
        """The evaluation step, as `train_step`."""
        return self._steps.evaluation_step

    @property
    def _steps(self) -> Steps:
        """The steps for the present model, optimizer and loss."""
        parts = (self.model, self.optimizer, self.loss_fn)
        steps = self._current
        if (
            steps is None
            or steps.compile != self.compile
            or any(a is not b for a, b in zip(steps.parts, parts, strict=True))
        ):
            self._current = steps = Steps(*parts, compile=self.compile)
        return steps

    def _totals(self) -> Totals:
        return Totals(self.metrics, getattr(self.loss_fn, "reduction", "mean"))

    def _tensor(self, values: Any) -> Tensor:
        return tensor(values, device=self.device)

    # ------------------------------------------------------------------ checkpoints

    def _parts(self, train: Any, validation: Any, hooks: list[Callback]) -> dict[str, Any]:
        """Everything a run changes, for a checkpoint."""
        loaders = [train] if validation is None or validation is train else [train, validation]
        losses = [self.loss_fn] if isinstance(self.loss_fn, Module) else []
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "loss": losses,
            "loaders": [x for x in loaders if _has_state(x)],
            "callbacks": [x for x in hooks if _has_state(x)],
            "run": self,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: the epoch, the history, and for which shapes it compiles."""
        return {
            "epoch": self._epoch,
            "stop_training": self.stop_training,
            "history": self.history.state_dict(),
            "steps": self._steps.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._epoch, self.stop_training = state["epoch"], state["stop_training"]
        self.history.load_state_dict(state["history"])
        self._steps.load_state_dict(state["steps"])


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in."""
    before = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            if module.training != mode:
                module.training = mode


def _pairs(loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            what = f"{len(batch)} parts" if isinstance(batch, tuple | list) else "no targets"
            raise EveryOError(
                f"training needs batches of (features, targets), got one with {what}; use "
                "ArrayDataset(features, targets)"
            )
        yield batch[0], batch[1]


def _features(data: Any, batch_size: int) -> Iterator[Any]:
    """Batches of features from whatever `predict` accepts."""
    if isinstance(data, Tensor):
        data = data.numpy()
    elif isinstance(data, list):
        data = np.asarray(data)
    if isinstance(data, np.ndarray):
        for start in range(0, len(data), batch_size):
            yield data[start : start + batch_size]
        return
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    for batch in DataLoader(data, batch_size) if indexed else data:
        yield batch[0] if isinstance(batch, tuple | list) else batch


def _checked(callbacks: Iterable[Callback]) -> list[Callback]:
    hooks = list(callbacks)
    for hook in hooks:
        if not isinstance(hook, Callback):
            raise TypeError(
                f"every callback must be an instance of a subclass of Callback, got {hook!r}"
            )
    return hooks


def _metric_name(metric: str | Metric) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _with_suffix(path: PathLike) -> Path:
    """The path under which `save_checkpoint` writes."""
    path = Path(path)
    return path if path.suffix else path.with_name(path.name + SUFFIX)
