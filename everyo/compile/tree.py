"""Nested containers of arguments and results: flattened to leaves and a hashable structure."""

from typing import Any

Structure = Any  # None for a leaf, else (type, keys or None, structures of the parts)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested dicts, lists and tuples, in order, and what puts them together again."""
    leaves: list[Any] = []

    def walk(x: Any) -> Structure:
        kind = type(x)
        if kind is tuple or kind is list:
            return (kind, None, tuple([walk(v) for v in x]))
        if kind is dict:
            return (kind, tuple(x), tuple([walk(v) for v in x.values()]))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return (kind, x._fields, tuple([walk(v) for v in x]))
        leaves.append(x)
        return None

    return leaves, walk(tree)


def unflatten(structure: Structure, leaves: Any) -> Any:
    """The tree with these leaves."""
    rest = iter(leaves)

    def build(s: Structure) -> Any:
        if s is None:
            return next(rest)
        kind, keys, parts = s
        values = [build(p) for p in parts]
        if kind is dict:
            return dict(zip(keys, values, strict=True))
        return kind(*values) if keys is not None else kind(values)

    return build(structure)
