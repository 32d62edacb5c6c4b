"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jacobian`, `hessian`.

Each takes a function of tensors and returns its derivative, without touching anybody's `.grad`. The
results are themselves differentiable: with respect to the arguments when a transform is nested, and
with respect to whatever else the function used.
"""

import functools
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


def _variable(value: Any) -> Tensor:
    """A tensor to differentiate by: a fresh leaf, or a node above `value` where it has a graph."""
    t = as_tensor(value)
    if t._data.dtype.kind != "f":
        raise EveryOGradientError(
            f"cannot differentiate by a {t.dtype} argument; it must be floating point"
        )
    return TENSORS.identity(t) if t.requires_grad and MODE.grad else Tensor._leaf(t)


def _gradients(result: Tensor, seed: Any, variables: Sequence[Tensor]) -> list[Tensor]:
    """d(result)/d(variables) as tensors; with a graph only if something outside needs one."""
    if not result.requires_grad:
        return [TENSORS.zeros(v.shape, v.dtype) for v in variables]
    fresh = {id(v) for v in variables if v.is_leaf}
    outside = MODE.grad and any(t.is_leaf and id(t) not in fresh for t in topological_order(result))
    xp = TENSORS if outside else autograd.namespace()
    with set_grad_enabled(outside), np.errstate(all="ignore"):
        found = {id(t): g for t, g in propagate(result, seed_for(result, seed, xp), xp, variables)}
        out = [found.get(id(v)) for v in variables]
    return [
        TENSORS.zeros(v.shape, v.dtype) if g is None
        else g if isinstance(g, Tensor) else Tensor._wrap(autograd.namespace().copy(g))
        for v, g in zip(variables, out, strict=True)
    ]  # fmt: skip


def _positions(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    given = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any(not -count <= i < count for i in given):
        raise EveryOGradientError(f"argnums {argnums} for a call with {count} positional arguments")
    return tuple(i % count for i in given)


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns (fn(*args), gradient).

    `fn` returns a tensor with one element, or with `has_aux=True` a pair (tensor, anything). The
    gradient is a tensor of the shape of argument `argnums`, or a tuple for a sequence of positions.
    """

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        at = _positions(argnums, len(args))
        replaced = list(args)
        with enable_grad() if not MODE.grad else set_grad_enabled(True):
            for i in at:
                replaced[i] = _variable(args[i])
            out = fn(*replaced, **kwargs)
        result = out[0] if has_aux else out
        if not isinstance(result, Tensor) or result.size != 1:
            shape = result.shape if isinstance(result, Tensor) else type(result).__name__
            raise EveryOGradientError(
                f"grad needs a function whose result is one number (a scalar tensor), got {shape}"
            )
        gradients = _gradients(result, None, [replaced[i] for i in at])
        fresh = all(replaced[i].is_leaf for i in at) and not any(g.requires_grad for g in gradients)
        value = (
            result.detach() if fresh and not _depends(result, [replaced[i] for i in at]) else result
        )
        value = (value, *out[1:]) if has_aux else value
        return value, gradients[0] if isinstance(argnums, int) else tuple(gradients)

    return wrapped


def _depends(result: Tensor, fresh: Sequence[Tensor]) -> bool:
    """Whether the result has a graph below anything but the fresh leaves."""
    known = {id(v) for v in fresh}
    return any(t.is_leaf and id(t) not in known for t in topological_order(result))


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
    """(fn(*primals), pullback): the pullback maps a gradient of the result to those of the primals."""
    with enable_grad():
        variables = [_variable(p) for p in primals]
        result = fn(*variables)

    def pullback(gradient: Any) -> tuple[Tensor, ...]:
        return tuple(_gradients(result, gradient, variables))

    return result, pullback


def jacobian(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    """The Jacobian of a function by its first argument: shape result.shape + argument.shape."""

    @functools.wraps(fn)
    def wrapped(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        with enable_grad():
            variable = _variable(x)
            result = fn(variable, *args, **kwargs)
        rows = []
        for i in range(result.size):
            seed = np.zeros(result.size, result.dtype)
            seed[i] = 1
            rows.append(_gradients(result, seed.reshape(result.shape), [variable])[0])
        shape = (*result.shape, *variable.shape)
        if not rows:
            return TENSORS.zeros(shape, variable.dtype)
        return TENSORS.reshape(TENSORS.stack(rows), shape)

    return wrapped


def hessian(fn: Callable[..., Any]) -> Callable[..., Tensor]:
    """The matrix of second derivatives of a scalar function by its first argument."""
    return jacobian(grad(fn))
