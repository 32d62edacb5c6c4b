"""Guards: the Python values a traced function was read with.

A trace bakes in what ordinary Python code decides: numbers, strings, flags and which objects stand
behind which names. `collect` finds the places such values are read from and remembers what they
held; a call whose guards fail is traced anew. Places are the globals and closure cells of the
function and of the Python functions it calls, and, reached from them, the entries of dicts, lists
and sets, the globals of modules and the attributes of classes and objects whose names this code
mentions.
"""

import dis
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from everyo.core.state import Tracked
from everyo.core.tensor import Tensor

SIMPLE = (int, float, bool, str, bytes, complex, type(None), np.generic)
LIMIT = 20_000  # places at most; beyond it the second trace is the only check
CONTENTS = 4096  # bytes of an array up to which it is compared whole
ABSENT = object()  # what a place holds that does not exist

_LIBRARIES = {
    "everyo",
    "numpy",
    "numba",
    "llvmlite",
    "scipy",
    "matplotlib",
    "torch",
    "jax",
    "pandas",
    "sklearn",
}
_FOREIGN = _LIBRARIES | sys.stdlib_module_names  # code that is not walked
_NAMESPACES = {"types", "argparse"}  # modules of objects that only hold what users put there
_BY_ANY_NAME = {
    "getattr",
    "hasattr",
    "vars",
    "eval",
    "exec",
    "attrgetter",
    "__dict__",
    "asdict",
    "fields",
    "replace",
}


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """One place or container and what it held.

    `kind` is "item" (of a dict), "entry" (of a list), "cell", "slot", "length" (of the dict of an
    object), for all entries at once "list", "dict" or "set", or "array" (the bytes of a small one).
    `slow` ones change only when the epoch moves.
    """

    kind: str
    container: Any
    key: Any
    value: Any
    what: str
    slow: bool = False

    @property
    def now(self) -> Any:
        """What the place holds now, or ABSENT."""
        match self.kind:
            case "item":
                return self.container.get(self.key, ABSENT)
            case "entry":
                return self.container[self.key] if self.key < len(self.container) else ABSENT
            case "cell":
                try:
                    return self.container.cell_contents
                except ValueError:
                    return ABSENT
            case "slot":
                return getattr(self.container, self.key, ABSENT)
            case "length":
                return len(self.container)
            case "array":
                return self.container.tobytes()
            case "set":
                return frozenset(self.container)
        return _entries(self.container)

    def test(self, container: str, key: str, value: str) -> str:
        """A Python expression that is true only if the guard holds; the operands are names."""
        match self.kind:
            case "item":
                return f"{container}.get({key}, MISS) is {value}"
            case "entry":
                return f"len({container}) > {key} and {container}[{key}] is {value}"
            case "cell":
                return f"{container}.cell_contents is {value}"
            case "slot":
                return f"getattr({container}, {key}, MISS) is {value}"
            case "length":
                return f"len({container}) == {value}"
            case "array":
                return f"{container}.tobytes() == {value}"
            case "set":
                return f"{container} == {value}"
            case "dict":
                return (
                    f"len({container}) == {len(self.value[0])} and all(map(is_, {container}, "
                    f"{value}[0])) and all(map(is_, {container}.values(), {value}[1]))"
                )
        return (
            f"len({container}) == {len(self.value[1])} and all(map(is_, {container}, {value}[1]))"
        )

    def holds(self) -> bool:
        """Whether the place still holds the same value (numbers by type and bits) or object."""
        now, value = self.now, self.value
        if self.kind in ("length", "set", "array"):
            return now == value
        if self.kind in ("list", "dict"):
            return len(now[1]) == len(value[1]) and all(
                map(_same, (*now[0], *now[1]), (*value[0], *value[1]))
            )
        return _same(now, value)

    def __str__(self) -> str:
        now, value, what = self.now, self.value, self.what
        if self.kind in ("list", "dict"):
            if len(now[1]) != len(value[1]):
                return f"{what} had {len(value[1])} entries, has {len(now[1])}"
            names = now[0] or range(len(now[1]))
            pairs = zip(names, value[1], now[1], strict=True)
            name, value, now = next((p for p in pairs if not _same(p[1], p[2])), (None, None, None))
            what = f"{what}[{name!r}]"
        if self.kind == "array":
            return f"the contents of {what} changed"
        return f"{what} was {_shown(value)}, is {_shown(now)}"


def _entries(container: Any) -> tuple[tuple, tuple]:
    """The keys and values of a dict; no keys and the entries of a list."""
    if isinstance(container, dict):
        return tuple(container), tuple(container.values())
    return (), tuple(container)


def _plain(value: Any) -> bool:
    """Whether a value is compared by type and text rather than by identity."""
    return all(_plain(v) for v in value) if type(value) is tuple else isinstance(value, SIMPLE)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and _plain(a) and repr(a) == repr(b))


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    return (
        repr(value)[:60]
        if _plain(value) or isinstance(value, frozenset)
        else f"a {type(value).__name__}"
    )


class Guards:
    """All guards of one version of a function."""

    def __init__(self, found: Iterable[Guard], reached: set[int]) -> None:
        everything = list(found)
        self.reached = reached  # ids of the objects that the code can get at
        self.fast = [g for g in everything if not g.slow]
        self.slow = [g for g in everything if g.slow]
        self.changing: list[Guard] = []  # places that the function itself changes

    def broken(self, fast_only: bool = False) -> Guard | None:
        """The first guard that no longer holds, or None."""
        for g in self.fast if fast_only else (*self.fast, *self.slow):
            if not g.holds():
                return g
        return None

    def settle(self, inputs: frozenset[int]) -> None:
        """After the trace, which reads the arrays with ids `inputs` at every call: set aside what
        it changed, a counter must not retrace for ever.
        Of a container that it changed, the other entries stay guarded."""
        self.fast = [g for g in self.fast if g.kind != "array" or id(g.container) not in inputs]
        moved = [g for g in (*self.fast, *self.slow) if not g.holds()]
        gone = set(map(id, moved))
        parts = [p for g in moved for p in _parts(g)]
        self.fast = [g for g in self.fast if id(g) not in gone] + [p for p in parts if p.holds()]
        self.slow = [g for g in self.slow if id(g) not in gone]
        self.changing = [p for p in parts if not p.holds()]

    def settle_after(self, first: "Guards", inputs: frozenset[int]) -> None:
        """After the second trace, of which `first` were the guards of the first. A place that the
        function changes but that both began with the same value may still matter: it is guarded."""
        self.settle(inputs)
        before = {(g.kind, id(g.container), g.key): g for g in first.changing}
        for g in self.changing:
            other = before.get((g.kind, id(g.container), g.key))
            if other is not None and other.kind != "length" and _same(g.value, other.value):
                self.fast.append(g)


def _parts(g: Guard) -> Iterator[Guard]:
    """A guard of a whole container as guards of its entries."""
    if g.kind == "dict":
        for key, value in zip(*g.value, strict=True):
            yield Guard("item", g.container, key, value, f"{g.what}[{key!r}]")
    elif g.kind == "list":
        for i, value in enumerate(g.value[1]):
            yield Guard("entry", g.container, i, value, f"{g.what}[{i}]")
    else:
        yield g


def collect(function: Any, arguments: Iterable[Any] = ()) -> Guards:
    """The guards of a function and of the objects passed to it."""
    walker = _Walker()
    walker.callable(function)
    for value in arguments:
        walker.value(value, "an argument")
    walker.run()
    found = Guards(walker.guards.values(), walker.reached)
    walker.__dict__.clear()  # what waits refers to the walker, which refers to all it has seen
    return found


class _Walker:
    def __init__(self) -> None:
        self.guards: dict[tuple, Guard] = {}
        self.reached: set[int] = set()
        self.seen: dict[int, Any] = {}  # by id, which the values keep valid
        self.walked: dict[int, Any] = {}  # functions and classes
        self.stack: list[tuple[Any, str]] = []
        self.names: set[str] = set()  # attributes that the code mentions
        self.globals: set[str] = set()  # and globals
        self.waiting: list[tuple[str, Callable[[], None]]] = []  # places guarded once their name is

    def run(self) -> None:
        while len(self.guards) < LIMIT:
            while self.stack and len(self.guards) < LIMIT:
                self._expand(*self.stack.pop())
            everything = bool(_BY_ANY_NAME & (self.names | self.globals))
            waiting, self.waiting = self.waiting, []
            ready: list[tuple[str, Callable[[], None]]] = []
            for name, go in waiting:
                (ready if everything or name in self.names else self.waiting).append((name, go))
            if not ready:
                break
            for _, go in ready:
                go()

    def value(self, value: Any, what: str) -> None:
        """Walk on from an object."""
        if isinstance(value, Tensor | np.ndarray):
            self.reached.add(id(value))
            if isinstance(value, np.ndarray) and value.nbytes <= CONTENTS:
                guard = Guard("array", value, None, value.tobytes(), what)
                self.guards["array", id(value), None] = guard
        elif not isinstance(value, SIMPLE) and id(value) not in self.seen:
            self.reached.add(id(value))
            self.seen[id(value)] = value
            self.stack.append((value, what))

    def place(
        self, kind: str, container: Any, key: Any, value: Any, what: str, slow: bool = False
    ) -> None:
        self.guards[(kind, id(container), key)] = Guard(kind, container, key, value, what, slow)
        if kind in ("item", "cell", "slot") and value is not ABSENT:
            self.value(value, what)

    def later(self, name: str, kind: str, container: Any, what: str, slow: bool = False) -> None:
        """Guard `container[name]` if the code turns out to mention the name."""

        def go() -> None:
            value = getattr(container, name, ABSENT) if kind == "slot" else container[name]
            self.place(kind, container, name, value, what, slow)

        self.waiting.append((name, go))

    def _expand(self, x: Any, what: str) -> None:
        match x:
            case types.FunctionType() | types.MethodType() | functools.partial():
                self.callable(x)
            case type():
                self.names.add("__init__")  # perhaps it is called
                self._class(x, frozenset())
            case types.ModuleType():
                if _root(x.__name__) not in _FOREIGN:
                    for name in list(vars(x)):
                        self.later(name, "item", vars(x), f"{x.__name__}.{name}")
            case property():
                for f in (x.fget, x.fset):
                    self.callable(f)
            case staticmethod() | classmethod():
                self.callable(x.__func__)
            case functools.cached_property():
                self.callable(x.func)
            case weakref.ref():
                self.value(x(), what)
            case dict() | list() | deque():
                self.place("dict" if isinstance(x, dict) else "list", x, None, _entries(x), what)
                for v in x.values() if isinstance(x, dict) else x:
                    self.value(v, f"an entry of {what}")
                self._object(x, what)
            case set():
                self.place("set", x, None, frozenset(x), what)
            case tuple() | frozenset():
                for v in x:
                    self.value(v, f"an entry of {what}")
                self._object(x, what)
            case _ if hasattr(type(x), "__wrapped__") or "__wrapped__" in getattr(
                x, "__dict__", ()
            ):
                self.callable(x.__wrapped__)
            case _:
                self._object(x, what)

    def _object(self, x: Any, what: str) -> None:
        """The attributes of an object and of its class, as far as the code mentions them."""
        kind: Any = type(x)
        root = _root(kind.__module__)
        fields: Any = getattr(x, "__dict__", None)
        names: frozenset[str] = frozenset()
        if isinstance(x, Tracked):
            names, slow = _names_of_class(kind), not kind._changes_often
            self.place("length", fields, None, len(fields), f"the attributes of {what}", slow)
            for name, v in list(fields.items()):
                if name in x._state_attributes:
                    self._state(v, f"{name} of a {kind.__name__}")
                    continue
                if name in x._debug_attributes:
                    continue
                label = f"attribute {name!r} of a {kind.__name__}"
                if name in names or isinstance(v, Tensor | Tracked):
                    self.place("item", fields, name, v, label, slow)
                else:
                    self.later(name, "item", fields, label, slow)
        elif root in _FOREIGN and root not in _NAMESPACES:
            return
        elif fields is not None:
            self.place("length", fields, None, len(fields), f"the attributes of {what}")
            for name in list(fields):
                self.later(name, "item", fields, f"attribute {name!r} of a {kind.__name__}")
        self._class(kind, names)
        for name in _slots(kind):
            self.later(name, "slot", x, f"attribute {name!r} of a {kind.__name__}")

    def _state(self, v: Any, what: str) -> None:
        """State that is read at every call: its tensors can be reached."""
        if isinstance(v, Tensor | np.ndarray):
            self.reached.add(id(v))
        elif isinstance(v, list):
            self.place("length", v, None, len(v), what)
        for part in v.values() if isinstance(v, dict) else v if isinstance(v, list) else ():
            self._state(part, what)

    def _class(self, kind: type, names: frozenset[str]) -> None:
        """What the code, or the library by `names`, mentions of a class."""
        for base in kind.__mro__:
            if _root(base.__module__) in _FOREIGN or id(base) in self.walked:
                continue
            self.walked[id(base)] = base
            attributes = base.__dict__
            for name, v in list(attributes.items()):
                if name == "__init__":
                    self.later(name, "item", attributes, f"{base.__name__}.{name}")
                elif isinstance(v, types.FunctionType) and (name in names or name.startswith("__")):
                    self.place("item", attributes, name, v, f"{base.__name__}.{name}")
                elif not isinstance(v, types.GetSetDescriptorType | types.MemberDescriptorType):
                    self.later(name, "item", attributes, f"{base.__name__}.{name}")

    def callable(self, f: Any) -> None:
        """Walk the code of a function: the names that it reads."""
        if isinstance(f, functools.partial):
            self.callable(f.func)
            for value in f.args:
                self.value(value, "an argument of a partial")
            self.value(f.keywords, "the keywords of a partial")
            return
        if isinstance(f, types.MethodType):
            self.value(f.__self__, f"the object of {f.__name__}")
            f = f.__func__
        if not isinstance(f, types.FunctionType):
            self.value(f, "a function")
            return
        if _root(f.__module__) in _FOREIGN or id(f) in self.walked:
            return
        self.walked[id(f)] = f
        cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=False))
        for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self.value(value, f"a default of {f.__name__}")
        for name in list(f.__dict__):
            self.later(name, "item", f.__dict__, f"{f.__name__}.{name}")
        for kind, name in _reads(f.__code__):
            if kind == "global":
                self.globals.add(name)
                if name in f.__globals__:
                    self.place(
                        "item", f.__globals__, name, f.__globals__[name], f"the global {name!r}"
                    )
            elif kind == "cell" and name in cells:
                try:
                    value = cells[name].cell_contents
                except ValueError:
                    value = ABSENT  # not assigned yet
                self.place("cell", cells[name], name, value, f"the closure variable {name!r}")
            elif kind == "import":
                module = sys.modules.get(name)
                if module is not None:
                    self.value(module, f"the module {name!r}")
            elif kind == "attribute":
                self.names.add(name)


def _root(module: str | None) -> str:
    return (module or "").split(".")[0]


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        if _root(base.__module__) not in _FOREIGN:
            own = base.__dict__.get("__slots__", ())
            names += [own] if isinstance(own, str) else list(own)
    return [n for n in names if n not in ("__dict__", "__weakref__")]


_KINDS = {
    "LOAD_GLOBAL": "global", "LOAD_NAME": "global", "LOAD_DEREF": "cell", "LOAD_CLASSDEREF": "cell",
    "LOAD_FROM_DICT_OR_DEREF": "cell", "LOAD_FROM_DICT_OR_GLOBALS": "global",
    "LOAD_ATTR": "attribute",
    "LOAD_METHOD": "attribute", "LOAD_SUPER_ATTR": "attribute", "IMPORT_FROM": "attribute",
    "IMPORT_NAME": "import",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _reads(code: types.CodeType) -> tuple[tuple[str, str], ...]:
    """(kind, name) of what a function reads from outside itself, nested functions included."""
    found: dict[tuple[str, str], None] = {}
    for c in _codes(code):
        for i in dis.get_instructions(c):
            if i.opname in _KINDS:
                found[_KINDS[i.opname], i.argval] = None
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _names_of_class(kind: type) -> frozenset[str]:
    """The names that the library's own code of a class mentions, attributes and others."""
    names: set[str] = set()
    for base in kind.__mro__:
        if _root(base.__module__) == "everyo":
            for f in base.__dict__.values():
                f = getattr(f, "fget", None) or getattr(f, "__func__", f)
                if isinstance(f, types.FunctionType):
                    names.update(*(code.co_names for code in _codes(f.__code__)))
    return frozenset(names)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """A code object and all that are nested in it."""
    found = [code]
    for c in found:  # which grows meanwhile
        found += [k for k in c.co_consts if isinstance(k, types.CodeType)]
    return found


__all__ = ["ABSENT", "Guard", "Guards", "collect", "is_"]
