"""Tensors: creation, dtypes, views, in-place writes, Python's and NumPy's protocols, devices."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import everyo as eo
from everyo.core.tensor import Tensor
from everyo.exceptions import (
    EveryODeviceError,
    EveryODTypeError,
    EveryOError,
    EveryOGradientError,
    EveryOIndexError,
    EveryOShapeError,
)


def leaf(values, dtype=np.float64):
    return eo.tensor(np.array(values, dtype), requires_grad=True)


# ---------------------------------------------------------------------------------- making them

DATA = [
    (1.5, "float32"),
    (3, "float32"),
    (True, "bool"),
    ([1, 2], "float32"),
    ([1.0, 2], "float32"),
    ([True, False], "bool"),
    (np.float64(2), "float64"),
    (np.float16(2), "float16"),
    (np.int64(2), "float32"),
    (np.zeros(2), "float64"),
    (np.zeros(2, np.float16), "float16"),
    (np.zeros(2, np.int32), "float32"),
    (np.zeros(2, np.uint8), "float32"),
    (np.zeros(2, bool), "bool"),
    (np.zeros(2, ">f8"), "float64"),
    ([[1], [2]], "float32"),
    ([], "float32"),
    (np.zeros(2, np.longdouble), "float32"),
    (range(3), "float32"),
    (((1.0, 2.0),), "float32"),
    ([np.float64(1), 2.0], "float32"),
]


@pytest.mark.parametrize(("data", "dtype"), DATA, ids=lambda v: repr(v)[:30])
def test_the_dtype_follows_from_the_data(data, dtype):
    for make in (eo.tensor, Tensor, eo.as_tensor):
        t = make(data)
        assert t.dtype == dtype and t.shape == np.shape(data)
        np.testing.assert_array_equal(t.numpy(), np.asarray(data))
    assert eo.tensor(eo.tensor(data)).dtype == dtype


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float64", "float64"),
        (np.float16, "float16"),
        (np.dtype("int32"), "int32"),
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
        (">f4", "float32"),
    ],
    ids=str,
)
def test_an_explicit_dtype_wins(given, name):
    assert eo.tensor([1, 0], dtype=given).dtype == name
    assert eo.zeros(2, dtype=given).dtype == name
    assert eo.dtype_name(given) == name


@pytest.mark.parametrize(
    "dtype", ["float128", "complex64", "uint8", "nonsense", object, "datetime64[s]"]
)
def test_other_dtypes_are_refused(dtype):
    for make in (
        lambda: eo.tensor([1.0], dtype=dtype),
        lambda: eo.ones(2, dtype=dtype),
        lambda: eo.tensor([1.0]).astype(dtype),
    ):
        with pytest.raises(EveryODTypeError, match="use one of"):
            make()


@pytest.mark.parametrize(
    "data",
    [[[1, 2], [3]], ["a"], [None], {"a": 1}, [1j], object(), np.array(["x"])],
    ids=["ragged", "text", "None", "dict", "complex", "object", "text array"],
)
def test_data_that_is_no_array_of_numbers_is_refused(data):
    with pytest.raises(EveryODTypeError):
        eo.tensor(data)
    with pytest.raises(ValueError):
        eo.as_tensor(data)


def test_tensor_copies_and_as_tensor_shares():
    a = np.zeros(3)
    copied, shared = eo.tensor(a), eo.as_tensor(a)
    a[0] = 1.0
    assert copied.tolist() == [0.0, 0.0, 0.0] and shared.tolist() == [1.0, 0.0, 0.0]
    assert eo.as_tensor(shared) is shared
    assert eo.as_tensor(shared, dtype="float32").dtype == "float32"
    assert eo.is_tensor(shared) and not eo.is_tensor(a)


def test_a_tensor_of_tensors():
    parts = [eo.tensor(1.0), eo.tensor(2.0)]
    assert eo.tensor(parts).tolist() == [1.0, 2.0]
    assert eo.tensor([eo.tensor([1.0, 2.0])]).shape == (1, 2)


def test_creation_functions_default_to_float32():
    made = {
        "zeros": eo.zeros(2, 3),
        "ones": eo.ones((2, 3)),
        "full": eo.full((2, 3), 7),
        "eye": eo.eye(2, 3),
        "arange": eo.arange(6).reshape(2, 3),
        "linspace": eo.linspace(0, 1, 6).reshape(2, 3),
        "uniform": eo.uniform((2, 3)),
        "normal": eo.normal((2, 3)),
        "rand": eo.rand(2, 3),
        "randn": eo.randn(2, 3),
        "zeros_like": eo.zeros_like(eo.ones(2, 3)),
        "ones_like": eo.ones_like(eo.ones(2, 3)),
    }
    for name, t in made.items():
        assert (t.dtype, t.shape, t.requires_grad) == ("float32", (2, 3), False), name
    np.testing.assert_array_equal(made["eye"].numpy(), np.eye(2, 3))
    np.testing.assert_array_equal(made["full"].numpy(), np.full((2, 3), 7))
    np.testing.assert_array_equal(eo.arange(2, 8, 2).numpy(), [2, 4, 6])
    np.testing.assert_allclose(eo.linspace(-1, 1, 5).numpy(), np.linspace(-1, 1, 5))
    assert eo.linspace(0, 1).shape == (50,)
    assert eo.zeros().shape == () and eo.zeros(()).shape == () and eo.zeros(0, 3).shape == (0, 3)
    assert eo.full(3, 1.0, dtype="int32").tolist() == [1, 1, 1]
    assert eo.zeros_like(eo.ones(2, dtype="float64"), requires_grad=True).requires_grad
    assert eo.ones(2, dtype=np.dtype("float64")).dtype == "float64"
    assert eo.arange(3, dtype="int64").dtype == "int64"


def test_one_hot_rows():
    np.testing.assert_array_equal(eo.one_hot([[1], [0]], 3).numpy(), [[0, 1, 0], [1, 0, 0]])
    assert eo.one_hot(np.array([2]), 3, dtype="bool").dtype == "bool"
    assert eo.one_hot(eo.tensor([1, 2]), 3).shape == (2, 3)
    for bad in ([3], [-1], [0.5], [np.nan]):
        with pytest.raises(EveryOShapeError):
            eo.one_hot(bad, 3)


SIGNATURES = {
    "tensor": "data, *, dtype=None, device='cpu', requires_grad=False, name=None",
    "as_tensor": "data, *, device=None, dtype=None",
    "zeros": "*shape, dtype=None, device='cpu', requires_grad=False",
    "ones": "*shape, dtype=None, device='cpu', requires_grad=False",
    "full": "shape, value, *, dtype=None, device='cpu', requires_grad=False",
    "zeros_like": "ref, *, requires_grad=False",
    "ones_like": "ref, *, requires_grad=False",
    "arange": "start, stop=None, step=1.0, *, dtype=None, device='cpu'",
    "linspace": "start, stop, num=50, *, dtype=None, device='cpu'",
    "eye": "n, m=None, *, device='cpu'",
    "rand": "*shape, seed=None, device='cpu'",
    "one_hot": "indices, num_classes, *, dtype=None",
    "add": "a, b",
    "negative": "a",
    "power": "a, exponent",
    "clip": "a, low=None, high=None",
    "matmul": "a, b",
    "dot": "a, b",
    "sum": "a, axis=None, keepdims=False",
    "mean": "a, axis=None, keepdims=False",
    "max": "a, axis=None, keepdims=False",
    "variance": "a, axis=None, keepdims=False, ddof=0",
    "reshape": "a, shape",
    "transpose": "a, axes=None",
    "flatten": "a, start_dim=0",
    "concatenate": "tensors, axis=0",
    "stack": "tensors, axis=0",
    "softmax": "a, axis=-1",
    "log_softmax": "a, axis=-1",
    "grad": "fn, argnums=0",
    "value_and_grad": "fn, argnums=0, has_aux=False",
    "vjp": "fn, *primals",
    "gradcheck": "fn, inputs, *, eps=1e-06, atol=1e-05, rtol=0.001",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_of_parameters_are_those_promised(name):
    parameters = inspect.signature(getattr(eo, name)).parameters.values()
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    assert str(plain) == f"({SIGNATURES[name]})"


def test_parameters_may_be_named():
    t = eo.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert eo.power(a=t, exponent=2).tolist() == [[1.0, 4.0], [9.0, 16.0]]
    assert t.sum(axis=0, keepdims=True).shape == t.max(0, True).shape == (1, 2)
    assert t.clip(low=2.0, high=3.0).tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert t.matmul(other=t).shape == t.dot(other=t).shape == (2, 2)
    assert t.flatten(start_dim=1).shape == (2, 2) and eo.reshape(t, shape=(4,)).shape == (4,)
    assert t[:1].transpose((1, 0)).shape == t[:1].transpose(1, 0).shape == (2, 1)


# ---------------------------------------------------------------------------------- dtype rules


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        ("float16", 2.0, "float16"),
        ("float32", 3, "float32"),
        ("int64", 1, "int64"),
        ("int64", 0.5, "float64"),
        ("int32", 1, "int32"),
        ("bool", 1, "int64"),
        ("float32", "float64", "float64"),
        ("float16", "float32", "float32"),
        ("int32", "int64", "int64"),
        ("float32", "int64", "float64"),
        ("float32", "bool", "float32"),
        ("float32", np.float64(2), "float64"),
        ("float32", np.array([1, 2]), "float32"),
        ("float16", np.array([True, False]), "float16"),
        ("float32", np.array([1.0, 2.0]), "float64"),
        ("int64", np.array([1, 2], np.int32), "int64"),
        ("float32", True, "float32"),
    ],
    ids=str,
)
def test_binary_ops_have_numpys_dtypes_and_weak_numbers(left, right, want):
    a = eo.tensor([1, 2], dtype=left)
    b = eo.tensor([1, 2], dtype=right) if isinstance(right, str) else right
    assert (a + b).dtype == want and (b + a).dtype == want
    assert eo.maximum(a, b).dtype == want


def test_integers_divide_and_average_in_double_precision():
    i, b = eo.tensor([1, 2], dtype="int32"), eo.tensor([True, False])
    assert (i / i).dtype == (i / 2).dtype == "float64"
    assert i.mean().dtype == b.mean().dtype == i.var().dtype == i.std().dtype == "float64"
    assert i.sum().dtype == b.sum().dtype == i.prod().dtype == i.cumsum(0).dtype == "int64"
    big = eo.tensor([2**31 - 1] * 2, dtype="int32")
    assert float(big.mean()) == 2147483647.0 and int(big.sum()) == 2**32 - 2


def test_float32_stays_float32():
    x = leaf([0.5, 1.5], np.float32)
    for f in (
        lambda t: t**3,
        lambda t: t * 0.1 + 1,
        lambda t: t.mean(),
        lambda t: t / 3,
        lambda t: eo.where(t > 1, t, 0.0),
        lambda t: eo.maximum(t, 0.3),
        lambda t: eo.sqrt(t) - 2.0**0.5,
        lambda t: t.var(),
        lambda t: t[[0, 0, 1]],
        lambda t: eo.softmax(t, axis=0),
        lambda t: eo.gelu(t),
        lambda t: t.std(),
        lambda t: eo.norm(t),
        lambda t: eo.clip(t, 0.0, 1.0),
        lambda t: 2.0**t,
        lambda t: t.round(1),
        lambda t: eo.logsumexp(t),
    ):
        x.grad = None
        y = f(x)
        assert y.dtype == "float32"
        y.sum().backward()
        assert x.grad.dtype == np.float32


def test_half_precision_means_do_not_overflow():
    x = eo.full((1000,), 300.0, dtype="float16")
    assert float(x.mean()) == 300.0 and x.mean().dtype == "float16"
    spread = eo.tensor(np.array([-600.0, 600.0]), dtype="float16")
    assert float(spread.std()) == 600.0 and spread.std().dtype == "float16"


def test_a_large_mean_does_not_swallow_the_variance():
    x = eo.tensor((1e4 + np.arange(4)).astype(np.float32), requires_grad=True)
    x.var().backward()
    assert float(x.var()) == 1.25
    np.testing.assert_allclose(x.grad, [-0.75, -0.25, 0.25, 0.75])


def test_long_float32_sums_keep_their_digits():
    x = eo.full((1_000_000,), 0.1)
    assert abs(float(x.mean()) - 0.1) < 1e-6 and abs(float(x.sum()) - 100000.0) < 0.2


def test_astype_to_a_float_stays_in_the_graph():
    x = leaf([1.5, 2.5])
    assert x.astype("float32").requires_grad and x.astype(np.float64).requires_grad
    for dtype in ("int64", "bool"):
        t = x.astype(dtype)
        assert t.dtype == dtype and not t.requires_grad
    (x.astype("float32") * 2).sum().backward()
    assert x.grad.dtype == np.float64


def test_narrow_integers_are_widened_and_wider_floats_refused():
    b, u = eo.tensor([True, False]), np.array([2, 200], np.uint8)
    for t in (
        b + u,
        u + b,
        b // eo.tensor([True, True]),
        b**b,
        eo.tensor([1, 2], dtype="int64") * u,
    ):
        assert t.dtype == "int64"
    assert (eo.tensor([1.0, 2.0]) * u).tolist() == [2.0, 400.0]
    assert (eo.tensor([1.0]) * np.array([2.0], ">f8")).dtype == "float64"
    for bad in (np.longdouble(2), np.ones(1, np.longdouble), np.complex64(1), np.ones(1, "M8[s]")):
        with pytest.raises(EveryODTypeError, match="not supported"):
            eo.tensor([1.0]) * bad


# ---------------------------------------------------------------------------------- attributes


def test_attributes():
    t = eo.tensor([[1.0, 2.0, 3.0]], name="w")
    assert (t.shape, t.ndim, t.size, t.dtype, t.name) == ((1, 3), 2, 3, "float32", "w")
    assert t.device == "cpu" and str(t.device) == "cpu" and not t.device.is_cuda
    assert t.T.shape == (3, 1) and t.is_leaf and not t.requires_grad and t.grad is None
    assert (leaf([1.0]) * 2).is_leaf is False
    assert (leaf([1.0]) * 2).detach().is_leaf


def test_data_is_the_live_buffer_and_assigning_casts():
    p = eo.tensor([1.0, 2.0])
    p.data[...] = 5.0
    assert p.tolist() == [5.0, 5.0]
    p.data = np.array([1, 2], np.int64)
    assert p.dtype == "float32" and p.tolist() == [1.0, 2.0]
    p.data = eo.tensor(np.array([3.0, 4.0]))
    assert p.dtype == "float32" and p.tolist() == [3.0, 4.0]
    with pytest.raises(EveryOShapeError, match=r"\(3,\).*\(2,\)"):
        p.data = np.zeros(3)


def test_requires_grad_needs_floating_point():
    for make in (
        lambda: eo.tensor([True], requires_grad=True),
        lambda: eo.tensor([1], dtype="int64", requires_grad=True),
        lambda: setattr(eo.tensor([1], dtype="int32"), "requires_grad", True),
        lambda: eo.zeros(2, dtype="int64", requires_grad=True),
    ):
        with pytest.raises(EveryOGradientError, match="floating point"):
            make()
    t = eo.tensor([1.0])
    t.requires_grad = True
    assert (t * 2).requires_grad
    t.requires_grad = False
    assert not (t * 2).requires_grad
    with pytest.raises(EveryOGradientError, match="detach"):
        (leaf([1.0]) * 2).requires_grad = False


def test_grad_can_be_set_and_is_checked():
    t = leaf([1.0, 2.0], np.float32)
    t.grad = [3.0, 4.0]
    assert t.grad.dtype == np.float32
    with pytest.raises(EveryOGradientError, match="shape"):
        t.grad = np.zeros(3)
    t.grad = None
    assert t.grad is None


def test_detach_shares_and_clone_does_not():
    t = leaf([1.0, 2.0])
    d, c = t.detach(), t.clone()
    assert not d.requires_grad and d.is_leaf and c.requires_grad and not c.is_leaf
    d[0] = 5.0
    assert t.tolist() == [5.0, 2.0] and c.tolist() == [1.0, 2.0]
    c.sum().backward()
    np.testing.assert_array_equal(t.grad, [1.0, 1.0])


def test_moves_are_differentiable_identities():
    t = leaf([1.0])
    for moved in (
        t.to("cpu"),
        t.cpu(),
        t.cuda(),
        t.to(dtype="float32"),
        t.to(eo.Device("cpu"), dtype=np.float64),
    ):
        assert moved.requires_grad
        t.grad = None
        (moved * 3).sum().backward()
        assert t.grad == [3.0]


def test_numpy_is_a_copy():
    t = eo.tensor([1.0, 2.0])
    t.numpy()[0] = 9.0
    assert t.tolist() == [1.0, 2.0]
    assert eo.tensor([[1, 2], [3, 4]], dtype="int64").tolist() == [[1, 2], [3, 4]]
    assert eo.tensor(2.5).item() == 2.5 and type(eo.tensor([3], dtype="int64").item()) is int


# --------------------------------------------------------------------------------- views, writes


def test_basic_slices_are_views_and_see_writes():
    t = eo.tensor(np.arange(12.0).reshape(3, 4))
    row, column, turned, flat = t[1], t[:, ::2], t.T, t.reshape(-1)
    t[1, 2] = 100.0
    assert (row[2].item(), column[1, 1].item(), turned[2, 1].item(), flat[6].item()) == (100.0,) * 4
    row += 1.0
    assert t[1].tolist() == [5.0, 6.0, 101.0, 8.0]
    flat[0] = -1.0
    assert t[0, 0].item() == -1.0


def test_integer_and_boolean_indexing_copies():
    t = eo.tensor([1.0, 2.0, 3.0])
    for part in (t[[0, 1]], t[np.array([True, True, False])], t[eo.tensor([0, 1])]):
        part *= 10.0
    assert t.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(None),
        slice(2, None, -1),
        (1, 2),
        (slice(1), None),
        Ellipsis,
        (Ellipsis, 0),
        None,
        [0, 2],
        np.array([[0], [1]]),
        (slice(None), [1, 1]),
        (np.array([0, 2]), np.array([1, 3])),
        np.array([True, False, True]),
        (slice(None), np.array([True, False, True, True])),
        np.eye(3, 4) > 0,
        np.int64(1),
        (0, [1, 2]),
        [],
        range(2),
    ],
    ids=repr,
)
def test_reading_and_writing_at_a_key_is_what_numpy_does(key):
    a = np.arange(12.0).reshape(3, 4)
    plain = np.array(list(key), int) if isinstance(key, list | range) else key
    t = eo.tensor(a)
    np.testing.assert_array_equal(t[key].numpy(), a[plain])
    t[key] = -1.0
    a[plain] = -1.0
    np.testing.assert_array_equal(t.numpy(), a)
    t[key] = eo.tensor(5.0) * eo.ones(*t[key].shape)
    a[plain] = 5.0
    np.testing.assert_array_equal(t.numpy(), a)


def test_untracked_in_place_operators_write_into_the_buffer():
    t = eo.tensor([1.0, 2.0])
    view, same = t[:1], t
    t += 1.0
    t *= eo.tensor([2.0, 3.0])
    t -= np.array([1.0, 1.0])
    t /= 2
    t **= 2
    assert same is t and t.tolist() == [2.25, 16.0] and view.tolist() == [2.25]
    half = eo.tensor([1.0], dtype="float16")
    half += np.array([1.0])
    assert half.dtype == "float16"


def test_in_place_operators_rebind_where_a_graph_is_recorded():
    x = leaf([1.0, 2.0])
    y = x
    y *= 3.0
    assert y is not x and x.tolist() == [1.0, 2.0]
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [3.0, 3.0])
    with eo.no_grad():
        z = x
        z -= 1.0
    assert z is x and x.tolist() == [0.0, 1.0] and x.requires_grad


def test_writes_that_do_not_fit_change_nothing():
    t = eo.tensor([1.0, 2.0])
    i = eo.tensor([1, 2], dtype="int64")
    with pytest.raises(EveryOShapeError, match="in-place"):
        t += eo.ones(3, 2)
    with pytest.raises(EveryODTypeError, match="in-place"):
        i += 0.5
    with pytest.raises(EveryOShapeError, match="cannot store"):
        t[:] = [1.0, 2.0, 3.0]
    with pytest.raises(EveryOIndexError, match="out of range"):
        t[[0, 5]] = 7.0
    with pytest.raises(EveryOIndexError, match="out of range"):
        t[2] = 7.0
    assert t.tolist() == [1.0, 2.0] and i.tolist() == [1, 2]


def test_item_assignment_in_a_graph_is_refused():
    x, k = leaf([1.0, 2.0]), eo.zeros(2, dtype="float64")
    with pytest.raises(EveryOGradientError, match="no_grad"):
        x[0] = 3.0
    with pytest.raises(EveryOGradientError, match="where"):
        k[0] = x[0]
    with eo.no_grad():
        x[0] = 3.0
        k[0] = x[0]
    assert x.tolist() == [3.0, 2.0] and k.tolist() == [3.0, 0.0]


# ------------------------------------------------------------------------------ Python protocols


def test_len_iter_bool_and_numbers():
    t = eo.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(t) == 2 and [r.tolist() for r in t] == [[1.0, 2.0], [3.0, 4.0]]
    assert bool(eo.tensor([1.0])) and not eo.tensor(0.0)
    assert float(eo.tensor([2.5])) == 2.5 and int(eo.tensor(2.5)) == 2
    assert f"{eo.tensor([2.5]):.3f}" == "2.500" and f"{eo.tensor(2.5)}".startswith("Tensor(")
    assert [10, 20, 30][eo.tensor(1, dtype="int64")] == 20
    x, y = leaf([1.0, 2.0])
    assert x.requires_grad and y.shape == ()


def test_equality_is_elementwise_and_hashing_by_identity():
    a, b = eo.tensor([1.0, 2.0]), eo.tensor([1.0, 3.0])
    assert (a == b).tolist() == [True, False] and (a != b).tolist() == [False, True]
    assert len({a, b, a}) == 2
    assert {a: 1}[a] == 1


def test_operators_on_bools_and_signs():
    p, q = eo.tensor([True, True]), eo.tensor([True, False])
    assert (p & q).tolist() == [True, False] and (p | q).tolist() == [True, True]
    assert (p ^ q).tolist() == [False, True] and (~q).tolist() == [False, True]
    assert (np.array([True, False]) & p).tolist() == [True, False] and (True & q).tolist() == [
        True,
        False,
    ]
    assert (+q).tolist() == [True, False] and (7 // eo.tensor([2.0])).tolist() == [3.0]
    assert (7.5 % eo.tensor([2.0])).tolist() == [1.5]
    for bits in (lambda: eo.tensor([1], dtype="int64") & 1, lambda: ~eo.tensor([1.0])):
        with pytest.raises(EveryODTypeError, match="bool"):
            bits()


def test_repr_shows_values_shape_and_dtype():
    text = repr(eo.tensor([1.0, 2.0], requires_grad=True))
    assert (
        "shape=(2,)" in text
        and "dtype=float32" in text
        and "requires_grad=True" in text
        and "[1., 2.]" in text
    )
    assert repr(eo.zeros(2000)).endswith("elements>")
    assert eo.tensor([1.0])._repr_html_().startswith("<pre>Tensor(")
    assert "&lt;" in eo.zeros(2000)._repr_html_()


@pytest.mark.parametrize(
    "again", [lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy], ids=["pickle", "deepcopy"]
)
def test_leaves_can_be_pickled_and_copied(again):
    t = eo.tensor([1.0, 2.0], requires_grad=True, name="w")
    t.grad = [3.0, 4.0]
    u = again(t)
    assert (
        u.requires_grad
        and u.name == "w"
        and u.dtype == "float32"
        and not np.shares_memory(u.data, t.data)
    )
    np.testing.assert_array_equal(u.numpy(), t.numpy())
    np.testing.assert_array_equal(u.grad, t.grad)
    (u * u).sum().backward()
    with eo.no_grad():
        u += 1.0
    assert t.tolist() == [1.0, 2.0]
    shared = again([t, t])
    assert shared[0] is shared[1]
    with pytest.raises(EveryOGradientError, match="leaf"):
        again(t * 2)


# ---------------------------------------------------------------------------------- NumPy


def test_asarray_honours_copy():
    t = eo.tensor([1.0, 2.0])
    assert np.shares_memory(np.asarray(t), t.data)
    assert not np.shares_memory(np.array(t), t.data)
    assert np.asarray(t, dtype="float64").dtype == np.float64
    assert np.shares_memory(np.asarray(t, copy=False), t.data)
    with pytest.raises(ValueError):
        np.asarray(t, dtype="float64", copy=False)


A, M = np.array([1.0, 2.0, 3.0]), np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (lambda t: A * t, A),
        (lambda t: A + t, np.ones(3)),
        (lambda t: A - t, -np.ones(3)),
        (lambda t: M @ t, M.sum(0)),
        (lambda t: np.float64(2.0) * t, np.full(3, 2.0)),
        (lambda t: np.float64(12.0) / t, -12.0 / np.array([4.0, 9, 16])),
        (lambda t: A**t, A ** np.array([2.0, 3, 4]) * np.log(A)),
        (lambda t: np.exp(t), np.exp([2.0, 3, 4])),
        (lambda t: np.multiply(A, t), A),
        (lambda t: np.matmul(M, t), M.sum(0)),
        (lambda t: np.sum(t * t, axis=0), [4.0, 6, 8]),
        (lambda t: np.mean(t), np.full(3, 1 / 3)),
        (lambda t: np.concatenate([t, A]), np.ones(3)),
        (lambda t: np.where(A > 1, t, A), [0.0, 1, 1]),
        (lambda t: np.stack([t, t]), [2.0, 2, 2]),
        (lambda t: np.clip(t, 2.5, 3.5), [0.0, 1, 0]),
        (lambda t: np.linalg.norm(t), np.array([2.0, 3, 4]) / 29**0.5),
        (lambda t: np.reshape(t, (3, 1)), np.ones(3)),
        (lambda t: np.einsum("i,i->", A, t), A),
        (lambda t: np.dot(A, t), A),
        (lambda t: np.max(t), [0.0, 0, 1]),
        (lambda t: np.expand_dims(t, 0), np.ones(3)),
        (lambda t: np.prod(t), [12.0, 8, 6]),
        (lambda t: np.arctan2(t, A), A / (np.array([4.0, 9, 16]) + A * A)),
        (lambda t: np.absolute(t), np.ones(3)),
        (lambda t: np.sort(t), np.ones(3)),
        (lambda t: np.copy(t), np.ones(3)),
        (lambda t: np.cumsum(t, 0), [3.0, 2, 1]),
    ],
)
def test_numpy_functions_keep_the_graph_on_either_side(function, slope):
    t = leaf([2.0, 3.0, 4.0])
    y = function(t)
    assert isinstance(y, eo.Tensor) and y.requires_grad
    y.sum().backward()
    np.testing.assert_allclose(t.grad, slope, rtol=1e-12)


def test_comparisons_with_arrays_give_tensors():
    assert isinstance(A > eo.tensor([2.0, 2, 2]), eo.Tensor)
    assert (A == eo.tensor(A)).tolist() == [True, True, True]
    assert np.isnan(eo.tensor([np.nan])).tolist() == [True]


def test_arguments_that_mean_something_else_in_numpy_are_not_misread():
    t = eo.tensor(np.array([[3.0, 1.0], [2.0, 4.0]]))
    np.testing.assert_array_equal(np.sort(t, -1, "stable"), np.sort(t.numpy()))
    np.testing.assert_allclose(np.linalg.norm(t, 1), np.linalg.norm(t.numpy(), 1))
    assert np.sum(t, 0, np.float32).dtype == np.float32
    np.testing.assert_array_equal(np.pad(t, 1, "edge"), np.pad(t.numpy(), 1, "edge"))
    with pytest.raises(TypeError):
        np.add(t, t, out=t.numpy())
    with pytest.raises(TypeError):
        np.add.reduce(t)


def test_other_numpy_functions_get_arrays_unless_a_gradient_would_be_lost():
    t, x = eo.tensor([1.0, 2.0]), leaf([1.0, 2.0])
    assert np.allclose(t, [1.0, 2.0]) and np.allclose(x, [1.0, 2.0]) and np.array_equal(t, t)
    assert np.shape(x) == (2,) and np.ndim(x) == 1 and np.size(x) == 2
    assert isinstance(np.diff(t), np.ndarray)
    with pytest.raises(TypeError, match="gradient"):
        np.diff(x)
    with eo.no_grad():
        assert np.diff(x).tolist() == [1.0]


def test_dlpack_goes_both_ways_and_shares():
    a = np.arange(3.0)
    t = eo.from_dlpack(a)
    a[0] = 7.0
    assert t.tolist() == [7.0, 1.0, 2.0]
    back = np.from_dlpack(t)
    t[1] = 8.0
    assert back.tolist() == [7.0, 8.0, 2.0]
    assert t.__dlpack_device__() == a.__dlpack_device__()
    assert eo.from_dlpack(np.arange(3)).dtype == "int64" and eo.from_dlpack(t).dtype == "float64"
    with pytest.raises(EveryOGradientError, match="detach"):
        np.from_dlpack(leaf([1.0]))
    with pytest.raises(EveryODTypeError):
        eo.from_dlpack(np.zeros(2, np.uint8))
    x = eo.from_dlpack(a)
    y = (leaf([1.0, 2.0, 3.0]) * x).sum()
    view = x[:1]
    view += 1.0
    with pytest.raises(EveryOGradientError, match="modified"):
        y.backward()


# ---------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    "spec",
    ["cpu", "CPU", " cpu ", "cpu:0", None, eo.Device("cpu"), "auto", "cuda", "gpu", "cuda:1"],
)
def test_device_strings(spec):
    d = eo.device(spec)
    assert d == "cpu" or d.is_cuda
    assert eo.tensor([1.0], device=spec).device == d or d.is_cuda


@pytest.mark.parametrize(
    ("spec", "fragment"),
    [
        ("tpu", "Unknown device type"),
        ("cpu:1", "index 0"),
        ("cuda:-1", "index 0"),
        ("cuda:x", "Invalid device string"),
        ("", "Invalid device string"),
        (3, "Invalid device string"),
        ("cpu:0:0", "Invalid device string"),
    ],
)
def test_devices_that_do_not_exist_are_refused(spec, fragment):
    for use in (
        lambda: eo.device(spec),
        lambda: eo.zeros(1, device=spec),
        lambda: eo.tensor(1.0).to(spec),
    ):
        with pytest.raises(EveryODeviceError, match=fragment):
            use()


def test_devices_are_equal_by_value():
    assert eo.Device("cpu") == eo.Device() == "cpu" and eo.Device("cuda", 1) == "cuda:1"
    assert len({eo.Device("cuda"), eo.Device("cuda", 0), eo.Device("cpu")}) == 2
    assert (
        eo.Device("cuda") == "cuda" and str(eo.Device("cuda")) == "cuda:0" and eo.Device("cpu") != 3
    )
    with pytest.raises(AttributeError):
        eo.Device("cpu").index = 1
    with pytest.raises(EveryOError, match="Unknown device type"):
        eo.Device("tpu")
    if not eo.cuda.is_available():
        with pytest.raises(eo.EveryOCudaError, match="strict"):
            eo.device("cuda", strict=True)
        with pytest.raises(eo.EveryOCudaError, match="strict"):
            eo.tensor([1.0]).cuda(strict=True)


def test_subtracting_from_the_data_keeps_the_array_and_counts_as_a_write():
    t = eo.tensor([1.0, 2.0], requires_grad=True)
    array = t.data
    y = (t * t).sum()
    t.data -= 1.0
    assert t.data is array and array.tolist() == [0.0, 1.0]
    with pytest.raises(EveryOGradientError):
        y.backward()
    t.data = array.copy()
    assert t.data is not array
