"""Training: the trainer, its history, callbacks and metrics."""

from everyo.training.callbacks import (
    Callback,
    CSVLogger,
    EarlyStopping,
    LearningRateScheduler,
    ModelCheckpoint,
    ProgressLogger,
    ScheduleStepper,
)
from everyo.training.history import History
from everyo.training.metrics import (
    accuracy,
    binary_accuracy,
    confusion_matrix,
    get_metric,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
)
from everyo.training.trainer import Trainer

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "History",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgressLogger",
    "ScheduleStepper",
    "Trainer",
    "accuracy",
    "binary_accuracy",
    "confusion_matrix",
    "get_metric",
    "mean_absolute_error",
    "mean_squared_error",
    "r2_score",
]
