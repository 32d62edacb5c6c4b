"""The compiler: traces a function, fuses its graph and runs it as native kernels.

Use `from everyo.compile import ir` for the modules in here: `eo.compile` itself is the function.
"""

from typing import Any

from everyo import cuda as _cuda
from everyo.compile.api import CompiledFunction, compile


def _backend() -> Any:
    """The CUDA back end, imported when it is first asked for."""
    from everyo.compile.cuda.backend import BACKEND

    return BACKEND


_cuda.register(_backend)

__all__ = ["CompiledFunction", "compile"]
