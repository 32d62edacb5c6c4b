"""Neural networks: modules, layers, losses."""

from everyo.nn.activations import (
    ELU,
    GELU,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)  # fmt: skip
from everyo.nn.convolution import AvgPool2D, Conv1D, Conv2D, ConvTranspose2D, MaxPool2D
from everyo.nn.initialization import get_initializer
from everyo.nn.layers import Dropout, Flatten, Linear
from everyo.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    Loss,
    MAELoss,
    MSELoss,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    mae_loss,
    mse_loss,
)  # fmt: skip
from everyo.nn.module import MODULE_REGISTRY, Module, Parameter, get_module_class, register_module
from everyo.nn.sequential import Sequential

__all__ = [
    "ELU",
    "GELU",
    "MODULE_REGISTRY",
    "AvgPool2D",
    "BCELoss",
    "BCEWithLogitsLoss",
    "Conv1D",
    "Conv2D",
    "ConvTranspose2D",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "Loss",
    "MAELoss",
    "MSELoss",
    "MaxPool2D",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "get_initializer",
    "get_module_class",
    "mae_loss",
    "mse_loss",
    "register_module",
]
