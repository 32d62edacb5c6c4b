"""What every library computes: the sizes and the data of the workloads, in NumPy, float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

MLPS = {
    "mlp-tiny": (32, (16, 32, 10)),
    "mlp-small": (32, (64, 128, 10)),
    "mlp-mid": (128, (784, 256, 128, 10)),
    "mlp-big": (256, (784, 1024, 1024, 10)),
}
GELUS = {"gelu-1e4": 10_000, "gelu-1e6": 1_000_000, "gelu-1e7": 10_000_000}
ROWS = {"cross-entropy": (4096, 1000), "layer-norm": (4096, 1024)}
PENDULUM = {"pendulum": 100}  # unrolled Euler steps
GPTS = {
    "gpt-small": (8, 32, 64, 4, 2),
    "gpt-medium": (16, 128, 256, 8, 4),
}  # batch, time, width, heads, layers
VOCABULARY = 65
ARTICLES = {"article-1e3": 1_000, "article-4e3": 4_000, "article": 10_000}  # operations on scalars
NAMES = (
    *MLPS, *GELUS, *ROWS, *PENDULUM, "cnn", "residual", *GPTS, "pinn", "lstm", *ARTICLES,
)  # fmt: skip

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of one step."""

    x: np.ndarray
    y: np.ndarray


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of a size that keeps activations near one."""
    scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[:-1]))))
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def labels(classes: int, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, shape)


def mlp(name: str) -> tuple[Batch, list[np.ndarray]]:
    """The batch and the parameters (weight, bias, weight, …) of a network with ReLU between
    layers."""
    batch, sizes = MLPS[name]
    parameters: list[np.ndarray] = []
    for i, (n, m) in enumerate(pairwise(sizes)):
        parameters += [normal(n, m, seed=i), np.zeros(m, np.float32)]
    x = np.random.default_rng(7).standard_normal((batch, sizes[0])).astype(np.float32)
    return Batch(x, labels(sizes[-1], batch)), parameters


def article(
    inputs: Sequence[Any],
    operations: int,
    softplus: Callable[[Any], Any],
    softmax: Callable[[Sequence[Any]], Sequence[Any]],
) -> Any:
    """The last value of a graph of scalars: four operations in turn, each on earlier values; a
    softmax appends four."""
    values = list(inputs)
    for i in range(operations):
        match i % 4:
            case 0:
                values.append(softplus(values[-10]))
            case 1:
                a, b, c, d = values[-30:-10:5]
                values.append(a + b + c + d)
            case 2:
                values.append(values[-20] * values[-10])
            case 3:
                values += softmax(values[-4:])
    return values[-1]
