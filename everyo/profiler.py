"""Where the time goes: calls of modules, of compiled functions and their kernels, named regions.

Inside `with profile() as result:` every call of a `Module` is an event, nested ones too, as is
every call of a compiled function and every kernel it runs (one after the other, on one thread, so
that each can be timed), and every region marked with `record_function`. `summary()` adds up the
events by name; `export_chrome_trace` writes a file that chrome://tracing and Perfetto show.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everyo.core.autograd import current_trace
from everyo.core.forks import renewed
from everyo.core.watch import Watcher

__all__ = ["Event", "Profiler", "profile", "record_function"]


@dataclass(frozen=True)
class Event:
    """One timed call. Times are of `time.perf_counter_ns`."""

    name: str
    duration_ns: int
    start_ns: int
    process_id: int
    thread_id: int
    metadata: dict[str, Any] = field(default_factory=dict)


class _Depth(threading.local):
    """How many spans of this thread are open, and whether the outermost is one to leave out."""

    open = 0
    skipped = False


class Profiler:
    """Records events while it is entered; made by `profile`."""

    def __init__(self, warmup: int = 0, record_shapes: bool = True) -> None:
        if warmup < 0:
            raise ValueError(f"warmup must not be negative, got {warmup}")
        self.warmup, self.record_shapes = warmup, record_shapes
        self.events: list[Event] = []
        self._seen: dict[str, int] = {}  # outermost calls by name
        self._lock = renewed(threading.Lock())
        self._depth = _Depth()

    def __enter__(self) -> "Profiler":
        with _ENTERING:
            if Watcher.active is not None:
                raise RuntimeError("profile() cannot be nested: another profiler is recording")
            Watcher.active = self
        return self

    def __exit__(self, *exc: object) -> None:
        Watcher.active = None

    @contextmanager
    def span(self, name: str, args: Sequence[Any] = (), **metadata: Any) -> Iterator[None]:
        """Time what is inside, as an event. A trace in progress computes nothing worth timing."""
        if current_trace() is not None:
            yield
            return
        depth = self._depth
        if not depth.open:
            with self._lock:
                self._seen[name] = count = self._seen.get(name, 0) + 1
            depth.skipped = count <= self.warmup
        if self.record_shapes and args:
            shapes = [list(a.shape) for a in args if hasattr(a, "shape")]
            metadata = {"input_shapes": shapes, **metadata}
        depth.open += 1
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            duration = time.perf_counter_ns() - start
            depth.open -= 1
            if not depth.skipped:
                where = os.getpid(), threading.get_ident()
                with self._lock:
                    self.events.append(Event(name, duration, start, *where, metadata))

    def summary(self) -> list[dict[str, Any]]:
        """One row per name: `name`, `calls`, `total_ms`, `mean_ms`, `max_ms`; the longest total
        first. Nested calls count in their callers too."""
        by_name: dict[str, list[int]] = {}
        for event in self.events:
            by_name.setdefault(event.name, []).append(event.duration_ns)
        rows = [
            {
                "name": name,
                "calls": len(times),
                "total_ms": sum(times) / 1e6,
                "mean_ms": sum(times) / len(times) / 1e6,
                "max_ms": max(times) / 1e6,
            }
            for name, times in by_name.items()
        ]
        return sorted(rows, key=lambda row: row["total_ms"], reverse=True)

    def export_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the events as a JSON list; the path."""
        return _written(path, [asdict(event) for event in self.events])

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the events for chrome://tracing or ui.perfetto.dev; the path."""
        events = [
            {
                "name": event.name,
                "ph": "X",
                "ts": event.start_ns / 1e3,
                "dur": event.duration_ns / 1e3,
                "pid": event.process_id,
                "tid": event.thread_id,
                "args": event.metadata,
            }
            for event in self.events
        ]
        return _written(path, {"traceEvents": events})


_ENTERING = renewed(threading.Lock())


def profile(*, warmup: int = 0, record_shapes: bool = True) -> Profiler:
    """A profiler to enter with `with`; `RuntimeError` if one is already recording.

    The first `warmup` outermost calls of each name, and what is nested in them, are left out. With
    `record_shapes`, events of modules and compiled functions keep the shapes of their positional
    arguments as `metadata["input_shapes"]`.
    """
    return Profiler(warmup, record_shapes)


class record_function(ContextDecorator):
    """Name a region: a context manager and decorator; does nothing while no profiler records."""

    def __init__(self, name: str, **metadata: Any) -> None:
        self.name, self.metadata = name, metadata
        self._open: list[AbstractContextManager[None]] = []

    def _recreate_cm(self) -> "record_function":
        return record_function(self.name, **self.metadata)  # one per call of a decorated function

    def __enter__(self) -> "record_function":
        active = Watcher.active
        span = nullcontext() if active is None else active.span(self.name, **self.metadata)
        span.__enter__()
        self._open.append(span)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._open.pop().__exit__(*exc)


def _written(path: str | os.PathLike[str], value: Any) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(value, default=str), encoding="utf-8")
    return target
