"""State outside tensors: module buffers, optimizer scalars, attributes.

Ordinary Python values in ordinary dicts. Reading and writing them goes through `load` and `store`,
so that an active trace sees a value being read (it becomes an input of the compiled program) or
written (it becomes a result that every call stores again).
"""

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from everyo.core.autograd import MODE, TRACES
from everyo.exceptions import EveryOSerializationError


class Epoch:
    """Counts the assignments (attributes, modes, rebinding) that a compiled call has to look at."""

    now = 0


def load(container: MutableMapping[str, Any], key: str) -> Any:
    """The value at `key`."""
    trace = MODE.trace if TRACES else None
    return container[key] if trace is None else trace.load(container, key)


def store(container: MutableMapping[str, Any], key: str, value: Any) -> None:
    """Set the value at `key`."""
    trace = MODE.trace if TRACES else None
    if trace is None:
        container[key] = value
    else:
        trace.store(container, key, value)


class Scalar:
    """A number in the owner's `_scalars`: a plain attribute for the user, an input for a trace."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else load(instance._scalars, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        check = getattr(instance, "_check_scalar", None)
        store(instance._scalars, self.name, value if check is None else check(self.name, value))


class Tracked:
    """An object whose attributes a compiled function depends on: assigning one moves the epoch, or
    an active trace is told. Debugging aids do neither, and are not written while tracing. What
    holds state (buffers, scalars) is read through `load`, and so an input, not a constant. Classes
    whose attributes are assigned at every step (`_changes_often`) do not move the epoch: a compiled
    function that reads these attributes looks at them at every call."""

    _debug_attributes: tuple[str, ...] = ()
    _state_attributes: tuple[str, ...] = ()
    _changes_often = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        out = object.__new__(cls)
        trace = MODE.trace if TRACES else None
        if trace is not None:
            trace.made(out)
        return out

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(getattr(type(self), name, None), "__set__"):
            object.__setattr__(self, name, value)  # a property or a Scalar knows what to do
        else:
            self._set_plain(name, value)

    def _set_plain(self, name: str, value: Any) -> None:
        trace = MODE.trace if TRACES else None
        if name in self._debug_attributes:
            if trace is None:
                self.__dict__[name] = value
        elif trace is None:
            self.__dict__[name] = value
            if not self._changes_often:
                Epoch.now += 1
        else:
            trace.set_attribute(self, name, value)


def check_names(wanted: set[str], given: set[str], strict: bool, owner: str) -> None:
    """Raise `EveryOSerializationError` if two sets of names must be equal and are not."""
    missing, unexpected = sorted(wanted - given), sorted(given - wanted)
    if strict and (missing or unexpected):
        raise EveryOSerializationError(
            f"the state does not fit {owner}. Missing keys: {', '.join(missing) or 'none'}; "
            f"unexpected keys: {', '.join(unexpected) or 'none'}. strict=False ignores both"
        )


def fitting(value: Any, place: Any, what: str) -> np.ndarray:
    """`value` as a new array with the shape and dtype of `place`, or `EveryOSerializationError`."""
    shape, dtype = tuple(place.shape), np.dtype(place.dtype)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise EveryOSerializationError(
            f"{what} expects numbers, the state holds {type(value).__name__}"
        )
    if array.shape != shape:
        raise EveryOSerializationError(
            f"{what} expects shape {shape}, the state has shape {array.shape}"
        )
    return np.array(array, dtype)
