"""The version, in the one place that the build, the package and the archives read it from."""

__version__ = "0.3.0"

VERSION_INFO: tuple[int, ...] = tuple(int(part) for part in __version__.split("."))
