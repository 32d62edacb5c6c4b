"""What a call is known by: its structure, the shapes, dtypes and layouts of arrays, static values.

A call is turned into its dynamic leaves (tensors, arrays, floats) and a key; calls with equal keys
can share a version. A float is a run-time input, other plain values are part of the key.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everyo.compile.trace import check_array
from everyo.compile.tree import flatten, unflatten
from everyo.core.autocast import CAST
from everyo.core.autograd import MODE
from everyo.core.device_array import DeviceArray
from everyo.core.tensor import Tensor

_STATIC = (bool, int, str, bytes, complex, type(None))


def signature(
    args: tuple, kwargs: dict, static: set[int]
) -> tuple[list[Any], Any, Callable[[Sequence[Any]], Any]]:
    """The dynamic leaves of a call, its key, and a function that puts leaves back into arguments;
    `static` are the numbers of the leaves whose values are part of the key."""
    leaves, structure = flatten((args, kwargs))
    dynamic: list[Any] = []
    specs: list[tuple[Any, ...]] = []
    where: list[int] = []
    same: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        kind = type(leaf)
        if isinstance(leaf, Tensor):
            a = leaf._data
            spec: Any = (
                "t",
                a.shape,
                a.dtype,
                _layout(a),
                leaf._requires_grad,
                leaf.grad_node is None,
                kind,
            )
        elif kind is float and i not in static:
            spec = ("f",)
        elif isinstance(leaf, np.generic) and (leaf.dtype.kind in "iub" or i in static):
            specs.append((kind, repr(leaf)))
            continue
        elif isinstance(leaf, np.ndarray | np.generic | DeviceArray):
            check_array(leaf)
            leaf = leaf if type(leaf) is DeviceArray else np.asarray(leaf)
            spec = ("a", leaf.shape, leaf.dtype, _layout(leaf), kind)
        elif kind in _STATIC or kind is float:
            specs.append((kind, repr(leaf)))
            continue
        else:
            specs.append(("o", id(leaf)))
            continue
        specs.append((*spec, same.setdefault(id(leaf), len(dynamic)) if kind is not float else -1))
        where.append(i)
        dynamic.append(leaf)

    for at in where:
        leaves[at] = None  # a version outlives its first call, whose arguments must not

    def rebuild(values: Sequence[Any]) -> Any:
        filled = list(leaves)
        for at, value in zip(where, values, strict=True):
            filled[at] = value
        return unflatten(structure, filled)

    return dynamic, (structure, tuple(specs), MODE.grad, CAST.dtype), rebuild


def _layout(a: Any) -> Any:
    return None if type(a) is not np.ndarray or a.flags.c_contiguous else a.strides


def positions(function: Any, names: Sequence[str]) -> tuple[int, ...]:
    """The positions of static arguments; an unknown name is an error at once."""
    if not names:
        return ()
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
    unknown = [n for n in names if n not in parameters]
    if unknown:
        raise ValueError(
            f"static_argnames {unknown} are not parameters of the function: {parameters}"
        )
    return tuple(parameters.index(n) for n in names)


def static_leaves(
    args: tuple, kwargs: dict, positions: Sequence[int], names: Sequence[str]
) -> set[int]:
    """The leaf numbers that belong to static arguments."""
    if not names:
        return set()
    out: set[int] = set()
    at = 0
    for i, value in enumerate(args):
        n = len(flatten(value)[0])
        if i in positions:
            out |= set(range(at, at + n))
        at += n
    for name, value in kwargs.items():
        n = len(flatten(value)[0])
        if name in names:
            out |= set(range(at, at + n))
        at += n
    return out
