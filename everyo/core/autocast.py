"""Mixed precision: inside `autocast`, products run in half precision.

`matmul` and the convolutions (hence `Linear` and attention) take their floating operands in the
dtype of the context, through a cast that is part of the graph: parameters and their gradients keep
float32, activations and theirs are half as long. Exponentials, powers and sums take halves as
float32. Everything else computes in what it is given.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from everyo.core.dtype import FLOAT32, DTypeLike, as_dtype
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError

F = TypeVar("F", bound=Callable[..., Any])

FLOAT16 = np.dtype(np.float16)
WIDE = frozenset(
    "exp expm1 log log1p log2 log10 sinh cosh softplus log_sigmoid power square reciprocal sum "
    "mean prod variance std norm cumsum logsumexp softmax log_softmax normalize cross_entropy "
    "binary_cross_entropy_with_logits".split()
)  # ops that take halves as float32 inside `autocast`
ACTIVE: list[Any] = []  # every `autocast` that any thread has entered: almost always empty


class _Cast(threading.local):
    """The dtype of products in this thread, None outside `autocast`; and what to return to."""

    dtype: np.dtype | None = None

    def __init__(self) -> None:
        self.before: list[np.dtype | None] = []


CAST = _Cast()


class autocast:
    """Run products in `dtype`: a context manager and a decorator, per thread, re-entrant, restored
    on exit also after an exception. `autocast(False)` switches an outer one off.

    Raises `EveryOError` for a dtype that is not floating.
    """

    def __init__(self, enabled: bool = True, *, dtype: DTypeLike = "float16") -> None:
        wanted = as_dtype(dtype)
        if wanted.kind != "f":
            raise EveryOError(f"autocast needs a floating dtype, got {wanted}")
        self.enabled = bool(enabled)
        self.dtype = wanted

    def __enter__(self) -> "autocast":
        ACTIVE.append(self)
        CAST.before.append(CAST.dtype)
        CAST.dtype = self.dtype if self.enabled else None
        return self

    def __exit__(self, *exc: object) -> None:
        CAST.dtype = CAST.before.pop()
        ACTIVE.remove(self)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


def is_autocast_enabled() -> bool:
    """Whether products of this thread are cast."""
    return CAST.dtype is not None


def autocast_dtype() -> np.dtype:
    """The dtype that products are cast to; float16 outside `autocast`."""
    return CAST.dtype or FLOAT16


def narrowed(tensor: Tensor) -> Tensor:
    """An operand of a product in the dtype of the context; itself outside, or if it is no float."""
    dtype = CAST.dtype
    own = tensor._data.dtype
    return tensor if dtype is None or own == dtype or own.kind != "f" else tensor.astype(dtype)


def widened(tensor: Tensor) -> Tensor:
    """Inside `autocast`, a tensor in half precision as float32."""
    half = CAST.dtype is not None and tensor._data.dtype == FLOAT16
    return tensor.astype(FLOAT32) if half else tensor
