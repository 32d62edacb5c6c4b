"""`.evo` files: a model's architecture and its weights.

A ZIP file with exactly two members: a manifest in JSON (which class, with what config; name, shape
and dtype of every array) and the arrays as an `.npz`. Loading builds only classes that were
registered with `register_module`, from their config alone, without drawing initial weights and
without making more numbers than the file holds.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from everyo import nn, quantization
from everyo._version import __version__
from everyo.exceptions import EveryOSerializationError
from everyo.nn.initialization import LEAST, blank
from everyo.nn.module import Module, get_module_class
from everyo.serialization.container import (
    Container,
    PathLike,
    array_bytes,
    json_bytes,
    opened,
    reading,
    write_file,
    zip_bytes,
)

__all__ = [
    "DEFAULT_SUFFIX", "FORMAT_VERSION", "MANIFEST_NAME", "PARAMETERS_NAME", "inspect_archive",
    "load", "save",
]  # fmt: skip

MANIFEST_NAME = "manifest.json"
PARAMETERS_NAME = "parameters.npz"
FORMAT_VERSION = 1
DEFAULT_SUFFIX = ".evo"
KIND = "EveryO archive"
ALWAYS = 1 << 16  # elements that a model may have beyond those in its file

REGISTERED = (nn, quantization)  # importing these registers every class that a file may name
FIELDS = {
    "everyo_version": str,
    "created_at": str,
    "architecture": dict,
    "parameters": dict,
    "num_parameters": int,
}


def save(model: Module, path: PathLike, *, metadata: Any = None, overwrite: bool = True) -> Path:
    """Write a model to a `.evo` file and return the path, with the suffix added if it has none.

    `metadata` is anything JSON can hold. The file appears as a whole or not at all. Raises
    `EveryOSerializationError` if it exists and `overwrite` is false, or if the model's config or
    the metadata is not JSON.
    """
    _check_module(model)
    state = model.state_dict()
    manifest = {
        "format_version": FORMAT_VERSION,
        "everyo_version": __version__,
        "created_at": datetime.now(UTC).isoformat(),
        "architecture": {"class_name": type(model).__name__, "config": model.get_config()},
        "parameters": {name: _described(array) for name, array in state.items()},
        "num_parameters": model.num_parameters(),
        "metadata": {} if metadata is None else metadata,
    }
    members = {
        MANIFEST_NAME: json_bytes(manifest, "the config of the model or the metadata"),
        PARAMETERS_NAME: array_bytes(state),
    }
    return write_file(path, DEFAULT_SUFFIX, overwrite, zip_bytes(members))


def load(path: PathLike | BinaryIO, *, model: Module | None = None, strict: bool = True) -> Module:
    """The model in a `.evo` file, in evaluation mode.

    Without `model` it is built from the file, which works for registered classes; else its values
    are loaded into `model`. With `strict=False`, names that only one side has are ignored. Raises
    `EveryOSerializationError` for a file that is missing, damaged or does not fit.
    """
    if model is not None:
        _check_module(model)
    with opened(path, KIND) as container:
        manifest = _manifest(container)
        container.check_names((MANIFEST_NAME, PARAMETERS_NAME))
        state = container.arrays(PARAMETERS_NAME)
        _check_arrays(manifest["parameters"], state)
        if model is None:
            elements = sum(a.size + LEAST for a in state.values())
            model = _built(manifest["architecture"], elements + ALWAYS)
        with np.errstate(all="ignore"):
            model.load_state_dict(state, strict=strict)
        return model.eval()


def inspect_archive(path: PathLike | BinaryIO) -> dict[str, Any]:
    """What a `.evo` file says about itself, without reading its arrays: `path`, `everyo_version`,
    `format_version`, `created_at`, `class_name`, `num_parameters`, `parameters`, `metadata`."""
    with opened(path, KIND) as container:
        manifest = _manifest(container)
        container.check_names((MANIFEST_NAME, PARAMETERS_NAME))
    return {
        "path": container.where,
        "everyo_version": manifest["everyo_version"],
        "format_version": manifest["format_version"],
        "created_at": manifest["created_at"],
        "class_name": manifest["architecture"]["class_name"],
        "num_parameters": manifest["num_parameters"],
        "parameters": manifest["parameters"],
        "metadata": manifest["metadata"],
    }


def _check_module(model: Any) -> None:
    if not isinstance(model, Module):
        raise EveryOSerializationError(f"not an everyo Module: {type(model).__name__}")


def _described(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name}


def _manifest(container: Container) -> dict[str, Any]:
    """The manifest, its version and the types of its fields checked."""
    manifest = container.json(MANIFEST_NAME)
    if not isinstance(manifest, dict) or type(manifest.get("format_version")) is not int:
        raise ValueError("the manifest has no format_version")
    if manifest["format_version"] != FORMAT_VERSION:
        raise EveryOSerializationError(
            f"{container.where} has format version {manifest['format_version']}; this version of "
            f"EveryO ({__version__}) reads format version {FORMAT_VERSION}"
        )
    manifest.setdefault("metadata", {})
    for name, kind in FIELDS.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(f"{name!r} in the manifest is missing or no {kind.__name__}")
    architecture = manifest["architecture"]
    if (
        type(architecture.get("class_name")) is not str
        or type(architecture.get("config")) is not dict
    ):
        raise ValueError("'architecture' in the manifest needs a class_name and a config")
    return manifest


def _check_arrays(described: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    """Raise unless the arrays are those that the manifest describes."""
    found = {name: _described(array) for name, array in state.items()}
    for name in sorted({*found, *described}):
        if found.get(name) != described.get(name):
            raise ValueError(
                f"the manifest says {name!r} is {described.get(name)}, the arrays say "
                f"{found.get(name)}"
            )


def _built(architecture: Mapping[str, Any], elements: int) -> Module:
    """A new module of the class and config in the file, with at most so many numbers."""
    name = architecture["class_name"]
    cls = get_module_class(name)
    with reading(f"the config of {name}", "config"), blank(elements):
        return cls.from_config(architecture["config"])
