"""`detect_nan`: find the operation that makes the first NaN.

Inside the context every op, and every gradient rule of a backward pass, is looked at: if its result
has a NaN and what it was computed from has none, an error names the operation and the line of the
user's code that called it. Outside, nothing is looked at and nothing costs anything.
"""

import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.core.autograd import MODE, TRACES, Node
from everyo.core.namespace import is_array
from everyo.exceptions import EveryOError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class detect_nan:
    """Raise `EveryOError` at the first operation, forward or backward, that makes a NaN.

    A context manager, per thread and re-entrant. Compiled functions run eagerly inside.
    """

    def __init__(self) -> None:
        self.previous: list[Any] = []
        self.lines: weakref.WeakKeyDictionary[Node, str] = weakref.WeakKeyDictionary()

    def __enter__(self) -> "detect_nan":
        self.previous.append(MODE.watch)
        MODE.watch = self
        TRACES.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        MODE.watch = self.previous.pop()
        TRACES.remove(self)

    def forward(self, op: Any, operands: Sequence[Any], out: Any) -> None:
        """Look at the result of an op."""
        line = user_line()
        if out.grad_node is not None:
            self.lines[out.grad_node] = line
        if has_nan(out._data) and not any(has_nan(a) for a in operands):
            shapes = ", ".join(str(np.shape(a)) for a in operands if a is not None)
            raise EveryOError(f"{op.name} of {shapes} made a NaN at {line}")

    def backward(self, node: Node, gradient: Any, results: Sequence[Any]) -> None:
        """Look at the gradients that a node hands to its parents."""
        if any(has_nan(r) for r in results) and not has_nan(gradient):
            line = self.lines.get(node, "a line outside detect_nan()")
            raise EveryOError(f"the gradient of {node.operation}, called at {line}, made a NaN")


def has_nan(value: Any) -> bool:
    """Whether an array, tensor or number has a NaN."""
    array = getattr(value, "_data", value)
    if isinstance(array, float):
        return array != array
    if not (is_array(array) or isinstance(array, np.generic)) or array.dtype.kind != "f":
        return False
    return bool(np.isnan(array).any())


def user_line() -> str:
    """File and line of the innermost caller outside the library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
