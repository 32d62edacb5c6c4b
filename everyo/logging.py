"""The library's log: quiet unless asked.

All loggers are children of `everyo`. Nothing is printed until the application configures logging,
by its own means or with `configure_logging`.
"""

import logging
from typing import TextIO

__all__ = ["LEVELS", "configure_logging", "get_logger"]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_ROOT = logging.getLogger("everyo")
_ROOT.addHandler(logging.NullHandler())


class _ConsoleHandler(logging.StreamHandler):
    """The handler that `configure_logging` installs, told apart from the application's own."""


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger `everyo`, or `everyo.<name>`; a module's own `__name__` serves as it is.

    >>> get_logger("data").name, get_logger("everyo.data").name, get_logger().name
    ('everyo.data', 'everyo.data', 'everyo')
    """
    if name is None or name == _ROOT.name:
        return _ROOT
    return _ROOT.getChild(name.removeprefix(f"{_ROOT.name}."))


def configure_logging(level: str | int = "INFO", *, stream: TextIO | None = None) -> logging.Logger:
    """Print messages from `level` on to `stream` (standard error); again replaces the former."""
    if isinstance(level, str) and level.upper() not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
    for handler in list(_ROOT.handlers):
        if isinstance(handler, _ConsoleHandler):
            _ROOT.removeHandler(handler)
    console = _ConsoleHandler(stream)
    console.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    _ROOT.addHandler(console)
    _ROOT.setLevel(level.upper() if isinstance(level, str) else level)
    return _ROOT
