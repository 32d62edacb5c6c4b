"""`compile`: from a Python function to cached programs.

A call is turned into a key (structure of the arguments; shape, dtype and layout of arrays; value of
static arguments; gradient mode). Each key has the versions that were traced for it, each valid
while its guards hold. The second call of a version traces again, without compiling, and compares:
what guards cannot see is found there.
"""

import contextlib
import functools
import inspect
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from everyo.compile import collector, ir
from everyo.compile import guards as guarding
from everyo.compile.differences import differences
from everyo.compile.entry import Entry
from everyo.compile.explain import Explanation
from everyo.compile.launch import MISS, launcher, renew
from everyo.compile.lines import warn
from everyo.compile.rows import every
from everyo.compile.signature import positions, signature, static_leaves
from everyo.compile.trace import LOCK, put_back
from everyo.compile.traced import Traced
from everyo.compile.tracing import trace_call
from everyo.compile.tree import flatten
from everyo.core.autocast import autocast, autocast_dtype, is_autocast_enabled
from everyo.core.autograd import MODE, TRACES
from everyo.core.device_array import DeviceArray
from everyo.core.forks import renewed
from everyo.core.state import Epoch
from everyo.core.tensor import Tensor
from everyo.core.watch import Watcher
from everyo.exceptions import EveryODTypeError, EveryOTraceError

KEYS = 128  # versions kept per function, the least recently used go first
LAUNCHERS = 4  # straight forms tried before the general path
WARN_TRACES = 8  # more traces of one function than this are worth a warning


class CacheInfo(NamedTuple):
    """What a compiled function holds: traces made, versions kept, calls served, distinct
    kernels."""

    traces: int
    entries: int
    calls: int
    kernels: int


@dataclass(frozen=True)
class Options:
    """How a function is compiled."""

    static_argnames: tuple[str, ...] = ()
    fallback: str = "error"
    check: bool = True
    cache: bool = True
    device: Any = None


class CompiledFunction:
    """A function that is traced at the first call with arguments of a kind, then run as a
    program."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._function = function
        self._options = options
        self._entries: OrderedDict[Any, list[Entry]] = OrderedDict()
        self._lock = renewed(threading.RLock())
        self._traces = 0
        self._latest: Entry | None = None
        self._launchers: list[Any] = []
        self._eager_keys: set[Any] = set()
        self._bound: dict[int, tuple[Any, CompiledFunction]] = {}
        self._name = getattr(function, "__name__", type(function).__name__)
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        self._static_positions = positions(function, options.static_argnames)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if TRACES and (MODE.trace is not None or MODE.watch is not None):
            return self._function(*args, **kwargs)  # inlined, or looked at op by op
        if Watcher.active is not None:
            with Watcher.active.span(self._name, args, compiled=True):
                return self._general(args, kwargs)
        for launch in self._launchers:
            result = launch(args, kwargs)
            if result is not MISS:
                return result
        return self._general(args, kwargs)

    def _general(self, args: tuple, kwargs: dict) -> Any:
        """A call that no launcher took."""
        key: Any = None
        try:
            dynamic, key, rebuild = self._signature(args, kwargs)
            if self._eager_keys and key in self._eager_keys:
                return self._function(*args, **kwargs)
            entry, arrays = self._entry(dynamic, key, rebuild)
        except (EveryOTraceError, EveryODTypeError) as error:
            refused = key is None or isinstance(error, EveryOTraceError)
            if self._options.fallback != "eager" or not refused:
                raise
            if key not in self._eager_keys:
                self._eager_keys.add(key)
                warn(f"{self._name} runs eagerly, it cannot be compiled: {error}")
            return self._function(*args, **kwargs)
        result = entry.run(dynamic, arrays)
        if entry.verified or not self._options.check:
            self._prefer(entry, key)
        return result

    def _prefer(self, entry: Entry, key: Any) -> None:
        """From now on this version is tried first, by its straight form if it has one."""
        kept = [f for f in self._launchers if f.entry is not entry][: LAUNCHERS - 1]
        for launch in self._launchers:
            if launch.entry is entry and launch.epoch[0] != Epoch.now and renew(launch):
                self._launchers = [launch, *kept]
                return
        if entry.patience.over(entry.runs):
            launch = launcher(entry, key)
            if launch is not None:
                self._launchers = [launch, *kept]

    # ------------------------------------------------------------------ looking inside

    def graph(self, *args: Any, **kwargs: Any) -> ir.Graph:
        """The traced graph, for these arguments or of the latest trace."""
        return self._looked_up(args, kwargs)[0].traced.graph

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The text of every distinct kernel, for these arguments or of the latest trace."""
        return self._looked_up(args, kwargs)[0].program.source()

    def explain(self, *args: Any, profile: bool = False, **kwargs: Any) -> Explanation:
        """A table of the kernels: shapes, bytes moved, floating-point operations; with
        `profile=True` (and arguments) also times, measured on copies of the state.
        `save("step.svg")` draws it."""
        entry, dynamic = self._looked_up(args, kwargs)
        seconds = None
        if profile:
            if dynamic is None:
                raise EveryOTraceError(
                    f"{self._name}.explain(profile=True) needs arguments to run with"
                )
            arrays = entry.arrays(dynamic)
            assert arrays is not None
            seconds = entry.program.profile(arrays)
        return Explanation(entry.graph, entry.program, seconds)

    def warmup(self, *args: Any, **kwargs: Any) -> None:
        """Trace and compile for these arguments without running: nothing changes."""
        self._looked_up(args, kwargs)

    def cache_info(self) -> CacheInfo:
        """Traces made, versions kept, calls served and distinct kernels of them."""
        entries = [e for versions in self._entries.values() for e in versions]
        texts = {row.text for e in entries for row in every(e.program.kernels)}
        return CacheInfo(self._traces, len(entries), sum(e.runs for e in entries), len(texts))

    def clear(self) -> None:
        """Forget every version."""
        with self._lock:
            self._entries.clear()
            self._eager_keys.clear()
            self._launchers = []
            self._latest = None

    def _looked_up(self, args: tuple, kwargs: dict) -> tuple[Entry, Any]:
        if not args and not kwargs and self._latest is not None:
            return self._latest, [] if not self._latest_has_arguments else None
        dynamic, key, rebuild = self._signature(args, kwargs)
        return self._entry(dynamic, key, rebuild)[0], dynamic

    @property
    def _latest_has_arguments(self) -> bool:
        assert self._latest is not None
        return any(s.kind.startswith("arg") for s in self._latest.traced.sources)

    # ------------------------------------------------------------------ keys and versions

    def _signature(
        self, args: tuple, kwargs: dict
    ) -> tuple[list[Any], Any, Callable[[Sequence[Any]], Any]]:
        """The dynamic leaves of a call, its key, and a function that puts leaves back into
        arguments."""
        names = self._options.static_argnames
        return signature(args, kwargs, static_leaves(args, kwargs, self._static_positions, names))

    def _entry(
        self, dynamic: list[Any], key: Any, rebuild: Callable[..., Any]
    ) -> tuple[Entry, list[np.ndarray]]:
        """A version that fits the call, traced and compiled if there is none."""
        found, _ = self._fitting(dynamic, key)
        if found is None:
            with LOCK, self._lock, collector.paused():
                found, changed = self._fitting(
                    dynamic, key
                )  # another thread may have traced meanwhile
                if found is None:
                    return self._traced(dynamic, key, rebuild, changed)
        with contextlib.suppress(KeyError):  # another thread may have let it go
            self._entries.move_to_end(key)
        return self._verified(*found, dynamic, key, rebuild)

    def _fitting(
        self, dynamic: list[Any], key: Any
    ) -> tuple[tuple[Entry, list[np.ndarray]] | None, str | None]:
        """A version whose guards hold, with the arrays of this call, or else what the newest one
        lacks."""
        lacks = []
        for entry in tuple(self._entries.get(key, ())):
            changed = entry.stale(dynamic)
            if changed is None:
                arrays = entry.arrays(dynamic)
                if arrays is not None:
                    return (entry, arrays), None
                changed = (
                    "an input has another shape, dtype, layout or shares memory with another one"
                )
            lacks.append(changed)
        return None, lacks[0] if lacks else None

    def _traced(
        self, dynamic: list[Any], key: Any, rebuild: Callable[..., Any], changed: str | None
    ) -> tuple[Entry, list[np.ndarray]]:
        """A new version."""
        entry = self._compile(dynamic, rebuild)
        self._entries.setdefault(key, []).insert(0, entry)
        self._entries.move_to_end(key)
        if len(self._entries) > KEYS:
            self._entries.popitem(last=False)
        del self._entries[key][16:]
        self._note_retrace(changed)
        arrays = entry.arrays(dynamic)
        if arrays is None:
            raise EveryOTraceError(
                f"{self._name}: the inputs changed while the function was traced"
            )
        return entry, arrays

    def _compile(self, dynamic: list[Any], rebuild: Callable[..., Any]) -> Entry:
        objects = [
            x
            for x in flatten(rebuild(dynamic))[0]
            if not isinstance(x, Tensor | np.ndarray | DeviceArray)
        ]
        call = self._caller(rebuild)
        found = guarding.collect(self._function, objects)
        self._traces += 1
        traced = trace_call(self._name, call, dynamic)
        found.settle(traced.arrays)
        self._latest = entry = Entry(
            self._name, call, traced, found, objects, dynamic, self._options
        )
        return entry

    def _caller(self, rebuild: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
        function = self._function
        mode = autocast(is_autocast_enabled(), dtype=autocast_dtype())  # also for a later backward

        def call(values: Sequence[Any]) -> Any:
            args, kwargs = rebuild(values)
            with mode:
                return function(*args, **kwargs)

        return call

    def _verified(
        self,
        entry: Entry,
        arrays: list[np.ndarray],
        dynamic: list[Any],
        key: Any,
        rebuild: Callable[..., Any],
    ) -> tuple[Entry, list[np.ndarray]]:
        """At the second call of a version: trace again and compare."""
        if entry.verified or not self._options.check:
            return entry, arrays
        with LOCK, self._lock, collector.paused():
            if entry.verified:
                return entry, arrays
            self._traces += 1
            found = guarding.collect(self._function, entry.objects)
            second = trace_call(self._name, self._caller(rebuild), dynamic, entry.table)
            if second.attributes:
                _put_back(second)
                _, name, _, line = second.attributes[0]
                raise EveryOTraceError(
                    f"{self._name}: attribute {name!r} is set at every call, at {line}; a compiled "
                    "function does not run that line again. Keep the value in a tensor or buffer, "
                    "or compile with fallback='eager'"
                )
            difference = differences(entry.traced, second)
            if difference is None:
                found.settle_after(entry.guards, second.arrays)
                entry.guards = found
                entry.verified, entry.table = True, None
                return entry, arrays
            self._traces += 1
            third = trace_call(self._name, self._caller(rebuild), dynamic, entry.table)
            if differences(second, third) is not None:
                _put_back(third)
                raise EveryOTraceError(
                    f"{self._name} depends on Python state that changes from call to call and that "
                    f"guards cannot see: {difference}. Pass the value as an argument, or keep it "
                    "in a tensor"
                )
            fresh = self._compile(dynamic, rebuild)
            fresh.verified, fresh.table = True, None
            others = [e for e in self._entries.get(key, []) if e is not entry]
            self._entries[key] = [fresh, *others]
        new = fresh.arrays(dynamic)
        assert new is not None
        return fresh, new

    def _note_retrace(self, changed: str | None) -> None:
        compiled = sum(len(v) for v in self._entries.values())
        if self._traces > WARN_TRACES and compiled > WARN_TRACES // 2:
            why = changed or "arguments of a new shape, dtype, structure or static value"
            warn(
                f"{self._name} was traced {self._traces} times; the last time because of: {why}. "
                "Every trace takes time; keep shapes and Python values fixed, or pass numbers "
                "that change as floats or tensors"
            )

    # ------------------------------------------------------------------ methods, pickling

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        found = self._bound.get(id(instance))
        if found is None or found[0]() is not instance:
            forget = functools.partial(_forget, weakref.ref(self), id(instance))
            try:
                reference: Any = weakref.ref(instance, forget)
            except (
                TypeError
            ):  # __slots__ without __weakref__: such an object lives as long as the function
                reference = functools.partial(_identity, instance)
            bound = CompiledFunction(_bind(self._function, reference), self._options)
            found = self._bound[id(instance)] = (reference, bound)
        return found[1]

    def __reduce__(self) -> Any:
        return (_restore, (self._function, self._options))

    def __repr__(self) -> str:
        return f"<compiled {getattr(self._function, '__qualname__', self._name)}>"


def _identity(instance: Any) -> Any:
    return instance


def _bind(function: Callable[..., Any], reference: Any) -> Callable[..., Any]:
    """The method of an object that is not kept alive by it."""

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return function(reference(), *args, **kwargs)

    found = inspect.signature(function)
    method.__signature__ = found.replace(parameters=list(found.parameters.values())[1:])  # type: ignore[attr-defined]
    return method


def _put_back(traced: Traced) -> None:
    """The attributes as they were before a trace whose outcome is refused."""
    for owner, name, before, _ in traced.attributes:
        put_back(owner, name, before)


def _forget(owner: Any, key: int, _: Any) -> None:
    compiled = owner()
    if compiled is not None:
        compiled._bound.pop(key, None)


def _restore(function: Callable[..., Any], options: Options) -> CompiledFunction:
    return CompiledFunction(function, options)


def compiled(target: Any, options: Options) -> Any:
    """The compiled form of a function, method, lambda or `Module`; `everyo.compile.compile` is the
    door."""
    if isinstance(target, CompiledFunction):
        return CompiledFunction(target._function, options)
    if hasattr(target, "named_parameters") and hasattr(target, "forward"):
        return _compiled_module(target, options)
    if isinstance(target, staticmethod | classmethod):
        return type(target)(CompiledFunction(target.__func__, options))
    if not callable(target):
        raise TypeError(f"compile needs a function or a Module, got {type(target).__name__}")
    for what in ("generator", "coroutine", "asyncgen"):
        if getattr(inspect, f"is{what}function")(target):
            raise TypeError(
                f"compile needs a function that returns its results, got a {what} function"
            )
    return CompiledFunction(target, options)


def _compiled_module(module: Any, options: Options) -> Any:
    """A module over the very same parameters, buffers and modes, whose forward is compiled."""
    kind = type(module)
    forward = CompiledFunction(types.MethodType(kind.forward, module), options)
    forward._name = kind.__name__
    namespace = {
        "forward": property(lambda self: forward),
        "__wrapped__": property(lambda self: module),
        "__reduce__": lambda self: (compile_module, (module, options)),
        "__deepcopy__": lambda self, memo: compile_module(_deepcopy(module, memo), options),
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    for name in ("graph", "source", "explain", "warmup", "cache_info", "clear"):
        namespace[name] = property(functools.partial(_of_forward, name, forward))
    out: Any = object.__new__(type(kind.__name__, (kind,), namespace))
    object.__setattr__(out, "__dict__", module.__dict__)
    return out


def _of_forward(name: str, forward: CompiledFunction, module: Any) -> Any:
    """What a compiled module shows of its compiled forward."""
    return getattr(forward, name)


def _deepcopy(module: Any, memo: dict) -> Any:
    import copy

    return copy.deepcopy(module, memo)


def compile_module(module: Any, options: Options) -> Any:
    """A compiled module again, after pickling or copying."""
    return _compiled_module(module, options)
