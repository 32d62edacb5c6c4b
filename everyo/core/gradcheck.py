"""Gradients against finite differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.core.autograd import enable_grad
from everyo.core.tensor import Tensor
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
    """Compare the gradients of `fn(*inputs)` with central differences; True, or an error.

    The result, weighted by random numbers, is differentiated by every floating input, along random
    directions and, if those disagree, by each entry. Integer and bool inputs are passed on as they
    are. The central difference (f(x + h d) - f(x - h d)) / 2h is right to O(h^2). Raises
    `EveryODTypeError` for float32 and float16 inputs, whose rounding hides the derivative, and
    `EveryOGradientError`, naming the worst entry, where the two differ by more than
    atol + rtol * |difference|.
    """
    values = [
        x._concrete("gradcheck()") if isinstance(x, Tensor) else np.asarray(x) for x in inputs
    ]
    floats = [i for i, a in enumerate(values) if a.dtype.kind == "f"]
    if not floats or any(values[i].dtype != np.float64 for i in floats):
        raise EveryODTypeError(
            f"gradcheck needs float64 inputs, got {[a.dtype.name for a in values]}"
        )
    generator = np.random.default_rng(0)

    def call(arrays: Sequence[np.ndarray]) -> tuple[Tensor, list[Any]]:
        given = [Tensor(a, requires_grad=True) if i in floats else a for i, a in enumerate(arrays)]
        with enable_grad():
            return fn(*given), given

    out, given = call(values)
    weights = np.asarray(generator.standard_normal(out.shape))
    if out.requires_grad:
        out.backward(weights)

    def difference(i: int, direction: np.ndarray) -> float:
        total = 0.0
        for sign in (1, -1):
            moved = list(values)
            moved[i] = values[i] + sign * eps * direction
            total += sign * float((call(moved)[0].detach().numpy() * weights).sum())
        return total / (2 * eps)

    for i in floats:
        gradient = np.zeros(values[i].shape) if given[i].grad is None else np.array(given[i].grad)
        for _ in range(DIRECTIONS):
            direction = np.asarray(generator.standard_normal(values[i].shape))
            want, got = difference(i, direction), float((gradient * direction).sum())
            if _excess(got, want, atol, rtol) > 1:
                raise EveryOGradientError(
                    f"gradcheck: input {i}: along a random direction the gradient gives {got:.6g}, "
                    f"finite differences give {want:.6g}; {_worst(i, gradient, difference)}"
                )
    return True


def _excess(got: float, want: float, atol: float, rtol: float) -> float:
    """How many times the tolerance the two numbers are apart; infinite with a NaN."""
    excess = abs(got - want) / (atol + rtol * abs(want))
    return excess if excess == excess else float("inf")


def _worst(i: int, gradient: np.ndarray, difference: Callable[[int, np.ndarray], float]) -> str:
    """The entry of input `i` that is furthest off, in words."""
    worst, words = -1.0, "it has no entries"
    for entry in np.ndindex(gradient.shape):
        unit = np.zeros(gradient.shape)
        unit[entry] = 1.0
        got, want = float(gradient[entry]), difference(i, unit)
        excess = _excess(got, want, 1.0, 0.0)
        if excess > worst:
            worst = excess
            words = f"worst at entry {entry}: {got:.6g} instead of {want:.6g}"
    return words
