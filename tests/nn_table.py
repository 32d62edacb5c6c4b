"""The table behind test_layers.py: every module of `everyo.nn` with an input it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import everyo as eo
from everyo import nn


@dataclass(frozen=True, eq=False)
class Case:
    """`make()` builds the module; `shape` is that of its input, or `ids` are whole numbers."""

    name: str
    make: Callable[[], eo.Module]
    shape: tuple[int, ...] = ()
    ids: Any = None
    smooth: bool = True  # has a second derivative everywhere

    def input(self, dtype: Any = np.float64) -> np.ndarray:
        if self.ids is not None:
            return np.asarray(self.ids)
        # away from 0, where relu and its kin have a corner
        drawn = np.random.default_rng(3).uniform(0.1, 1.0, self.shape)
        signs = np.random.default_rng(4).choice([-1.0, 1.0], self.shape)
        return (drawn * signs).astype(dtype)

    def module(self, dtype: Any = np.float64, training: bool = False) -> eo.Module:
        """The module with parameters of a dtype, all of them drawn: zeros hide mistakes."""
        module = self.make().train(training)
        generator = np.random.default_rng(5)
        for name, parameter in list(module.named_parameters()):
            value = parameter.numpy() + generator.uniform(-0.3, 0.3, parameter.shape)
            put(module, name, eo.Parameter(value.astype(dtype)))
        return module


def put(module: eo.Module, name: str, tensor: Any) -> None:
    """Replace the parameter with a dotted name."""
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, last, tensor)


def called(module: eo.Module, x: Any, names: list[str], values: Any) -> Any:
    """The module's result with other tensors as its parameters."""
    for name, value in zip(names, values, strict=True):
        put(module, name, value)
    return module(x)


IDS = [[0, 2, 2], [1, 4, 0]]

CASES = [
    Case("linear", lambda: nn.Linear(4, 3, seed=0), (2, 4)),
    Case("linear without bias", lambda: nn.Linear(4, 3, bias=False, seed=0), (2, 5, 4)),
    Case("flatten", lambda: nn.Flatten(), (2, 3, 2)),
    Case("dropout", lambda: nn.Dropout(0.4, seed=1), (3, 4)),
    Case("relu", lambda: nn.ReLU(), (3, 4)),
    Case("sigmoid", lambda: nn.Sigmoid(), (3, 4)),
    Case("tanh", lambda: nn.Tanh(), (3, 4)),
    Case("silu", lambda: nn.SiLU(), (3, 4)),
    Case("softplus", lambda: nn.Softplus(), (3, 4)),
    Case("log sigmoid", lambda: nn.LogSigmoid(), (3, 4)),
    Case("gelu", lambda: nn.GELU(), (3, 4)),
    Case("gelu tanh", lambda: nn.GELU("tanh"), (3, 4)),
    Case("leaky relu", lambda: nn.LeakyReLU(0.2), (3, 4)),
    Case("elu", lambda: nn.ELU(0.7), (3, 4)),
    Case("softmax", lambda: nn.Softmax(axis=0), (3, 4)),
    Case("log softmax", lambda: nn.LogSoftmax(), (3, 4)),
    Case("conv2d", lambda: nn.Conv2D(2, 3, (3, 2), seed=0), (2, 5, 4, 2)),
    Case(
        "conv2d same",
        lambda: nn.Conv2D(2, 4, 3, stride=2, padding="same", groups=2, bias=False, seed=0),
        (1, 5, 6, 2),
    ),
    Case("conv1d", lambda: nn.Conv1D(2, 3, 3, padding=(2, 0), dilation=2, seed=0), (2, 7, 2)),
    Case(
        "conv transpose",
        lambda: nn.ConvTranspose2D(3, 2, 3, stride=2, padding=1, output_padding=1, seed=0),
        (1, 3, 2, 3),
    ),
    Case("max pool", lambda: nn.MaxPool2D(2), (2, 4, 5, 2)),
    Case("avg pool", lambda: nn.AvgPool2D(3, stride=2, padding="same"), (2, 4, 5, 2)),
    Case("batch norm 1d", lambda: nn.BatchNorm1D(3), (5, 3)),
    Case("batch norm 2d", lambda: nn.BatchNorm2D(3), (2, 3, 2, 3)),
    Case(
        "batch norm plain",
        lambda: nn.BatchNorm1D(3, affine=False, track_running_stats=False),
        (5, 3),
    ),
    Case("layer norm", lambda: nn.LayerNorm((2, 3)), (4, 2, 3)),
    Case("embedding", lambda: nn.Embedding(5, 3, seed=0), ids=IDS),
    Case("rnn", lambda: nn.RNN(3, 4, seed=0), (2, 4, 3)),
    Case("lstm", lambda: nn.LSTM(3, 4, seed=0, return_sequences=False), (2, 3, 3)),
    Case("gru", lambda: nn.GRU(3, 4, seed=0), (2, 3, 3)),
    Case("attention", lambda: nn.MultiHeadAttention(4, 2, seed=0), (2, 3, 4)),
    Case("positions", lambda: nn.PositionalEncoding(5, max_length=7), (2, 3, 5)),
    Case(
        "encoder block",
        lambda: nn.TransformerEncoderBlock(4, 2, feedforward_dim=6, norm_first=False, seed=0),
        (1, 3, 4),
    ),
    Case("encoder", lambda: nn.TransformerEncoder(4, 2, feedforward_dim=6, seed=0), (1, 3, 4)),
    Case(
        "sequential",
        lambda: nn.Sequential(nn.Linear(4, 3, seed=0), nn.Tanh(), nn.Linear(3, 2, seed=1)),
        (2, 4),
    ),
]
