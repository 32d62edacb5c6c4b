"""Every op and every function composed of ops, against NumPy, finite differences and each other."""

import warnings

import numpy as np
import pytest
from op_table import CASES, DTYPES, ELEMENTWISE, REDUCTIONS, SPECIAL, Case, reference_of, seed_like

import everyo as eo
from everyo.core.autograd import MODE
from everyo.core.namespace import TENSORS
from everyo.core.op import DERIVED, OPS, Sample, op
from everyo.exceptions import EveryODTypeError, EveryOGradientError, EveryOShapeError

SMOOTH = [c for c in CASES if c.positions]
RECORDED = [c for c in SMOOTH if c.op is not None]
REFERRED = [c for c in CASES if c.reference is not None]
ULPS = 8  # NumPy itself may round differently for another layout of the operands


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda c: c.name)


def array(x):
    return x.numpy() if isinstance(x, eo.Tensor) else np.asarray(x)


def assert_same(got, want, rtol=0.0, signs=True):
    """Equal values, dtype, shape, places of NaN and, where NumPy defines them, signs of zero."""
    got, want = array(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    eps = float(np.finfo(want.dtype).eps)
    np.testing.assert_allclose(got, want, rtol=max(rtol, ULPS * eps), atol=rtol * 1e-3)
    zero = (want == 0) & (got == 0) & signs
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def layouts(a):
    """The same values at other addresses: reversed, transposed, with gaps; and stride 0."""
    yield (
        "negative",
        np.ascontiguousarray(a[(slice(None, None, -1),) * a.ndim])[
            (slice(None, None, -1),) * a.ndim
        ],
    )
    yield "transposed", np.asfortranarray(a)
    gaps = np.zeros(tuple(2 * n for n in a.shape))
    gaps[(slice(None, None, 2),) * a.ndim] = a
    yield "gaps", gaps[(slice(None, None, 2),) * a.ndim]
    yield "repeated", np.broadcast_to(a[(slice(0, 1),) * a.ndim], a.shape)


# ---------------------------------------------------------------------------------- values


@named(REFERRED)
def test_every_op_equals_numpy(case: Case):
    with np.errstate(all="ignore"):
        assert_same(case.call(*case.tensors()), case.reference(*case.operands), 1e-13)


@named(REFERRED)
@pytest.mark.parametrize("layout", ["negative", "transposed", "gaps", "repeated"])
def test_every_op_is_blind_to_the_layout_of_its_operands(case: Case, layout: str):
    operands = [
        dict(layouts(a))[layout] if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
        for a in case.operands
    ]
    tensors = [eo.as_tensor(a) if np.ndim(a) and a.dtype.kind == "f" else a for a in operands]
    plain = [np.ascontiguousarray(a) if np.ndim(a) else a for a in operands]
    with np.errstate(all="ignore"):
        assert_same(case.call(*tensors), case.reference(*plain), 1e-13)


@pytest.mark.parametrize("record", ELEMENTWISE, ids=lambda o: o.name)
def test_every_elementwise_op_equals_numpy_at_special_values(record):
    function, reference = getattr(TENSORS, record.name), reference_of(record)
    arity = len(record.samples[0].shapes)
    operands = [SPECIAL] if arity == 1 else [SPECIAL[:, None], SPECIAL[None, :]]
    with np.errstate(all="ignore"):
        got, want = function(*map(eo.tensor, operands)), np.asarray(reference(*operands))
        own = record.reference is not None
        assert_same(got, want, 1e-12 if own else 0.0, signs=not own)


def is_numpys(record):
    """Whether NumPy itself defines the op, for every dtype."""
    return record.reference in (None, getattr(np, record.name, None))


DTYPE_CASES = [
    pytest.param(record, dtype, id=f"{record.name}-{dtype}")
    for record in ELEMENTWISE
    for dtype in (DTYPES if is_numpys(record) else ("float16", "float32", "float64"))
]


@pytest.mark.parametrize(("record", "dtype"), DTYPE_CASES)
def test_every_elementwise_op_has_the_dtype_of_numpy(record, dtype):
    operands = [np.ones(3, dtype)] * len(record.samples[0].shapes)
    tensors = [eo.tensor(a, dtype=dtype) for a in operands]
    function = getattr(TENSORS, record.name)
    if not is_numpys(record):
        assert function(*tensors).dtype == dtype
        return
    try:
        want = np.asarray(reference_of(record)(*operands)).dtype.name
    except TypeError:
        with pytest.raises(EveryODTypeError, match=record.name):
            function(*tensors)
        return
    if want in DTYPES:  # NumPy has int8 for some ops of bools
        assert function(*tensors).dtype == want


@pytest.mark.parametrize("record", REDUCTIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_reduction_has_the_dtype_of_numpy(record, dtype):
    a = np.ones((2, 3), dtype)
    name = {"variance": "var"}.get(record.name, record.name)
    floating = {"logsumexp", "norm"}
    got = getattr(TENSORS, record.name)(eo.tensor(a, dtype=dtype), axis=0)
    if name in floating:
        assert got.dtype == (dtype if dtype.startswith("float") else "float64")
    else:
        assert_same(got, np.asarray(getattr(np, name)(a, axis=0)), 1e-3)


@pytest.mark.parametrize("n", range(1, 34))
def test_every_length_is_computed_in_full(n):
    generator = np.random.default_rng(n)
    a, b = generator.uniform(0.2, 0.9, (2, n))
    for record in (*ELEMENTWISE, *REDUCTIONS):
        reference = reference_of(record)
        operands = (a, b) if len(record.samples[0].shapes) == 2 else (a,)
        params = {"axis": 0} if record.kind in ("reduction", "scan") else {}
        got = getattr(TENSORS, record.name)(*map(eo.tensor, operands), **params)
        want = np.asarray(reference(*operands, **params))
        assert got.dtype == want.dtype.name, record.name
        np.testing.assert_allclose(array(got), want, rtol=1e-12, err_msg=record.name)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0), (1, 1), (2, 0, 4)], ids=str)
def test_every_elementwise_op_takes_any_shape_and_its_gradient_has_it(shape):
    for record in ELEMENTWISE:
        arity = len(record.samples[0].shapes)
        operands = [np.full(shape, 0.6), np.full(shape, 0.8)][:arity]
        tensors = [eo.tensor(a, requires_grad=True) for a in operands]
        out = getattr(TENSORS, record.name)(*tensors)
        assert_same(out, np.asarray(reference_of(record)(*operands)), 1e-14)
        if not out.requires_grad:
            continue
        out.backward(np.ones(shape))
        for i, t in enumerate(tensors):
            if record.rule(i) is not None:
                assert isinstance(t.grad, np.ndarray), record.name
                assert (t.grad.shape, t.grad.dtype) == (shape, np.float64), record.name


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1), -1, (), (1, 0)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (3, 2)], ids=str)
def test_every_reduction_agrees_with_numpy_on_edges(shape, keepdims, axis):
    a = np.random.default_rng(0).uniform(0.5, 1.0, shape)
    for record in REDUCTIONS:
        if record.kind == "scan":
            continue
        t = eo.tensor(a, requires_grad=True)
        function = getattr(TENSORS, record.name)
        with np.errstate(all="ignore"):
            try:
                want = np.asarray(_quiet(reference_of(record), a, axis, keepdims))
            except ValueError:
                with pytest.raises(EveryOShapeError, match="zero elements"):
                    function(t, axis=axis, keepdims=keepdims)
                continue
            if record.name == "logsumexp" and np.isneginf(want).any():
                continue  # of nothing: refused, see test_errors
            got = function(t, axis=axis, keepdims=keepdims)
        assert_same(got, want, 1e-13)
        if got.requires_grad:
            got.backward(np.ones(got.shape))
            assert (t.grad.shape, t.grad.dtype) == (shape, np.float64), record.name


def _quiet(function, a, axis, keepdims):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about means of nothing
        return function(a, axis=axis, keepdims=keepdims)


ROWS = np.array(
    [
        [np.nan, 1.0, 2.0],
        [np.inf, 1.0, -1.0],
        [-np.inf, 1.0, 0.0],
        [-np.inf, -np.inf, -np.inf],
        [np.inf, -np.inf, 0.0],
        [-0.0, -0.0, -0.0],
        [1000.0, 1001.0, -1000.0],
    ]
)


@pytest.mark.parametrize("record", REDUCTIONS, ids=lambda o: o.name)
def test_every_reduction_equals_numpy_at_special_values(record):
    reference = {"logsumexp": np.logaddexp.reduce}.get(record.name) or reference_of(record)
    with np.errstate(all="ignore"):
        got, want = getattr(TENSORS, record.name)(ROWS, axis=1), reference(ROWS, axis=1)
        assert_same(got, want, 1e-14, signs=record.reference is None)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "sort", "argsort", "maximum"])
def test_nan_and_ties_are_treated_as_numpy_treats_them(name):
    a = np.array([[2.0, np.nan, 2.0, -0.0, 0.0], [1.0, 1.0, -1.0, -1.0, 1.0]])
    function, reference = getattr(TENSORS, name), getattr(np, name)
    if name == "maximum":
        assert_same(function(a, eo.tensor(a[:, ::-1])), reference(a, a[:, ::-1]))
    elif ("arg" in name and name != "argsort") or name in ("max", "min"):
        for axis in (None, 0, 1):
            assert_same(function(eo.tensor(a), axis), reference(a, axis=axis))
    else:
        assert_same(function(eo.tensor(a)), reference(a, kind="stable"))


def test_a_stable_order_also_when_descending():
    a = eo.tensor([1.0, 3.0, 1.0, 3.0])
    assert eo.argsort(a, descending=True).tolist() == [1, 3, 0, 2]
    assert eo.topk(a, 4)[1].tolist() == [1, 3, 0, 2]


# ---------------------------------------------------------------------------------- gradients


@named(SMOOTH)
def test_every_gradient_matches_finite_differences(case: Case):
    assert eo.gradcheck(case.bound, case.inputs, eps=1e-5, atol=1e-8, rtol=1e-6)


@named([c for c in SMOOTH if c.second])
def test_every_second_derivative_matches_finite_differences(case: Case):
    def gradient(*operands):
        out = case.bound(*operands)
        out.backward(seed_like(out), create_graph=True)
        parts = [eo.flatten(t.grad) for t in operands]
        for t in operands:
            t.grad = None
        return eo.concatenate(parts)

    assert eo.gradcheck(gradient, case.inputs, eps=1e-5, atol=1e-7, rtol=1e-5)


@named(SMOOTH)
def test_a_recorded_gradient_equals_the_plain_one(case: Case):
    plain, given = case.gradients(), case.tensors()
    out = case.call(*given)
    out.backward(seed_like(out), create_graph=True)
    for i, want in zip(case.positions, plain, strict=True):
        assert isinstance(given[i].grad, eo.Tensor)
        np.testing.assert_allclose(given[i].grad.numpy(), want, rtol=1e-12, atol=1e-14)


@named([c for c in SMOOTH if c.name != "astype-0"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_gradient_keeps_the_dtype_and_shape_of_its_operand(case: Case, dtype: str):
    assert case.call(*case.tensors(dtype)).dtype == dtype
    tolerance = {"float32": 1e-4, "float16": 0.1}[dtype]
    for i, got, want in zip(case.positions, case.gradients(dtype), case.gradients(), strict=True):
        assert (got.dtype, got.shape) == (np.dtype(dtype), case.operands[i].shape)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@named(SMOOTH)
@pytest.mark.parametrize("above", [False, True], ids=["root", "below"])
def test_no_gradient_shares_memory_with_anything(case: Case, above: bool):
    given = case.tensors()
    out = case.call(*given)
    seed = seed_like(out)
    if above:  # then the gradient that reaches the op is not the seed
        out = out * 1.0
    out.backward(seed)
    arrays = [t._data if isinstance(t, eo.Tensor) else np.asarray(t) for t in (*given, out, seed)]
    gradients = [given[i].grad for i in case.positions]
    for k, g in enumerate(gradients):
        assert type(g) is np.ndarray and g.flags.writeable
        for other in (*arrays, *gradients[k + 1 :]):
            assert not np.shares_memory(g, other)


@named(SMOOTH)
def test_without_gradient_mode_there_is_no_graph(case: Case):
    with eo.no_grad():
        out = case.call(*case.tensors())
    assert not out.requires_grad and out.grad_node is None


# ------------------------------------------------------------------- what the gradient reads


def _one_rule(case: Case, i: int):
    """The case with a gradient for operand `i` alone: operands, result and gradient."""
    given = case.tensors(wanted=(i,))
    return given, case.call(*given)


@named(RECORDED)
def test_what_is_not_saved_may_be_overwritten(case: Case):
    for i in case.positions:
        given, out = _one_rule(case, i)
        out.backward(seed_like(out))
        want = given[i].grad
        given, out = _one_rule(case, i)
        letters = case.op.reads(i)
        saved = {ord(c) - 97 for c in letters if c.islower() and c != "y"}
        if "*" in letters or case.op.vjp is DERIVED:
            saved = set(range(len(given)))
        seed = seed_like(out)
        for k, t in enumerate(given):
            if isinstance(t, np.ndarray):
                t[...] = 0  # arrays are copied if they are read
            elif isinstance(t, eo.Tensor) and k not in saved and not _aliased(t, given, saved):
                t._data[...] = np.nan
        if "y" not in letters and not any(
            np.shares_memory(out._data, given[k]._data)
            for k in saved
            if isinstance(given[k], eo.Tensor)
        ):
            if out._data.flags.writeable:
                out._data[...] = np.nan
        out.backward(seed)
        np.testing.assert_array_equal(given[i].grad, want)


def _aliased(t, given, saved):
    return any(isinstance(given[k], eo.Tensor) and given[k] is t for k in saved)


@named(RECORDED)
def test_what_is_saved_must_not_be_overwritten(case: Case):
    for i in case.positions:
        letters = case.op.reads(i)
        _, out = _one_rule(case, i)
        count = len(case.operands)
        targets = [c for c in letters if c != "*"]
        if case.op.vjp is DERIVED:
            targets = [chr(97 + k) for k in range(count)]
        for letter in targets:
            given, out = _one_rule(case, i)
            target = out if letter == "y" else given[ord(letter) - 97]
            if not isinstance(target, eo.Tensor):
                continue
            with eo.no_grad():
                target[...] = 0.25
            with pytest.raises(EveryOGradientError, match=rf"{case.op.name}: .*modified"):
                out.backward(seed_like(out))
            assert given[i].grad is None


# ---------------------------------------------------------------------------------- the checkers


def test_the_checker_catches_a_wrong_rule():
    @op(vjp=lambda xp, g, y, a: xp.multiply(g, a), saves="a", kind="elementwise")
    def wrong_square(xp, a):
        """a * a, with half of its gradient."""
        return xp.multiply(a, a)

    try:
        x = np.array([[0.0, 0.0], [0.0, 3.0]])
        with pytest.raises(EveryOGradientError, match=r"worst at entry \(1, 1\)"):
            eo.gradcheck(wrong_square, [x])
    finally:
        del OPS["wrong_square"]
        del TENSORS.wrong_square


def test_the_checker_catches_a_wrong_second_derivative():
    @op(vjp=lambda xp, g, y, a: xp.multiply(g, _frozen(xp, a)), saves="a", kind="elementwise")
    def frozen_square(xp, a):
        """a * a, whose gradient forgets that it depends on a."""
        return xp.multiply(a, a)

    def _frozen(xp, a):
        return xp.multiply(a.detach() if isinstance(a, eo.Tensor) else a, 2)

    try:
        assert eo.gradcheck(frozen_square, [np.array([1.0, 2.0])])
        with pytest.raises(EveryOGradientError, match="gradcheck"):
            eo.gradcheck(lambda t: eo.grad(lambda s: frozen_square(s).sum())(t), [np.array([1.0])])
    finally:
        del OPS["frozen_square"]
        del TENSORS.frozen_square


def test_the_checker_refuses_single_precision_and_counts_nan_as_wrong():
    with pytest.raises(EveryODTypeError, match="float64"):
        eo.gradcheck(eo.exp, [np.ones(2, np.float32)])
    with np.errstate(all="ignore"), pytest.raises(EveryOGradientError, match="entry"):
        eo.gradcheck(lambda a: eo.sqrt(a - 1.0), [np.zeros(2)])


def test_every_record_is_described_and_sampled():
    for name, record in OPS.items():
        assert record.doc.endswith("."), name
        assert record.samples, name
        assert all(isinstance(s, Sample) for s in record.samples)
        assert reference_of(record) is not None or record.kind == "convolution", name


# ---------------------------------------------------------------------------------- finite limits

LIMITS = [
    ("norm at the origin", lambda t: eo.norm(t), [0.0, 0.0], [0.0, 0.0]),
    ("root of a sum of squares", lambda t: eo.sqrt((t * t).sum()), [0.0, 0.0], [0.0, 0.0]),
    ("std of equal numbers", lambda t: t.std(), [2.0, 2.0], [0.0, 0.0]),
    ("product with one zero", lambda t: t.prod(), [2.0, 0.0, 3.0], [0.0, 6.0, 0.0]),
    ("product with two zeros", lambda t: t.prod(), [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]),
    ("power 0 at 0", lambda t: t**0, [0.0], [0.0]),
    ("power 1 at 0", lambda t: t**1, [0.0], [1.0]),
    ("power 3", lambda t: t**3, [0.0, 1.0, -2.0], [0.0, 3.0, 12.0]),
    ("power 2.5 at 0", lambda t: t**2.5, [0.0, 4.0], [0.0, 20.0]),
    (
        "row products with a zero",
        lambda t: t.reshape(2, 2).prod(axis=1),
        [2.0, 3.0, 0.0, 4.0],
        [3.0, 2.0, 4.0, 0.0],
    ),
    ("divided by its max", lambda t: t / t.max(), [0.0, 1.5, 3.0], [1 / 3, 1 / 3, -1 / 6]),
    ("centred", lambda t: t - t.mean(), [1.0, 2.0, 6.0], [0.0, 0.0, 0.0]),
    ("norm", lambda t: eo.norm(t), [3.0, 4.0], [0.6, 0.8]),
    ("squared norm at the origin", lambda t: eo.norm(t) ** 2, [0.0, 0.0], [0.0, 0.0]),
    ("power 0 as tensor", lambda t: t ** eo.tensor([0.0]), [0.0], [0.0]),
    ("0 to the power", lambda t: eo.tensor([0.0]) ** t, [3.0], [0.0]),
    ("softplus far out", lambda t: eo.softplus(t), [800.0, -800.0], [1.0, 0.0]),
    ("log sigmoid far out", lambda t: eo.log_sigmoid(t), [800.0, -800.0], [0.0, 1.0]),
    ("sigmoid far out", lambda t: eo.sigmoid(t), [800.0, -800.0], [0.0, 0.0]),
    ("silu far out", lambda t: eo.silu(t), [800.0, -800.0], [1.0, 0.0]),
    ("gelu far out", lambda t: eo.gelu(t), [800.0, -800.0], [1.0, 0.0]),
    ("elu far out", lambda t: eo.elu(t), [800.0, -800.0], [1.0, 0.0]),
    ("softmax, masked", lambda t: eo.softmax(t)[0], [0.0, -np.inf], [0.0, 0.0]),
    ("log of sum, masked", lambda t: eo.logsumexp(t), [0.0, -np.inf], [1.0, 0.0]),
    ("abs at 0", lambda t: abs(t), [0.0], [0.0]),
    ("relu at 0", lambda t: eo.relu(t), [0.0, -0.0], [0.0, 0.0]),
    ("clip at its bounds", lambda t: eo.clip(t, -1.0, 1.0), [-1.0, 1.0, 2.0], [1.0, 1.0, 0.0]),
    ("maximum at a tie", lambda t: eo.maximum(t, 1.0), [1.0, 2.0], [0.5, 1.0]),
    ("max with ties", lambda t: t.max(), [5.0, 1.0, 5.0], [0.5, 0.0, 0.5]),
    (
        "where spares what is not chosen",
        lambda t: eo.where(t > 0, eo.log(t), 0.0 * t),
        [1.0, 2.0],
        [1.0, 0.5],
    ),
]


@pytest.mark.parametrize(
    ("function", "x", "want"), [r[1:] for r in LIMITS], ids=[r[0] for r in LIMITS]
)
def test_a_gradient_with_a_finite_limit_is_finite(function, x, want):
    t = eo.tensor(np.array(x), requires_grad=True)
    with np.errstate(all="ignore"):
        function(t).sum().backward()
    np.testing.assert_allclose(t.grad, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("size", [1, 7, 33, 1000])
def test_a_nan_travels_from_any_place_and_either_operand(size):
    for place in {0, size // 2, size - 1}:
        a = np.linspace(-1, 1, size)
        b = a[::-1].copy()
        a[place] = np.nan
        for name in ("maximum", "minimum"):
            function, reference = getattr(eo, name), getattr(np, name)
            assert_same(function(eo.tensor(a), b), reference(a, b))
            assert_same(function(b, eo.tensor(a)), reference(b, a))
        assert_same(eo.clip(eo.tensor(a), -0.5, 0.5), np.clip(a, -0.5, 0.5))
        assert np.isnan(eo.relu(eo.tensor(a)).numpy()[place])
        assert np.isnan(float(eo.tensor(a).max())) and np.isnan(float(eo.tensor(a).min()))


# ---------------------------------------------------------------------------------- torch

TORCH = {
    "variance": "var",
    "identity": "clone",
    "cbrt": None,
    "take_at": None,
    "add_at": None,
    "pick": None,
    "spread": None,
    "merge": None,
}


@named([c for c in SMOOTH if c.op is not None and c.op.kind == "elementwise"])
def test_torch_agrees_where_it_has_the_op(case: Case):
    torch = pytest.importorskip("torch")
    name = TORCH.get(case.op.name, case.op.name)
    function = name and (getattr(torch, name, None) or getattr(torch.nn.functional, name, None))
    if function is None or case.call.args[1]:
        pytest.skip("torch spells it differently")
    given = [
        torch.tensor(a, requires_grad=i in case.positions) if isinstance(a, np.ndarray) else a
        for i, a in enumerate(case.operands)
    ]
    out = function(*given)
    out.backward(torch.tensor(seed_like(case.call(*case.tensors()))))
    assert_same(case.call(*case.tensors()), out.detach().numpy(), 1e-12)
    for i, got in zip(case.positions, case.gradients(), strict=True):
        np.testing.assert_allclose(got, given[i].grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_table_leaves_no_trace_of_gradient_mode():
    assert MODE.grad and not MODE.before
