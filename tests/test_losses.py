"""Losses: values, derivatives, reductions, targets in every form, and what they refuse."""

import copy
import pickle

import numpy as np
import pytest

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOShapeError

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.normal(size=(4, 3))
LABELS = np.array([0, 2, 1, 2])
VALUES, TARGETS = GENERATOR.normal(size=(2, 3)), GENERATOR.normal(size=(2, 3))
PROBABILITIES = GENERATOR.uniform(0.1, 0.9, (2, 3))
ROWS = np.eye(3)[LABELS]


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def bce(p, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


# loss -> (class, function, prediction, target, the unreduced value by NumPy)
TABLE = {
    "mse": (nn.MSELoss, nn.mse_loss, VALUES, TARGETS, (VALUES - TARGETS) ** 2),
    "mae": (nn.MAELoss, nn.mae_loss, VALUES, TARGETS, np.abs(VALUES - TARGETS)),
    "bce": (
        nn.BCELoss,
        nn.binary_cross_entropy,
        PROBABILITIES,
        (TARGETS > 0).astype(float),
        bce(PROBABILITIES, TARGETS > 0),
    ),
    "bce with logits": (
        nn.BCEWithLogitsLoss,
        nn.binary_cross_entropy_with_logits,
        VALUES,
        PROBABILITIES,
        bce(1 / (1 + np.exp(-VALUES)), PROBABILITIES),
    ),
    "cross entropy": (
        nn.CrossEntropyLoss,
        nn.cross_entropy,
        SCORES,
        LABELS,
        -log_softmax(SCORES)[np.arange(4), LABELS],
    ),
    "cross entropy of rows": (
        nn.CrossEntropyLoss,
        nn.cross_entropy,
        SCORES,
        ROWS * 0.7 + 0.1,
        -((ROWS * 0.7 + 0.1) * log_softmax(SCORES)).sum(-1),
    ),
}
LOSSES = pytest.mark.parametrize("name", TABLE)


@LOSSES
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_loss_is_its_formula_reduced(name, reduction):
    cls, function, prediction, target, want = TABLE[name]
    want = {"mean": want.mean(), "sum": want.sum(), "none": want}[reduction]
    for loss in (cls(reduction), lambda *pair: function(*pair, reduction)):
        got = loss(eo.tensor(prediction), target)
        assert got.shape == want.shape and got.dtype == "float64"
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


@LOSSES
def test_every_loss_matches_finite_differences_twice(name):
    _, function, prediction, target, _ = TABLE[name]

    def loss(x):
        return function(x, target)

    assert eo.gradcheck(loss, [prediction], rtol=1e-6)
    assert eo.gradcheck(lambda x: (eo.grad(loss)(x) ** 2).sum(), [prediction], rtol=1e-5)


@pytest.mark.parametrize("name", ["mse", "mae", "bce with logits"])
def test_elementwise_losses_are_differentiable_by_the_target(name):
    _, function, prediction, target, _ = TABLE[name]
    assert eo.gradcheck(function, [prediction, target], rtol=1e-6)


@LOSSES
def test_every_loss_keeps_float32(name):
    cls, _, prediction, target, _ = TABLE[name]
    x = eo.tensor(prediction.astype(np.float32), requires_grad=True)
    target = target.astype(np.float32) if target.dtype.kind == "f" else target
    loss = cls()(x, target)
    loss.backward()
    assert loss.dtype == "float32" and x.grad.dtype == np.float32


@LOSSES
def test_every_loss_is_a_module_without_parameters(name):
    loss = TABLE[name][0]("sum")
    assert loss.parameters() == [] and loss.get_config() == {"reduction": "sum"}
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert other.reduction == "sum"


@pytest.mark.slow
@LOSSES
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_loss_compiled_equals_eager(name, reduction, dtype):
    _, function, prediction, target, _ = TABLE[name]
    rtol = {np.float64: 1e-10, np.float32: 1e-5}[dtype]
    by_target = name in ("mse", "mae", "bce with logits")

    def step(x, t):
        loss = function(x, t, reduction)
        (loss * 2.0).sum().backward()
        return loss

    compiled = eo.compile(step)
    for _ in range(3):
        results = []
        for run in (compiled, step):
            x = eo.tensor(prediction.astype(dtype), requires_grad=True)
            t = eo.tensor(target.astype(dtype), requires_grad=True) if by_target else target
            loss = run(x, t)
            results.append([loss.numpy(), x.grad, *([t.grad] if by_target else [])])
        for found, want in zip(*results, strict=True):
            assert found.dtype == want.dtype
            np.testing.assert_allclose(found, want, rtol=rtol, atol=rtol)


@pytest.mark.slow
def test_compiled_losses_check_values_before_any_state_is_written():
    model = eo.Linear(2, 3, seed=0)
    optimizer = eo.Adam(model.parameters())

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x = eo.ones(2, 2)
    step(x, np.array([0, 2]))
    before = model.weight.numpy()
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(EveryOShapeError, match="out of range"):
            step(x, np.array(wrong))
    with pytest.raises(EveryOShapeError, match="whole numbers"):
        step(x, np.array([0.5, 1.0]))
    np.testing.assert_array_equal(model.weight.numpy(), before)
    assert optimizer.step_count == 1
    probabilities = eo.compile(nn.binary_cross_entropy)
    probabilities(eo.tensor([0.5]), eo.tensor([1.0]))
    with pytest.raises(EveryOShapeError, match="probabilities"):
        probabilities(eo.tensor([1.5]), eo.tensor([1.0]))


# ---------------------------------------------------------------------------------- cross entropy


@pytest.mark.parametrize(
    "target",
    [
        LABELS.tolist(),
        LABELS,
        LABELS.astype(np.int32),
        LABELS.astype(np.float32),
        LABELS[:, None],
        eo.tensor(LABELS),
        eo.tensor(LABELS, dtype="int64"),
        ROWS,
        ROWS.astype(np.int64),
        ROWS.tolist(),
        eo.tensor(ROWS),
    ],
    ids=[
        "list", "int64", "int32", "float32", "column", "float tensor", "int tensor", "rows",
        "int rows", "list rows", "tensor rows",
    ],
)  # fmt: skip
def test_cross_entropy_takes_indices_and_rows_in_any_form(target):
    x = eo.tensor(SCORES, requires_grad=True)
    nn.cross_entropy(x, target).backward()
    np.testing.assert_allclose(x.grad, (np.exp(log_softmax(SCORES)) - ROWS) / 4, rtol=1e-6)


def test_cross_entropy_survives_huge_scores():
    x = eo.tensor([[1e4, -1e4], [0.0, 1e4]], requires_grad=True)
    loss = nn.cross_entropy(x, [1, 1], reduction="none")
    np.testing.assert_allclose(loss.numpy(), [2e4, 0])
    loss.sum().backward()
    assert np.isfinite(x.grad).all()


# ---------------------------------------------------------------------------------- binary


def test_certain_and_wrong_is_large_but_finite():
    loss = nn.BCELoss()(eo.tensor([0.0]), [1.0]).item()
    assert 10 < loss < 20 and np.isfinite(loss)
    assert nn.BCELoss()(eo.tensor([0.0, 1.0]), [0.0, 1.0]).item() < 1e-6


def test_logits_have_the_gradient_sigmoid_minus_target_everywhere():
    x = eo.tensor(np.array([0.0, 0.0, 800.0, -800.0]), requires_grad=True)
    y = np.array([1.0, 0.25, 1.0, 1.0])
    nn.BCEWithLogitsLoss("sum")(x, y).backward()
    np.testing.assert_array_equal(x.grad, [-0.5, 0.25, 0.0, -1.0])


def test_logits_are_one_node_of_their_own():
    x = eo.tensor(VALUES, requires_grad=True)
    loss = nn.BCEWithLogitsLoss("none")(x, PROBABILITIES)
    assert loss.grad_node.operation == "binary_cross_entropy_with_logits"


def test_a_prediction_that_is_nan_is_reported_by_the_loss_itself():
    assert np.isnan(nn.BCELoss()(eo.tensor([np.nan]), [1.0]).item())


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda: nn.mse_loss(VALUES, VALUES[0]), "same shape"),
        (lambda: nn.mae_loss(VALUES, 0.0), "same shape"),
        (lambda: nn.BCELoss()(PROBABILITIES, [1.0, 0.0]), "same shape"),
        (lambda: nn.BCEWithLogitsLoss()(VALUES, VALUES.T), "same shape"),
        (lambda: nn.BCELoss()(PROBABILITIES + 1, PROBABILITIES), "probabilities"),
        (lambda: nn.BCELoss()(PROBABILITIES, PROBABILITIES - 1), "probabilities"),
        (lambda: nn.cross_entropy(SCORES[0], LABELS), r"\(batch, classes\)"),
        (lambda: nn.cross_entropy(SCORES[None], LABELS), r"\(batch, classes\)"),
        (lambda: nn.cross_entropy(SCORES, LABELS[:3]), "targets"),
        (lambda: nn.cross_entropy(SCORES, ROWS[:, :2]), "targets"),
        (lambda: nn.cross_entropy(SCORES, LABELS + 1), "targets are out of range"),
        (lambda: nn.cross_entropy(SCORES, -LABELS), "targets are out of range"),
        (lambda: nn.cross_entropy(SCORES, LABELS + 0.5), "targets must be whole numbers"),
    ],
)
def test_what_does_not_fit_is_a_shape_error(call, fragment):
    with pytest.raises(EveryOShapeError, match=fragment):
        call()


@LOSSES
@pytest.mark.parametrize("reduction", ["average", None, []])
def test_an_unknown_reduction_is_a_value_error(name, reduction):
    cls, function, prediction, target, _ = TABLE[name]
    with pytest.raises(ValueError, match="Unknown reduction"):
        cls(reduction)
    with pytest.raises(ValueError, match="Unknown reduction"):
        function(prediction, target, reduction)


@pytest.mark.parametrize("wrong", [3, -1, 2**40], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["cross_entropy", "pick", "spread"])
def test_ops_refuse_labels_that_are_no_class(name, compiled, wrong):
    from everyo.ops import composite

    op = getattr(composite, name)
    more = {"n": 3} if name == "spread" else {}
    f = eo.compile(op) if compiled else op
    a = eo.tensor(np.ones(4 if name == "spread" else (4, 3), np.float32))
    assert np.isfinite(f(a, np.array([0, 1, 2, 0]), **more).numpy()).all()
    with pytest.raises(EveryOShapeError, match=r"\[0, 3\)"):
        f(a, np.array([0, 1, wrong, 0]), **more)


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 1e30, 0.5])
def test_labels_as_floats_are_whole_numbers(wrong):
    logits = eo.tensor(np.ones((2, 3), np.float32))
    with pytest.raises(EveryOShapeError, match="whole numbers"):
        nn.cross_entropy(logits, np.array([1.0, wrong], np.float32))
