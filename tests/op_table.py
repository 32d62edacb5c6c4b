"""The table behind test_ops.py: one `Case` per sample of every op record, and of the functions
that are composed of ops.

A case is a function of arrays alone (parameters are bound), what NumPy says it must be, and
operands. `tests/test_ops.py` states the laws.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import everyo as eo
from everyo.core.namespace import TENSORS
from everyo.core.op import DERIVED, OPS, Op, Sample, apply

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 1e-300, 700.0, -800.0]
)
DTYPES = ("float16", "float32", "float64", "int32", "int64", "bool")


@dataclass(frozen=True, eq=False)
class Case:
    """`call(*operands)` on tensors must be `reference(*operands)` on arrays. Gradients are defined
    for the operands at `positions`."""

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any] | None
    operands: tuple[Any, ...]
    positions: tuple[int, ...]
    second: bool = True
    op: Op | None = None

    def tensors(self, dtype: Any = None, wanted: tuple[int, ...] | None = None) -> list[Any]:
        """The operands as the call takes them: floating arrays as tensors over copies of them."""
        wanted = self.positions if wanted is None else wanted
        out = []
        for i, a in enumerate(self.operands):
            if isinstance(a, np.ndarray) and a.dtype.kind == "f":
                out.append(eo.tensor(a, dtype=dtype or a.dtype, requires_grad=i in wanted))
            else:
                out.append(a.copy() if isinstance(a, np.ndarray) else a)
        return out

    def bound(self, *given: Any) -> Any:
        """The call as a function of the operands at `positions` alone."""
        operands = list(self.operands)
        for i, value in zip(self.positions, given, strict=True):
            operands[i] = value
        return self.call(*operands)

    @property
    def inputs(self) -> list[Any]:
        """The operands at `positions`."""
        return [self.operands[i] for i in self.positions]

    def gradients(self, dtype: Any = None) -> list[Any]:
        """The gradients by the operands at `positions`, for a fixed random seed gradient."""
        given = self.tensors(dtype)
        out = self.call(*given)
        out.backward(seed_like(out))
        return [given[i].grad for i in self.positions]


def seed_like(out: Any) -> np.ndarray:
    """A gradient to start from, different at every entry."""
    values = np.random.default_rng(7).uniform(0.5, 1.5, out.shape)
    return np.asarray(values, out.dtype)


def drawn(sample: Sample, seed: int = 0) -> tuple[Any, ...]:
    """The operands of a sample."""
    generator = np.random.default_rng(seed)
    out = []
    for i, shape in enumerate(sample.shapes):
        value = np.asarray(generator.uniform(sample.low, sample.high, shape), sample.dtype)
        out.append(sample.fixed.get(i, value))
    return tuple(np.array(v) if isinstance(v, np.ndarray) else v for v in out)


def reference_of(op: Op) -> Callable[..., Any] | None:
    """What NumPy says the op is: the record's reference, or NumPy's function of that name."""
    return op.reference or getattr(np, op.name, None)


def public_of(op: Op) -> Callable[..., Any]:
    """The function that applies a record: operands, then parameters."""
    variadic = any(
        p.kind is p.VAR_POSITIONAL for p in inspect.signature(op.forward).parameters.values()
    )
    return functools.partial(apply, op) if variadic else getattr(TENSORS, op.name)


def record_cases() -> list[Case]:
    """A case for every sample of every op record."""
    cases = []
    for op in OPS.values():
        public = public_of(op)
        for k, sample in enumerate(op.samples):
            operands = drawn(sample)
            positions = ()
            if op.vjp is not None and sample.smooth:
                positions = tuple(
                    i
                    for i, a in enumerate(operands)
                    if isinstance(a, np.ndarray)
                    and a.dtype.kind == "f"
                    and (op.vjp is DERIVED or op.rule(i) is not None)
                )
            reference = reference_of(op)
            cases.append(
                Case(
                    f"{op.name}-{k}",
                    functools.partial(_called, public, sample.params),
                    reference and functools.partial(_called, reference, sample.params),
                    operands,
                    positions,
                    sample.second,
                    op,
                )
            )
    return cases


def _called(function: Callable[..., Any], params: dict[str, Any], *operands: Any) -> Any:
    return function(*operands, **params)


# ---------------------------------------------------------------------------------- composed


@dataclass(frozen=True)
class Composed:
    """A function composed of ops: name, function of tensors, the same on arrays, operand shapes."""

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),)
    smooth: bool = True
    fixed: dict[int, Any] = field(default_factory=dict)


MASK = np.array([True, False, True])
ROWS = np.array([2, 0, 2])
ALONG = np.array([[0, 3, 1], [2, 2, 0], [1, 0, 3]])


def _scattered(a: np.ndarray, v: np.ndarray, axis: int) -> np.ndarray:
    out = a.copy()
    key = list(np.indices(v.shape))
    key[axis] = ALONG
    np.add.at(out, tuple(key), v)
    return out


def _first(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return lambda a: function(a, **kwargs)[0]


COMPOSED = (
    Composed("concatenate", lambda a, b: eo.concatenate([a, b], axis=1),
             lambda a, b: np.concatenate([a, b], axis=1), ((3, 4), (3, 2))),
    Composed("concatenate-negative", lambda a, b: eo.concatenate([a, b], axis=-2),
             lambda a, b: np.concatenate([a, b], axis=-2), ((3, 4), (1, 4))),
    Composed("stack", lambda a, b: eo.stack([a, b]), lambda a, b: np.stack([a, b]), ((3, 4),) * 2),
    Composed("stack-last", lambda a, b: eo.stack([a, b], axis=-1),
             lambda a, b: np.stack([a, b], axis=-1), ((3, 4),) * 2),
    Composed("split", lambda a: eo.split(a, 2, axis=1)[1], lambda a: np.split(a, 2, axis=1)[1]),
    Composed("split-at", lambda a: eo.split(a, [1, 3], axis=-1)[1],
             lambda a: np.split(a, [1, 3], axis=-1)[1]),
    Composed("roll", lambda a: eo.roll(a, 5), lambda a: np.roll(a, 5)),
    Composed("roll-axes", lambda a: eo.roll(a, (1, -2), axis=(0, 1)),
             lambda a: np.roll(a, (1, -2), axis=(0, 1))),
    Composed("roll-one-shift", lambda a: eo.roll(a, 1, axis=(0, 1)),
             lambda a: np.roll(a, 1, axis=(0, 1))),
    Composed("tile", lambda a: eo.tile(a, (2, 1, 3)), lambda a: np.tile(a, (2, 1, 3))),
    Composed("tile-short", lambda a: eo.tile(a, 2), lambda a: np.tile(a, 2)),
    Composed("repeat", lambda a: eo.repeat(a, 3), lambda a: np.repeat(a, 3)),
    Composed("repeat-axis", lambda a: eo.repeat(a, 2, axis=-1), lambda a: np.repeat(a, 2, axis=-1)),
    Composed("tril", lambda a: eo.tril(a, -1), lambda a: np.tril(a, -1), ((2, 4, 4),)),
    Composed("triu", lambda a: eo.triu(a, 1), lambda a: np.triu(a, 1), ((4, 3),)),
    Composed("squeeze", lambda a: eo.squeeze(a), lambda a: np.squeeze(a), ((1, 3, 1),)),
    Composed("squeeze-axis", lambda a: eo.squeeze(a, -1), lambda a: np.squeeze(a, -1),
             ((1, 3, 1),)),
    Composed("unsqueeze", lambda a: eo.unsqueeze(a, -2), lambda a: np.expand_dims(a, -2)),
    Composed("flatten", lambda a: eo.flatten(a), lambda a: a.reshape(-1)),
    Composed("flatten-tail", lambda a: eo.flatten(a, 1), lambda a: a.reshape(2, -1), ((2, 3, 4),)),
    Composed("flatten-0d", lambda a: eo.flatten(a), lambda a: a.reshape(1), ((),)),
    Composed("T", lambda a: a.T, lambda a: a.T, ((2, 3, 4),)),
    Composed("take_along_axis", lambda a: eo.take_along_axis(a, ALONG, axis=1),
             lambda a: np.take_along_axis(a, ALONG, axis=1)),
    Composed("take_along_axis-broadcast", lambda a: eo.take_along_axis(a, ALONG[:1], axis=1),
             lambda a: np.take_along_axis(a, ALONG[:1], axis=1)),
    Composed("gather", lambda a: eo.gather(a, 1, ALONG), lambda a: np.take_along_axis(a, ALONG, 1)),
    Composed("gather-fewer", lambda a: eo.gather(a, 1, ALONG[:2]),
             lambda a: np.take_along_axis(a[:2], ALONG[:2], 1)),
    Composed("scatter_add", lambda a, v: eo.scatter_add(a, 1, ALONG, v),
             lambda a, v: _scattered(a, v, 1), ((3, 4), (3, 3))),
    Composed("sort", lambda a: eo.sort(a), lambda a: np.sort(a), ((4, 5),)),
    Composed("sort-descending", lambda a: eo.sort(a, axis=0, descending=True),
             lambda a: np.sort(a, axis=0)[::-1], ((4, 5),)),
    Composed("argsort", lambda a: eo.argsort(a, axis=0), lambda a: np.argsort(a, 0, kind="stable"),
             ((4, 5),), smooth=False),
    Composed("topk", _first(eo.topk, k=2), lambda a: np.sort(a)[..., :-3:-1], ((4, 5),)),
    Composed("topk-smallest", _first(eo.topk, k=3, axis=0, largest=False),
             lambda a: np.sort(a, axis=0)[:3], ((4, 5),)),
    Composed("topk-positions", lambda a: eo.topk(a, 2)[1],
             lambda a: np.argsort(-a, axis=-1, kind="stable")[..., :2], ((4, 5),), smooth=False),
    Composed("argmax", lambda a: eo.argmax(a, 0), lambda a: np.argmax(a, 0), smooth=False),
    Composed("argmax-flat", lambda a: a.argmax(), np.argmax, smooth=False),
    Composed("argmin", lambda a: eo.argmin(a, -1), lambda a: np.argmin(a, -1), smooth=False),
    Composed("outer", eo.outer, np.outer, ((3,), (4,))),
    Composed("tensordot", lambda a, b: eo.tensordot(a, b, axes=2),
             lambda a, b: np.tensordot(a, b, axes=2), ((2, 3, 4), (3, 4, 5))),
    Composed("tensordot-axes", lambda a, b: eo.tensordot(a, b, axes=([0, 2], [1, 0])),
             lambda a, b: np.tensordot(a, b, axes=([0, 2], [1, 0])), ((2, 3, 4), (4, 2))),
    Composed("tensordot-none", lambda a, b: eo.tensordot(a, b, axes=0),
             lambda a, b: np.tensordot(a, b, axes=0), ((2,), (3,))),
    Composed("dot", eo.dot, np.dot, ((4,), (4,))),
    Composed("dot-matrix", eo.dot, np.dot, ((3, 4), (4,))),
    Composed("einsum-dots", lambda a, b: eo.einsum("...ij,jk->...ik", a, b),
             lambda a, b: np.einsum("...ij,jk->...ik", a, b), ((2, 3, 4), (4, 5))),
    Composed("einsum-implicit", lambda a, b: eo.einsum("ij,kj", a, b),
             lambda a, b: np.einsum("ij,kj", a, b), ((3, 4), (5, 4))),
    Composed("einsum-diagonal", lambda a: eo.einsum("iij->ij", a),
             lambda a: np.einsum("iij->ij", a), ((3, 3, 2),)),
    Composed("clip", lambda a: eo.clip(a, -0.7, 0.9), lambda a: np.clip(a, -0.7, 0.9)),
    Composed("clip-below", lambda a: a.clip(low=0.1), lambda a: np.clip(a, 0.1, None)),
    Composed("clip-tensors", lambda a, low: eo.clip(a, low, 1.5),
             lambda a, low: np.clip(a, low, 1.5), ((3, 4), (4,))),
    Composed("matmul-operator", lambda a, b: a @ b, np.matmul, ((3, 4), (4, 2))),
    Composed("index-rows", lambda a: a[ROWS], lambda a: a[ROWS]),
    Composed("index-mask", lambda a: a[MASK], lambda a: a[MASK]),
    Composed("index-mask-2d", lambda a: a[ALONG[:, :2] > 0], lambda a: a[ALONG[:, :2] > 0],
             ((3, 2, 2),)),
    Composed("index-mixed", lambda a: a[1:, None, ROWS], lambda a: a[1:, None, ROWS]),
    Composed("index-separated", lambda a: a[ROWS, :, ROWS], lambda a: a[ROWS, :, ROWS],
             ((3, 2, 4),)),
    Composed("index-list", lambda a: a[[0, -1], [1, 1]], lambda a: a[[0, -1], [1, 1]]),
    Composed("index-empty", lambda a: a[[]], lambda a: a[np.array([], int)]),
    Composed("index-tensor", lambda a: a[eo.tensor([2, 0])], lambda a: a[[2, 0]]),
    Composed("index-int-ellipsis", lambda a: a[..., -1], lambda a: a[..., -1], ((2, 3, 4),)),
    Composed("index-step", lambda a: a[::-2, 1:], lambda a: a[::-2, 1:]),
    Composed("operators", lambda a, b: -(1.5 - a) / (b * b + 2) ** 1.5 + abs(a) % 0.7,
             lambda a, b: -(1.5 - a) / (b * b + 2) ** 1.5 + abs(a) % 0.7, ((3, 4), (4,))),
    Composed("power-of-number", lambda a: 2.5**a, lambda a: 2.5**a),
    Composed("divide-number", lambda a: 3 / a, lambda a: 3 / a),
)  # fmt: skip


def composed_cases() -> list[Case]:
    """A case for every entry of `COMPOSED`."""
    cases = []
    for c in COMPOSED:
        operands = drawn(Sample(c.shapes, fixed=c.fixed), seed=len(c.name))
        positions = tuple(range(len(operands))) if c.smooth else ()
        cases.append(Case(c.name, c.function, c.reference, operands, positions))
    return cases


CASES = (*record_cases(), *composed_cases())
ELEMENTWISE = tuple(
    op
    for op in OPS.values()
    if op.kind == "elementwise" and op.name not in ("astype", "where", "clip_between")
)
REDUCTIONS = tuple(op for op in OPS.values() if op.kind in ("reduction", "scan"))
