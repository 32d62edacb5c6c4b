"""Products that sum over shared axes: matmul and what is written with it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.core.autocast import CAST, narrowed
from everyo.core.namespace import TENSORS
from everyo.core.op import DERIVED, Sample, apply, op, run
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.ops.movement import reshape, transpose
from everyo.ops.reduce import axes_of


def _swap(xp: Any, a: Any) -> Any:
    n = len(a.shape)
    return xp.transpose(a, (*range(n - 2), n - 1, n - 2))


def _row(xp: Any, a: Any) -> Any:
    return xp.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))


def _column(xp: Any, a: Any) -> Any:
    return xp.reshape(a, (*a.shape, 1))


def _stacked(a: Any, b: Any) -> bool:
    """A batch of matrices times one matrix: the batch is a taller matrix, one product for all."""
    return len(a.shape) > 2 and len(b.shape) == 2


def _tall(xp: Any, a: Any) -> Any:
    return xp.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))


def _left(xp, g, y, a, b):
    if _stacked(a, b):
        return xp.reshape(xp.matmul(_tall(xp, g), _swap(xp, b)), a.shape)
    if len(a.shape) == len(b.shape) == 1:
        return xp.multiply(g, b)
    if len(b.shape) == 1:
        return xp.multiply(_column(xp, g), b)
    if len(a.shape) == 1:
        product = xp.matmul(_row(xp, g), _swap(xp, b))
        return xp.reshape(product, (*product.shape[:-2], product.shape[-1]))
    return xp.matmul(g, _swap(xp, b))


def _right(xp, g, y, a, b):
    if _stacked(a, b):
        return xp.matmul(_swap(xp, _tall(xp, a)), _tall(xp, g))
    if len(a.shape) == len(b.shape) == 1:
        return xp.multiply(g, a)
    if len(a.shape) == 1:
        return xp.multiply(_column(xp, a), _row(xp, g))
    if len(b.shape) == 1:
        product = xp.matmul(_swap(xp, a), _column(xp, g))
        return xp.reshape(product, product.shape[:-1])
    return xp.matmul(_swap(xp, a), g)


_SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((2, 3, 4), (4, 5)),
    ((4,), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 2)),
]  # fmt: skip


@op(
    vjp=(_left, _right),
    saves=("b", "a"),
    kind="contraction",
    samples=[Sample(s) for s in _SHAPES],
    reference=np.matmul,
)
def matmul_(xp, a, b):
    """The matrix product a @ b: vectors, matrices and broadcast batches of them."""
    if len(getattr(b, "shape", ())) == 2 and len(getattr(a, "shape", ())) > 2:
        return xp.reshape(xp.matmul(_tall(xp, a), b), (*a.shape[:-1], b.shape[-1]))
    return xp.matmul(a, b)


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product a @ b, (..., m, k) @ (..., k, n) -> (..., m, n); a vector is a row on the
    left and a column on the right, and its axis disappears. Leading axes broadcast.

    Raises `EveryOShapeError` for 0-d operands and for sizes that do not meet.
    """
    if CAST.dtype is not None:
        a, b = narrowed(as_tensor(a)), narrowed(as_tensor(b))
    try:
        return run(MATMUL, (a, b), {})
    except EveryOShapeError:
        left, right = as_tensor(a).shape, as_tensor(b).shape
        if not left or not right:
            raise EveryOShapeError(
                f"matmul needs operands with at least one dimension, got shapes {left} and {right}"
            ) from None
        inner = right[-2] if len(right) > 1 else right[0]
        if left[-1] != inner:
            hint = ". Did you mean b.T?" if len(right) == 2 and left[-1] == right[1] else ""
            raise EveryOShapeError(
                f"matmul: inner dimensions differ: a {left} @ b {right}, {left[-1]} != {inner}"
                f"{hint}"
            ) from None
        raise EveryOShapeError(
            f"matmul: cannot broadcast the batches of shapes {left} and {right}"
        ) from None


MATMUL = matmul_.op
TENSORS.matmul = matmul
setattr(Tensor, "matmul", lambda self, other: matmul(self, other))  # noqa: B010
setattr(Tensor, "__matmul__", matmul)  # noqa: B010
setattr(Tensor, "__rmatmul__", lambda a, b: matmul(b, a))  # noqa: B010


def dot(a: Any, b: Any) -> Tensor:
    """The inner product of two vectors, 0-d; `matmul` for other ranks."""
    a, b = as_tensor(a), as_tensor(b)
    if len(a.shape) == len(b.shape) == 1 and a.shape != b.shape:
        raise EveryOShapeError(
            f"dot: vectors of {a.shape[0]} and {b.shape[0]} elements; inner dimensions differ"
        )
    return matmul(a, b)


def outer(a: Any, b: Any) -> Tensor:
    """All products of elements: (m,), (n,) -> (m, n); higher ranks are flattened."""
    return reshape(as_tensor(a), (-1, 1)) * reshape(as_tensor(b), (1, -1))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    """The sum of products over pairs of axes: the last `axes` of a, the first of b, or lists."""
    a, b = as_tensor(a), as_tensor(b)
    if isinstance(axes, int | np.integer):
        left, right = tuple(range(len(a.shape) - int(axes), len(a.shape))), tuple(range(int(axes)))
    else:
        pair = [x if isinstance(x, tuple | list) else (x,) for x in axes]
        left, right = (
            tuple(axes_of(t, i)[0] for i in p) for t, p in zip((a, b), pair, strict=True)
        )
    if len(left) != len(right) or any(
        a.shape[i] != b.shape[j] for i, j in zip(left, right, strict=True)
    ):
        raise EveryOShapeError(
            f"tensordot: axes {axes} of shapes {a.shape} and {b.shape} do not match"
        )
    free_a = [i for i in range(len(a.shape)) if i not in left]
    free_b = [i for i in range(len(b.shape)) if i not in right]
    k = math.prod(a.shape[i] for i in left)
    m, n = (math.prod(t.shape[i] for i in f) for t, f in ((a, free_a), (b, free_b)))
    product = matmul(
        reshape(transpose(a, (*free_a, *left)), (m, k)),
        reshape(transpose(b, (*right, *free_b)), (k, n)),
    )
    return reshape(product, (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b)))


setattr(Tensor, "dot", lambda self, other: dot(self, other))  # noqa: B010
for _function in (dot, outer, tensordot):
    setattr(TENSORS, _function.__name__, _function)


# ---------------------------------------------------------------------------------- einsum


def _contract(xp: Any, x: Any, left: str, y: Any, right: str, keep: set[str]) -> tuple[Any, str]:
    """The product of two labelled arrays, summed over shared labels that nobody else keeps."""
    x, left = _sum_out(xp, x, left, keep | set(right))
    y, right = _sum_out(xp, y, right, keep | set(left))
    shared = [c for c in left if c in right]
    batch, summed = [c for c in shared if c in keep], [c for c in shared if c not in keep]
    free_x, free_y = [c for c in left if c not in shared], [c for c in right if c not in shared]
    size = {**dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    b, k, m, n = ([size[c] for c in labels] for labels in (batch, summed, free_x, free_y))
    x = xp.transpose(x, tuple(left.index(c) for c in batch + free_x + summed))
    y = xp.transpose(y, tuple(right.index(c) for c in batch + summed + free_y))
    x, y = (
        xp.reshape(x, (*b, math.prod(m), math.prod(k))),
        xp.reshape(y, (*b, math.prod(k), math.prod(n))),
    )
    return xp.reshape(xp.matmul(x, y), (*b, *m, *n)), "".join(batch + free_x + free_y)


def _sum_out(xp: Any, x: Any, labels: str, keep: set[str]) -> tuple[Any, str]:
    """Take diagonals of repeated labels and sum over labels that are not kept."""
    for c in sorted({c for c in labels if labels.count(c) > 1}):
        at = [i for i, d in enumerate(labels) if d == c]
        rest = [i for i in range(len(labels)) if i not in at]
        x = xp.transpose(x, (*at, *rest))
        x = xp.getitem(x, (np.arange(x.shape[0]),) * len(at))
        labels = c + "".join(labels[i] for i in rest)
    gone = tuple(i for i, c in enumerate(labels) if c not in keep)
    if gone:
        x = xp.sum(x, axis=gone, keepdims=False)
    return x, "".join(c for c in labels if c in keep)


@op(
    vjp=DERIVED,
    arity=-1,
    kind="contraction",
    samples=(
        Sample(((3, 4), (4, 5)), params={"spec": ("ij", "jk", "ik")}),
        Sample(((2, 3, 4), (2, 4, 5), (5,)), params={"spec": ("bij", "bjk", "k", "bi")}),
        Sample(((4, 4),), params={"spec": ("ii", "")}),
        Sample(((3, 4),), params={"spec": ("ij", "ji")}),
    ),
    reference=lambda *a, spec: np.einsum(",".join(spec[:-1]) + "->" + spec[-1], *a),
)
def einsum_(xp, *operands, spec):
    """The op behind `einsum`: labels per operand and of the result."""
    *inputs, result = spec
    x, labels = operands[0], inputs[0]
    for i in range(1, len(operands)):
        later = set(result).union(*inputs[i + 1 :])
        x, labels = _contract(xp, x, labels, operands[i], inputs[i], later)
    x, labels = _sum_out(xp, x, labels, set(result))
    return xp.transpose(x, tuple(labels.index(c) for c in result))


def einsum(spec: str, *operands: Any) -> Tensor:
    """Einstein summation, e.g. `einsum("bij,bjk->bik", a, b)`; `...` stands for leading axes.

    Raises `EveryOShapeError` if labels, ranks and sizes do not fit.
    """
    tensors = [as_tensor(t) for t in operands]
    labels = _labels(spec, tensors)
    return apply(einsum_.op, *tensors, spec=labels)


def _labels(spec: str, tensors: Sequence[Tensor]) -> tuple[str, ...]:
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        raise EveryOShapeError(f"einsum {spec!r} names {len(parts)} operands, got {len(tensors)}")
    widest = 0
    for part, t in zip(parts, tensors, strict=True):
        if "..." in part:
            widest = _larger(widest, len(t.shape) - len(part.replace("...", "")))
    pool = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in text]
    dots = "".join(pool[:widest])
    inputs: list[str] = []
    sizes: dict[str, int] = {}
    for part, t in zip(parts, tensors, strict=True):
        extra = len(t.shape) - len(part.replace("...", ""))
        named = (
            part.replace("...", dots[widest - extra :]) if "..." in part and extra >= 0 else part
        )
        if len(named) != len(t.shape) or (not named.replace("...", "").isalpha() and named):
            raise EveryOShapeError(
                f"einsum {spec!r}: {part!r} does not label a tensor of shape {t.shape}"
            )
        for c, n in zip(named, t.shape, strict=True):
            if sizes.setdefault(c, n) != n:
                raise EveryOShapeError(f"einsum {spec!r}: label {c!r} has sizes {sizes[c]} and {n}")
        inputs.append(named)
    if not arrow:
        every = "".join(inputs)
        right = dots + "".join(
            sorted(c for c in set(every) if every.count(c) == 1 and c not in dots)
        )
    result = right.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set(sizes):
        raise EveryOShapeError(
            f"einsum {spec!r}: the result labels {right!r} must be distinct and appear on the left"
        )
    return (*inputs, result)


def _larger(a: int, b: int) -> int:
    return a if a > b else b


TENSORS.einsum = lambda spec, *operands: einsum(spec, *operands)
