"""ZIP containers of JSON and arrays, read as if their author were hostile.

Nothing is unpickled and nothing is unpacked to the disk. A member is read only as far as its own
file allows: what comes out of a file may be `EXPANSION` times its size and `ALWAYS` bytes more. The
headers of arrays are parsed before memory is taken for them. Whatever a damaged file makes the
parsers below raise leaves here as an `EveryOSerializationError` that names the file.
"""

import io
import json
import math
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from everyo.exceptions import EveryOSerializationError

ALWAYS = 64 << 20  # bytes
EXPANSION = 100  # float weights compress by less than 2
JSON_LIMIT = 16 << 20  # bytes
HEADER_LIMIT = 10_000  # bytes of the header of one array, NumPy's own limit
ENCRYPTED = 0x1  # flag of a ZIP member

PathLike = str | os.PathLike[str]


@contextmanager
def reading(where: str, what: str) -> Iterator[None]:
    """Turn anything that reading damaged bytes raises into one error about the file."""
    try:
        yield
    except EveryOSerializationError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise EveryOSerializationError(f"{where} is not a valid {what}: {reason}") from None


class Container:
    """The members of a ZIP file that is open for reading."""

    def __init__(self, stream: BinaryIO, where: str) -> None:
        self.where = where
        self.allowance = ALWAYS + EXPANSION * _size(stream)
        self.archive = zipfile.ZipFile(stream)

    def check_names(self, names: tuple[str, ...]) -> None:
        """Raise unless the container has exactly these members."""
        found = self.archive.namelist()
        if sorted(found) != sorted(names):
            shown = ", ".join(map(repr, found[:5])) + (", …" if len(found) > 5 else "")
            raise EveryOSerializationError(
                f"{self.where} must contain exactly {', '.join(names)}; it contains "
                f"{shown or 'nothing'}"
            )

    def read(self, name: str, limit: int | None = None) -> bytes:
        """The contents of a member of at most `limit` bytes."""
        return self._contents(self.archive, name, limit)

    def json(self, name: str) -> Any:
        """A member that holds JSON."""
        return json.loads(self.read(name, JSON_LIMIT))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """A member that holds arrays, as `numpy.savez` writes them."""
        with zipfile.ZipFile(io.BytesIO(self.read(name))) as inner:
            return self.arrays_of(inner)

    def arrays_of(self, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
        """The arrays of an archive whose members are `.npy` files."""
        names = archive.namelist()
        odd = [n for n in names if not n.endswith(".npy")]
        if odd or len(set(names)) != len(names):
            raise EveryOSerializationError(
                f"{self.where}: an archive of arrays has members that are no arrays or occur "
                f"twice: {(odd or names)[0]!r}"
            )
        return {n.removesuffix(".npy"): _array(self._contents(archive, n), n) for n in names}

    def _contents(self, archive: zipfile.ZipFile, name: str, limit: int | None = None) -> bytes:
        member = archive.getinfo(name)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is compressed by an unknown method")
        if member.flag_bits & ENCRYPTED:
            raise ValueError(f"{name!r} is encrypted")
        most = self.allowance if limit is None else min(limit, self.allowance)
        if member.file_size > most:
            raise EveryOSerializationError(
                f"{self.where}: {name!r} expands to {member.file_size} bytes, more than the {most} "
                "that a file of this size may hold"
            )
        with archive.open(member) as source:
            data = source.read(member.file_size)
            if len(data) != member.file_size or source.read(1):
                raise ValueError(f"{name!r} has another size than the directory says")
        self.allowance -= len(data)
        return data


@contextmanager
def opened(source: PathLike | BinaryIO, what: str) -> Iterator[Container]:
    """The container at a path (or in an open file), with every failure as the library's error."""
    if not isinstance(source, str | os.PathLike):
        with reading("the file", what):
            yield Container(source, "the file")
        return
    path = existing(source, what)
    with reading(str(path), what), path.open("rb") as stream:
        yield Container(stream, str(path))


def existing(source: PathLike, what: str) -> Path:
    """The path of a regular file: a device such as /dev/zero has no end."""
    path = Path(source)
    with reading(str(path), what):
        if not path.exists():
            raise EveryOSerializationError(f"{path} not found")
        if not path.is_file():
            raise ValueError("it is a folder" if path.is_dir() else "it is no regular file")
    return path


def _size(stream: BinaryIO) -> int:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


def _array(data: bytes, name: str) -> np.ndarray:
    """An array from the bytes of a `.npy` file, after its header has been checked."""
    source = io.BytesIO(data)
    version = np.lib.format.read_magic(source)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:
        raise ValueError(f"{name!r} has npy version {version}")
    shape, fortran, dtype = headers[version](source, max_header_size=HEADER_LIMIT)
    check_dtype(dtype, name)
    body = memoryview(data)[source.tell() :]
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError(f"{name!r} has {len(body)} bytes for the shape {shape} of {dtype}")
    flat = own_copy(np.frombuffer(body, dtype))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def own_copy(array: np.ndarray) -> np.ndarray:
    """A copy that can be written, in the byte order of this machine. A bool that is neither 0 nor 1
    in the file, which NumPy takes for granted nowhere to exist, is true."""
    if array.dtype == bool:
        return array.view(np.uint8) != 0
    return array.astype(array.dtype.newbyteorder("="))


def check_dtype(dtype: np.dtype, name: str) -> None:
    """Raise for arrays that are no plain numbers of at most 8 bytes."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8 or dtype.shape:
        raise EveryOSerializationError(
            f"{name!r} has dtype {dtype}; files hold bools, integers and floats of at most 64 bits"
        )


# ---------------------------------------------------------------------------------- writing


def array_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as the bytes of an `.npz` file, not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            check_dtype(array.dtype, name)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
    return out.getvalue()


def json_bytes(value: Any, what: str) -> bytes:
    """A value as JSON; `EveryOSerializationError` if it is none, or too much of it."""
    try:
        data = json.dumps(value, indent=1).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EveryOSerializationError(f"{what} is not JSON-serialisable: {error}") from None
    if len(data) > JSON_LIMIT:
        raise EveryOSerializationError(f"{what} has {len(data)} bytes as JSON, of {JSON_LIMIT}")
    return data


def zip_bytes(members: Mapping[str, bytes]) -> Callable[[BinaryIO], object]:
    """A writer of a ZIP file with these members."""

    def write(stream: BinaryIO) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return write


def write_file(
    path: PathLike, suffix: str, overwrite: bool, write: Callable[[BinaryIO], object]
) -> Path:
    """Write a file as a whole or not at all; its path, with `suffix` if it had none.

    The parent directories are made. Raises `EveryOSerializationError` if the file exists and
    `overwrite` is false, or cannot be written.
    """
    target = Path(path)
    if not target.name or target.is_dir():
        raise EveryOSerializationError(f"{target} cannot be written: it is a folder")
    if not target.suffix:
        target = target.with_name(target.name + suffix)
    if not overwrite and target.exists():
        raise EveryOSerializationError(f"{target} already exists; overwrite=True replaces it")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise EveryOSerializationError(f"{target} cannot be written: {error}") from None
    return target
