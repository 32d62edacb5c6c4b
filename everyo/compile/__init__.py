"""The compiler: traces a function, fuses its graph and runs it as native kernels.

Use `from everyo.compile import ir` for the modules in here: `eo.compile` itself is the function.
They are loaded when something is compiled for the first time; eager code never waits for them.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyo import cuda as _cuda
from everyo.core.device import device as _as_device

if TYPE_CHECKING:
    from everyo.compile.api import CompiledFunction

__all__ = ["CompiledFunction", "compile"]


def compile(
    fn: Any = None,
    *,
    device: Any = None,
    static_argnames: Sequence[str] = (),
    fallback: str = "error",
    check: bool = True,
    cache: bool = True,
) -> Any:
    """Compile a function, method, lambda or `Module`: a decorator, with or without arguments.

    The function is traced once per kind of arguments (shapes, dtypes, structure, values of ints,
    strings, bools and None; floats are run-time inputs unless named in `static_argnames`) and then
    runs as fused kernels, leaving everything that eager code would leave. `fallback="eager"` runs a
    function that cannot be traced eagerly, with one warning; the default raises `EveryOTraceError`,
    which names the line. `check=False` leaves out the second trace that looks for hidden Python
    state. `cache=False` keeps this function's kernels off the disk. `device` is where its tensors
    must be. A compiled `Module` is a module that shares the parameters.
    """
    from everyo.compile.api import Options, compiled

    if fallback not in ("error", "eager"):
        raise ValueError(f"fallback must be 'error' or 'eager', got {fallback!r}")
    place = None if device is None else _as_device(device, strict=True)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    options = Options(names, fallback, check, cache, place)
    return functools.partial(compiled, options=options) if fn is None else compiled(fn, options)


def __getattr__(name: str) -> Any:
    if name == "CompiledFunction":
        from everyo.compile.api import CompiledFunction

        return CompiledFunction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _backend() -> Any:
    """The CUDA back end, imported when it is first asked for."""
    from everyo.compile.cuda.backend import BACKEND

    return BACKEND


_cuda.register(_backend)
