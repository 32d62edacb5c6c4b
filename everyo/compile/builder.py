"""The array namespace of a trace: NumPy's functions, recorded as nodes of the graph.

Every method takes symbols, arrays and Python numbers and returns a symbol. What NumPy would decide
at run time is decided here: result dtypes (by NumPy's own resolution, Python numbers weak),
broadcasting, axes. The nodes it makes are the few primitives of `everyo.compile.ir`. The functions
are in `recorder` (pointwise ones, views), `reductions` and `indexing`.
"""

from typing import Any

from everyo.compile.indexing import Indexing


class Builder(Indexing):
    """The namespace of one trace."""

    def close(self) -> None:
        """No call comes any more: let go of the trace, which holds this namespace."""
        self.__dict__.clear()

    def require(self, condition: Any, error: type[Exception], message: str) -> None:
        """Record that the call raises `error(message)` unless the 0-d `condition` holds."""
        ok = self._truth(condition)
        bad = self.table.make("logical_not", ok)
        self.trace.check(bad, error, message)
