"""Machine code on disk: one file per kernel, keyed by the content of everything that went into it.

A file holds object code, not a pickle: its length and SHA-256 are verified before LLVM sees a byte,
and anything wrong with it, its folder or their owner is a miss. Files are written aside and moved
into place, so concurrent processes and killed writers leave a usable cache. Beside each lies the
kernel's text for people to read.
"""

import hashlib
import os
import platform
import stat
import sys
import time
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from everyo._version import __version__

MAGIC = b"EveryO kernel 1\n"
CAP_BYTES = 256 << 20  # the folder is pruned to three quarters of this when it grows larger
STALE_SECONDS = 3600  # an unfinished file older than this belongs to a writer that is gone
_PREFIX = ".writing-"


@dataclass(frozen=True)
class Stored:
    """Object code and the symbol of its function."""

    symbol: str
    code: bytes


@dataclass(frozen=True)
class CacheReport:
    """What is in the cache: its folder (None if the cache is off), kernels and bytes."""

    folder: Path | None
    kernels: int
    bytes: int
    reason: str | None


def folder() -> Path | None:
    """The folder of the cache, created if need be; None if the cache is off or not ours."""
    return _folder()[0]


def _folder() -> tuple[Path | None, str | None]:
    given = os.environ.get("EVERYO_CACHE_DIR")
    if given is not None and given.strip().lower() in ("", "0", "off", "none"):
        return None, "switched off by EVERYO_CACHE_DIR"
    if sys.platform != "linux":
        return None, "object code is cached on Linux only"
    path = Path(given) if given else _user_cache() / "everyo"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours(os.stat(path, follow_symlinks=False)):
            return None, f"{path} belongs to, or can be written by, another user"
    except OSError as error:
        return None, f"{path} cannot be used: {error.strerror}"
    return path, None


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"


def _ours(info: os.stat_result) -> bool:
    """Whether only this user can write the file or folder."""
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def key(text: str) -> str:
    """The name of a kernel: a hash of its text and of everything that turns it into machine code."""
    return hashlib.sha256(f"{surroundings()}\n{text}".encode()).hexdigest()[:40]


@cache
def surroundings() -> str:
    """Versions, processor and the content of the modules that kernels are made with."""
    import llvmlite.binding as llvm

    here = Path(__file__).parent
    made_with = sorted(p.name for p in here.glob("*.py"))
    digest = hashlib.sha256()
    for name in made_with:
        digest.update((here / name).read_bytes())
    versions = [f"{p} {_version(p)}" for p in ("numba", "llvmlite")]
    parts = [
        __version__, np.__version__, sys.version, platform.machine(), *versions, llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(), digest.hexdigest(),
        *(f"{k}={os.environ[k]}" for k in sorted(os.environ) if k.startswith("NUMBA_")),
    ]  # fmt: skip
    return "\n".join(parts)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def load(name: str) -> Stored | None:
    """The stored kernel of that name, or None for any reason at all."""
    where = folder()
    if where is None:
        return None
    try:
        descriptor = os.open(where / f"{name}.kernel", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(file.fileno())
            if not _ours(info) or info.st_size > CAP_BYTES:
                return None
            data = file.read()
        if time.time() - info.st_mtime > 86400:
            os.utime(where / f"{name}.kernel")  # recently used: pruned last
    except OSError:
        return None
    return _parse(data)


def _parse(data: bytes) -> Stored | None:
    head = len(MAGIC)
    if data[:head] != MAGIC or len(data) < head + 48:
        return None
    digest, size = data[head : head + 32], int.from_bytes(data[head + 32 : head + 40], "little")
    body = data[head + 40 :]
    if len(body) != size or hashlib.sha256(body).digest() != digest:
        return None
    length = int.from_bytes(body[:8], "little")
    return Stored(body[8 : 8 + length].decode(), body[8 + length :])


def store(name: str, text: str, stored: Stored) -> None:
    """Keep a kernel; a folder that cannot be written is no error."""
    where = folder()
    if where is None:
        return
    symbol = stored.symbol.encode()
    body = len(symbol).to_bytes(8, "little") + symbol + stored.code
    data = MAGIC + hashlib.sha256(body).digest() + len(body).to_bytes(8, "little") + body
    try:
        _write(where, f"{name}.kernel", data)
        _write(where, f"{name}.py", text.encode())
        _prune(where)
    except OSError:
        return


def _write(where: Path, name: str, data: bytes) -> None:
    aside = where / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, where / name)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _prune(where: Path) -> None:
    """Remove what killed writers left, and the least recently used kernels when there are too many."""
    files = []
    for entry in os.scandir(where):
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # another process was faster
        if entry.name.startswith(_PREFIX):
            if time.time() - info.st_mtime > STALE_SECONDS:
                Path(entry.path).unlink(missing_ok=True)
        elif entry.name.endswith((".kernel", ".py")):
            files.append((info.st_mtime, info.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if total > CAP_BYTES:
        for _, size, path in sorted(files):
            if total <= CAP_BYTES * 3 // 4:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


def report() -> CacheReport:
    """What is in the cache."""
    where, reason = _folder()
    if where is None:
        return CacheReport(None, 0, 0, reason)
    files = [e for e in os.scandir(where) if e.name.endswith((".kernel", ".py"))]
    kernels = sum(e.name.endswith(".kernel") for e in files)
    return CacheReport(where, kernels, sum(e.stat(follow_symlinks=False).st_size for e in files), None)


def clear() -> int:
    """Remove every kernel of the cache and return how many there were."""
    where = folder()
    if where is None:
        return 0
    count = 0
    for entry in list(os.scandir(where)):
        if entry.name.endswith((".kernel", ".py")) or entry.name.startswith(_PREFIX):
            count += entry.name.endswith(".kernel")
            Path(entry.path).unlink(missing_ok=True)
    return count
