"""The user's line: the innermost frame whose code is not the library's."""

import functools
import os
import sys
import warnings
from typing import Any

from everyo.core import autograd

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN: set[str] = set()  # files of the library
_WALK_BACK = autograd._propagate.__code__
_walk: list[Any] = [None, ""]  # the last walk back that was come across, and the user's line of it


def here(depth: int = 1) -> str:
    """The user's file and line that is being run. The innermost `depth` frames are known to be the
    library's."""
    return _found(sys._getframe(depth))


def _found(frame: Any) -> str:
    while frame is not None:
        code = frame.f_code
        if code is _WALK_BACK:  # whatever it calls, the line that asked for it stays
            if frame is not _walk[0]:
                _walk[:] = frame, _found(frame.f_back)
            return _walk[1]
        name = code.co_filename
        if name not in _OWN:
            if not name.startswith(PACKAGE):
                return _named(name, frame.f_lineno)
            _OWN.add(name)
        frame = frame.f_back
    return "unknown"


def forget() -> None:
    """Let go of the walk back, whose frame holds all that it computes."""
    _walk[:] = None, ""


def warn(message: str) -> None:
    """A warning at the line outside the library that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


@functools.cache
def _named(file: str, line: int) -> str:
    return f"{file}:{line}"
