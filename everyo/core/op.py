"""Op records: each operation, forward and gradient, written once.

A record holds the forward function and one gradient rule (vector-Jacobian product) per operand,
both written against an array namespace `xp`. The same record runs eagerly (`xp` is NumPy), is
recorded by `eo.compile` (`xp` is the trace's builder) and is differentiated again (`xp` is the ops
on tensors). The docs table and the tests are generated from the records too: an op is added here
and nowhere else.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everyo.core.autograd import MODE, TRACES, Node, enable_grad, propagate
from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryODTypeError, EveryOError, EveryOIndexError, EveryOShapeError

Rule = Callable[..., Any]  # rule(xp, g, y, *operands, **params) -> gradient of one operand

OPS: dict[str, "Op"] = {}


class _Derived:
    """Marks a record whose gradient follows from differentiating its forward."""


DERIVED = _Derived()


@dataclass(frozen=True)
class Sample:
    """Operands for the generated tests: arrays drawn from [low, high] in `shapes`, and parameters.

    `fixed` replaces operands by given values (index arrays, labels); `smooth=False` keeps the sample
    out of finite differences; `second=False` out of second-order checks.
    """

    shapes: tuple[tuple[int, ...], ...]
    params: dict[str, Any] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    fixed: dict[int, Any] = field(default_factory=dict)
    smooth: bool = True
    second: bool = True
    dtype: str = "float64"


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. `vjp` holds a rule or None (not differentiable) per operand, or is a function
    from the operand's position to its rule where the number of operands varies; `saves` says, per
    rule, which values it reads: letters of operands ("a", "b", …), "y" for the result, "*" for all
    operands but the first."""

    name: str
    forward: Callable[..., Any]
    vjp: Any
    saves: tuple[str, ...]
    kind: str
    doc: str
    signature: str
    samples: tuple[Sample, ...]
    reference: Callable[..., Any] | None
    primitive: (
        str | None
    )  # the pointwise instruction of the code generators that this op is, if any
    view: bool
    plain: str  # operands that keep their own dtype beside a floating tensor: letters as in `saves`

    def rule(self, i: int) -> Rule | None:
        """The gradient rule of operand `i`."""
        if self.vjp is None:
            return None
        return self.vjp[i] if isinstance(self.vjp, tuple) else self.vjp(i)

    def reads(self, i: int) -> str:
        """The letters of the values that the rule of operand `i` reads."""
        return self.saves[i] if i < len(self.saves) else self.saves[-1] if self.saves else ""


def op(
    *,
    vjp: Any = None,
    saves: str | tuple[str, ...] = "",
    kind: str,
    samples: Sequence[Sample] = (),
    reference: Callable[..., Any] | None = None,
    prepare: Callable[..., dict[str, Any]] | None = None,
    aliases: Sequence[str] = (),
    methods: Sequence[str] = (),
    primitive: str | None = None,
    view: bool = False,
    arity: int | None = None,
    plain: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated forward function `f(xp, *operands, **params)` as an op.

    Returns the public function: operands first, then parameters by position or name. `prepare`
    (operands, params) -> params normalises and checks parameters. `aliases` are further names in the
    namespaces, `methods` the names under which the op becomes a method of `Tensor`.
    """

    def register(forward: Callable[..., Any]) -> Callable[..., Any]:
        name = forward.__name__.rstrip("_")
        _, *declared = inspect.signature(forward).parameters.values()
        operands = [p for p in declared if p.kind is p.POSITIONAL_OR_KEYWORD]
        params = [p for p in declared if p.kind is p.KEYWORD_ONLY]
        rules = (vjp,) if vjp is not None and vjp is not DERIVED and not isinstance(vjp, tuple) \
            and arity is None else vjp  # fmt: skip
        public_signature = inspect.Signature(
            [p.replace(annotation=p.empty) for p in declared if p.kind is not p.KEYWORD_ONLY]
            + [
                p.replace(kind=p.KEYWORD_ONLY if arity == -1 else p.POSITIONAL_OR_KEYWORD)
                for p in params
            ]
        )
        record = Op(
            name, forward, rules, (saves,) if isinstance(saves, str) else saves, kind,
            (forward.__doc__ or "").strip().split("\n")[0], f"{name}{public_signature}",
            tuple(samples), reference, primitive, view, plain,
        )  # fmt: skip
        OPS[name] = record
        variadic = any(p.kind is p.VAR_POSITIONAL for p in declared)
        public = _variadic(record) if variadic else _public(record, len(operands), prepare, params)
        public.__name__ = public.__qualname__ = name
        public.__doc__ = forward.__doc__
        public.__signature__ = public_signature  # type: ignore[attr-defined]
        public.__module__ = forward.__module__
        public.op = record  # type: ignore[attr-defined]
        for alias in (name, *aliases):
            setattr(TENSORS, alias, public)
        for method in methods:
            setattr(Tensor, method, public)
        return public

    return register


def _variadic(record: Op) -> Callable[..., Any]:
    return lambda *operands, **params: apply(record, *operands, **params)


def _public(
    record: Op,
    arity: int,
    prepare: Callable[..., dict[str, Any]] | None,
    params: list[inspect.Parameter],
) -> Callable[..., Any]:
    names = [p.name for p in params]
    if not names and prepare is None:
        if arity == 1:
            return lambda a: apply(record, a)
        if arity == 2:
            return lambda a, b: apply(record, a, b)
        return lambda *operands: apply(record, *operands)
    defaults = {p.name: p.default for p in params if p.default is not p.empty}
    required = [p.name for p in params if p.default is p.empty]

    def public(*args: Any, **given: Any) -> Tensor:
        operands, rest = args[:arity], args[arity:]
        if len(operands) < arity or len(rest) > len(names):
            raise TypeError(f"{record.signature}: got {len(args)} positional arguments")
        given.update(zip(names, rest, strict=False))
        values = {**defaults, **given}
        if len(values) != len(names) or any(n not in values for n in required):
            raise TypeError(f"{record.signature}: got parameters {sorted(given)}")
        if prepare is not None:
            operands = tuple(a if isinstance(a, Tensor) else as_tensor(a) for a in operands)
            values = prepare(*operands, **values)
        return apply(record, *operands, **values)

    return public


_NUMBERS = (float, int, bool)
_NEW = Tensor.__new__


def apply(op: Op, *args: Any, **params: Any) -> Any:
    """Run an op on tensors (or arrays and numbers) and record it where gradients are wanted."""
    trace = MODE.trace if TRACES else None
    data, wants = [], False
    for a in args:
        if isinstance(a, Tensor):
            data.append(a._data if trace is None else trace.read(a))
            if a._requires_grad:
                wants = True
        elif type(a) in _NUMBERS:
            data.append(a)
        else:
            data.append(_coerce(a, len(data), op, args, trace))
    xp = NUMPY if trace is None else trace.xp
    try:
        y = op.forward(xp, *data, **params)
    except EveryOError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise explain(op, error, data, params) from None
    if type(y) is not np.ndarray and trace is None:
        y = np.asarray(y)
    out = _NEW(Tensor)
    out._data = y
    out._grad = out.name = out._cell = out.grad_node = None
    out._requires_grad = False
    if op.view:
        _share(args[0], out)
    if wants and MODE.grad and op.vjp is not None and y.dtype.kind == "f":
        _record(op, args, data, out, params)
    return out


def _record(op: Op, args: tuple, data: list, out: Tensor, params: dict[str, Any]) -> None:
    """Hang a node on `out`: the closure holds the arrays, never `out` itself, so no cycle exists."""
    positions, parents = [], []
    for i, a in enumerate(args):
        if (
            isinstance(a, Tensor)
            and a._requires_grad
            and (op.vjp is DERIVED or op.rule(i) is not None)
        ):
            positions.append(i)
            parents.append(a)
    if not parents:
        return
    y = out._data
    if op.vjp is DERIVED:
        backward_fn = _derived(op, args, positions, params)
        saved: list[Any] = [a for a in args if isinstance(a, Tensor)]
    else:
        rules = [op.rule(i) for i in positions]
        letters = "".join([op.reads(i) for i in positions])
        saved = []
        for letter in letters:
            if letter == "y":
                saved.append(out.cell())
            elif letter == "*":
                saved += [a for a in args[1:] if isinstance(a, Tensor)]
            elif isinstance(held := args[ord(letter) - 97], Tensor):
                saved.append(held)
            elif held is data[ord(letter) - 97] and type(held) is np.ndarray:
                data[ord(letter) - 97] = (
                    held.copy()
                )  # the caller may change the array before backward

        def backward_fn(gradient: Any, xp: Any = NUMPY, through: Node | None = None) -> list[Any]:
            if through is None:
                return [rule(xp, gradient, y, *data, **params) for rule in rules]
            result = alias(y, through)
            return [rule(xp, gradient, result, *args, **params) for rule in rules]

    out.grad_node = Node(op.name, parents, backward_fn, params, saved)
    out._requires_grad = True


def _derived(
    op: Op, args: tuple, positions: list[int], params: dict[str, Any]
) -> Callable[..., Any]:
    """The gradient of a composite without rules: its forward, run on tensors and walked back."""

    def backward_fn(gradient: Any, xp: Any = NUMPY, through: Node | None = None) -> list[Any]:
        operands = list(args)
        for i in positions:
            operands[i] = TENSORS.identity(args[i]) if through else Tensor._leaf(args[i])
        with enable_grad():
            result = op.forward(TENSORS, *operands, **params)
        wanted = [operands[i] for i in positions]
        found = {id(t): g for t, g in propagate(result, gradient, xp, wanted)}
        return [found.get(id(t)) for t in wanted]

    return backward_fn


def alias(data: Any, node: Node | None) -> Tensor:
    """A tensor over `data` that was computed by `node`."""
    out = Tensor._wrap(data)
    out.grad_node = node
    out._requires_grad = node is not None
    return out


def _share(source: Any, out: Tensor) -> None:
    """A view and its source see each other's writes: one cell for both."""
    if isinstance(source, Tensor):
        a, b = source._data, out._data
        if (
            type(b) is not np.ndarray
            or b is a
            or (b.base if b.base is not None else b) is (a.base if a.base is not None else a)
        ):
            out._cell = source.cell()


def _coerce(value: Any, i: int, op: Op, args: tuple, trace: Any) -> Any:
    """An operand that is neither tensor nor Python number, as an array; None stays None."""
    if value is None:
        return None
    if isinstance(value, np.generic):
        return value
    if hasattr(value, "__array_ufunc__") and not isinstance(value, np.ndarray):
        return value  # an array that records, e.g. the gradient of a tensor inside a trace
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype.kind not in "fiub":
            raise EveryODTypeError(f"an operand of dtype {array.dtype} is not supported")
    else:
        array = as_tensor(value)._data
    if array.dtype.kind in "iub" and chr(97 + i) not in op.plain and (not i or "*" not in op.plain):
        floating = [a.dtype for a in args if isinstance(a, Tensor) and a._data.dtype.kind == "f"]
        if floating and len(args) > 1:
            target = np.result_type(*floating)
            if trace is not None:
                return trace.xp.astype(trace.array(array), target)
            return array.astype(target)
    return array if trace is None else trace.array(array)


def explain(op: Op, error: Exception, data: Sequence[Any], params: dict[str, Any]) -> Exception:
    """The library's own error for a failed forward, with shapes and the remedy."""
    shapes = [np.shape(a) if not hasattr(a, "shape") else a.shape for a in data]
    text = str(error)
    if isinstance(error, IndexError):
        return EveryOIndexError(f"{op.name}: {text} (shape {shapes[0]})")
    if isinstance(error, TypeError):
        dtypes = [getattr(a, "dtype", type(a).__name__) for a in data]
        return EveryODTypeError(
            f"{op.name} does not take operands of dtype {', '.join(map(str, dtypes))}: {text}"
        )
    if op.kind == "elementwise" and "integer power" not in text and "Integers" not in text:
        named = " and ".join(map(str, shapes))
        return EveryOShapeError(
            f"{op.name}: cannot broadcast shapes {named}; sizes must be equal or 1, aligned from the right"
        )
    if op.kind == "matmul":
        return EveryOShapeError(f"{op.name}: {text}")
    return EveryOShapeError(f"{op.name}: {text} (shapes {', '.join(map(str, shapes))})")
