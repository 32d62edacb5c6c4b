"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint holds the states of named parts (a model with its modes and random generators, the
optimizer, schedulers, loaders, a gradient scaler, generators) and of the default generator. The
states are trees of numbers, strings and arrays: a ZIP file with the tree in JSON and the arrays as
`.npz`. Loading changes either all parts or, on any error, none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from everyo._version import __version__
from everyo.core.random import DEFAULT, Generator
from everyo.core.state import check_names
from everyo.exceptions import EveryOSerializationError
from everyo.nn.module import Module
from everyo.serialization.container import (
    Container,
    PathLike,
    array_bytes,
    json_bytes,
    opened,
    write_file,
    zip_bytes,
)

__all__ = ["load_checkpoint", "save_checkpoint"]

TREE_NAME = "checkpoint.json"
ARRAYS_NAME = "arrays.npz"
CHECKPOINT_VERSION = 1
SUFFIX = ".ckpt"
KIND = "EveryO checkpoint"


def save_checkpoint(
    path: PathLike, *, metadata: Any = None, overwrite: bool = True, **parts: Any
) -> Path:
    """Write the states of `parts` and of the default generator; the path, with a suffix.

    A part is a module, an optimizer or anything else with `state_dict` and `load_state_dict`, a
    generator of EveryO or NumPy, or a list of parts. `metadata` may nest dicts, lists, tuples,
    numbers, strings and arrays. The file appears as a whole or not at all.

    `save_checkpoint("run.ckpt", model=model, optimizer=optimizer, loader=loader)`
    """
    arrays: dict[str, np.ndarray] = {}
    states = {name: _captured(part) for name, part in parts.items()}
    tree: dict[str, Any] = {
        "checkpoint_version": CHECKPOINT_VERSION,
        "everyo_version": __version__,
    }
    for name, value in (
        ("parts", states), ("random", DEFAULT.get_state()), ("metadata", metadata)
    ):  # fmt: skip
        try:
            tree[name] = _encoded(value, arrays, name)
        except RecursionError:
            raise EveryOSerializationError(f"{name}: nested too deep, or in itself") from None
    members = {TREE_NAME: json_bytes(tree, "a state"), ARRAYS_NAME: array_bytes(arrays)}
    return write_file(path, SUFFIX, overwrite, zip_bytes(members))


def load_checkpoint(path: PathLike | BinaryIO, *, strict: bool = True, **parts: Any) -> Any:
    """Bring the parts, named as when they were saved, and the default generator back to their
    states in a checkpoint; its metadata.

    With `strict=False`, parts that only one side has are ignored. Raises
    `EveryOSerializationError` for a file that is missing, damaged or does not fit; then nothing has
    changed.
    """
    with opened(path, KIND) as container:
        states, words, metadata = _read(container)
        check_names(set(parts), set(states), strict, "the parts of the checkpoint")
        wanted = {name: part for name, part in parts.items() if name in states}
        before = {name: _captured(part) for name, part in wanted.items()}
        began: list[str] = []
        try:
            with np.errstate(all="ignore"):
                for name, part in wanted.items():
                    began.append(name)
                    _restore(part, states[name])
            DEFAULT.set_state(words)
        except BaseException:
            for name in began:
                _restore(wanted[name], before[name])
            raise
    return metadata


def _read(container: Container) -> tuple[dict[str, Any], np.ndarray, Any]:
    """The states of the parts, that of the default generator, the metadata."""
    tree = container.json(TREE_NAME)
    if not isinstance(tree, dict) or type(tree.get("checkpoint_version")) is not int:
        raise ValueError("it has no checkpoint_version")
    if tree["checkpoint_version"] != CHECKPOINT_VERSION:
        raise EveryOSerializationError(
            f"{container.where} has checkpoint version {tree['checkpoint_version']}; this version "
            f"of EveryO ({__version__}) reads version {CHECKPOINT_VERSION}"
        )
    container.check_names((TREE_NAME, ARRAYS_NAME))
    arrays = container.arrays(ARRAYS_NAME)
    states, words, metadata = (_decoded(tree[k], arrays) for k in ("parts", "random", "metadata"))
    if not isinstance(states, dict):
        raise ValueError("its parts are no dict")
    return states, words, metadata


# ---------------------------------------------------------------------------------- parts


def _captured(part: Any) -> Any:
    """The state of a part, as a tree of copies."""
    if isinstance(part, Module):
        modes = {name: module.training for name, module in part.named_modules()}
        return {"state": part.state_dict(), "random": part.random_state(), "training": modes}
    if isinstance(part, Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, list | tuple):
        return [_captured(p) for p in part]
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part.state_dict()
    raise EveryOSerializationError(
        f"a {type(part).__name__} cannot be part of a checkpoint: it has no state_dict and "
        "load_state_dict. Plain values go into metadata="
    )


def _restore(part: Any, state: Any) -> None:
    """Bring a part to a state that `_captured` returned."""
    if isinstance(part, Module):
        modules = dict(part.named_modules())
        check_names(set(modules), set(state["training"]), True, type(part).__name__)
        part.load_state_dict(state["state"])
        part.load_random_state(state["random"])
        for name, module in modules.items():
            if module.training != bool(state["training"][name]):
                module.training = bool(state["training"][name])
    elif isinstance(part, Generator):
        part.set_state(state)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    elif isinstance(part, list | tuple):
        if len(part) != len(state):
            raise ValueError(f"a list of {len(part)} parts was saved with {len(state)}")
        for one, its_state in zip(part, state, strict=True):
            _restore(one, its_state)
    else:
        part.load_state_dict(state)


# ---------------------------------------------------------------------------------- trees


def _encoded(value: Any, arrays: dict[str, np.ndarray], where: str) -> Any:
    """A tree as JSON, its arrays moved into `arrays`."""
    if isinstance(value, np.bool_ | np.integer | np.float64):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        key = str(len(arrays))
        arrays[key] = np.asarray(value)
        return {"array": key}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {
            "dict": [[_encoded(k, arrays, where), _encoded(v, arrays, where)] for k, v in pairs]
        }
    if isinstance(value, list | tuple):
        items = [_encoded(v, arrays, where) for v in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise EveryOSerializationError(
        f"{where}: a {type(value).__name__} cannot be stored in a checkpoint; numbers, strings, "
        "arrays, lists, tuples and dicts can"
    )


def _decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The tree that `_encoded` made JSON of."""
    if isinstance(value, list):
        return [_decoded(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "array":
            return arrays[inner]
        case "tuple":
            return tuple(_decoded(v, arrays) for v in _checked(inner))
        case "dict":
            return {_decoded(k, arrays): _decoded(v, arrays) for k, v in _checked(inner)}
    raise ValueError(f"an unknown kind of value, {kind!r}")


def _checked(items: Any) -> Sequence[Any]:
    if not isinstance(items, list):
        raise ValueError(f"a list is missing, there is a {type(items).__name__}")
    return items
