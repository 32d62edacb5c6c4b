"""Argument checks that loaders and generators share: each names the argument and the rule."""

import operator


def whole(name: str, value: int, at_least: int = 1) -> int:
    """`value` as an int of `at_least` or more."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number; got {value!r}") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {number}")
    return number


def not_negative(name: str, value: float) -> float:
    """`value` as a float of 0 or more; NaN and infinity are refused too."""
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{name} must be a finite number of 0 or more; got {value!r}")
    return number
