"""Guards: the Python values a traced function was read with.

A trace bakes in what ordinary Python code decides: numbers, strings, flags and which objects stand
behind which names. `collect` finds the places such values are read from (globals, closure cells,
entries of dicts and lists, attributes of plain objects and modules, in the function and the Python
functions it calls) and remembers what they held; a call whose guards fail is traced anew.
"""

import dis
import inspect
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.core.state import Tracked
from everyo.core.tensor import Tensor

SIMPLE = (int, float, bool, str, bytes, complex, type(None))
LIMIT = 20_000  # places at most; beyond it the second trace is the only check
_FOREIGN = ("everyo", "numpy", "numba", "scipy", "matplotlib", "builtins", "functools", "itertools")


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """One place: `kind` is "item" (dict, list), "cell" or "attribute"; `value` what it held."""

    kind: str
    container: Any
    key: Any
    value: Any
    simple: bool

    def holds(self) -> bool:
        """Whether the place still holds the same value (numbers by type and bits) or object."""
        try:
            now = self._now()
        except (KeyError, IndexError, ValueError, AttributeError):
            return False
        if now is self.value:
            return True
        return self.simple and type(now) is type(self.value) and repr(now) == repr(self.value)

    def _now(self) -> Any:
        if self.kind == "cell":
            return self.container.cell_contents
        if self.kind == "attribute":
            return getattr(self.container, self.key)
        return self.container[self.key]

    def __str__(self) -> str:
        try:
            now = repr(self._now()) if self.simple else "another object"
        except (KeyError, IndexError, ValueError, AttributeError):
            now = "gone"
        was = repr(self.value) if self.simple else "an object"
        return f"{self.key!r} was {was}, is {now}"


class Guards:
    """All guards of one trace."""

    def __init__(self, found: Iterable[Guard]) -> None:
        everything = list(found)
        self.fast = [g for g in everything if g.kind != "attribute"]
        self.slow = [g for g in everything if g.kind == "attribute"]  # their setters move the epoch

    def broken(self, fast_only: bool = False) -> Guard | None:
        """The first guard that no longer holds, or None."""
        for g in self.fast:
            if not g.holds():
                return g
        if not fast_only:
            for g in self.slow:
                if not g.holds():
                    return g
        return None


def collect(function: Any, arguments: Iterable[Any] = ()) -> Guards:
    """The guards of a function and of the objects passed to it."""
    walker = _Walker()
    walker.callable(function)
    for value in arguments:
        walker.value(value)
    walker.run()
    return Guards(walker.guards.values())


class _Walker:
    def __init__(self) -> None:
        self.guards: dict[tuple, Guard] = {}
        self.seen: set[int] = set()
        self.walked: set[int] = set()
        self.stack: list[Any] = []
        self.stored: set[tuple[int, str]] = set()
        self.stored_attributes: set[str] = set()
        self.attribute_dicts: set[int] = set()
        self.kept: list[Any] = []

    def run(self) -> None:
        while self.stack and len(self.guards) < LIMIT:
            self._expand(self.stack.pop())
        for key, g in list(self.guards.items()):
            attribute = g.kind == "attribute" or id(g.container) in self.attribute_dicts
            if (id(g.container), g.key) in self.stored or (attribute and g.key in self.stored_attributes):
                del self.guards[key]  # the code itself stores this name: a counter must not retrace for ever

    def value(self, value: Any) -> None:
        if not isinstance(value, (*SIMPLE, Tensor, np.ndarray, np.generic)) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.kept.append(value)
            self.stack.append(value)

    def place(self, kind: str, container: Any, key: Any, value: Any) -> None:
        simple = isinstance(value, SIMPLE)
        self.guards[(kind, id(container), key)] = Guard(kind, container, key, value, simple)
        if not simple:
            self.value(value)

    def _expand(self, x: Any) -> None:
        if isinstance(x, types.FunctionType | types.MethodType):
            self.callable(x)
        elif isinstance(x, dict):
            for k, v in list(x.items()):
                if isinstance(k, (*SIMPLE, tuple)):
                    self.place("item", x, k, v)
        elif isinstance(x, list):
            for i, v in enumerate(x):
                self.place("item", x, i, v)
        elif isinstance(x, tuple | set | frozenset):
            for v in x:
                self.value(v)
        elif isinstance(x, type | types.ModuleType | types.BuiltinFunctionType):
            return
        elif hasattr(x, "__wrapped__") and callable(x):
            self.callable(x.__wrapped__)
        else:
            self._object(x)

    def _object(self, x: Any) -> None:
        own = (type(x).__module__ or "").split(".")[0]
        tracked = isinstance(x, Tracked)
        if own in _FOREIGN and not tracked:
            return
        self.attribute_dicts.add(id(getattr(x, "__dict__", None)))
        for name, v in list(getattr(x, "__dict__", {}).items()):
            if not tracked:
                self.place("item", x.__dict__, name, v)
            elif name not in x._state_attributes and name not in x._debug_attributes:
                self.place("attribute", x, name, v)
        if own not in _FOREIGN:
            for name in ("forward", "__call__"):
                method = getattr(type(x), name, None)
                if isinstance(method, types.FunctionType) and (method.__module__ or "").split(".")[0] not in _FOREIGN:
                    self.callable(method)

    def callable(self, f: Any) -> None:
        f = inspect.unwrap(f) if not isinstance(f, types.MethodType) else f
        if isinstance(f, types.MethodType):
            self.value(f.__self__)
            f = inspect.unwrap(f.__func__)
        if not isinstance(f, types.FunctionType):
            self.value(f)
            return
        if (f.__module__ or "").split(".")[0] in _FOREIGN or id(f) in self.walked:
            return
        self.walked.add(id(f))
        self.kept.append(f)
        cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=False))
        for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self.value(value)
        for name, read, kind in _names(f.__code__):
            if kind == "global":
                if not read:
                    self.stored.add((id(f.__globals__), name))
                elif name in f.__globals__:
                    self.place("item", f.__globals__, name, f.__globals__[name])
            elif name in cells:
                if not read:
                    self.stored.add((id(cells[name]), name))
                else:
                    try:
                        self.place("cell", cells[name], name, cells[name].cell_contents)
                    except ValueError:
                        continue  # not assigned yet
        self.stored_attributes |= _stored_attributes(f.__code__)


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    stack = [code]
    while stack:
        c = stack.pop()
        yield c
        stack += [k for k in c.co_consts if isinstance(k, types.CodeType)]


def _names(code: types.CodeType) -> list[tuple[str, bool, str]]:
    """(name, whether it is read, "global" or "cell") of the names a function shares with others."""
    out = []
    for c in _codes(code):
        for i in dis.get_instructions(c):
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                out.append((i.argval, True, "global"))
            elif i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                out.append((i.argval, False, "global"))
            elif i.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
                out.append((i.argval, True, "cell"))
            elif i.opname in ("STORE_DEREF", "DELETE_DEREF"):
                out.append((i.argval, False, "cell"))
    return out


def _stored_attributes(code: types.CodeType) -> set[str]:
    return {i.argval for c in _codes(code) for i in dis.get_instructions(c) if i.opname == "STORE_ATTR"}
