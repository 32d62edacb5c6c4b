"""The six dtypes of EveryO and the rules that choose one for new data."""

from typing import Any

import numpy as np

from everyo.exceptions import EveryODTypeError

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "bool")
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}  # `dtype.name` itself is slow
FLOAT32 = DTYPES["float32"]
DTypeLike = Any  # a name, a NumPy dtype or a scalar type


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """The NumPy dtype for a name, dtype or scalar type; `EveryODTypeError` if unsupported."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise EveryODTypeError(f"Unsupported dtype {dtype!r}; use one of {', '.join(DTYPES)}")
    return found.newbyteorder("=")


def dtype_name(dtype: DTypeLike) -> str:
    """The name of a dtype, e.g. `"float32"`."""
    return as_dtype(dtype).name


def as_array(data: Any, dtype: DTypeLike | None = None) -> np.ndarray:
    """A new array of a supported dtype.

    Without `dtype`: floating NumPy data keeps its precision, bool stays bool, everything else
    (Python numbers, lists, integers) becomes float32. Raises `EveryODTypeError` for ragged or
    non-numeric data.
    """
    own = isinstance(data, np.ndarray | np.generic) or hasattr(data, "__array__")
    try:
        array = np.array(data)
    except (ValueError, TypeError) as error:
        raise EveryODTypeError(f"data is ragged or not numeric: {error}") from None
    if array.dtype.kind not in "fiub":
        raise EveryODTypeError(
            f"data of dtype {array.dtype} is not supported; use numbers in a rectangular nesting"
        )
    if dtype is not None:
        return array.astype(as_dtype(dtype), copy=False)
    if array.dtype.kind == "b" or (own and array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    return array.astype(FLOAT32)
