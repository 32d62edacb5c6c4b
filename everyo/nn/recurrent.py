"""Recurrent layers: `RNN`, `LSTM`, `GRU`, over (batch, time, features).

The projection of the inputs is one matrix product for all steps; what remains per step is the
product with the hidden state and the gates.
"""

from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.nn.checks import last_axis, positive_sizes
from everyo.nn.layers import new_weight, next_seed, zero_bias
from everyo.nn.module import Module, register_module
from everyo.ops.activations import sigmoid
from everyo.ops.contraction import matmul
from everyo.ops.movement import reshape, split, stack
from everyo.ops.transcendental import tanh

__all__ = ["GRU", "LSTM", "RNN"]


def _steps(x: Tensor) -> list[Tensor]:
    """(N, T, F) as T tensors (N, F). By halving, since the gradient of a cut is as long as what it
    was cut from: T cuts from the whole would cost T * T."""
    n, length, features = x.shape
    if length == 1:
        return [reshape(x, (n, features))]
    half = length // 2
    return [*_steps(x[:, :half]), *_steps(x[:, half:])]


class _Recurrent(Module):
    """What recurrent layers share: parameters, checks and the walk over the steps."""

    _config: tuple[str, ...] = (
        "input_size",
        "hidden_size",
        "bias",
        "return_sequences",
        "initializer",
    )
    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        return_sequences: bool = True,
        initializer: str = "xavier_uniform",
        seed: Any = None,
    ) -> None:
        super().__init__()
        positive_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.use_bias, self.return_sequences = bool(bias), bool(return_sequences)
        self.initializer = initializer
        width = self._gates * hidden_size
        self.weight_ih = new_weight(initializer, (input_size, width), seed)
        self.weight_hh = new_weight(initializer, (hidden_size, width), next_seed(seed))
        if bias:
            self.bias = zero_bias(width)

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        name = type(self).__name__
        if x.ndim != 3:
            raise EveryOShapeError(
                f"{name} expects a 3-D input (batch, time, features), got shape {x.shape}"
            )
        last_axis(name, x, self.input_size, "input_size")
        if x.shape[1] == 0:
            raise EveryOShapeError(f"{name}: a sequence of length 0 has no last step")
        projected = matmul(x, self.weight_ih)
        if self.use_bias:
            projected = projected + self.bias
        state = self._start(projected)
        outputs = []
        for step in _steps(projected):
            state = self._step(step, *state)
            outputs.append(state[0])
        return stack(outputs, axis=1) if self.return_sequences else outputs[-1]

    def _start(self, projected: Tensor) -> tuple[Tensor, ...]:
        """The state before the first step: zeros."""
        shape = (projected.shape[0], self.hidden_size)
        return (Tensor._wrap(namespace().zeros(shape, np.dtype(projected.dtype))),)

    def _step(self, projected: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The state after a step, the hidden vector first."""
        raise NotImplementedError


@register_module
class RNN(_Recurrent):
    """h' = tanh(x W_ih + b + h W_hh): (N, T, in) -> (N, T, hidden), or (N, hidden) at the end."""

    def _step(self, projected: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        return (tanh(projected + matmul(h, self.weight_hh)),)


@register_module
class LSTM(_Recurrent):
    """Long short-term memory: (N, T, in) -> (N, T, hidden), or (N, hidden) at the last step.

    The gates are input, forget, cell and output, side by side in the weights:
    c' = f * c + i * tanh(cell), h' = o * tanh(c'). With `unit_forget_bias` f starts near 1.
    """

    _config = (*_Recurrent._config, "unit_forget_bias")
    _gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        return_sequences: bool = True,
        initializer: str = "xavier_uniform",
        unit_forget_bias: bool = True,
        seed: Any = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            bias=bias,
            return_sequences=return_sequences,
            initializer=initializer,
            seed=seed,
        )
        self.unit_forget_bias = bool(unit_forget_bias)
        if bias and unit_forget_bias:
            self.bias._write(1.0, slice(hidden_size, 2 * hidden_size))

    def _start(self, projected: Tensor) -> tuple[Tensor, ...]:
        (h,) = super()._start(projected)
        return h, h

    def _step(self, projected: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        h, c = state
        i, f, g, o = split(projected + matmul(h, self.weight_hh), 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c


@register_module
class GRU(_Recurrent):
    """Gated recurrent unit: (N, T, in) -> (N, T, hidden), or (N, hidden) at the last step.

    The gates are reset, update and candidate, side by side in the weights:
    cand = tanh(x_c + r * (h W_c)), h' = (1 - u) * cand + u * h.
    """

    _gates = 3

    def _step(self, projected: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        x_r, x_u, x_c = split(projected, 3, axis=1)
        h_r, h_u, h_c = split(matmul(h, self.weight_hh), 3, axis=1)
        update = sigmoid(x_u + h_u)
        candidate = tanh(x_c + sigmoid(x_r + h_r) * h_c)
        return ((1 - update) * candidate + update * h,)
