"""Machine code on disk: one file per kernel, keyed by the content of everything that went into it.

A file holds object code, not a pickle: its name, length and SHA-256 are verified before LLVM sees a
byte, and anything wrong with it, its folder or their owner is a miss. Files are written aside and
moved into place, so concurrent processes and killed writers leave a usable cache. Beside each lies
the kernel's text for people to read.
"""

import hashlib
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from everyo._version import __version__
from everyo.compile.blas import BLAS

MAGIC = b"EveryO kernel 2\n"
CAP_BYTES = 256 << 20  # the folder is pruned to three quarters of this when it seems larger
STALE_SECONDS = 3600  # an unfinished file older than this belongs to a writer that is gone
PAGE = 4096  # what files take is counted in these
_COUNTER = ".stored"  # its length is the number of pages in the folder, about
_PREFIX = ".writing-"
_OURS = re.compile(rf"[0-9a-f]{{40}}\.(kernel|py)|{re.escape(_PREFIX)}\d+-\d+")
_NO_CODE = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR")  # settings that machine code does not depend on
_DECISIVE = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "cpu", "isa", "uarch",
    "features", "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part",
    "CPU revision",
}  # fmt: skip


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
    try:
        path = Path(given).absolute() if given else _user_cache() / "everyo"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _ours(os.stat(path, follow_symlinks=False)):
            return None, f"{path} is a link, or belongs to, or can be written by, another user"
    except (OSError, RuntimeError, ValueError) as error:  # unwritable, no home, an odd name
        return None, f"the folder cannot be used: {error}"
    return path, None


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base)
    home = Path.home()
    if not home.is_absolute():
        raise RuntimeError("there is no home directory")
    return home / ".cache"


def _ours(info: os.stat_result) -> bool:
    """Whether only this user can write the file or folder."""
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def key(text: str) -> str:
    """The name of a kernel: a hash of its text and of all that turns it into machine code."""
    return hashlib.sha256(f"{surroundings()}\n{text}".encode()).hexdigest()[:40]


@cache
def surroundings() -> str:
    """Versions, processor and the content of the modules that kernels are made with."""
    digest = hashlib.sha256()
    for path in made_with():
        digest.update(path.read_bytes())
    settings = Path(".numba_config.yaml")  # Numba reads it where the process starts
    digest.update(settings.read_bytes() if settings.is_file() else b"")
    versions = [f"{p} {_version(p)}" for p in ("numba", "llvmlite")]
    parts = [
        __version__, np.__version__, sys.version, platform.machine(), *versions,
        _processor(), f"{BLAS and BLAS.wide}", digest.hexdigest(),
        *(f"{k}={os.environ[k]}" for k in sorted(os.environ)
          if k.startswith("NUMBA_") and k not in _NO_CODE),
    ]  # fmt: skip
    return "\n".join(parts)


def _processor() -> str:
    """What decides which instructions LLVM chooses for this processor, as Linux describes it."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    return "\n".join(n for n in first.splitlines() if n.split(":")[0].strip() in _DECISIVE)


def made_with() -> list[Path]:
    """The modules whose content becomes part of machine code."""
    here = Path(__file__).parent
    names = (
        "prelude", "intrinsics", "microkernel", "tiles", "atomics", "half", "wrapping", "blas",
        "code", "philox", "translate",
    )  # fmt: skip
    return [*(here / f"{name}.py" for name in names), *sorted(here.glob("math*.py"))]


def _version(package: str) -> str:
    """The version of a package, from the name of the folder beside it that describes it: to ask
    importlib.metadata takes twenty times as long."""
    spec = PathFinder.find_spec(package)
    if spec is not None and spec.origin is not None:
        names = os.listdir(Path(spec.origin).parents[1])
        found = [n for n in names if n.startswith(f"{package}-") and n.endswith(".dist-info")]
        if len(found) == 1:
            return found[0]
    from importlib import metadata

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
            with suppress(OSError):  # a folder that can only be read
                os.utime(where / f"{name}.kernel")  # recently used: pruned last
    except OSError:
        return None
    return parse(name, data)


def pack(name: str, stored: Stored) -> bytes:
    """The content of a file of that name."""
    symbol = stored.symbol.encode()
    body = len(symbol).to_bytes(8, "little") + symbol + stored.code
    return MAGIC + _digest(name, body) + len(body).to_bytes(8, "little") + body


def parse(name: str, data: bytes) -> Stored | None:
    """What `pack` was given, None if anything has changed."""
    head = len(MAGIC)
    if data[:head] != MAGIC or len(data) < head + 48:
        return None
    digest, size = data[head : head + 32], int.from_bytes(data[head + 32 : head + 40], "little")
    body = data[head + 40 :]
    if len(body) != size or _digest(name, body) != digest:
        return None
    length = int.from_bytes(body[:8], "little")
    return Stored(body[8 : 8 + length].decode(), body[8 + length :])


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + body).digest()


def store(name: str, text: str, stored: Stored) -> None:
    """Keep a kernel; a folder that cannot be written is no error."""
    where = folder()
    if where is None:
        return
    files = {f"{name}.kernel": pack(name, stored), f"{name}.py": text.encode()}
    with suppress(OSError):
        full = _counted(where, sum(_pages(len(data)) for data in files.values()))
        for file, data in files.items():
            _write(where, file, data)
        if full:
            _prune(where)


def _pages(size: int) -> int:
    return -(-size // PAGE)


def _counted(where: Path, pages: int) -> bool:
    """Count what is about to be written; whether it is time to prune, for which one must look at
    every file. Appending needs no lock. Too many are counted if files are replaced or writers
    killed, too few if another process prunes meanwhile; it counts anew."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(where / _COUNTER, flags, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        os.write(descriptor, bytes(pages))
    finally:
        os.close(descriptor)
    return before == 0 or (before + pages) * PAGE > CAP_BYTES


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
    """Remove what killed writers left, and the kernels not used for longest down to three quarters
    of the cap. So the next look comes after another quarter has been written."""
    files = []
    for path, info in _files(where):
        if not path.name.startswith(_PREFIX):
            files.append((info.st_mtime, _pages(info.st_size), path))
        elif time.time() - info.st_mtime > STALE_SECONDS:
            path.unlink(missing_ok=True)
    total = sum(pages for _, pages, _ in files)
    for _, pages, path in sorted(files):
        if total * PAGE <= CAP_BYTES * 3 // 4:
            break
        path.unlink(missing_ok=True)
        total -= pages
    os.truncate(where / _COUNTER, total)


def _files(where: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of the cache, finished or not, and nothing else that lies there."""
    for entry in list(os.scandir(where)):
        if _OURS.fullmatch(entry.name):
            with suppress(FileNotFoundError):  # another process was faster
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def report() -> CacheReport:
    """What is in the cache."""
    where, reason = _folder()
    if where is None:
        return CacheReport(None, 0, 0, reason)
    files = list(_files(where))
    kernels = sum(path.suffix == ".kernel" for path, _ in files)
    return CacheReport(where, kernels, sum(info.st_size for _, info in files), None)


def clear() -> int:
    """Remove every kernel of the cache and return how many there were."""
    where = folder()
    if where is None:
        return 0
    count = 0
    for path, _ in _files(where):
        count += path.suffix == ".kernel"
        path.unlink(missing_ok=True)
    (where / _COUNTER).unlink(missing_ok=True)
    return count
