"""Python's cycle collector, paused while functions are compiled.

A trace and its plan are many small objects that all stay alive until the program is made. The
collector would walk them over and over, each time in vain, for more than half of the time. What is
alive in the end stays for long, and counts as old at once.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_PAUSES: list[None] = []  # one per thread that has turned the collector off


def _after_fork() -> None:
    """In a child of another thread's fork nobody would turn the collector on again."""
    if _PAUSES:
        _PAUSES.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def paused() -> Iterator[None]:
    """No automatic collections in here. Whoever found the collector on turns it on again, so it
    ends up on however uses in several threads overlap."""
    on = gc.isenabled()
    if on:
        _PAUSES.append(None)
    gc.disable()
    try:
        yield
    finally:
        if on:
            if _PAUSES:
                _PAUSES.pop()
            if not gc.get_freeze_count():  # what others have frozen stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
