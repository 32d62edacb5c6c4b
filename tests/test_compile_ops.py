"""Every op and every function composed of ops: eager = compiled, in values, gradients and second
gradients, for every dtype, layout, length and special value.

Most laws are about the trace: it is run by the interpreter, which needs no compiling. The whole way
to machine code is taken once for every case, many cases in one compiled function; the full product
of cases, dtypes and layouts is slow. The tolerance is the policy of the library: ops that round
nothing have the same bits; others may differ by 2 ulp plus NumPy's own error, sums by another
order.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ir_compare import same_bits
from op_table import CASES, ELEMENTWISE, SPECIAL, Case, drawn, public_of, seed_like
from traced import interpreted

import everyo as eo
from everyo.core.namespace import TENSORS
from everyo.core.op import OPS, Sample
from everyo.exceptions import EveryOError

EXACT = {
    "add", "subtract", "multiply", "divide", "negative", "square", "reciprocal", "floor_divide",
    "remainder",
    "abs", "sign", "floor", "ceil", "round", "sqrt", "relu", "leaky_relu", "maximum", "minimum",
    "clip_between", "where", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite",
    "identity",
    "astype", "max", "min", "any", "all", "pick", "spread", "slice", "take_at", "reshape",
    "transpose",
    "broadcast_to", "flip", "merge", "pad", "max_pool2d",
}  # fmt: skip
SIGNED_ZEROS = {"relu"}  # the larger of -0.0 and 0.0 is either, in NumPy by the machine
SUMS = {"sum", "mean", "variance", "std", "norm", "cumsum"}  # rounded at the size of their terms
GROUP = 25  # cases in one compiled function
ULPS = 10  # 2 of ours, and what NumPy's float32 functions and their gradients are off


def grouped(cases: Sequence[Any], size: int = GROUP) -> list[Sequence[Any]]:
    return [cases[i : i + size] for i in range(0, len(cases), size)]


def group_name(cases: Sequence[Any]) -> str:
    return f"{cases[0].name}...{cases[-1].name}"


def plain(value: Any) -> np.ndarray:
    """The numbers of a tensor or array."""
    return np.array(value._data if isinstance(value, eo.Tensor) else value)


def assert_agrees(got: Any, want: Any, what: str, exact: bool = False, least: float = 0.0) -> None:
    """Equal dtype and shape, equal bits where nothing rounds, else equal up to the policy, for
    values computed from such of size `least`."""
    if want is None:
        assert got is None, what
        return
    got, want = plain(got), plain(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got!r}, eager {want!r}"
    if exact or want.dtype.kind != "f":
        assert same_bits(got, want), f"{what}: {got!r}, eager {want!r}"
        return
    eps = float(np.finfo(want.dtype).eps)
    finite = np.abs(want[np.isfinite(want)])
    scale = max(least, float(finite.max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=ULPS * eps, atol=ULPS * eps * scale, err_msg=what)


def largest(a: Any) -> float:
    """The size of the largest finite number."""
    values = plain(a)
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


def copies(groups: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Operands of their own for one call: tensors as new leaves, arrays copied, in the same
    layout."""
    out = []
    for operands in groups:
        new: list[Any] = []
        for a in operands:
            if isinstance(a, eo.Tensor):
                t = eo.Tensor._wrap(laid_out_as(a._data))
                t._requires_grad = a.requires_grad
                new.append(t)
            else:
                new.append(laid_out_as(a) if isinstance(a, np.ndarray) else a)
        out.append(new)
    return out


def laid_out_as(a: np.ndarray) -> np.ndarray:
    """The same numbers at other addresses with the same strides."""
    if a.flags.c_contiguous:
        return a.copy()
    low = sum(s * (n - 1) for s, n in zip(a.strides, a.shape, strict=True) if s < 0)
    high = sum(s * (n - 1) for s, n in zip(a.strides, a.shape, strict=True) if s > 0)
    memory = np.zeros((high - low) // a.itemsize + 1, a.dtype)
    out = np.ndarray(a.shape, a.dtype, memory, -low, a.strides)
    out[...] = a
    return out


def values_and_gradients(calls: Sequence[Callable[..., Any]], order: int) -> Callable[[Any], Any]:
    """A function of all operands: results, and with order 1 or 2 gradients left in `.grad`."""

    def function(groups: list[list[Any]]) -> list[Any]:
        out = []
        for call, operands in zip(calls, groups, strict=True):
            y = call(*operands)
            out.append(y)
            if order and isinstance(y, eo.Tensor) and y.requires_grad:
                if order == 1:
                    y.backward(seed_like(y))
                else:
                    out.append(second(call, operands, y))
        return out

    return function


def second(call: Callable[..., Any], operands: list[Any], y: Any) -> Any:
    """The gradient of (first gradient . its own size), by every operand, as one list."""
    y.backward(eo.tensor(seed_like(y)), create_graph=True)
    wanted = [a for a in operands if isinstance(a, eo.Tensor) and a.requires_grad]
    first = [a.grad for a in wanted]
    for a in wanted:
        a.grad = None
    total = None
    for g in first:
        if isinstance(g, eo.Tensor) and g.requires_grad:
            part = (g * g).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    return [g.detach() if isinstance(g, eo.Tensor) else g for g in first]


def check(
    names: Sequence[str],
    calls: Sequence[Any],
    groups: Sequence[Any],
    order: int,
    run: Callable[..., Any] = interpreted,
) -> None:
    """Run eagerly and by its trace, or compiled: three times, traced, verified and straight.
    Compare everything."""
    function = values_and_gradients(calls, order)
    other = run(function)
    eager = copies(groups)
    with np.errstate(all="ignore"):
        want = function(eager)
        for _ in range(1 if run is interpreted else 3):
            given = copies(groups)
            got = other(given)
            label = iter(names)
            which = ""
            for g, w in zip(got, want, strict=True):
                if isinstance(w, list):
                    for a, b in zip(g, w, strict=True):
                        assert_agrees(a, b, f"first gradient of {which}", least=1.0)
                    continue
                which = next(label)
                base = which.rsplit("-", 1)[0]
                if base in SIGNED_ZEROS:
                    g, w = plain(g) + 0.0, plain(w) + 0.0
                terms = groups[names.index(which)] if base in SUMS else ()
                least = max((largest(t) for t in terms), default=0.0)
                assert_agrees(g, w, which, base in EXACT, least)
            for which, a, b in zip(names, given, eager, strict=True):
                for s, t in zip(a, b, strict=True):
                    if isinstance(t, eo.Tensor):
                        assert_agrees(s.grad, t.grad, f"gradient of {which}", least=1.0)
                        assert_agrees(s, t, f"operand of {which}", exact=True)


def in_layout(a: Any, layout: str) -> Any:
    """The same numbers in another layout; "repeated" repeats the first of each axis (stride 0)."""
    if not isinstance(a, np.ndarray) or not a.ndim or layout == "contiguous":
        return a
    everywhere = (slice(None, None, -1),) * a.ndim
    match layout:
        case "negative":
            return np.ascontiguousarray(a[everywhere])[everywhere]
        case "transposed":
            return np.asfortranarray(a)
        case "gaps":
            wide = np.zeros(tuple(2 * n for n in a.shape), a.dtype)
            wide[(slice(None, None, 2),) * a.ndim] = a
            return wide[(slice(None, None, 2),) * a.ndim]
    return np.broadcast_to(a[(slice(0, 1),) * a.ndim], a.shape)


def operands_of(case: Case, dtype: str, layout: str, grad: bool) -> list[Any]:
    out: list[Any] = []
    for i, a in enumerate(case.operands):
        if isinstance(a, np.ndarray) and a.dtype.kind == "f":
            t = eo.Tensor._wrap(in_layout(a.astype(dtype), layout))
            t._requires_grad = grad and i in case.positions
            out.append(t)
        else:
            out.append(a)
    return out


# ---------------------------------------------------------------------- every case of the table


def traceable(case: Case) -> bool:
    """Masks that are tensors have shapes that depend on values."""
    return not case.name.startswith("index-mask-tensor")


TABLE = [c for c in CASES if traceable(c)]
LAYOUTS = ("contiguous", "negative", "transposed", "gaps", "repeated")


def check_table(cases: Sequence[Case], dtype: str, layout: str, order: int, run: Any) -> None:
    groups = [operands_of(c, dtype, layout, order > 0) for c in cases]
    check([c.name for c in cases], [c.call for c in cases], groups, order, run)


@pytest.mark.parametrize("cases", grouped(TABLE), ids=group_name)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_trace_of_every_op_and_its_gradient_equals_eager(cases, layout, dtype):
    check_table(cases, dtype, layout, 1, interpreted)


SECOND = [c for c in TABLE if c.second and c.positions]


@pytest.mark.parametrize("cases", grouped(SECOND), ids=group_name)
@pytest.mark.parametrize("layout", ["contiguous", "gaps"])
def test_the_trace_of_second_gradients_equals_eager(cases, layout):
    check_table(cases, "float64", layout, 2, interpreted)


@pytest.mark.parametrize("cases", grouped(TABLE[::4]), ids=group_name)
def test_every_op_and_its_gradient_compiled_equals_eager(cases):
    """Every fourth case, in the next dtype and layout; the whole product is a slow test."""
    groups = []
    for k, case in enumerate(cases):
        operands = operands_of(case, ("float32", "float64")[k % 2], "contiguous", True)
        for i, t in enumerate(operands):
            if isinstance(t, eo.Tensor):
                t._data = in_layout(t._data, LAYOUTS[(k + i) % 5])
        groups.append(operands)
    check([c.name for c in cases], [c.call for c in cases], groups, 1, eo.compile)


@pytest.mark.slow
@pytest.mark.parametrize("cases", grouped(TABLE), ids=group_name)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_op_compiled_in_every_dtype_and_layout_equals_eager(cases, layout, dtype):
    check_table(cases, dtype, layout, 1, eo.compile)


@pytest.mark.slow
@pytest.mark.parametrize("cases", grouped(SECOND), ids=group_name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_gradients_compiled_equal_eager(cases, layout):
    check_table(cases, "float64", layout, 2, eo.compile)


# ---------------------------------------------------------------------- lengths, special values,
# ties


def arity(op: Any) -> int:
    return len(op.samples[0].shapes)


SIZES = [
    (),
    (0,),
    (1,),
    (2,),
    (3,),
    (8,),
    (15,),
    (17,),
    (33,),
    (0, 3),
    (3, 0),
    (1, 5),
    (5, 1),
    (3, 17),
]


def domain(op: Any, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    sample = op.samples[0]
    fitting = Sample((shape,) * arity(op), low=sample.low, high=sample.high)
    return [np.asarray(a, dtype) for a in drawn(fitting, seed=len(op.name))]


def at_length(ops: Sequence[Any], shape: tuple[int, ...], dtype: str, run: Any) -> None:
    groups = [[eo.tensor(a, dtype=dtype) for a in domain(op, shape, dtype)] for op in ops]
    for op, operands in zip(ops, groups, strict=True):
        for t in operands:
            t._requires_grad = op.vjp is not None
    check([f"{op.name}-0" for op in ops], [public_of(op) for op in ops], groups, 1, run)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_trace_of_elementwise_ops_at_every_length_equals_eager(shape, dtype):
    at_length(ELEMENTWISE, shape, dtype, interpreted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("ops", grouped(ELEMENTWISE, 31), ids=group_name)
def test_elementwise_ops_compiled_at_every_length_equal_eager(ops, shape, dtype):
    at_length(ops, shape, dtype, eo.compile)


def special(op: Any, dtype: str) -> list[np.ndarray]:
    """Every pair of special values."""
    values = SPECIAL.astype(dtype)
    if arity(op) == 1:
        return [values]
    grid = np.meshgrid(*[values] * arity(op), indexing="ij")
    return [np.ascontiguousarray(a).reshape(-1) for a in grid]


def at_special_values(ops: Sequence[Any], dtype: str, run: Any) -> None:
    groups = [[eo.tensor(a, dtype=dtype) for a in special(op, dtype)] for op in ops]
    for op, operands in zip(ops, groups, strict=True):
        for t in operands:
            t._requires_grad = op.vjp is not None
    check([f"{op.name}-0" for op in ops], [public_of(op) for op in ops], groups, 1, run)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ops", grouped(ELEMENTWISE, 31), ids=group_name)
def test_the_trace_of_elementwise_ops_at_special_values_equals_eager(ops, dtype):
    """NaN, infinities, signed zeros, ties, overflow: the same results and the same gradients."""
    with np.errstate(all="ignore"):
        at_special_values(ops, dtype, interpreted)


COMPILED_AT_SPECIAL_VALUES = [
    pytest.param("float32", id="float32"),
    pytest.param("float64", id="float64", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("dtype", COMPILED_AT_SPECIAL_VALUES)
@pytest.mark.parametrize("ops", grouped(ELEMENTWISE, 31), ids=group_name)
def test_elementwise_ops_compiled_at_special_values_equal_eager(ops, dtype):
    with np.errstate(all="ignore"):
        at_special_values(ops, dtype, eo.compile)


REDUCED = (
    "sum",
    "mean",
    "max",
    "min",
    "variance",
    "std",
    "prod",
    "any",
    "all",
    "logsumexp",
    "norm",
)
CONTENTS = {
    "ties": np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]),
    "nan": np.array([[1.0, np.nan, 3.0], [2.0, 2.0, 5.0]]),
    "infinities": np.array([[1.0, np.inf, 3.0], [-np.inf, 2.0, np.inf]]),
    "zeros": np.array([[0.0, -0.0, 0.0], [-0.0, -0.0, -0.0]]),
    "huge": np.array([[1e30, -1e30, 1.0], [700.0, 710.0, -800.0]]),
    "one": np.array([[2.5]]),
    "column": np.arange(33.0).reshape(33, 1) - 9.5,
    "row": np.arange(33.0).reshape(1, 33) - 9.5,
    "wide": np.sin(np.arange(17.0 * 15)).reshape(17, 15),
    "no rows": np.zeros((0, 3)),
    "no columns": np.zeros((3, 0)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("contents", CONTENTS)
def test_the_trace_of_reductions_equals_eager(contents, dtype):
    reduced(contents, dtype, interpreted)


@pytest.mark.parametrize("contents", ["nan", "no rows"])
def test_reductions_compiled_equal_eager(contents):
    reduced(contents, "float32", eo.compile)


@pytest.mark.slow
@pytest.mark.parametrize("contents", CONTENTS)
def test_reductions_compiled_equal_eager_on_all_contents(contents):
    reduced(contents, "float64", eo.compile)


def reduced(contents: str, dtype: str, run: Any) -> None:
    a = CONTENTS[contents].astype(dtype)
    names, calls, groups = [], [], []
    for name in (*REDUCED, "softmax", "log_softmax", "cumsum"):
        for params in ({"axis": None}, {"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}):
            if name in ("softmax", "log_softmax", "cumsum"):
                if params["axis"] is None or "keepdims" in params:
                    continue
            call = functools.partial(getattr(TENSORS, name), **params)
            try:
                with np.errstate(all="ignore"):
                    call(eo.tensor(a))
            except (EveryOError, ValueError):
                with pytest.raises((EveryOError, ValueError)):
                    run(call)(eo.tensor(a))
                continue
            t = eo.tensor(a, requires_grad=OPS[name].vjp is not None)
            names.append(f"{name}-{params}")
            calls.append(call)
            groups.append([t])
    check(names, calls, groups, 1, run)


# ---------------------------------------------------------------------- dtypes

SCALARS = (2, -3, True, 2.5, -0.5)
WHOLE = ("bool", "int32", "int64")
DTYPES = ("bool", "int32", "int64", "float32", "float64")
VALUES = {
    "bool": np.array([True, False, True, True]), "int32": np.array([3, -7, 0, 2**31 - 1], np.int32),
    "int64": np.array([5, -2, 0, 2**40]), "float32": np.array([0.5, -1.5, 2.0, 3.0], np.float32),
    "float64": np.array([0.25, -1.5, 2.0, 4.0]),
}  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the class of the error."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except (EveryOError, TypeError, ValueError, OverflowError) as error:
            return type(error)


def same_outcome(got: Any, want: Any, what: str) -> None:
    if isinstance(want, type) or isinstance(got, type):
        assert isinstance(want, type) and isinstance(got, type), f"{what}: {got}, eager {want}"
    else:
        assert_agrees(got, want, what)


BINARY = [op for op in ELEMENTWISE if arity(op) == 2 and op.name != "where"]
UNARY = [op for op in ELEMENTWISE if arity(op) == 1]


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_binary_ops_traced_have_the_dtypes_of_eager(left, right):
    """Tensors with tensors and with arrays: the same result, or an error both times."""
    a, b = VALUES[left], VALUES[right]
    for other in (eo.tensor(b, dtype=right), b):
        pairs = []
        for op in BINARY:
            public = public_of(op)
            want = outcome(
                lambda public=public, other=other: public(eo.tensor(a, dtype=left), other)
            )
            pairs.append((op.name, public, want))
        compare_all(pairs, (eo.tensor(a, dtype=left), other), f"{left}, {right}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scalar", SCALARS)
def test_binary_ops_traced_take_numbers_as_eager_does(dtype, scalar):
    """Python numbers are weak; on either side, as constants and as arguments."""
    a = VALUES[dtype]
    pairs = []
    for op in BINARY:
        public = public_of(op)
        for swapped in (False, True):

            def call(t, k, public=public, swapped=swapped):
                return public(k, t) if swapped else public(t, k)

            want = outcome(lambda call=call: call(eo.tensor(a, dtype=dtype), scalar))
            pairs.append((f"{op.name}{' swapped' if swapped else ''}", call, want))
    compare_all(pairs, (eo.tensor(a, dtype=dtype), scalar), f"{dtype}, {scalar!r}")
    constant = [(name, lambda t, call=call: call(t, scalar), want) for name, call, want in pairs]
    compare_all(constant, (eo.tensor(a, dtype=dtype),), f"{dtype}, constant {scalar!r}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_ops_and_reductions_traced_have_the_dtypes_of_eager(dtype):
    a = VALUES[dtype]
    names = [op.name for op in UNARY] + [
        *REDUCED,
        "cumsum",
        "argmax",
        "argmin",
        "argsort",
        "sort",
        "softmax",
    ]
    pairs = []
    for name in names:
        call = getattr(eo, name, None) or getattr(TENSORS, name)
        if name == "cumsum":
            call = functools.partial(call, axis=0)
        if name == "astype":
            call = functools.partial(call, dtype=np.dtype("float32"))
        pairs.append((name, call, outcome(lambda call=call: call(eo.tensor(a, dtype=dtype)))))
    compare_all(pairs, (eo.tensor(a, dtype=dtype),), dtype)


def compare_all(pairs: Sequence[tuple[str, Any, Any]], arguments: tuple, what: str) -> None:
    """All calls that work eagerly in one traced function; each that does not alone."""
    working = [(name, call, want) for name, call, want in pairs if not isinstance(want, type)]
    together = interpreted(lambda *args: [call(*args) for _, call, _ in working])
    got = outcome(lambda: together(*arguments))
    if isinstance(got, type):  # find out which
        got = [outcome(lambda call=call: interpreted(call)(*arguments)) for _, call, _ in working]
    for (name, _, want), g in zip(working, got, strict=True):
        same_outcome(g, want, f"{name} of {what}")
    for name, call, want in pairs:
        if isinstance(want, type):
            same_outcome(
                outcome(lambda call=call: interpreted(call)(*arguments)), want, f"{name} of {what}"
            )


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_where_merge_and_matmul_traced_have_the_dtypes_of_eager(left, right):
    a, b = eo.tensor(VALUES[left], dtype=left), eo.tensor(VALUES[right], dtype=right)
    calls = {
        "where": lambda s, t: eo.where(s != t, s, t),
        "where number": lambda s, t: eo.where(s != t, s, 1.5),
        "where whole": lambda s, t: eo.where(s != t, 2, t),
        "concatenate": lambda s, t: eo.concatenate([s, t]),
        "stack": lambda s, t: eo.stack([s, t]),
        "matmul": lambda s, t: s @ t,
        "outer": lambda s, t: eo.outer(s, t),
        "mean": lambda s, t: s.mean() + t.mean(),
        "sum": lambda s, t: s.sum() + t.sum(),
        "in place": lambda s, t: s.clone().__iadd__(t),
    }
    pairs = [(n, c, outcome(lambda c=c: c(a, b))) for n, c in calls.items()]
    compare_all(pairs, (a, b), f"{left}, {right}")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_traced_wrap_and_divide_as_eager(dtype):
    edge = np.iinfo(dtype)
    a = np.array([edge.min, edge.min, edge.max, -7, 7, -1, 0, 5], dtype)
    b = np.array([-1, 0, 2, 3, -3, 0, 0, 0], dtype)
    names = (
        "add",
        "subtract",
        "multiply",
        "floor_divide",
        "remainder",
        "maximum",
        "minimum",
        "divide",
        "less",
    )
    x, y = eo.tensor(a, dtype=dtype), eo.tensor(b, dtype=dtype)
    pairs = [
        (n, getattr(TENSORS, n), outcome(lambda n=n: getattr(TENSORS, n)(x, y))) for n in names
    ]
    compare_all(pairs, (eo.tensor(a, dtype=dtype), eo.tensor(b, dtype=dtype)), dtype)
