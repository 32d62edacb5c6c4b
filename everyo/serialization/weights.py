"""Weights alone, for other programs: `.npz` and `.safetensors` files of named arrays.

The format follows from the suffix. Names, shapes and dtypes are those of `state_dict`; a kernel is
(kh, kw, in, out) and a linear weight (in, out), whatever the other program's habits are. Reading
`.safetensors` needs the extra `[files]`; its parser neither executes nor allocates what a header
merely claims.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everyo.exceptions import EveryOSerializationError
from everyo.nn.module import Module
from everyo.serialization.container import (
    PathLike,
    array_bytes,
    check_dtype,
    existing,
    opened,
    own_copy,
    reading,
    write_file,
)

__all__ = ["load_weights", "save_weights"]

SUFFIXES = (".npz", ".safetensors")


def save_weights(
    weights: Module | Mapping[str, Any], path: PathLike, *, overwrite: bool = True
) -> Path:
    """Write the `state_dict` of a model (or a state itself) to a `.npz` or `.safetensors` file.

    Returns the path. Raises `EveryOSerializationError` for another suffix, or if the file exists
    and `overwrite` is false.
    """
    state = weights.state_dict() if isinstance(weights, Module) else weights
    arrays = {str(name): np.asarray(value) for name, value in state.items()}
    for name, array in arrays.items():
        check_dtype(array.dtype, name)
    if _suffix(path) == ".npz":
        data = array_bytes(arrays)
    else:
        data = _safetensors().save(
            {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
        )
    return write_file(path, "", overwrite, lambda stream: stream.write(data))


def load_weights(
    path: PathLike, *, model: Module | None = None, strict: bool = True
) -> dict[str, np.ndarray]:
    """The arrays of a `.npz` or `.safetensors` file by name, loaded into `model` if one is given.

    Raises `EveryOSerializationError` for a file that is missing, damaged or does not fit.
    """
    state = _read_npz(path) if _suffix(path) == ".npz" else _read_safetensors(Path(path))
    if model is not None:
        with np.errstate(all="ignore"):
            model.load_state_dict(state, strict=strict)
    return state


def _suffix(path: PathLike) -> str:
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise EveryOSerializationError(
            f"{path}: weights are stored as {' or '.join(SUFFIXES)}, the suffix is {suffix!r}"
        )
    return suffix


def _read_npz(path: PathLike) -> dict[str, np.ndarray]:
    with opened(path, ".npz file") as container:
        return container.arrays_of(container.archive)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    library = _safetensors()
    existing(path, "safetensors file")
    with reading(str(path), "safetensors file"):
        arrays = library.load(path.read_bytes())
        for name, array in arrays.items():
            check_dtype(array.dtype, name)
        return {name: own_copy(array) for name, array in arrays.items()}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise EveryOSerializationError(
            "safetensors files need the package safetensors: pip install 'everyo[files]'"
        ) from None
    return safetensors.numpy
