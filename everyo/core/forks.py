"""Locks across `fork`: a child gets them unlocked, for whoever held them has not come along."""

import os
import weakref
from typing import Any, TypeVar

T = TypeVar("T")

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def renewed(lock: T) -> T:
    """The lock, which from now on is free in every forked child that does not hold it itself."""
    _LOCKS.add(lock)
    return lock


def _renew() -> None:
    for lock in _LOCKS:
        owned = getattr(lock, "_is_owned", None)  # of an RLock: held by the thread that forked
        if owned is None or not owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
