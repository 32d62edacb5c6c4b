"""ONNX: what ONNX Runtime computes from an exported file is what the model computes."""

import numpy as np
import pytest
from op_table import CASES

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOSerializationError
from everyo.serialization.onnx_trace import IR_VERSION, MINIMUM_OPSET, _slice_parameters

onnx = pytest.importorskip("onnx", reason="the extra [onnx] is not installed")
pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def as_input(x):
    """What the model is called with: floats as a tensor, integers as they are."""
    return eo.tensor(x) if x.dtype.kind == "f" else x


def input_sizes(path):
    """The sizes of the input, names where they are symbolic."""
    sizes = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    return [d.dim_param or d.dim_value for d in sizes]


def is_dynamic(path):
    return input_sizes(path)[:1] == ["batch"]


def check(model, path, example, rtol=1e-4, atol=1e-5):
    """The file computes what the model computes, also for other batches if it takes them."""
    batches = [example]
    if is_dynamic(path):
        n = example.shape[0]
        batches += [np.take(example, np.arange(k) % n, axis=0) for k in (1, n + 3)]
    for x in batches:
        found, expected = eo.run_onnx(path, x), model(as_input(x))
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected.numpy(), rtol=rtol, atol=atol)


class Apply(eo.Module):
    """A function as a model."""

    def __init__(self, function, **held):
        super().__init__()
        self.function = function
        for name, value in held.items():
            setattr(self, name, value)
        self.eval()

    def forward(self, x):
        return self.function(x)


# ---------------------------------------------------------------------------------- models

FEED_FORWARD = {
    "mlp": (lambda: (nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)), (4, 5)),
    "cnn": (
        lambda: (
            nn.Conv2D(2, 3, 3, padding="same", stride=2), nn.BatchNorm2D(3), nn.ReLU(),
            nn.MaxPool2D(2), nn.Conv2D(3, 2, (2, 1), bias=False), nn.Flatten(),
        ), (3, 9, 8, 2),
    ),
    "sequences": (
        lambda: (nn.Conv1D(3, 4, 3, padding="same"), nn.GELU(), nn.Conv1D(4, 2, 2, stride=2)),
        (2, 9, 3),
    ),
    "average same": (lambda: (nn.AvgPool2D(3, stride=2, padding="same"),), (2, 5, 6, 2)),
    "average": (lambda: (nn.AvgPool2D((2, 3)),), (2, 5, 6, 2)),
    "maximum same": (lambda: (nn.MaxPool2D(3, stride=1, padding="same"),), (2, 4, 5, 1)),
    "transposed": (lambda: (nn.ConvTranspose2D(2, 3, 3, stride=2),), (2, 4, 3, 2)),
    "norms": (lambda: (nn.BatchNorm1D(6), nn.LayerNorm(6), nn.Linear(6, 2)), (4, 6)),
    "flatten": (lambda: (nn.Flatten(2), nn.Linear(6, 2)), (2, 4, 3, 2)),
    "softmax": (lambda: (nn.Linear(5, 4), nn.Softmax(axis=-1), nn.LogSoftmax(axis=0)), (1, 5)),
    "nested": (lambda: (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), nn.LogSoftmax()), (2, 3)),
    "activations": (
        lambda: (
            nn.LeakyReLU(0.1), nn.ELU(0.5), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.LogSigmoid(),
        ), (3, 7),
    ),
    "identity": (lambda: (nn.Dropout(0.5),), (2, 3)),
}  # fmt: skip


def trained(model, shape):
    """The model after two batches in training mode, so that running statistics mean something."""
    model.train()
    for seed in (1, 2):
        model(floats(4, *shape[1:], seed=seed) * 2 + 1)
    return model.eval()


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_models_run_for_any_batch(name, tmp_path):
    layers, shape = FEED_FORWARD[name]
    model = trained(nn.Sequential(*layers()), shape)
    path = eo.export_onnx(model, tmp_path / "deep" / "model", input_shape=(None, *shape[1:]))
    assert path.name == "model.onnx"
    assert input_sizes(path) == ["batch", *shape[1:]]
    check(model, path, floats(*shape), rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn", "sequences", "norms"])
def test_the_shape_of_a_sample_will_do(name, tmp_path):
    layers, shape = FEED_FORWARD[name]
    model = nn.Sequential(*layers()).eval()
    path = eo.export_onnx(model, tmp_path / "m", input_shape=shape[1:])
    assert input_sizes(path) == ["batch", *shape[1:]]
    check(model, path, floats(*shape), rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in FEED_FORWARD if n != "identity"])
def test_feed_forward_models_trace_too(name, tmp_path):
    layers, shape = FEED_FORWARD[name]
    model = nn.Sequential(*layers()).eval()
    x = floats(*shape)
    path = eo.export_onnx_traced(model, tmp_path / "m.onnx", example_input=x)
    assert is_dynamic(path)
    check(model, path, x)


CONVOLUTIONS = {
    "valid": (lambda: nn.Conv2D(3, 4, (3, 2)), (2, 6, 5, 3)),
    "same": (lambda: nn.Conv2D(3, 4, 3, padding="same", stride=2), (2, 7, 6, 3)),
    "groups": (lambda: nn.Conv2D(4, 6, 3, padding=(1, (2, 0)), groups=2), (2, 6, 6, 4)),
    "depthwise": (lambda: nn.Conv2D(3, 3, 3, padding="same", groups=3), (1, 5, 5, 3)),
    "dilation": (lambda: nn.Conv2D(2, 3, 2, dilation=(2, 3), stride=(1, 2)), (2, 8, 9, 2)),
    "one cell": (lambda: nn.Conv2D(3, 5, 1), (2, 4, 4, 3)),
    "sequences": (lambda: nn.Conv1D(3, 4, 3, padding=(2, 0)), (2, 9, 3)),
    "what is left over": (lambda: nn.Conv2D(2, 2, 2, stride=3), (2, 7, 6, 2)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_one_operator(name, tmp_path):
    import onnx

    layer, shape = CONVOLUTIONS[name]
    model = nn.Sequential(layer()).eval()
    path = eo.export_onnx(model, tmp_path / "m", input_shape=(None, *shape[1:]))
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("Conv") == 1 and not {"MatMul", "Gather", "Pad"} & set(kinds)
    check(model, path, floats(*shape), rtol=1e-5)


class Tuple(eo.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiHeadAttention(6, 2)

    def forward(self, x):
        return self.attention(x, mask=eo.causal_mask(x.shape[1])), x * 2


TRACED = {
    "rnn": (lambda: nn.RNN(3, 4), floats(2, 5, 3)),
    "gru": (lambda: nn.GRU(3, 4, return_sequences=False), floats(1, 5, 3)),
    "lstm": (lambda: nn.LSTM(3, 4), floats(2, 5, 3)),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), floats(2, 4, 8)),
    "block": (lambda: nn.TransformerEncoderBlock(8, 2), floats(3, 4, 8)),
    "encoder": (lambda: nn.TransformerEncoder(8, 4, norm_first=False), floats(1, 4, 8)),
    "masked, first of two": (Tuple, floats(2, 4, 6)),
    "tokens": (
        lambda: nn.Sequential(
            nn.Embedding(11, 6), nn.PositionalEncoding(6), nn.TransformerEncoder(6, 2)
        ),
        np.random.default_rng(0).integers(0, 11, (2, 5)),
    ),
    "tokens as floats": (
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.LSTM(6, 3, return_sequences=False)),
        np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_recurrent_and_attention_models_run_for_any_batch(name, tmp_path):
    make, example = TRACED[name]
    model = make().eval()
    path = eo.export_onnx_traced(model, tmp_path / "m.onnx", example_input=example)
    assert is_dynamic(path)
    check(model, path, example)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_every_operation_exports(case, tmp_path):
    operands = case.tensors(dtype="float32", wanted=())
    example = operands[0].numpy() if isinstance(operands[0], eo.Tensor) else operands[0]
    if not isinstance(example, np.ndarray):
        pytest.skip("the first operand is no array")

    def run(x):
        found = case.call(x, *operands[1:])
        return eo.as_tensor(found[0] if isinstance(found, tuple | list) else found)

    model = Apply(run)
    names = eo.trace_operations(model, example)
    assert set(names) <= set(eo.TRACEABLE_OPERATIONS)
    path = tmp_path / "op.onnx"
    try:
        eo.export_onnx_traced(model, path, example_input=example)
    except EveryOSerializationError as error:
        if "an index of dtype float32" in str(error):  # tracing wants integers as such
            return
        assert "recorded no operations" in str(error)
        np.testing.assert_array_equal(model(as_input(example)).numpy(), example)
        return
    check(model, path, example)


HARD = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 1e-6, 3.5, -80.0])
UNUSUAL = {
    "expm1": eo.expm1, "log1p": eo.log1p, "log2": eo.log2, "log10": eo.log10, "cbrt": eo.cbrt,
    "sign": eo.sign, "round": eo.round, "isfinite": lambda x: eo.isfinite(x).astype("float32"),
    "maximum": lambda x: eo.maximum(x, x[::-1]), "minimum": lambda x: eo.minimum(x, x[::-1]),
    "atan2": lambda x: eo.atan2(eo.reshape(x, (-1, 1)), x),
    "remainder": lambda x: eo.reshape(x, (-1, 1)) % eo.clip(x, -9, 9),
    "floor_divide": lambda x: eo.reshape(x, (-1, 1)) // eo.clip(x, -9, 9),
    "not_equal": lambda x: (x != 1).astype("float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_onnx_lacks_holds_at_the_edges(name, tmp_path):
    x = np.nan_to_num(HARD, nan=7.0, posinf=8.0, neginf=-8.0) if "floor_" in name else HARD
    model = Apply(UNUSUAL[name])
    path = tmp_path / "m.onnx"
    eo.export_onnx_traced(model, path, example_input=x, dynamic_batch=False)
    with np.errstate(all="ignore"):
        expected = model(as_input(x)).numpy()
    np.testing.assert_allclose(eo.run_onnx(path, x), expected, rtol=1e-5, atol=1e-7)


INTEGERS = np.array([[7, -7, 3, 0], [-2, 5, 0, -3]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[0] // x[1], lambda x: x[0] % x[1], lambda x: eo.maximum(x[0], x[1]),
        lambda x: eo.sort(x, axis=1), lambda x: (x > 0).any(axis=0), lambda x: (x > 0).all(axis=1),
        lambda x: eo.where(x[0] > 0, x[1] > 0, x[0] > x[1]), lambda x: eo.maximum(x > 0, x < 3),
        lambda x: eo.sign(x) + abs(x), lambda x: eo.pad(x > 0, ((1, 0), (0, 2))),
        lambda x: (x > 0) < (x > 1), lambda x: eo.cumsum(x, axis=0), lambda x: x.prod(axis=1),
    ],
    ids=range(13),
)  # fmt: skip
def test_integers_and_bools_run_as_such(function, tmp_path):
    model = Apply(lambda x: eo.as_tensor(function(eo.Tensor._wrap(x.data))))
    x = eo.tensor(INTEGERS, dtype="int64")
    path = tmp_path / "m.onnx"
    eo.export_onnx_traced(model, path, example_input=x, dynamic_batch=False)
    with np.errstate(all="ignore"):
        expected = model(x)
    found = eo.run_onnx(path, x.numpy())
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected.numpy())


def test_float64_stays_float64(tmp_path):
    model = Apply(lambda x: eo.exp(x).sum(axis=1) * 2)
    x = np.random.default_rng(0).normal(size=(3, 4))
    path = eo.export_onnx_traced(model, tmp_path / "m", example_input=x)
    np.testing.assert_allclose(eo.run_onnx(path, x), model(eo.tensor(x)).numpy(), rtol=1e-14)


# ---------------------------------------------------------------------------------- the batch

NOT_BATCHED = {
    "a mean over the batch": lambda x: x - x.mean(axis=0),
    "a scalar": lambda x: (x * x).sum(),
    "the batch is not first": lambda x: eo.transpose(x * 2),
    "a model of one batch size": lambda x: x + eo.tensor(np.ones((3, 4), np.float32) * 2),
    "an index that means a row": lambda x: x[2] * 2,
}


@pytest.mark.parametrize("name", NOT_BATCHED)
def test_other_models_have_the_batch_of_their_example(name, tmp_path):
    model = Apply(NOT_BATCHED[name])
    x = floats(3, 4)
    path = eo.export_onnx_traced(model, tmp_path / "m", example_input=x)
    assert input_sizes(path) == [3, 4]
    check(model, path, x)


BATCHED = {
    "reversed": lambda x: x[::-1] * 2,
    "doubled": lambda x: eo.concatenate([x, x * 2], axis=1),
    "shifted": lambda x: eo.concatenate([x[1:], x[:1]], axis=0),
    "numbered": lambda x: x + eo.Tensor._wrap(rows_of(x)),
    "split and joined": lambda x: eo.stack([x[:, 0], x[:, 1] * 2], axis=1),
    "compared with the others": lambda x: (
        (eo.unsqueeze(x, 1) - eo.unsqueeze(x, 0)) ** 2
    ).sum(axis=(1, 2)),
    "zeros of the size": lambda x: eo.matmul(eo.zeros(x.shape) + 1, eo.tensor(np.eye(4))) + x,
}  # fmt: skip


def rows_of(x):
    from everyo.core.autograd import namespace

    xp = namespace()
    return xp.astype(xp.iota((x.shape[0], 1), 0), np.float32)


@pytest.mark.parametrize("name", BATCHED)
def test_sizes_follow_the_batch(name, tmp_path):
    model = Apply(BATCHED[name])
    x = floats(3, 4)
    path = eo.export_onnx_traced(model, tmp_path / "m", example_input=x)
    assert is_dynamic(path)
    check(model, path, x)


def test_the_batch_is_fixed_on_request(tmp_path):
    path = eo.export_onnx_traced(
        nn.Linear(4, 2).eval(), tmp_path / "m", example_input=floats(3, 4), dynamic_batch=False
    )
    assert input_sizes(path) == [3, 4]


# ---------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("opset", range(MINIMUM_OPSET, 22))
def test_every_opset_is_valid_and_runs(opset, tmp_path):
    last = Apply(lambda x: x.max(axis=1) * x.prod(axis=1))
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Softmax(), last).eval()
    x = floats(3, 4)
    path = eo.export_onnx_traced(model, tmp_path / "m", example_input=x, opset=opset)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version == IR_VERSION == 9
    assert [o.version for o in proto.opset_import] == [opset]
    check(model, path, x)


def test_names_are_those_asked_for_and_weights_keep_theirs(tmp_path):
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1D(2)).eval()
    path = eo.export_onnx(
        model, tmp_path / "m", input_shape=(1, 4), input_name="pixels", output_name="logits",
        model_name="small",
    )  # fmt: skip
    graph = onnx.load(path).graph
    assert [i.name for i in graph.input] == ["pixels"]
    assert [o.name for o in graph.output] == ["logits"]
    assert graph.name == "small"
    names = {i.name for i in graph.initializer}
    assert {"0.weight", "0.bias", "1.weight", "1.running_mean"} <= names
    x = floats(3, 4)
    found = eo.run_onnx(path, x, input_name="pixels")
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_nothing_unused_is_written(tmp_path):
    path = eo.export_onnx_traced(
        nn.TransformerEncoder(8, 2).eval(), tmp_path / "m", example_input=floats(2, 3, 8)
    )
    graph = onnx.load(path).graph
    read = {name for node in graph.node for name in node.input} | {"output"}
    assert {i.name for i in graph.initializer} <= read
    assert all(read.intersection(node.output) for node in graph.node)


def test_exporting_changes_nothing(tmp_path):
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1D(2)).eval()
    before, generator = model.state_dict(), eo.get_rng_state()
    eo.export_onnx_traced(model, tmp_path / "m", example_input=floats(2, 4))
    assert all(np.array_equal(v, before[k]) for k, v in model.state_dict().items())
    assert np.array_equal(eo.get_rng_state(), generator)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


# ---------------------------------------------------------------------------------- refusals

X = floats(2, 4)
REFUSED = {
    "training mode": (lambda p: eo.export_onnx(nn.Linear(4, 2), p, input_shape=(1, 4))),
    "in training mode": (lambda p: eo.export_onnx_traced(nn.Linear(4, 2), p, example_input=X)),
    "LSTM.*export_onnx_traced": (
        lambda p: eo.export_onnx(
            nn.Sequential(nn.LSTM(4, 2)).eval(), p, input_shape=(1, 3, 4))),
    "track_running_stats": (
        lambda p: eo.export_onnx(
            nn.BatchNorm1D(4, track_running_stats=False).eval(), p, input_shape=(1, 4))),
    "not one row per sample": (
        lambda p: eo.export_onnx(nn.Flatten(0).eval(), p, input_shape=(None, 3))),
    "recorded no operations": (
        lambda p: eo.export_onnx_traced(nn.Dropout(0.5).eval(), p, example_input=X)),
    "recorded no operations on its input": (
        lambda p: eo.export_onnx_traced(Apply(lambda x: eo.ones(3) * 2), p, example_input=X)),
    "returns no tensor": (lambda p: eo.export_onnx_traced(Apply(len), p, example_input=X)),
    "opset 13 or newer": (
        lambda p: eo.export_onnx_traced(nn.Linear(4, 2).eval(), p, example_input=X, opset=12)),
    "up to 21": (
        lambda p: eo.export_onnx(nn.Linear(4, 2).eval(), p, input_shape=(1, 4), opset=22)),
    "cannot be traced": (
        lambda p: eo.export_onnx_traced(
            Apply(lambda x: x * 2 if float(x.sum()) > 0 else x), p, example_input=X)),
    "random numbers": (
        lambda p: eo.export_onnx_traced(
            Apply(lambda x: x + eo.rand(2, 4)), p, example_input=X)),
    "opset 16 or newer": (
        lambda p: eo.export_onnx_traced(
            Apply(lambda x: eo.scatter_add(x, 0, np.array([[0, 1, 1, 0]]), x[:1] * 2)), p,
            example_input=X, opset=15)),
    "everyo Module": (lambda p: eo.export_onnx_traced(len, p, example_input=X)),
    "not found": (lambda p: eo.run_onnx(p / "none.onnx", X)),
    "cannot be run": (lambda p: eo.run_onnx(junk(p), X)),
    "cannot be written": (
        lambda p: eo.export_onnx(nn.Linear(4, 2).eval(), junk(p) / "x", input_shape=(1, 4))),
}  # fmt: skip


def junk(path):
    path.write_bytes(b"junk")
    return path


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_says_why(message, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(EveryOSerializationError, match=message):
        REFUSED[message](path)
    assert not path.exists() or path.read_bytes() == b"junk"


def test_a_step_of_a_recurrent_layer_has_its_gates():
    names = eo.trace_operations(nn.LSTM(3, 4), floats(2, 5, 3))
    assert names.count("sigmoid") == 3 * 5
    assert names.count("tanh") == 2 * 5
    assert "matmul" in names
    assert {"softmax", "matmul", "add"} <= set(
        eo.trace_operations(nn.TransformerEncoder(4, 2), floats(1, 3, 4))
    )


def test_traced_operations_have_the_names_of_the_functions():
    model = Apply(lambda x: eo.clip(eo.concatenate([x, -x]), -1, 1).abs().sum() - x[0].mean())
    names = eo.trace_operations(model, floats(2, 4))
    expected = ["negative", "concatenate", "clip", "abs", "sum", "slice", "mean", "subtract"]
    assert names == expected
    assert set(names) <= set(eo.TRACEABLE_OPERATIONS)


def test_the_packages_are_found():
    assert eo.onnx_available() is True


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (2, ([2], [3], [0], [1])),
        (-1, ([3], [4], [0], [1])),
        ((slice(None), slice(1, -1, 2)), ([0, 1], [4, 4], [0, 1], [1, 2])),
        (slice(-3, None), ([1], [4], [0], [1])),
    ],
)
def test_slice_parameters_are_those_of_the_operator(key, expected):
    assert _slice_parameters(key, (4, 5)) == expected


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Ellipsis, "Ellipsis"),
        ((None, 1), "Ellipsis"),
        (slice(None, None, -1), "forward slices only"),
        (slice(None, None, 0), "forward slices only"),
        ([0, 1], "forward slices only"),
        ((1, 2, 3), "more entries than"),
    ],
)
def test_other_keys_are_no_slices(key, message):
    with pytest.raises(EveryOSerializationError, match=message):
        _slice_parameters(key, (4, 5))
