"""True values of the scalar functions, by mpmath, and how far results are from them, in ulp."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpmath import frexp, isnan, mp, mpf

PRECISION = 140  # bits; the sines reduce their argument with as many more as it takes


def cube_root(x: mpf) -> mpf:
    return mp.sign(x) * mp.cbrt(abs(x))


def real_power(x: mpf, y: mpf) -> mpf:
    if abs(y * mp.log(abs(x), 2)) > 5000:  # beyond every float, and slow
        size = mp.inf if (abs(x) > 1) == (y > 0) else mpf(0)
        return real_power(mp.sign(x), y) * size
    r = mp.power(x, y)
    return r if isinstance(r, mpf) else mp.nan


TRUE: dict[str, Callable[..., mpf]] = {
    "exp": mp.exp, "expm1": mp.expm1, "log": mp.log, "log1p": mp.log1p,
    "log2": lambda x: mp.log(x) / mp.ln2, "log10": lambda x: mp.log(x) / mp.ln10,
    "sqrt": mp.sqrt, "cbrt": cube_root, "sin": mp.sin, "cos": mp.cos, "tan": mp.tan,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh,
    "tanh": mp.tanh, "erf": mp.erf, "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "power": real_power, "arctan2": mp.atan2,
}  # fmt: skip
LEAST = {"log": 0, "log2": 0, "log10": 0, "sqrt": 0, "log1p": -1, "arcsin": -1, "arccos": -1}
LARGEST = {"arcsin": 1, "arccos": 1}
# Far out all of these have overflowed, underflowed or reached their limit.
SETTLED = {"exp", "expm1", "sinh", "cosh", "tanh", "erf", "sigmoid"}


def true_value(name: str, *args: float) -> mpf:
    """The value at finite arguments other than 0; NaN outside the domain."""
    with mp.workprec(PRECISION):
        x = mpf(args[0])
        if x < LEAST.get(name, -mp.inf) or x > LARGEST.get(name, mp.inf):
            return mp.nan
        if name in SETTLED:
            x = max(mpf(-2000), min(mpf(2000), x))
        return -mp.inf if (name, x) == ("log1p", -1) else TRUE[name](x, *map(mpf, args[1:]))


def distance(got: float, true: mpf, dtype: Any) -> float:
    """|got - true| in units of the last place that the true value has in this dtype. Values too
    large for it, infinite ones too, count as the first such number."""
    info = np.finfo(dtype)
    if isnan(true) or math.isnan(got):
        return 0.0 if isnan(true) and math.isnan(got) else math.inf
    limit = mpf(2) ** info.maxexp
    true, value = (max(-limit, min(limit, mpf(v))) for v in (true, got))
    exponent = max(info.minexp, min(frexp(true)[1] - 1, info.maxexp - 1))
    return float(abs(value - true) / mpf(2) ** int(exponent - info.nmant))


def worst(
    name: str, got: np.ndarray, args: Sequence[np.ndarray], dtype: Any
) -> tuple[float, tuple[Any, ...]]:
    """The largest distance of results from the truth, and the arguments it is at."""
    found: tuple[float, tuple[Any, ...]] = (0.0, ())
    for g, *point in zip(got, *args, strict=True):
        error = distance(float(g), true_value(name, *map(float, point)), dtype)
        if error > found[0]:
            found = error, tuple(point)
    return found


# The same with a wider float of NumPy's, for many points.


def wide_value(name: str, kind: Any, *args: np.ndarray) -> np.ndarray | None:
    """The values in a wider float; None where NumPy has them not, or no wider float."""
    if np.finfo(kind).nmant <= np.finfo(args[0].dtype).nmant:
        return None
    x, *rest = (a.astype(kind) for a in args)
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            e = np.exp(-abs(x))
            return np.where(x < 0, e, 1) / (1 + e)
        if name == "erf":
            return np.frompyfunc(math.erf, 1, 1)(x).astype(kind) if kind == np.float64 else None
        return getattr(np, name)(x, *rest)


def wide_distance(got: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """`distance` of each result from a value in a wider float."""
    info, kind = np.finfo(got.dtype), wide.dtype.type
    limit = kind(2) ** info.maxexp
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(wide), wide, 1))[1] - 1
        exponent = np.clip(exponent, info.minexp, info.maxexp - 1)
        value, true = (np.clip(v.astype(kind), -limit, limit) for v in (got, wide))
        errors = np.ldexp(abs(value - true), info.nmant - exponent)
    both = np.isnan(got) & np.isnan(wide)
    return np.where(both, 0, np.where(np.isnan(errors), np.inf, errors)).astype(np.float64)
