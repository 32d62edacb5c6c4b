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
from functools import partial
from typing import Any

import numpy as np

from everyo.core.autocast import ACTIVE, WIDE, widened
from everyo.core.autograd import MODE, TRACES, Clock, Node, enable_grad, propagate
from everyo.core.device_array import DeviceArray, placed
from everyo.core.dtype import NAMES
from everyo.core.namespace import DEVICES, NUMPY, TENSORS, is_array
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

    `fixed` replaces operands by given values (index arrays, labels); `smooth=False` keeps the
    sample out of finite differences; `second=False` out of second-order checks.
    """

    shapes: tuple[tuple[int, ...], ...]
    params: dict[str, Any] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    fixed: dict[int, Any] = field(default_factory=dict)
    smooth: bool = True
    second: bool = True
    dtype: str = "float64"


@dataclass(frozen=True)
class Plan:
    """How to record an op when certain operands want gradients: the positions of those that get
    one, their rules, the positions of the operands that the rules read, whether they read y."""

    positions: tuple[int, ...]
    rules: tuple[Rule, ...]
    reads: tuple[int, ...]
    reads_result: bool


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
    samples: tuple[Sample, ...]
    reference: Callable[..., Any] | None
    primitive: str | None  # the pointwise instruction of the code generators that this op is
    view: bool
    plain: str  # operands that keep their own dtype beside a floating tensor: letters as in `saves`
    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)  # what `plan` has worked out

    def rule(self, i: int) -> Rule | None:
        """The gradient rule of operand `i`."""
        if self.vjp is None:
            return None
        return self.vjp[i] if isinstance(self.vjp, tuple) else self.vjp(i)

    def reads(self, i: int) -> str:
        """The letters of the values that the rule of operand `i` reads."""
        return self.saves[i] if i < len(self.saves) else self.saves[-1] if self.saves else ""

    def plan(self, wanted: int, count: int) -> Plan:
        """The plan for `count` operands of which those with a bit in `wanted` want gradients."""
        asked = [i for i in range(count) if wanted >> i & 1]
        if self.vjp is DERIVED:
            plan = Plan(tuple(asked), (), tuple(range(count)), False)
        else:
            rules = {i: rule for i in asked if (rule := self.rule(i)) is not None}
            letters = "".join(self.reads(i) for i in rules)
            reads = {ord(c) - 97 for c in letters if c not in "y*"}
            if "*" in letters:
                reads.update(range(1, count))
            plan = Plan(tuple(rules), tuple(rules.values()), tuple(sorted(reads)), "y" in letters)
        self.plans[wanted, count] = plan
        return plan


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
) -> Callable[[Callable[..., Any]], Any]:
    """Register the decorated forward function `f(xp, *operands, **params)` as an op.

    Returns the public function: operands first, then parameters by position or name. `prepare`
    (operands, params) -> params normalises and checks parameters. `aliases` are further names in
    the namespaces, `methods` the names under which the op becomes a method of `Tensor`.
    """

    def register(forward: Callable[..., Any]) -> Callable[..., Any]:
        name = forward.__name__.rstrip("_")
        _, *declared = inspect.signature(forward).parameters.values()
        operands = [p for p in declared if p.kind is p.POSITIONAL_OR_KEYWORD]
        params = [p for p in declared if p.kind is p.KEYWORD_ONLY]
        rules = (vjp,) if vjp is not None and vjp is not DERIVED and not isinstance(vjp, tuple) \
            and arity is None else vjp  # fmt: skip
        record = Op(
            name, forward, rules, (saves,) if isinstance(saves, str) else saves, kind,
            (forward.__doc__ or "").strip().split("\n")[0], tuple(samples), reference, primitive,
            view, plain,
        )  # fmt: skip
        OPS[name] = record
        variadic = any(p.kind is p.VAR_POSITIONAL for p in declared)
        public = _variadic(record) if variadic else _public(record, operands, params, prepare)
        public.__name__ = public.__qualname__ = name
        public.__doc__ = forward.__doc__
        public.__module__ = forward.__module__
        public.op = record  # type: ignore[attr-defined]
        for alias in (name, *aliases):
            setattr(TENSORS, alias, public)
        for method in methods:
            setattr(Tensor, method, public)
        return public

    return register


def _variadic(record: Op) -> Callable[..., Any]:
    return lambda *operands, **params: run(record, operands, params)


def _public(
    record: Op,
    operands: list[inspect.Parameter],
    params: list[inspect.Parameter],
    prepare: Callable[..., dict[str, Any]] | None,
) -> Callable[..., Any]:
    """The function that users call, with the signature of the forward, written out as source: a
    wrapper that sorts its arguments at every call would cost more than most small ops."""
    names = ", ".join(p.name for p in operands)
    declared = [f"{p.name}=_{p.name}" if p.default is not p.empty else p.name for p in params]
    passed = ", ".join(f"{p.name}={p.name}" for p in params)
    lines = [f"def {record.name}({', '.join([names, *declared])}):"]
    if prepare is not None:
        lines += [
            f"    if not isinstance({p.name}, Tensor): {p.name} = as_tensor({p.name})"
            for p in operands
        ]
    given = f"dict({passed})" if params else "{}"
    if prepare is not None:
        given = f"prepare({names}, {passed})"
    lines.append(f"    return run(record, ({names},), {given})")
    scope: dict[str, Any] = {"run": run, "record": record, "prepare": prepare, "Tensor": Tensor}
    scope |= {"as_tensor": as_tensor, **{f"_{p.name}": p.default for p in params}}
    exec(compile("\n".join(lines), record.forward.__code__.co_filename, "exec"), scope)
    return scope[record.name]


_NUMBERS = (float, int, bool)
_NEW = Tensor.__new__
_NEW_NODE = object.__new__


def apply(op: Op, *operands: Any, **params: Any) -> Any:
    """Run an op on tensors (or arrays and numbers) and record it where gradients are wanted."""
    return run(op, operands, params)


def run(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """`apply`, with the operands in a tuple and the parameters in a dict of the caller's."""
    if ACTIVE and op.name in WIDE:
        args = tuple(widened(a) if isinstance(a, Tensor) else a for a in args)
    traced = bool(TRACES)
    trace = MODE.trace if traced else None
    data: list[Any] = []
    wanted = 0
    for a in args:
        if type(a) is Tensor or isinstance(a, Tensor):
            if a._requires_grad:
                wanted |= 1 << len(data)
            array = a._data
            data.append(array if trace is None or type(array) is trace.kind else trace.read(a))
        elif type(a) in _NUMBERS:
            data.append(a)
        else:
            data.append(_coerce(a, len(data), op, args, trace))
    try:
        if trace is not None:
            y = op.forward(trace.xp, *data, **params) if params else op.forward(trace.xp, *data)
        elif DEVICES and (xp := placed(op.name, args, data)) is not None:
            y = xp.forward(op, data, params)
        else:
            y = op.forward(NUMPY, *data, **params) if params else op.forward(NUMPY, *data)
    except EveryOError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise explain(op, error, data, params) from None
    if type(y) is not np.ndarray and trace is None and type(y) is not DeviceArray:
        y = np.asarray(y)
    floating = y.dtype.kind == "f"
    if not floating and y.dtype not in NAMES:
        y = y.astype(np.int64)  # NumPy has narrower integers than tensors have
    out = _NEW(Tensor)
    out._data = y
    out._grad = out.name = out.grad_node = None
    out._requires_grad = False
    out._cell = [0]
    if op.view:
        _share(args[0], out)
    if wanted and floating and MODE.grad and op.vjp is not None:
        _record(op, args, data, out, params, wanted)
    if traced and MODE.watch is not None:
        MODE.watch.forward(op, data, out)
    return out


def _record(
    op: Op, args: tuple[Any, ...], data: list[Any], out: Tensor, params: dict[str, Any], wanted: int
) -> None:
    """Hang a node on `out`. It holds arrays and operands, never `out` itself: no cycle exists."""
    plan = op.plans.get((wanted, len(args))) or op.plan(wanted, len(args))
    positions = plan.positions
    if not positions:
        return
    saved = [out._cell] if plan.reads_result else []
    for i in plan.reads:
        a = args[i]
        if isinstance(a, Tensor):
            saved.append(a._cell)
        elif a is data[i] and type(a) is np.ndarray:
            data[i] = a.copy()  # the caller may change the array before backward
    parents = args if len(positions) == len(args) else [args[i] for i in positions]
    if op.vjp is DERIVED:
        backward_fn = partial(_derived_backward, op, positions, args, data, params)
        out.grad_node = Node(op.name, parents, backward_fn, params, saved)
    else:
        out.grad_node = node = _NEW_NODE(OpNode)  # without __init__, which would double the cost
        node.operation = op.name
        node.parents = parents
        node.attributes = params
        node.saved = saved
        node.number = Clock.tick()
        node.retained = None
        node.rules = plan.rules
        node.result = out._data
        node.args = args
        node.data = data
    out._requires_grad = True


class OpNode(Node):
    """The node of an op with rules."""

    __slots__ = ("args", "data", "result", "rules")
    rules: tuple[Rule, ...]
    result: Any
    args: tuple[Any, ...]
    data: list[Any]

    def backward_fn(
        self, gradient: Any, xp: Any = NUMPY, through: Node | None = None
    ) -> Sequence[Any]:
        """The gradients of the operands: on arrays, or `through` this node on tensors, so that they
        have a graph themselves."""
        y, data, params, rules = self.result, self.data, self.attributes, self.rules
        if through is not None:
            data, y = _tensors(self.args, data), alias(y, through)
        found = []
        for rule in rules:  # in a comprehension all these names would be cells
            found.append(
                rule(xp, gradient, y, *data, **params) if params
                else rule(xp, gradient, y, *data)
            )  # fmt: skip
        return found


def _derived_backward(
    op: Op,
    positions: tuple[int, ...],
    args: tuple[Any, ...],
    data: list[Any],
    params: dict[str, Any],
    gradient: Any,
    xp: Any = NUMPY,
    through: Node | None = None,
) -> Sequence[Any]:
    """The gradients of a composite without rules: its forward, run on tensors and walked back."""
    operands = _tensors(args, data)
    for i in positions:
        operands[i] = TENSORS.identity(args[i]) if through else Tensor._leaf(args[i])
    with enable_grad():
        result = op.forward(TENSORS, *operands, **params)
    inner = [operands[i] for i in positions]
    found = {id(t): g for t, g in propagate(result, gradient, xp, inner)}
    return [found.get(id(t)) for t in inner]


def _tensors(args: tuple[Any, ...], data: list[Any]) -> list[Any]:
    """The operands as they take part in a graph: tensors themselves, the rest as coerced."""
    return [a if isinstance(a, Tensor) else d for a, d in zip(args, data, strict=True)]


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
        if type(b) is not np.ndarray or b is a or b.base is a or (b.base is a.base is not None):
            out._cell = source._cell


def _coerce(value: Any, i: int, op: Op, args: tuple, trace: Any) -> Any:
    """An operand that is neither tensor nor Python number, as an array; None stays None."""
    if value is None:
        return None
    if isinstance(value, np.generic):
        return _supported(value)
    if is_array(value):
        array = _supported(value)
    elif hasattr(value, "__array_ufunc__"):  # one that records, or lives elsewhere
        if getattr(value, "weak", False):
            return value
        array = value
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


def _supported(value: Any) -> Any:
    """An array or NumPy number that ops take: integers of any width, floats in native order."""
    dtype = value.dtype
    if dtype in NAMES or dtype.kind in "iu":
        return value
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise EveryODTypeError(f"an operand of dtype {dtype} is not supported")
    return value.astype(dtype.newbyteorder("="))


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
    if op.kind == "elementwise":
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return EveryOShapeError(
                f"{op.name}: cannot broadcast shapes {' and '.join(map(str, shapes))}; sizes must "
                "be equal or 1, aligned from the right"
            )
        return EveryODTypeError(f"{op.name}: {text}")
    return EveryOShapeError(f"{op.name}: {text} (shapes {', '.join(map(str, shapes))})")
