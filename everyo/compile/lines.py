"""The user's line: the innermost frame whose code is not the library's."""

import functools
import os
import sys
import warnings
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN: dict[str, bool] = {}  # file name -> whether it belongs to the library


def here() -> str:
    """The user's file and line that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        own = _OWN.get(name)
        if own is None:
            own = _OWN[name] = name.startswith(PACKAGE)
        if not own:
            return _named(name, frame.f_lineno)
        frame = frame.f_back
    return "unknown"


def warn(message: str) -> None:
    """A warning at the line outside the library that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


@functools.cache
def _named(file: str, line: int) -> str:
    return f"{file}:{line}"
