"""Writes docs/ops.md from the op records and the functions composed of them.

python docs/generate_ops.py
"""

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everyo as eo
from everyo import ops
from everyo.core.op import DERIVED, OPS, Op
from everyo.core.tensor import Tensor

PAGE = Path(__file__).parent / "ops.md"

INTRODUCTION = """\
# Operations

Generated from the op records by `python docs/generate_ops.py`; a test fails when it is stale.

Operands are tensors, arrays or numbers and broadcast as in NumPy; `axis` is an int, a tuple of
ints or None for all axes. **d** says for which operands there is a gradient; where it is empty,
the function is composed of ops that say it. **method** says how a tensor spells it. NumPy's
functions of the same name (`np.exp(t)`, `np.sum(t, axis=0)`) come to these ops too.

"""

UNDERNEATH = """\
## Underneath

Records that have no public function of their own: what `concatenate`, indexing, `clip` and the
losses are made of.

"""

SIGNS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//",
    "__mod__": "%", "__pow__": "**", "__matmul__": "@", "__eq__": "==", "__ne__": "!=",
    "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__neg__": "-t",
    "__abs__": "abs(t)",
}  # fmt: skip


def page() -> str:
    """The text of docs/ops.md."""
    parts = [INTRODUCTION]
    for module in modules():
        rows = [row(name, function) for name, function in public_functions(module)]
        if rows:
            title = (module.__doc__ or "").split(":")[0].split(".")[0].strip()
            parts.append(f"## {title}\n\n{table(rows)}\n")
    hidden = [row(op.name, op.forward, op) for op in OPS.values() if not is_public(op)]
    parts.append(f"{UNDERNEATH}{table(hidden)}")
    return "".join(parts)


def modules() -> list[types.ModuleType]:
    """The modules of ops in the order of their names."""
    found = vars(ops).values()
    return sorted((m for m in found if inspect.ismodule(m)), key=lambda m: m.__name__)


def public_functions(module: types.ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    """The functions of `everyo` that the module defines, in the order of its source."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and getattr(eo, name, None) is value
    ]


def is_public(op: Op) -> bool:
    """Whether the record's own function, or one that wraps it under its name, is public."""
    return callable(getattr(eo, op.name, None))


def row(name: str, function: Callable[..., Any], op: Op | None = None) -> tuple[str, ...]:
    """The cells of one function: signature, meaning, gradients, spellings."""
    record = op or getattr(function, "op", None) or OPS.get(name)
    lines = (inspect.getdoc(function) or "").split("\n\n")[0].split("\n")
    meaning = " ".join(line.strip() for line in lines)
    return f"`{name}{signature(function)}`", meaning, gradients(record), spelling(name, function)


def signature(function: Callable[..., Any]) -> str:
    """The parameters without types, and without the namespace that forwards take first."""
    parameters = [
        p.replace(annotation=p.empty)
        for p in inspect.signature(function).parameters.values()
        if p.name != "xp"
    ]
    return str(inspect.Signature(parameters))


def gradients(record: Op | None) -> str:
    """The operands that have a gradient."""
    if record is None:
        return ""
    if record.vjp is None:
        return "no"
    if record.vjp is DERIVED:
        return "all"
    if not isinstance(record.vjp, tuple):
        return "first" if record.rule(1) is None else "all"
    if None not in record.vjp:
        return "yes" if len(record.vjp) == 1 else "all"
    names = list(inspect.signature(record.forward).parameters)[1:]
    return ", ".join(n for n, rule in zip(names, record.vjp, strict=False) if rule is not None)


def spelling(name: str, function: Callable[..., Any]) -> str:
    """The operator and the method of tensors that are this function."""
    signs = [f"`{sign}`" for method, sign in SIGNS.items() if getattr(Tensor, method) is function]
    if inspect.isfunction(getattr(Tensor, name, None)):
        signs.append(f"`t.{name}`")
    return " ".join(signs)


def table(rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| function | meaning | d | method |", "| --- | --- | --- | --- |"]
    for cells in rows:
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
