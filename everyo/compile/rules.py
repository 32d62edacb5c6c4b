"""Local simplifications: a rule looks at one node, and returns a better one or None.

It is asked about the ops that `LOCAL` lists for it, when their operands are simplified already.
What a rule makes goes through `make`, so that rules apply to it in turn. Each rule keeps the bits
of every value (see passes.py), so there is no algebra here that only holds for real numbers: x * 0,
x - x, x / x and x + 0.0 stay.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.interpret import evaluate
from everyo.compile.ir import BOOL, F16, F32, F64, I32, I64, Node, Shape

Make = Callable[..., Node]  # Table.make, with the rules applied to what it makes
Rule = Callable[[Node, Make], Node | None]


# What rules look at


def literal(node: Node) -> Any:
    """The one value that all elements of `node` have by construction; None if there is none."""
    while node.op in ("reshape", "broadcast") and node.size:
        node = node.inputs[0]
    return node.param("value") if node.op == "const" else None


def is_literal(node: Node, value: float) -> bool:
    """Whether all elements are `value`; for 0.0, of the same sign."""
    found = literal(node)
    if found is None or found != value:
        return False
    return node.dtype.kind != "f" or math.copysign(1, found) == math.copysign(1, value)


def full(make: Make, value: Any, like: Node, dtype: np.dtype | None = None) -> Node:
    """`value` in the shape of `like`, and in its dtype."""
    dtype = like.dtype if dtype is None else dtype
    const = make("const", value=dtype.type(value).item(), dtype=dtype)
    return fit(make, make("reshape", const, shape=(1,) * like.ndim), like.shape)


def fit(make: Make, node: Node, shape: Shape) -> Node:
    return make("broadcast", node, shape=shape)


def fuse_axes(axes: Sequence[int], gone: Sequence[int]) -> tuple[int, ...]:
    """The numbers that `axes` have once the axes `gone` have been removed."""
    return tuple(a - sum(g < a for g in gone) for a in axes if a not in gone)


# Views: one of a kind, slices innermost, then transposes, reshapes and broadcasts


def views(node: Node, make: Make) -> Node | None:
    (x,) = node.inputs
    params = dict(node.params)
    match node.op, x.op:
        case ("reshape" | "broadcast", _) if node.shape == x.shape:
            return x
        case ("reshape", "reshape") | ("broadcast", "broadcast"):
            return make(node.op, x.inputs[0], shape=node.shape)
        case "transpose", _ if moves_only_ones(x.shape, params["axes"]):
            return make("reshape", x, shape=node.shape)
        case "transpose", "transpose":
            inner = x.param("axes")
            return make("transpose", x.inputs[0], axes=tuple(inner[a] for a in params["axes"]))
        case "transpose", "broadcast":
            return fit(make, make("transpose", x.inputs[0], axes=params["axes"]), node.shape)
        case "slice", _ if is_whole(params, x.shape):
            return x
        case "slice", "slice":
            return make("slice", x.inputs[0], **slice_of_slice(dict(x.params), params))
        case "slice", "broadcast":
            inner = x.inputs[0]
            once = [inner.shape[a] != n for a, n in enumerate(x.shape)]
            starts = tuple(0 if o else s for o, s in zip(once, params["starts"], strict=True))
            steps = tuple(1 if o else s for o, s in zip(once, params["steps"], strict=True))
            sizes = tuple(1 if o else s for o, s in zip(once, params["sizes"], strict=True))
            y = make("slice", inner, starts=starts, steps=steps, sizes=sizes)
            return fit(make, y, node.shape)
        case "slice", "transpose":
            axes = x.param("axes")
            back = np.argsort(axes)
            moved = {k: tuple(v[a] for a in back) for k, v in params.items()}
            return make("transpose", make("slice", x.inputs[0], **moved), axes=axes)
        case "reshape", "broadcast" if literal(x) is not None:
            return full(make, literal(x), node)
    return None


def moves_only_ones(shape: Shape, axes: Shape) -> bool:
    """Whether a transpose keeps the order of the elements."""
    order = [a for a in axes if shape[a] != 1]
    return order == sorted(order)


def is_whole(params: dict[str, Any], shape: Shape) -> bool:
    return params["sizes"] == shape and all(
        n <= 1 or (start == 0 and step == 1)
        for n, start, step in zip(shape, params["starts"], params["steps"], strict=True)
    )


def slice_of_slice(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Shape]:
    at = zip(inner["starts"], inner["steps"], outer["starts"], strict=True)
    by = zip(inner["steps"], outer["steps"], strict=True)
    return {
        "starts": tuple(start + step * first for start, step, first in at),
        "steps": tuple(step * again for step, again in by),
        "sizes": outer["sizes"],
    }


# Constants


def fold(node: Node, make: Make) -> Node | None:
    """Pointwise ops on literals are computed now, by the interpreter, in the node's own dtype."""
    values = []
    for i in node.inputs:
        values.append(literal(i))
        if values[-1] is None:
            return None
    args = [np.asarray(v, i.dtype) for v, i in zip(values, node.inputs, strict=True)]
    with np.errstate(all="ignore"):
        return full(make, evaluate(node, args).item(), node)


def narrow(node: Node, make: Make) -> Node | None:
    """A pointwise op on repeated elements is computed once, and its result repeated."""
    for i in node.inputs:
        if i.op != "broadcast":
            return None
    big = [a for a, n in enumerate(node.shape) if n != 1]
    wide = [a for a in big if all(repeats(i, a) for i in node.inputs)]
    if not wide:
        return None
    shape = tuple(1 if a in wide else n for a, n in enumerate(node.shape))
    args = [fit(make, i.inputs[0], shape) for i in node.inputs]
    return fit(make, make(node.op, *args, **dict(node.params)), node.shape)


def repeats(node: Node, axis: int) -> bool:
    return node.op == "broadcast" and node.inputs[0].shape[axis] == 1


# Casts


def casts(node: Node, make: Make) -> Node | None:
    """A cast after a cast that loses nothing."""
    if node.op == "copy":  # storage is decided later: here a copy is its operand
        return node.inputs[0]
    if node.inputs[0].op != "cast":
        return None
    (source,) = node.inputs[0].inputs
    if node.inputs[0].dtype not in LOSSLESS[source.dtype]:
        return None
    return source if source.dtype == node.dtype else make("cast", source, dtype=node.dtype)


LOSSLESS = {BOOL: (I32, I64, F32, F64), I32: (I64, F64), I64: (), F16: (), F32: (F64,), F64: ()}


# Arithmetic


def arithmetic(node: Node, make: Make) -> Node | None:
    """Identities that hold for every value: infinities, NaN, -0.0 and integers that wrap."""
    x, y = node.inputs
    if node.dtype == BOOL or not (x is y or x.op in TELLING or y.op in TELLING):
        return None
    whole = node.dtype.kind == "i"
    match node.op:
        case "add" if is_literal(y, 0 if whole else -0.0):  # x + 0.0 turns -0.0 into 0.0
            return x
        case "add" if y.op == "negative":
            return make("subtract", x, y.inputs[0])
        case "add" if x.op == "negative":
            return make("subtract", y, x.inputs[0])
        case "subtract" if is_literal(y, 0):
            return x
        case "subtract" if is_literal(x, 0 if whole else -0.0):  # 0.0 - x is not -x at 0.0
            return make("negative", y)
        case "subtract" if y.op == "negative":
            return make("add", x, y.inputs[0])
        case "subtract" if whole and x is y:
            return full(make, 0, node)
        case "multiply" | "divide" if x.op == y.op == "negative":
            return make(node.op, x.inputs[0], y.inputs[0])
        case "multiply" | "divide" if x.op == "negative" and literal(y) is not None:
            return make(node.op, x.inputs[0], make("negative", y))
        case "multiply" | "divide" if is_literal(y, 1):
            return x
        case "floor_divide" if whole and is_literal(y, 1):
            return x
        case "multiply" if is_literal(y, -1):
            return make("negative", x)
        case "multiply" if whole and is_literal(y, 0):
            return y
        case "divide" if inverse(y) is not None:
            return make("multiply", x, full(make, inverse(y), y))
        case "remainder" if whole and is_literal(y, 1):
            return full(make, 0, node)
        case "power":
            return power(x, y, make)
        case "maximum" | "minimum" if x is y:
            return x
        case "maximum" if not whole and is_literal(y, -math.inf):
            return x
        case "minimum" if not whole and is_literal(y, math.inf):
            return x
    return None


TELLING = {"const", "reshape", "broadcast", "negative"}  # literals, and what `arithmetic` undoes


def inverse(node: Node) -> float | None:
    """1 / c for a literal power of two: multiplying by it rounds as dividing by c does."""
    value = literal(node)
    if value is None or not math.isfinite(value) or math.frexp(value)[0] not in (0.5, -0.5):
        return None
    tiny, huge = float(np.finfo(node.dtype).tiny), float(np.finfo(node.dtype).max)
    return 1 / value if tiny <= abs(1 / value) <= huge else None


def power(x: Node, y: Node, make: Make) -> Node | None:
    """Small literal exponents. The one rule that may move a last bit: C's pow is not always rounded
    correctly where x * x and 1 / x are. Exponent 0.5 stays: pow(-inf, 0.5) is inf."""
    exponent = literal(y)
    if exponent == 0:
        return full(make, 1, x)
    if exponent == 1:
        return x
    if exponent == 2:
        return make("multiply", x, x)
    if exponent == -1 and x.dtype.kind == "f":
        return make("divide", full(make, 1, x), x)
    return None


def signs(node: Node, make: Make) -> Node | None:
    """Ops of one operand that undo or repeat what was done to it."""
    (x,) = node.inputs
    match node.op, x.op:
        case ("negative", "negative") | ("logical_not", "logical_not"):
            return x.inputs[0]
        case "abs", "negative":
            return make("abs", x.inputs[0])
        case ("abs", "abs") | ("sign", "sign"):
            return x
        case (("floor" | "ceil" | "rint"), ("floor" | "ceil" | "rint")):
            return x
        case "logical_not", op if op in OPPOSITE and has_order(x, op):
            return make(OPPOSITE[op], *x.inputs)
    return None


OPPOSITE = {
    "equal": "not_equal", "not_equal": "equal", "less": "greater_equal", "greater_equal": "less",
    "greater": "less_equal", "less_equal": "greater",
}  # fmt: skip


def has_order(comparison: Node, op: str) -> bool:
    """Whether "not less" is "greater or equal": not with NaN."""
    return op in ("equal", "not_equal") or comparison.inputs[0].dtype.kind != "f"


def commute(node: Node, make: Make) -> Node | None:
    """Operands in one order, literals last, so that a + b and b + a are one node."""
    if node.op in ("maximum", "minimum") and node.dtype.kind == "f":
        return None  # maximum(0.0, -0.0) is its second operand
    x, y = node.inputs
    ordered = (literal(x) is not None, x.index) <= (literal(y) is not None, y.index)
    return None if ordered else make(node.op, y, x)


COMMUTATIVE = {
    "add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "equal",
    "not_equal",
}  # fmt: skip


# Truth values


def logic(node: Node, make: Make) -> Node | None:
    if node.dtype != BOOL:
        return None
    x, y = node.inputs
    if x is y:
        match node.op:
            case "logical_and" | "logical_or" | "maximum" | "minimum":
                return x
            case "logical_xor" | "less" | "greater":
                return full(make, False, node, BOOL)
            case "not_equal" if x.dtype.kind != "f":
                return full(make, False, node, BOOL)
            case "equal" | "less_equal" | "greater_equal" if x.dtype.kind != "f":
                return full(make, True, node, BOOL)
    match node.op, literal(y):
        case ("logical_and", True) | ("logical_or" | "logical_xor", False):
            return x
        case ("logical_and", False) | ("logical_or", True):
            return y
        case "logical_xor", True:
            return make("logical_not", x)
    if x.dtype == BOOL and literal(y) is not None and node.op in ("equal", "not_equal"):
        return x if literal(y) == (node.op == "equal") else make("logical_not", x)
    return None


def select(node: Node, make: Make) -> Node | None:
    c, x, y = node.inputs
    if x is y or literal(c) is True:
        return x
    if literal(c) is False:
        return y
    if c.op == "logical_not":
        return make("where", c.inputs[0], y, x)
    if x.op == "where" and x.inputs[0] is c:
        return make("where", c, x.inputs[1], y)
    if y.op == "where" and y.inputs[0] is c:
        return make("where", c, x, y.inputs[2])
    if node.dtype == BOOL and is_literal(x, True) and is_literal(y, False):
        return c
    if node.dtype == BOOL and is_literal(x, False) and is_literal(y, True):
        return make("logical_not", c)
    return None


# Reductions and pieces


def reductions(node: Node, make: Make) -> Node | None:
    """Reductions over one element, over repeats, and over the results of the same reduction."""
    if node.op == "cumsum" and node.shape[-1] == 1:
        return node.inputs[0]
    if node.op == "cumsum":
        return None
    (x,), axes = node.inputs, node.param("axes")
    ones = [a for a in axes if x.shape[a] == 1]
    if ones:
        y = make("reshape", x, shape=tuple(n for a, n in enumerate(x.shape) if a not in ones))
        if len(ones) < len(axes):
            return make(node.op, y, axes=fuse_axes(axes, ones))
        plus = node.op == "sum" and node.dtype.kind == "f"  # NumPy sums from 0.0: no -0.0 comes out
        return make("add", y, full(make, 0.0, y)) if plus else y
    if node.op in ("sum", "prod") and node.dtype.kind == "f":
        return None  # anything else would add up in another order
    if x.op == node.op:
        kept = [a for a in range(x.inputs[0].ndim) if a not in x.param("axes")]
        return make(
            node.op, x.inputs[0], axes=tuple(sorted((*x.param("axes"), *(kept[a] for a in axes))))
        )
    repeated = [a for a in axes if repeats(x, a)]
    if node.op in ("max", "min") and repeated:
        shape = tuple(1 if a in repeated else n for a, n in enumerate(x.shape))
        return make(node.op, fit(make, x.inputs[0], shape), axes=axes)
    return None


def pieces(node: Node, make: Make) -> Node | None:
    """One assembly, not several over each other, without the pieces that are empty and without what
    a whole piece hides."""
    base, *rest = node.inputs
    starts, steps = node.param("starts"), node.param("steps")
    if base.op == "assemble":
        below, *under = base.inputs
        both = {"starts": (*base.param("starts"), *starts), "steps": (*base.param("steps"), *steps)}
        return make("assemble", below, *under, *rest, **both)
    kept = [i for i, piece in enumerate(rest) if piece.size]
    for i in kept:
        box = {"starts": starts[i], "steps": steps[i], "sizes": rest[i].shape}
        if is_whole(box, base.shape):
            base, kept = rest[i], [k for k in kept if k > i]
    if len(kept) == len(rest):
        return None
    if not kept:
        return base
    new = {"starts": tuple(starts[i] for i in kept), "steps": tuple(steps[i] for i in kept)}
    return make("assemble", base, *[rest[i] for i in kept], **new)


ELEMENTWISE = ir.POINTWISE - {"take"}

# In the order in which they are tried, with the ops that they look at.
LOCAL: dict[Rule, Collection[str]] = {
    views: ir.VIEWS, fold: ELEMENTWISE, narrow: ELEMENTWISE, casts: {"cast", "copy"},
    commute: COMMUTATIVE, arithmetic: ir.BINARY, signs: ir.UNARY, logic: ir.BINARY,
    select: {"where"}, reductions: {*ir.REDUCTIONS, "cumsum"}, pieces: {"assemble"},
}  # fmt: skip
