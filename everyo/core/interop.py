"""NumPy functions on tensors.

`np.sum(t, axis=0)` and its kin come here through `__array_function__` and go to our op of that
name, keeping the graph. Any other function of NumPy gets plain arrays and returns what it returns,
unless that would lose a gradient.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from everyo.core.autograd import MODE
from everyo.core.namespace import TENSORS

# NumPy's function -> (our name, how many leading arguments mean the same in both)
FUNCTIONS: dict[Callable[..., Any], tuple[str, int]] = {
    **{
        getattr(np, name): (name, 2)
        for name in (
            "sum prod mean var std max min any all argmax argmin cumsum reshape transpose "
            "concatenate stack dot outer squeeze broadcast_to flip tile pad tril triu sort "
            "argsort round"
        ).split()
    },
    **{
        getattr(np, name): (name, 3)
        for name in "where clip split roll repeat take_along_axis tensordot".split()
    },
    np.expand_dims: ("unsqueeze", 2),
    np.copy: ("identity", 1),
    np.linalg.norm: ("norm", 1),
    np.einsum: ("einsum", 99),
}
ATTRIBUTES: dict[Callable[..., Any], str] = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}


def array_function(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of NumPy's `func` where an argument is a tensor."""
    if func in ATTRIBUTES and len(args) == 1 and not kwargs:
        return getattr(args[0], ATTRIBUTES[func])
    name, leading = FUNCTIONS.get(func, ("", 0))
    if name and len(args) <= leading:
        return getattr(TENSORS, name)(*args, **kwargs)
    tracked: list[Any] = []
    result = func(*_arrays(args, tracked), **_arrays(kwargs, tracked))
    if tracked and MODE.grad and getattr(getattr(result, "dtype", None), "kind", "") == "f":
        raise TypeError(
            f"numpy.{func.__name__} called like this has no gradient for tensors that require one; "
            "pass detach(), or use the functions of everyo"
        )
    return result


def _arrays(value: Any, tracked: list[Any]) -> Any:
    """`value` with the tensors in it as arrays; those that require gradients go to `tracked`."""
    if hasattr(value, "grad_node"):
        if value.requires_grad:
            tracked.append(value)
        return np.asarray(value)
    if isinstance(value, dict):
        return {k: _arrays(v, tracked) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_arrays(v, tracked) for v in value)
    return value
