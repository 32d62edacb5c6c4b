"""Bad input: the class of the error, what its message says, and that nothing has changed."""

import numpy as np
import pytest

import everyo as eo
from everyo import exceptions
from everyo.exceptions import (
    EveryODTypeError,
    EveryOError,
    EveryOGradientError,
    EveryOIndexError,
    EveryOShapeError,
)

X = eo.tensor(np.arange(6.0).reshape(2, 3))
I = eo.tensor([1, 2, 3], dtype="int64")  # noqa: E741


def tracked():
    return eo.tensor([1.0, 2.0, 3.0], requires_grad=True)


CASES = [
    # shapes
    ("add", lambda: X + eo.ones(4), EveryOShapeError, ["broadcast", r"\(2, 3\)", r"\(4,\)"]),
    ("where", lambda: eo.where(X > 0, X, eo.ones(5)), EveryOShapeError, ["broadcast", r"\(5,\)"]),
    ("greater", lambda: X > eo.ones(7), EveryOShapeError, ["broadcast", "greater"]),
    ("clip", lambda: eo.clip(X, 2.0, 1.0), EveryOShapeError, ["low <= high"]),
    ("clip arrays", lambda: eo.clip(X, np.ones(3), 0), EveryOShapeError, ["low <= high"]),
    ("sum axis", lambda: X.sum(axis=2), EveryOShapeError, ["out of range", r"\(2, 3\)"]),
    ("0-d axis", lambda: eo.tensor(1.0).sum(axis=0), EveryOShapeError, ["out of range"]),
    ("axis twice", lambda: X.sum(axis=(0, -2)), EveryOShapeError, ["twice"]),
    ("axis type", lambda: X.sum(axis=1.5), TypeError, ["axis"]),
    ("axis bool", lambda: X.sum(axis=True), TypeError, ["axis"]),
    ("softmax axis", lambda: eo.softmax(X, axis=-3), EveryOShapeError, ["out of range"]),
    ("cumsum axis", lambda: X.cumsum(5), EveryOShapeError, ["out of range"]),
    ("matmul 0-d", lambda: X @ eo.tensor(1.0), EveryOShapeError, ["at least one dimension"]),
    (
        "matmul",
        lambda: X @ X,
        EveryOShapeError,
        ["inner dimensions", r"\(2, 3\)", "3 != 2", r"b\.T"],
    ),
    ("matmul batch", lambda: eo.ones(2, 3, 4) @ eo.ones(3, 4, 5), EveryOShapeError, ["broadcast"]),
    ("dot", lambda: eo.dot(eo.ones(2), eo.ones(3)), EveryOShapeError, ["inner dimensions"]),
    ("tensordot", lambda: eo.tensordot(X, X, axes=1), EveryOShapeError, ["do not match"]),
    ("reshape", lambda: X.reshape(4, 2), EveryOShapeError, ["Cannot reshape", r"\(4, 2\)", "6"]),
    ("reshape -1", lambda: X.reshape(-1, -1), EveryOShapeError, ["Cannot reshape"]),
    ("reshape float", lambda: X.reshape(2.0, 3), TypeError, []),
    ("transpose", lambda: X.transpose(0, 0), EveryOShapeError, ["permutation"]),
    ("transpose few", lambda: eo.transpose(X, (0,)), EveryOShapeError, ["permutation"]),
    (
        "concatenate",
        lambda: eo.concatenate([X, eo.ones(3, 4)]),
        EveryOShapeError,
        ["Cannot concatenate"],
    ),
    ("concatenate none", lambda: eo.concatenate([]), EveryOShapeError, ["Cannot concatenate"]),
    (
        "concatenate 0-d",
        lambda: eo.concatenate([eo.tensor(1.0)]),
        EveryOShapeError,
        ["Cannot concatenate"],
    ),
    (
        "concatenate ranks",
        lambda: eo.concatenate([X, eo.ones(3)]),
        EveryOShapeError,
        ["Cannot concatenate"],
    ),
    ("stack", lambda: eo.stack([X, eo.ones(3)]), EveryOShapeError, ["one shape"]),
    ("stack none", lambda: eo.stack([]), EveryOShapeError, ["empty"]),
    ("stack axis", lambda: eo.stack([X, X], axis=3), EveryOShapeError, ["out of range"]),
    ("split", lambda: eo.split(X, 4, axis=1), EveryOShapeError, ["equal parts"]),
    ("squeeze", lambda: eo.squeeze(X, 0), EveryOShapeError, ["size 1"]),
    ("unsqueeze", lambda: eo.unsqueeze(X, 4), EveryOShapeError, ["out of range"]),
    ("broadcast_to", lambda: eo.broadcast_to(X, (3, 3)), EveryOShapeError, ["broadcast"]),
    ("pad", lambda: eo.pad(X, -1), EveryOShapeError, ["pad"]),
    ("pad float", lambda: eo.pad(X, 0.5), EveryOShapeError, ["pad"]),
    ("roll", lambda: eo.roll(X, (1, 2, 3), axis=(0, 1)), EveryOShapeError, ["roll"]),
    ("tril", lambda: eo.tril(eo.ones(3)), EveryOShapeError, ["two dimensions"]),
    ("topk", lambda: eo.topk(X, 4), EveryOShapeError, ["out of range"]),
    ("flatten", lambda: eo.flatten(X, 2), EveryOShapeError, ["out of range"]),
    ("einsum operands", lambda: eo.einsum("ij,jk->ik", X), EveryOShapeError, ["operands"]),
    ("einsum rank", lambda: eo.einsum("ijk->i", X), EveryOShapeError, ["does not label"]),
    ("einsum sizes", lambda: eo.einsum("ij,ij->i", X, X.T), EveryOShapeError, ["sizes"]),
    ("einsum result", lambda: eo.einsum("ij->ijj", X), EveryOShapeError, ["distinct"]),
    ("zeros", lambda: eo.zeros(-1), EveryOShapeError, ["negative"]),
    ("one_hot", lambda: eo.one_hot([3], 3), EveryOShapeError, ["out of range"]),
    ("max of nothing", lambda: eo.zeros(0).max(), EveryOShapeError, ["zero elements"]),
    ("min of nothing", lambda: eo.zeros(0, 3).min(axis=0), EveryOShapeError, ["zero elements"]),
    ("argmax of nothing", lambda: eo.zeros(0).argmax(), ValueError, ["zero elements"]),
    (
        "logsumexp of nothing",
        lambda: eo.logsumexp(eo.zeros(0)),
        EveryOShapeError,
        ["zero elements"],
    ),
    # positions
    ("index", lambda: X[2], EveryOIndexError, ["out of range", "index 2"]),
    ("index negative", lambda: X[0, -4], IndexError, ["out of range", "-4"]),
    ("index array", lambda: X[[0, 2]], EveryOShapeError, ["out of range", "index 2", "axis 0"]),
    ("index tensor", lambda: X[eo.tensor([5])], ValueError, ["out of range"]),
    ("index too many", lambda: X[0, 0, 0], EveryOIndexError, ["3 index entries"]),
    ("index dots", lambda: X[..., ...], EveryOIndexError, ["index entries"]),
    ("index mask", lambda: X[np.array([True, False, True])], EveryOIndexError, ["mask", r"\(3,\)"]),
    ("index bool", lambda: X[True], EveryOIndexError, ["bool"]),
    ("index float", lambda: X[[0.5]], EveryODTypeError, ["index"]),
    ("index fraction", lambda: X[eo.tensor([0.5])], EveryODTypeError, ["index"]),
    ("index slice", lambda: X[0.5:], TypeError, []),
    (
        "take_along_axis",
        lambda: eo.take_along_axis(X, [[3], [0]], 1),
        EveryOIndexError,
        ["out of range"],
    ),
    ("take_along shape", lambda: eo.take_along_axis(X, [0]), EveryOShapeError, ["do not fit"]),
    ("take_along bool", lambda: eo.take_along_axis(X, X > 0), EveryODTypeError, ["integers"]),
    ("gather", lambda: eo.gather(X, 0, np.zeros((1, 4), int)), EveryOShapeError, ["gather"]),
    (
        "scatter_add",
        lambda: eo.scatter_add(X, 1, [[3]], [[1.0]]),
        EveryOIndexError,
        ["out of range"],
    ),
    ("scatter_add shape", lambda: eo.scatter_add(X, 1, [[0]], [1.0]), EveryOShapeError, ["values"]),
    # dtypes
    (
        "dtype",
        lambda: eo.tensor([1.0], dtype="float128"),
        EveryODTypeError,
        ["float128", "float32"],
    ),
    ("ragged", lambda: eo.tensor([[1], [1, 2]]), EveryODTypeError, ["ragged"]),
    ("objects", lambda: eo.tensor([None]), EveryODTypeError, ["object"]),
    ("operand", lambda: X + np.array([None] * 3), EveryODTypeError, ["object"]),
    ("complex", lambda: X * np.ones(3, complex), EveryODTypeError, ["complex"]),
    ("minus bool", lambda: -(X > 0), EveryODTypeError, ["negative", "bool"]),
    ("negative power", lambda: I**-1, EveryODTypeError, ["power", "negative"]),
    # gradients
    (
        "no grad",
        lambda: X.sum().backward(),
        EveryOGradientError,
        ["does not require gradients", "requires_grad"],
    ),
    (
        "no seed",
        lambda: (tracked() * 2).backward(),
        EveryOGradientError,
        ["explicit gradient", r"\(3,\)", "scalar"],
    ),
    (
        "seed",
        lambda: (tracked() * 2).backward(eo.ones(2)),
        EveryOGradientError,
        ["shape", r"\(2,\)", r"\(3,\)"],
    ),
    (
        "seed rank",
        lambda: (tracked() * 2).backward(np.ones((3, 1))),
        EveryOGradientError,
        [r"\(3, 1\)"],
    ),
    ("retain", lambda: X.retain_grad(), EveryOGradientError, ["does not require"]),
    (
        "integers",
        lambda: eo.tensor([1], dtype="int64", requires_grad=True),
        EveryOGradientError,
        ["floating point"],
    ),
    # builtins
    ("item", lambda: X.item(), ValueError, ["exactly one element"]),
    ("bool", lambda: bool(X), ValueError, ["ambiguous"]),
    ("float", lambda: float(X), ValueError, ["exactly one element"]),
    ("len", lambda: len(eo.tensor(1.0)), TypeError, ["0-d"]),
    ("iter", lambda: list(eo.tensor(1.0)), TypeError, ["0-d"]),
    ("list index", lambda: [1, 2][eo.tensor([1.0])], TypeError, ["index"]),
    ("arguments", lambda: eo.exp(), TypeError, ["exp"]),
    ("keyword", lambda: X.sum(dim=0), TypeError, ["sum", "dim"]),
    ("gelu", lambda: eo.gelu(X, approximate="fast"), ValueError, ["approximate", "fast"]),
]


@pytest.mark.parametrize(
    ("use", "kind", "fragments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_input_is_refused_with_the_facts(use, kind, fragments):
    before = X.numpy()
    with pytest.raises(kind) as caught:
        use()
    for fragment in fragments:
        caught.match(fragment)
    np.testing.assert_array_equal(X.numpy(), before)


def test_every_error_is_of_the_family_and_of_a_builtin_where_that_helps():
    family = {name: getattr(exceptions, name) for name in exceptions.__all__}
    assert all(issubclass(e, EveryOError) for e in family.values())
    for name in ("EveryOShapeError", "EveryODTypeError", "EveryODeviceError"):
        assert issubclass(family[name], ValueError)
    assert issubclass(EveryOIndexError, EveryOShapeError) and issubclass(
        EveryOIndexError, IndexError
    )
    assert issubclass(family["EveryOCudaError"], family["EveryOBackendError"])
    assert all(getattr(eo, name) is e for name, e in family.items())


def test_the_users_own_errors_pass_through():
    class Mine(Exception):
        pass

    def fails(t):
        raise Mine

    with pytest.raises(Mine):
        eo.grad(fails)(np.ones(2))
    assert eo.is_grad_enabled()
