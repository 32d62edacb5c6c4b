"""Optimizers: they change parameters along their gradients."""

from everyo.optim.adam import Adam, AdamW
from everyo.optim.optimizer import Optimizer
from everyo.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
