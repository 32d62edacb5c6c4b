"""What layers and losses check about their arguments.

Shapes are checked when the code runs. Values are checked by `require`, which raises at once in
eager mode, and in a compiled function when the call ends.
"""

from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.namespace import all_hold, kind_of
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOShapeError


def positive_sizes(owner: str, noun: str = "sizes", **sizes: int) -> None:
    """Raise `EveryOShapeError` unless all sizes are at least 1."""
    if any(n <= 0 for n in sizes.values()):
        given = ", ".join(f"{name}={n}" for name, n in sizes.items())
        raise EveryOShapeError(f"{owner} needs positive {noun}, got {given}")


def last_axis(owner: str, x: Tensor, size: int, name: str) -> None:
    """Raise `EveryOShapeError` unless the last axis of the input has a size."""
    if not x.shape or x.shape[-1] != size:
        raise EveryOShapeError(
            f"{owner}: the last axis of the input must be {size} ({name}), got shape {x.shape}"
        )


def whole_numbers(values: Any, name: str) -> Any:
    """An array of whole numbers as int64; `EveryOShapeError` for fractions."""
    xp = namespace()
    if kind_of(values) == "f":
        exact = xp.less(xp.abs(values), 2.0**31)  # larger ones are no index, and may not be cast
        whole = xp.logical_and(xp.equal(values, xp.floor(values)), exact)
        xp.require(all_hold(xp, whole), EveryOShapeError, f"{name} must be whole numbers")
    return xp.astype(values, np.int64)
