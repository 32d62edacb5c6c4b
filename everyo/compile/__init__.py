"""The compiler: traces a function, fuses its graph and runs it as native kernels.

Use `from everyo.compile import ir` for the modules in here: `eo.compile` itself is the function.
"""

from everyo.compile.api import CompiledFunction, compile

__all__ = ["CompiledFunction", "compile"]
