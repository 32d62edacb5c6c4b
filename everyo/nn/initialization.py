"""Initial values of parameters: functions `f(shape, *, seed=None, ...) -> float64 array`.

With a seed the numbers are those of `numpy.random.default_rng(seed)`; without one they come from
the generator of `eo.manual_seed`. A weight has its inputs and outputs as the last two axes, and in
front of them the sizes of a kernel, if it is one.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from everyo.exceptions import EveryOShapeError
from everyo.ops import creation

__all__ = [
    "compute_fans", "get_initializer", "he_normal", "he_uniform", "normal_init", "ones_init",
    "uniform_init", "xavier_normal", "xavier_uniform", "zeros_init",
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


def uniform_init(shape: Shape, *, low: float = -0.05, high: float = 0.05, seed: Any = None) -> Any:
    """Uniform in [low, high)."""
    return creation.uniform(tuple(shape), low, high, seed=seed, dtype="float64").data


def normal_init(shape: Shape, *, mean: float = 0.0, std: float = 0.05, seed: Any = None) -> Any:
    """Normal with a mean and a standard deviation."""
    return creation.normal(tuple(shape), mean, std, seed=seed, dtype="float64").data


def zeros_init(shape: Shape, *, seed: Any = None) -> Any:
    """Zeros; the seed is accepted so that all initializers are called alike."""
    return creation.zeros(tuple(shape), dtype="float64").data


def ones_init(shape: Shape, *, seed: Any = None) -> Any:
    """Ones; the seed is accepted so that all initializers are called alike."""
    return creation.ones(tuple(shape), dtype="float64").data


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
