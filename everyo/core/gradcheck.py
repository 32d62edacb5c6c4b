"""Gradients against finite differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryODTypeError, EveryOGradientError

DIRECTIONS = 3


def gradcheck(
    fn: Callable[..., Tensor],
    inputs: Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
) -> bool:
    """Compare the gradients of `fn(*inputs)` with central differences; True, or an error that names
    the worst entry.

    All floating inputs are checked, each in random directions and then, if those disagree, element by
    element. Central difference: (f(x + h d) - f(x - h d)) / 2h, error O(h^2). Raises
    `EveryODTypeError` for float32 and float16 inputs, whose rounding hides the derivative, and
    `EveryOGradientError` if an entry differs by more than atol + rtol * |difference|.
    """
    arrays = [np.array(as_tensor(x)._concrete("gradcheck()")) for x in inputs]
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    if any(arrays[i].dtype != np.float64 for i in floats) or not floats:
        raise EveryODTypeError(
            f"gradcheck needs float64 inputs, got {[a.dtype.name for a in arrays]}"
        )
    generator = np.random.default_rng(0)

    def run(
        values: Sequence[np.ndarray], weights: np.ndarray | None = None
    ) -> tuple[Any, list[Tensor]]:
        tensors = [
            Tensor(a, dtype=a.dtype, requires_grad=i in floats) for i, a in enumerate(values)
        ]
        out = fn(*tensors)
        if weights is not None:
            return float((out._data * weights).sum()), tensors
        return out, tensors

    out, tensors = run(arrays)
    weights = np.asarray(generator.standard_normal(out.shape))
    if out.requires_grad:
        out.backward(weights.astype(out.dtype))

    def numeric(i: int, direction: np.ndarray) -> float:
        plus, minus = list(arrays), list(arrays)
        plus[i], minus[i] = arrays[i] + eps * direction, arrays[i] - eps * direction
        return (run(plus, weights)[0] - run(minus, weights)[0]) / (2 * eps)

    for i in floats:
        analytic = (
            np.zeros(arrays[i].shape) if tensors[i].grad is None else np.asarray(tensors[i].grad)
        )
        for _ in range(DIRECTIONS):
            d = generator.standard_normal(arrays[i].shape)
            want, got = numeric(i, d), float((analytic * d).sum())
            if not abs(got - want) <= atol + rtol * abs(want):
                _name_the_worst(i, arrays[i], analytic, numeric, atol, rtol)
                raise EveryOGradientError(f"gradcheck: input {i}: along a random direction the gradient gives {got:.6g}, "
                                          f"finite differences {want:.6g}")  # fmt: skip
    return True


def _name_the_worst(
    i: int,
    x: np.ndarray,
    analytic: np.ndarray,
    numeric: Callable[[int, np.ndarray], float],
    atol: float,
    rtol: float,
) -> None:
    worst, at, values = 0.0, None, (0.0, 0.0)
    for k in np.ndindex(x.shape):
        unit = np.zeros(x.shape)
        unit[k] = 1.0
        want = numeric(i, unit)
        excess = abs(analytic[k] - want) / (atol + rtol * abs(want))
        if not excess <= worst:
            worst, at, values = excess, k, (float(analytic[k]), want)
    if at is not None and not worst <= 1:
        raise EveryOGradientError(
            f"gradcheck: input {i}, entry {at}: the gradient is {values[0]:.6g}, finite differences give {values[1]:.6g}"
        )
