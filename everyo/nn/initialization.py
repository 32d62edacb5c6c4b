"""Initial values of parameters: functions `f(shape, *, seed=None, ...) -> float64 array`.

With a seed the numbers are those of `numpy.random.default_rng(seed)`; without one they come from
the generator of `eo.manual_seed`. A weight has its inputs and outputs as the last two axes, and in
front of them the sizes of a kernel, if it is one.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from everyo.exceptions import EveryOShapeError
from everyo.ops import creation

__all__ = [
    "blank", "claim", "compute_fans", "get_initializer", "he_normal", "he_uniform", "normal_init",
    "ones_init", "uniform_init", "xavier_normal", "xavier_uniform", "zeros_init",
]  # fmt: skip

Shape = Sequence[int]
Initializer = Callable[..., Any]


def compute_fans(shape: Shape) -> tuple[int, int]:
    """(fan in, fan out): how many inputs reach an output and the other way round.

    >>> compute_fans((3, 3, 8, 16))
    (72, 144)
    """
    if not shape:
        raise EveryOShapeError("the fans of a 0-d parameter do not exist; it has no inputs")
    if len(shape) == 1:
        return shape[0], shape[0]
    window = math.prod(shape[:-2])
    return window * shape[-2], window * shape[-1]


class _Blank(threading.local):
    """How many elements the initial values of this thread may still have; None: no limit."""

    elements: int | None = None


_BLANK = _Blank()
LEAST = 256  # what an array counts at least: a parameter is a Python object too


@contextmanager
def blank(elements: int) -> Iterator[None]:
    """Initial values are zeros inside and nothing is drawn: for modules whose values are loaded
    next. More than `elements` of them together (at least `LEAST` per array) raise
    `EveryOShapeError`."""
    before, _BLANK.elements = _BLANK.elements, elements
    try:
        yield
    finally:
        _BLANK.elements = before


def claim(shape: Shape) -> bool:
    """Whether the initial values of an array do not matter. Every layer asks before it makes one:
    a config from a file cannot ask for more memory than the file has values for."""
    if _BLANK.elements is None:
        return False
    _BLANK.elements -= max(math.prod(shape), LEAST)
    if _BLANK.elements < 0:
        raise EveryOShapeError(f"its arrays are larger than those in the file, at {tuple(shape)}")
    return True


def _drawn(shape: Shape, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The float64 array of a creation function, or zeros inside `blank`."""
    if claim(shape):
        return np.zeros(tuple(shape))
    return draw(tuple(shape), *args, dtype="float64", **kwargs).data


def uniform_init(shape: Shape, *, low: float = -0.05, high: float = 0.05, seed: Any = None) -> Any:
    """Uniform in [low, high)."""
    return _drawn(shape, creation.uniform, low, high, seed=seed)


def normal_init(shape: Shape, *, mean: float = 0.0, std: float = 0.05, seed: Any = None) -> Any:
    """Normal with a mean and a standard deviation."""
    return _drawn(shape, creation.normal, mean, std, seed=seed)


def zeros_init(shape: Shape, *, seed: Any = None) -> Any:
    """Zeros; the seed is accepted so that all initializers are called alike."""
    return _drawn(shape, creation.zeros)


def ones_init(shape: Shape, *, seed: Any = None) -> Any:
    """Ones; the seed is accepted so that all initializers are called alike."""
    return _drawn(shape, creation.ones)


def _around_zero(shape: Shape, seed: Any, uniform: bool, std: float) -> Any:
    """Uniform or normal numbers of mean 0 and the given standard deviation."""
    if uniform:
        bound = math.sqrt(3.0) * std
        return uniform_init(shape, low=-bound, high=bound, seed=seed)
    return normal_init(shape, std=std, seed=seed)


def xavier_uniform(shape: Shape, *, gain: float = 1.0, seed: Any = None) -> Any:
    """Uniform within ±gain * sqrt(6 / (fan in + fan out)): keeps the variance of linear layers."""
    return _around_zero(shape, seed, True, gain * math.sqrt(2.0 / sum(compute_fans(shape))))


def xavier_normal(shape: Shape, *, gain: float = 1.0, seed: Any = None) -> Any:
    """Normal with standard deviation gain * sqrt(2 / (fan in + fan out))."""
    return _around_zero(shape, seed, False, gain * math.sqrt(2.0 / sum(compute_fans(shape))))


def he_uniform(shape: Shape, *, gain: float = 1.0, seed: Any = None) -> Any:
    """Uniform within ±gain * sqrt(6 / fan in): keeps the variance of layers before a ReLU."""
    return _around_zero(shape, seed, True, gain * math.sqrt(2.0 / compute_fans(shape)[0]))


def he_normal(shape: Shape, *, gain: float = 1.0, seed: Any = None) -> Any:
    """Normal with standard deviation gain * sqrt(2 / fan in)."""
    return _around_zero(shape, seed, False, gain * math.sqrt(2.0 / compute_fans(shape)[0]))


_INITIALIZERS: dict[str, Initializer] = {
    "xavier_uniform": xavier_uniform,
    "xavier_normal": xavier_normal,
    "glorot_uniform": xavier_uniform,
    "glorot_normal": xavier_normal,
    "he_uniform": he_uniform,
    "he_normal": he_normal,
    "kaiming_uniform": he_uniform,
    "kaiming_normal": he_normal,
    "zeros": zeros_init,
    "ones": ones_init,
    "uniform": uniform_init,
    "normal": normal_init,
}


def get_initializer(name: str, **options: Any) -> Initializer:
    """The initializer of a name, with `options` filled in; `ValueError` for an unknown name."""
    try:
        found = _INITIALIZERS[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"Unknown initializer {name!r}; known are {', '.join(_INITIALIZERS)}"
        ) from None
    return functools.partial(found, **options) if options else found
