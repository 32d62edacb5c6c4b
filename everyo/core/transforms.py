"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jacobian`, `hessian`.

Each takes a function of tensors and returns its derivative, without touching anybody's `.grad`. The
results are themselves differentiable: by the arguments when a transform is nested, and by whatever
else the function used. Where nothing outside asks for a gradient they are plain values.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.core import autograd
from everyo.core.autograd import (
    MODE,
    enable_grad,
    propagate,
    seed_for,
    set_grad_enabled,
    topological_order,
)
from everyo.core.namespace import TENSORS
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOGradientError


class _Call:
    """One call of a function on variables of its own: its result, and what leads back to them."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], at: Sequence[int], kwargs: dict[str, Any]
    ) -> None:
        recording = MODE.grad
        given = list(args)
        with enable_grad():
            for i in at:
                given[i] = _variable(args[i], recording)
            self.out = fn(*given, **kwargs)
        self.variables = [given[i] for i in at]
        self.recording = recording

    def outside(self, result: Tensor) -> bool:
        """Whether the result depends on anything else that wants gradients recorded here."""
        fresh = {id(v) for v in self.variables if v.is_leaf}
        return self.recording and any(
            t.is_leaf and id(t) not in fresh for t in topological_order(result)
        )

    def value(self, result: Tensor) -> Tensor:
        """The result as the caller gets it: with a graph only if something outside is in it."""
        return result if self.outside(result) else result.detach()

    def gradients(self, result: Tensor, seed: Any = None) -> list[Tensor]:
        """The gradients of the result by the variables, recorded if something outside wants it."""
        variables = self.variables
        if not result.requires_grad:
            return [TENSORS.zeros(v.shape, v.dtype) for v in variables]
        outside = MODE.grad and self.outside(result)
        xp = TENSORS if outside else autograd.namespace()
        with set_grad_enabled(outside), np.errstate(all="ignore"):
            pairs = propagate(result, seed_for(result, seed, xp), xp, variables)
            found = {id(t): g for t, g in pairs}
            return [_as_result(found.get(id(v)), v) for v in variables]


def _variable(value: Any, recording: bool) -> Tensor:
    """A tensor to differentiate by: a fresh leaf, or a node above `value` where it has a graph."""
    t = as_tensor(value)
    if t._data.dtype.kind != "f":
        raise EveryOGradientError(
            f"cannot differentiate by a {t.dtype} argument; it must be floating point"
        )
    return TENSORS.identity(t) if t.requires_grad and recording else Tensor._leaf(t)


def _as_result(gradient: Any, variable: Tensor) -> Tensor:
    if gradient is None:
        return TENSORS.zeros(variable.shape, variable.dtype)
    if isinstance(gradient, Tensor):
        return gradient
    return Tensor._wrap(autograd.namespace().copy(gradient))


def _positions(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    given = tuple(argnums) if isinstance(argnums, list | tuple) else (argnums,)
    at = tuple(operator.index(i) for i in given)
    if any(not -count <= i < count for i in at):
        raise EveryOGradientError(f"argnums {argnums} for a call with {count} positional arguments")
    return tuple(i % count for i in at)


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns (fn(*args), gradient).

    `fn` returns a tensor with one element, or with `has_aux=True` a pair (tensor, anything). The
    gradient is a tensor of the shape of argument `argnums`, or a tuple for a sequence of positions.
    """

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call(fn, args, _positions(argnums, len(args)), kwargs)
        result = call.out[0] if has_aux else call.out
        if not isinstance(result, Tensor) or result.size != 1:
            what = result.shape if isinstance(result, Tensor) else type(result).__name__
            raise EveryOGradientError(
                f"grad needs a function whose result is one number (a scalar tensor), got {what}"
            )
        gradients = call.gradients(result)
        value: Any = call.value(result)
        if has_aux:
            value = (value, *call.out[1:])
        return value, gradients[0] if np.ndim(argnums) == 0 else tuple(gradients)

    return wrapped


def grad(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The gradient function of a function whose result is one number.

    >>> grad(lambda x: (x * x).sum())(as_tensor([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """
    both = value_and_grad(fn, argnums)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return wrapped


def vjp(
    fn: Callable[..., Any], *primals: Any
) -> tuple[Tensor, Callable[[Any], tuple[Tensor, ...]]]:
    """(fn(*primals), pullback): the pullback maps a gradient of the result to the primals' ones."""
    call = _Call(fn, primals, range(len(primals)), {})

    def pullback(gradient: Any) -> tuple[Tensor, ...]:
        return tuple(call.gradients(call.out, gradient))

    return call.value(call.out), pullback


def jacobian(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    """The Jacobian of a function by its first argument: shape result.shape + argument.shape."""

    @functools.wraps(fn)
    def wrapped(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        call = _Call(fn, (x, *args), (0,), kwargs)
        result, variable = call.out, call.variables[0]
        shape = (*result.shape, *variable.shape)
        seeds = np.eye(result.size, dtype=result.dtype).reshape(result.size, *result.shape)
        rows = [call.gradients(result, seed)[0] for seed in seeds]
        if not rows:
            return TENSORS.zeros(shape, variable.dtype)
        return TENSORS.reshape(TENSORS.stack(rows), shape)

    return wrapped


def hessian(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    """The matrix of second derivatives of a scalar function by its first argument."""
    return jacobian(grad(fn))
