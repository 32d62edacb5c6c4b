"""Nested containers of arguments and results: flattened to leaves and a hashable structure."""

from collections.abc import Iterable, Iterator
from typing import Any

Structure = Any  # None for a leaf, else (type, keys or None, structures of the parts)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested dicts, lists and tuples, in order, and what puts them together again."""
    leaves: list[Any] = []
    return leaves, _walk(tree, leaves)


def _walk(x: Any, leaves: list[Any]) -> Structure:  # no closure: a recursive one would be a cycle
    kind = type(x)
    if kind is tuple or kind is list:
        return (kind, None, tuple([_walk(v, leaves) for v in x]))
    if kind is dict:
        return (kind, tuple(x), tuple([_walk(v, leaves) for v in x.values()]))
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return (kind, x._fields, tuple([_walk(v, leaves) for v in x]))
    leaves.append(x)
    return None


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree with these leaves."""
    return _build(structure, iter(leaves))


def _build(structure: Structure, rest: Iterator[Any]) -> Any:
    if structure is None:
        return next(rest)
    kind, keys, parts = structure
    values = [_build(p, rest) for p in parts]
    if kind is dict:
        return dict(zip(keys, values, strict=True))
    return kind(*values) if keys is not None else kind(values)
