"""Who is told about calls of modules, of compiled functions and of their kernels: a profiler.

The layers below `everyo.profiler` only ask whether somebody is there; if nobody is, that is all.
"""

from typing import Any


class Watcher:
    """`active` has `span(name, args, **metadata)`, a context manager around whatever is timed."""

    active: Any = None
