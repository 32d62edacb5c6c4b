"""Optimizers, learning-rate schedules, and what else happens to parameters and gradients."""

from everyo.optim.adagrad import Adagrad
from everyo.optim.adam import Adam, AdamW
from everyo.optim.average import ExponentialMovingAverage
from everyo.optim.gradients import clip_grad_norm, clip_grad_value
from everyo.optim.lion import Lion
from everyo.optim.optimizer import Optimizer
from everyo.optim.plateau import ReduceLROnPlateau
from everyo.optim.rmsprop import RMSprop
from everyo.optim.schedulers import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)
from everyo.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "ExponentialMovingAverage",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "RMSprop",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]
