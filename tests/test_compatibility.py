"""Code written for EveryO 0.2: its names, its signatures, and the errors it catches.

Three tables, one per kind of promise: what can be imported from where, how each function may be
called (an argument that 0.2 has not may follow, never come between), and which class of error with
which words each mistake raises. docs/compatibility.md lists what differs.
"""

import importlib
import inspect
import json
import zipfile

import numpy as np
import pytest

import everyo as eo
from everyo import config, distributed, nn, quantization, serialization, training, visualization
from everyo.cli.main import main
from everyo.data import preprocessing
from everyo.exceptions import (
    EveryOBackendError,
    EveryOConfigurationError,
    EveryOCudaError,
    EveryODeviceError,
    EveryODTypeError,
    EveryOError,
    EveryOGradientError,
    EveryOSerializationError,
    EveryOShapeError,
)
from everyo.serialization.onnx_trace import _slice_parameters

# ---------------------------------------------------------------------------------- names

NAMES = {
    "everyo": """
        Tensor tensor Parameter device cuda nn optim __version__ VERSION_INFO zeros ones full eye
        arange linspace zeros_like ones_like normal uniform rand randn one_hot add subtract multiply
        divide negative abs clip exp log sqrt power matmul dot sum mean max min variance reshape
        transpose flatten concatenate stack relu sigmoid tanh softmax log_softmax conv2d max_pool2d
        avg_pool2d no_grad enable_grad set_grad_enabled autocast autocast_dtype is_autocast_enabled
        GradScaler Module Sequential Linear Flatten Dropout Conv2D MaxPool2D AvgPool2D ReLU Sigmoid
        Tanh Softmax LogSoftmax BatchNorm1D BatchNorm2D LayerNorm Embedding RNN LSTM GRU
        MultiHeadAttention PositionalEncoding TransformerEncoder TransformerEncoderBlock
        scaled_dot_product_attention causal_mask padding_mask Loss MSELoss MAELoss BCELoss
        BCEWithLogitsLoss CrossEntropyLoss Optimizer SGD Adam Dataset ArrayDataset Subset
        TransformDataset DataLoader load_csv_dataset StandardScaler MinMaxScaler standardize
        one_hot_encode train_test_split random_split stratified_split Trainer History Callback
        EarlyStopping ModelCheckpoint CSVLogger LearningRateScheduler ProgressLogger accuracy
        confusion_matrix save load inspect_archive export_onnx export_onnx_traced trace_operations
        TRACEABLE_OPERATIONS run_onnx onnx_available plot_loss plot_accuracy plot_history
        plot_confusion_matrix plot_predictions plot_benchmark datasets visualization distributed
        quantization profiler DTYPES Device as_tensor is_tensor dtype_name Profiler profile
        record_function QuantizationError QuantizedArray QuantizedLinear quantize quantize_dynamic
        Config DeviceConfig ModelConfig TrainingConfig load_config configure_logging get_logger
        EveryOError EveryOShapeError EveryODeviceError EveryODTypeError EveryOGradientError
        EveryOSerializationError EveryOConfigurationError EveryOBackendError EveryOCudaError
    """,
    "everyo.core": "autograd",
    "everyo.core.autograd": """
        no_grad enable_grad set_grad_enabled Node topological_order unbroadcast
    """,
    "everyo.core.device": "Device device",
    "everyo.nn": "mse_loss mae_loss binary_cross_entropy cross_entropy",
    "everyo.nn.initialization": """
        compute_fans get_initializer xavier_uniform xavier_normal he_uniform he_normal zeros_init
        ones_init uniform_init normal_init
    """,
    "everyo.nn.module": "register_module get_module_class MODULE_REGISTRY",
    "everyo.nn.attention": "MASK_VALUE",
    "everyo.data.preprocessing": """
        MinMaxScaler StandardScaler normalize min_max_scale shuffle_arrays
    """,
    "everyo.datasets": """
        load_digits make_regression make_blobs make_moons make_spirals make_xor make_recall_task
        make_copy_task make_parity_task render_digit
    """,
    "everyo.training.metrics": """
        accuracy binary_accuracy mean_absolute_error mean_squared_error r2_score confusion_matrix
        get_metric
    """,
    "everyo.serialization": """
        MANIFEST_NAME PARAMETERS_NAME FORMAT_VERSION DEFAULT_SUFFIX inspect_archive save load
    """,
    "everyo.serialization.onnx_export": "export_onnx run_onnx onnx_available",
    "everyo.serialization.onnx_trace": """
        export_onnx_traced trace_operations TRACEABLE_OPERATIONS MINIMUM_OPSET IR_VERSION
    """,
    "everyo.cli.main": "main",
    "everyo.config": "Config ModelConfig TrainingConfig DeviceConfig load_config",
    "everyo.distributed": """
        DistributedError spawn average_gradients all_reduce_mean available_workers shard_indices
    """,
    "everyo.precision": "autocast GradScaler is_autocast_enabled autocast_dtype",
    "everyo.profiler": "Profiler profile record_function",
    "everyo.quantization": """
        QuantizationError QuantizedArray QuantizedLinear quantize quantize_dynamic
    """,
    "everyo.cuda": """
        is_available device_count unavailable_reason runtime_info add multiply matmul relu sum_all
    """,
    "everyo.visualization": """
        plot_decision_boundary plot_benchmark_bars plot_metric plot_loss plot_accuracy plot_history
        plot_confusion_matrix plot_predictions plot_benchmark
    """,
    "everyo.visualization._backend": """
        get_pyplot is_available using_headless_backend create_figure _HEADLESS
    """,
}


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_where_it_was(module):
    found = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert missing == []


def test_every_operation_that_0_2_could_trace_is_listed():
    names = """
        abs add clip concatenate divide exp log log_softmax matmul max mean min multiply negative
        power relu reshape sigmoid slice softmax sqrt subtract sum tanh transpose
    """  # 0.2 also listed `dot`, which it recorded as matmul, as it is here
    assert set(names.split()) <= set(eo.TRACEABLE_OPERATIONS)


def test_constants_keep_their_values():
    assert (serialization.MANIFEST_NAME, serialization.PARAMETERS_NAME) == (
        "manifest.json",
        "parameters.npz",
    )
    assert (serialization.FORMAT_VERSION, serialization.DEFAULT_SUFFIX) == (1, ".evo")
    assert nn.attention.MASK_VALUE == -1e9
    assert {"float16", "float32", "float64", "int32", "int64", "bool"} <= set(eo.DTYPES)


# ---------------------------------------------------------------------------------- signatures

SIGNATURES = """
    tensor(data, *, dtype=None, device='cpu', requires_grad=False, name=None)
    as_tensor(data, *, device=None, dtype=None)
    zeros(*shape, dtype=None, device='cpu', requires_grad=False)
    full(shape, value, *, dtype=None, device='cpu', requires_grad=False)
    zeros_like(ref, *, requires_grad=False)
    arange(start, stop=None, step=1.0, *, dtype=None, device='cpu')
    linspace(start, stop, num=50, *, dtype=None, device='cpu')
    eye(n, m=None, *, device='cpu')
    uniform(shape, low=0.0, high=1.0, *, seed=None, dtype=None, device='cpu', requires_grad=False)
    normal(shape, mean=0.0, std=1.0, *, seed=None, dtype=None, device='cpu', requires_grad=False)
    rand(*shape, seed=None, device='cpu')
    one_hot(indices, num_classes, *, dtype=None)
    sum(a, axis=None, keepdims=False)
    variance(a, axis=None, keepdims=False)
    transpose(a, axes=None)
    flatten(a, start_dim=0)
    concatenate(tensors, axis=0)
    stack(tensors, axis=0)
    softmax(a, axis=-1)
    conv2d(x, weight, bias=None, *, stride=1, padding='valid')
    max_pool2d(x, pool_size=2, *, stride=None, padding='valid')
    avg_pool2d(x, pool_size=2, *, stride=None, padding='valid')
    Parameter(data, *, requires_grad=True, name=None)
    Linear(in_features, out_features, *, bias=True, initializer='he_uniform', seed=None)
    Flatten(start_dim=1)
    Dropout(p=0.5, *, seed=None)
    Conv2D(in_channels, out_channels, kernel_size=3, *, stride=1, padding='valid', bias=True, initializer='he_uniform', seed=None)
    MaxPool2D(pool_size=2, *, stride=None, padding='valid')
    AvgPool2D(pool_size=2, *, stride=None, padding='valid')
    Softmax(axis=-1)
    LogSoftmax(axis=-1)
    BatchNorm1D(num_features, *, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    BatchNorm2D(num_features, *, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    LayerNorm(normalized_shape, *, eps=1e-05, affine=True)
    Embedding(num_embeddings, embedding_dim, *, initializer='normal', seed=None)
    RNN(input_size, hidden_size, *, bias=True, return_sequences=True, initializer='xavier_uniform', seed=None)
    GRU(input_size, hidden_size, *, bias=True, return_sequences=True, initializer='xavier_uniform', seed=None)
    LSTM(input_size, hidden_size, *, bias=True, return_sequences=True, initializer='xavier_uniform', unit_forget_bias=True, seed=None)
    scaled_dot_product_attention(query, key, value, *, mask=None, dropout=None)
    causal_mask(size)
    padding_mask(lengths, size)
    MultiHeadAttention(embed_dim, num_heads, *, dropout=0.0, bias=True, seed=None)
    MultiHeadAttention.forward(self, query, key=None, value=None, *, mask=None)
    PositionalEncoding(embed_dim, *, max_length=5000, dropout=0.0)
    TransformerEncoderBlock(embed_dim, num_heads, *, feedforward_dim=None, dropout=0.1, norm_first=True, seed=None)
    TransformerEncoder(embed_dim, num_heads, *, num_layers=2, feedforward_dim=None, dropout=0.1, norm_first=True, seed=None)
    MSELoss(reduction='mean')
    CrossEntropyLoss(reduction='mean')
    nn.mse_loss(prediction, target, reduction='mean')
    nn.cross_entropy(prediction, target, reduction='mean')
    Module.load_state_dict(self, state, *, strict=True)
    Module.named_parameters(self, prefix='')
    Module.num_parameters(self, trainable_only=False)
    Module.train(self, mode=True)
    SGD(parameters, lr=0.01, *, momentum=0.0, weight_decay=0.0, nesterov=False)
    Adam(parameters, lr=0.001, *, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0, amsgrad=False)
    ArrayDataset(features, targets=None)
    Subset(dataset, indices)
    TransformDataset(dataset, transform=None, target_transform=None)
    DataLoader(dataset, batch_size=32, *, shuffle=False, drop_last=False, seed=None)
    load_csv_dataset(path, *, target_column=-1, delimiter=',', has_header=None, skip_columns=())
    MinMaxScaler(feature_range=(0.0, 1.0))
    standardize(features, axis=0)
    data.preprocessing.min_max_scale(features, low=0.0, high=1.0)
    data.preprocessing.normalize(features, axis=1, order=2)
    data.preprocessing.shuffle_arrays(*arrays, seed=None)
    one_hot_encode(labels, num_classes=None)
    train_test_split(*arrays, test_size=0.2, seed=None, shuffle=True)
    stratified_split(features, labels, *, test_size=0.2, seed=None)
    random_split(dataset, fractions, *, seed=None)
    datasets.load_digits(*, samples_per_class=200, noise=0.15, max_shift=1, flatten=True, seed=0)
    datasets.make_regression(*, n_samples=200, n_features=1, noise=0.1, bias=0.0, seed=0)
    datasets.make_blobs(*, n_samples=300, n_features=2, centers=3, spread=0.8, seed=0)
    datasets.make_moons(*, n_samples=300, noise=0.15, seed=0)
    datasets.make_spirals(*, n_samples=300, classes=3, noise=0.15, turns=1.5, seed=0)
    datasets.make_xor(*, n_samples=400, noise=0.25, seed=0)
    datasets.make_recall_task(*, n_samples=2000, length=20, num_classes=4, vocab_size=16, seed=0)
    Trainer(model, optimizer, loss_fn, *, metrics=(), device='cpu', gradient_clip=None)
    Trainer.fit(self, train_loader, *, epochs=10, validation_loader=None, callbacks=(), verbose=True, log_every=1)
    Trainer.evaluate(self, loader)
    Trainer.predict(self, data, *, batch_size=64)
    Trainer.predict_classes(self, data, *, batch_size=64)
    History.best(self, key='val_loss', mode='min')
    EarlyStopping(monitor='val_loss', *, patience=5, min_delta=0.0, mode='min', restore_best_weights=True, verbose=True)
    ModelCheckpoint(path, *, monitor='val_loss', mode='min', save_best_only=True)
    ProgressLogger(every=1, *, stream=True)
    CSVLogger(path)
    LearningRateScheduler(schedule)
    training.metrics.binary_accuracy(prediction, target, threshold=0.5)
    confusion_matrix(prediction, target, num_classes=None)
    save(model, path, *, metadata=None, overwrite=True)
    load(path, *, model=None, strict=True)
    export_onnx(model, path, *, input_shape, input_name='input', output_name='output', opset=17, model_name='everyo_model')
    export_onnx_traced(model, path, *, example_input, input_name='input', output_name='output', opset=17, model_name='everyo_traced_model', dynamic_batch=True)
    run_onnx(path, inputs, *, input_name='input')
    trace_operations(model, example_input)
    autocast(enabled=True, *, dtype='float16')
    GradScaler(init_scale=65536.0, *, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True)
    profile(*, warmup=0, record_shapes=True)
    record_function(name, **metadata)
    quantize(array, *, axis=None)
    quantize_dynamic(model, *, inplace=False)
    QuantizedLinear(layer)
    distributed.spawn(function, world_size, *, args=(), kwargs=None, start_method=None, timeout=600.0)
    distributed.shard_indices(count, rank, world_size, *, drop_last=True)
    distributed.average_gradients(parameters, group)
    distributed.all_reduce_mean(arrays, group)
    Device(type='cpu', index=0)
    device(spec='cpu', *, strict=False)
    ModelConfig(input_size=64, hidden_size=128, output_size=10, dropout=0.0)
    TrainingConfig(epochs=10, batch_size=32, learning_rate=0.001, optimizer='adam', validation_split=0.2, seed=0)
    DeviceConfig(preferred='auto')
    nn.initialization.xavier_uniform(shape, *, gain=1.0, seed=None)
    nn.initialization.uniform_init(shape, *, low=-0.05, high=0.05, seed=None)
    nn.initialization.normal_init(shape, *, mean=0.0, std=0.05, seed=None)
    visualization.plot_decision_boundary(predict_fn, features, labels, *, resolution=200)
    visualization.plot_benchmark(results, *, x_key='size', y_key='seconds', log_scale=True, save_path=None, show=False)
    visualization.plot_benchmark_bars(results, *, value_key='seconds', label_key='backend')
    visualization.plot_confusion_matrix(predictions, targets, *, class_names=None, normalize=False, save_path=None, show=False)
    visualization.plot_predictions(features, targets, predictions, *, save_path=None, show=False)
    visualization.plot_loss(history, *, save_path=None, show=False)
"""  # noqa: E501
LINES = [line.strip() for line in SIGNATURES.strip().splitlines()]


@pytest.mark.parametrize("line", LINES, ids=[line.split("(")[0] for line in LINES])
def test_every_function_takes_what_it_took(line):
    """The same positional arguments in the same order; the same others with the same defaults."""
    name, arguments = line.split("(", 1)
    scope: dict = {}
    exec(f"def promised({arguments}: pass", scope)
    found = eo
    for part in name.split("."):
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    actual = inspect.signature(found).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p.name for p in actual.values() if p.kind in positional]
    for place, wanted in enumerate(inspect.signature(scope["promised"]).parameters.values()):
        given = actual[wanted.name]
        assert given.kind == wanted.kind
        assert given.default == wanted.default
        if wanted.kind in positional:
            assert places[place] == wanted.name


# ---------------------------------------------------------------------------------- errors

tensor = eo.tensor
SHAPE, VALUE, FILE = EveryOShapeError, ValueError, EveryOSerializationError


def zeros(*shape):
    return np.zeros(shape, np.float32)


def t(*shape):
    return tensor(zeros(*shape))


def set_requires_grad():
    tensor([1], dtype="int64").requires_grad = True


def trainer(**options):
    model = eo.Linear(2, 1)
    return eo.Trainer(model, eo.SGD(model.parameters()), eo.MSELoss(), **options)


def pairs():
    return eo.DataLoader(eo.ArrayDataset(zeros(4, 2), zeros(4, 1)))


def nested_profiles():
    with eo.profile(), eo.profile():
        pass


class Forgetful(eo.Module):
    def __init__(self):
        self.layer = eo.Linear(1, 1)


class Constant(eo.Module):
    def forward(self, x):
        return tensor([1.0])


def written(path, text):
    path.write_text(text)
    return path


def archive(folder, change):
    """The path of a small model's archive with its manifest and arrays changed."""
    path = eo.save(eo.Sequential(eo.Linear(2, 2)), folder / "model.evo")
    with zipfile.ZipFile(path) as members:
        manifest = json.loads(members.read("manifest.json"))
        arrays = members.read("parameters.npz")
    manifest, arrays = change(manifest, arrays)
    with zipfile.ZipFile(path, "w") as members:
        members.writestr("manifest.json", json.dumps(manifest))
        members.writestr("parameters.npz", arrays)
    return path


def with_wrong_buffer():
    norm = eo.BatchNorm1D(3)
    norm.load_state_dict(norm.state_dict() | {"running_mean": zeros(4)})


def saved_twice(folder):
    for _ in range(2):
        eo.save(eo.Linear(1, 1), folder / "m", overwrite=False)


def exported(model, folder, **options):
    return eo.export_onnx(model, folder / "m.onnx", input_shape=(1, 2), **options)


def traced(model, folder, **options):
    return eo.export_onnx_traced(model, folder / "m.onnx", example_input=zeros(1, 2), **options)


def no_spare_backend(folder):
    backend = visualization._backend
    before, backend._HEADLESS = backend._HEADLESS, True
    try:
        backend.create_figure(lambda plt: 1 / 0)
    finally:
        backend._HEADLESS = before


OPERATIONS = [
    (SHAPE, ["low <= high"], lambda p: eo.clip(t(1), 2, 1)),
    (SHAPE, ["broadcast", "(2,)", "(3,)"], lambda p: t(2) + t(3)),
    (SHAPE, ["inner dimensions", "(2, 3)", "(2, 2)"], lambda p: t(2, 3) @ t(2, 2)),
    (SHAPE, ["at least one dimension"], lambda p: eo.matmul(tensor(1.0), t(2, 2))),
    (SHAPE, ["out of range"], lambda p: t(2).sum(axis=3)),
    (SHAPE, ["Cannot reshape"], lambda p: t(2).reshape(3)),
    (SHAPE, ["permutation"], lambda p: t(2, 3).transpose(0, 0)),
    (SHAPE, ["Cannot concatenate"], lambda p: eo.concatenate([t(2, 3), t(2)])),
    (SHAPE, [], lambda p: eo.concatenate([])),
    (SHAPE, [], lambda p: eo.one_hot([5], 3)),
    (SHAPE, [], lambda p: t(2)[5]),
    (EveryODTypeError, [], lambda p: tensor([1.0], dtype="float128")),
    (EveryODTypeError, [], lambda p: tensor([[1.0], [1.0, 2.0]])),
    (EveryOGradientError, ["floating point"], lambda p: tensor(
        [1], dtype="int64", requires_grad=True)),
    (EveryOGradientError, ["floating point"], lambda p: set_requires_grad()),
    (EveryOGradientError, ["does not require gradients"], lambda p: t(1).backward()),
    (EveryOGradientError, ["explicit gradient"], lambda p: eo.Parameter([1.0, 2.0]).backward()),
    (EveryOGradientError, ["shape"], lambda p: eo.Parameter([1.0, 2.0]).backward(np.ones(3))),
    (VALUE, ["exactly one element"], lambda p: t(2).item()),
    (VALUE, ["ambiguous"], lambda p: bool(t(2))),
    (TypeError, [], lambda p: len(tensor(1.0))),
    (EveryODeviceError, ["Unknown device type"], lambda p: eo.device("tpu")),
    (EveryODeviceError, ["Invalid device string"], lambda p: eo.device("cuda:x")),
    (EveryODeviceError, ["index 0"], lambda p: eo.Device("cpu", 1)),
    (EveryODeviceError, [], lambda p: eo.Device("cuda", -1)),
]  # fmt: skip
LAYERS = [
    (SHAPE, ["4-D tensor"], lambda p: eo.conv2d(t(3, 3), t(2, 2, 1, 1))),
    (SHAPE, ["4-D tensor"], lambda p: eo.max_pool2d(t(3, 3))),
    (SHAPE, ["4-D kernel"], lambda p: eo.conv2d(t(1, 3, 3, 1), t(2, 2))),
    (SHAPE, ["3 channel(s)", "expects 5"], lambda p: eo.conv2d(t(1, 3, 3, 3), t(2, 2, 5, 1))),
    (SHAPE, ["must be 3 channel"], lambda p: eo.Conv2D(3, 4)(t(1, 5, 5, 2))),
    (SHAPE, ["does not fit"], lambda p: eo.conv2d(t(1, 3, 3, 1), t(5, 5, 1, 1))),
    (SHAPE, ["Unknown padding"], lambda p: eo.Conv2D(1, 1, padding="full")),
    (SHAPE, ["bias must have shape"], lambda p: eo.conv2d(t(1, 3, 3, 1), t(2, 2, 1, 1), t(4))),
    (SHAPE, ["must be positive"], lambda p: eo.Conv2D(1, 1, kernel_size=0)),
    (SHAPE, ["positive channel counts"], lambda p: eo.Conv2D(0, 1)),
    (SHAPE, ["larger than the padded"], lambda p: eo.max_pool2d(t(1, 3, 3, 1), 5)),
    (SHAPE, ["must be 4"], lambda p: eo.Linear(4, 2)(t(2, 3))),
    (SHAPE, [], lambda p: eo.Linear(0, 2)),
    (SHAPE, ["trailing axes"], lambda p: eo.LayerNorm(4)(t(2, 3))),
    (SHAPE, ["positive normalized_shape"], lambda p: eo.LayerNorm(0)),
    (SHAPE, ["2-D input"], lambda p: eo.BatchNorm1D(4)(t(2, 3, 4))),
    (SHAPE, ["4-D input"], lambda p: eo.BatchNorm2D(4)(t(2, 4))),
    (SHAPE, ["last axis"], lambda p: eo.BatchNorm1D(4)(t(2, 3))),
    (VALUE, ["eps"], lambda p: eo.BatchNorm1D(4, eps=0)),
    (VALUE, ["momentum"], lambda p: eo.BatchNorm1D(4, momentum=1.5)),
    (SHAPE, [], lambda p: nn.initialization.compute_fans(())),
    (SHAPE, ["3-D input"], lambda p: eo.RNN(3, 4)(t(2, 3))),
    (SHAPE, ["last axis"], lambda p: eo.LSTM(3, 4)(t(2, 5, 4))),
    (SHAPE, ["length 0"], lambda p: eo.GRU(3, 4)(t(2, 0, 3))),
    (SHAPE, ["positive sizes"], lambda p: eo.LSTM(0, 4)),
    (SHAPE, ["out of range"], lambda p: eo.Embedding(3, 4)([5])),
    (SHAPE, ["whole numbers"], lambda p: eo.Embedding(3, 4)(np.array([0.5]))),
    (SHAPE, ["positive sizes"], lambda p: eo.Embedding(0, 4)),
    (SHAPE, ["query and key depths"], lambda p: eo.scaled_dot_product_attention(
        t(1, 2, 3), t(1, 2, 4), t(1, 2, 4))),
    (SHAPE, ["as many keys as values"], lambda p: eo.scaled_dot_product_attention(
        t(1, 2, 3), t(1, 2, 3), t(1, 4, 3))),
    (SHAPE, ["lengths must lie"], lambda p: eo.padding_mask([5], 3)),
    (SHAPE, ["positive size"], lambda p: eo.causal_mask(0)),
    (SHAPE, ["divide evenly"], lambda p: eo.MultiHeadAttention(5, 2)),
    (SHAPE, ["(batch, time, embed_dim)"], lambda p: eo.MultiHeadAttention(4, 2)(t(2, 4))),
    (SHAPE, ["last axis"], lambda p: eo.MultiHeadAttention(4, 2)(t(2, 3, 5))),
    (SHAPE, ["exceeds max_length"], lambda p: eo.PositionalEncoding(4, max_length=2)(t(1, 3, 4))),
    (SHAPE, ["same shape"], lambda p: eo.MSELoss()(t(2, 1), t(2))),
    (SHAPE, ["probabilities"], lambda p: eo.BCELoss()(tensor([1.5]), tensor([1.0]))),
    (SHAPE, ["(batch, classes)"], lambda p: eo.CrossEntropyLoss()(t(3), [0])),
    (SHAPE, ["targets"], lambda p: eo.CrossEntropyLoss()(t(3, 2), [0])),
    (VALUE, ["Unknown reduction"], lambda p: eo.MSELoss("average")),
    (VALUE, ["[0, 1)"], lambda p: eo.Dropout(1.0)),
    (VALUE, ["Unknown initializer"], lambda p: eo.Linear(1, 1, initializer="x")),
    (TypeError, ["Module instances"], lambda p: eo.Sequential(5)),
    (EveryOError, ["super"], lambda p: Forgetful()),
    (NotImplementedError, [], lambda p: eo.Module()(1)),
]  # fmt: skip
TRAINING = [
    (SHAPE, ["same number of samples"], lambda p: eo.ArrayDataset(zeros(3, 2), zeros(2))),
    (SHAPE, ["before fit"], lambda p: eo.StandardScaler().transform(zeros(3, 2))),
    (SHAPE, ["out of range"], lambda p: eo.one_hot_encode([5], 3)),
    (SHAPE, ["numeric table"], lambda p: eo.load_csv_dataset(
        written(p / "t.csv", "a,b\n1,x\n"), has_header=True)),
    (FileNotFoundError, [], lambda p: eo.load_csv_dataset(p / "none.csv")),
    (IndexError, [], lambda p: eo.Subset(eo.ArrayDataset(zeros(3, 2)), [0])[5]),
    (VALUE, ["batch_size"], lambda p: eo.DataLoader(eo.ArrayDataset(zeros(3, 2)), 0)),
    (VALUE, ["test_size"], lambda p: eo.train_test_split(zeros(3), test_size=1.5)),
    (VALUE, ["increasing"], lambda p: eo.MinMaxScaler((1, 0))),
    (TypeError, ["ArrayDataset"], lambda p: eo.DataLoader(5)),
    (SHAPE, ["same number of samples"], lambda p: preprocessing.shuffle_arrays(zeros(3), zeros(4))),
    (EveryOError, ["no parameters"], lambda p: eo.SGD([])),
    (EveryOError, ["EveryO tensor"], lambda p: eo.Adam([zeros(2)])),
    (VALUE, ["[0, 1)"], lambda p: eo.SGD([eo.Parameter([1.0])], momentum=1.0)),
    (VALUE, ["positive"], lambda p: eo.SGD([eo.Parameter([1.0])], lr=0)),
    (VALUE, ["Nesterov"], lambda p: eo.SGD([eo.Parameter([1.0])], nesterov=True)),
    (VALUE, ["beta1"], lambda p: eo.Adam([eo.Parameter([1.0])], betas=(1.0, 0.9))),
    (EveryOError, ["(features, targets)"], lambda p: trainer().evaluate(
        eo.DataLoader(eo.ArrayDataset(zeros(4, 2))))),
    (EveryOError, ["no batches"], lambda p: trainer().fit([], epochs=1)),
    (VALUE, ["epochs"], lambda p: trainer().fit(pairs(), epochs=0)),
    (VALUE, ["gradient_clip"], lambda p: trainer(gradient_clip=0)),
    (VALUE, ["Unknown metric"], lambda p: training.metrics.get_metric("x")),
    (TypeError, ["subclass"], lambda p: trainer().fit(pairs(), epochs=1, callbacks=[5])),
    (IndexError, [], lambda p: eo.History().last()),
    (KeyError, ["No metric"], lambda p: eo.History()["x"]),
    (EveryOError, ["floating"], lambda p: eo.autocast(dtype="int32")),
    (VALUE, [], lambda p: eo.GradScaler(0)),
    (VALUE, [], lambda p: eo.GradScaler(growth_factor=1.0)),
    (VALUE, [], lambda p: eo.GradScaler(backoff_factor=1.0)),
    (VALUE, [], lambda p: eo.GradScaler(growth_interval=0)),
    (RuntimeError, ["cannot be nested"], lambda p: nested_profiles()),
    (quantization.QuantizationError, ["finite"], lambda p: eo.quantize(np.array([np.nan]))),
    (distributed.DistributedError, ["rank must be"], lambda p: distributed.shard_indices(9, 3, 3)),
    (distributed.DistributedError, ["cannot be split"], lambda p: (
        distributed.shard_indices(2, 0, 3))),
    (distributed.DistributedError, ["at least 1"], lambda p: distributed.spawn(print, 0)),
]  # fmt: skip
FILES = [
    (FILE, ["already exists"], saved_twice),
    (FILE, ["Unknown module type"], lambda p: eo.load(archive(p, lambda m, a: (
        m | {"architecture": {"class_name": "Nothing", "config": {}}}, a)))),
    (FILE, ["format version 99"], lambda p: eo.load(archive(p, lambda m, a: (
        m | {"format_version": 99}, b"")))),
    (FILE, [], lambda p: eo.load(archive(p, lambda m, a: (m, b"junk")))),
    (FILE, ["expects shape"], lambda p: eo.load(
        archive(p, lambda m, a: (m, a)), model=eo.Sequential(eo.Linear(3, 2)))),
    (FILE, ["not found"], lambda p: eo.load(p / "none.evo")),
    (FILE, ["not a valid"], lambda p: eo.load(written(p / "junk.evo", "junk"))),
    (FILE, ["everyo Module"], lambda p: eo.save(5, p / "m")),
    (FILE, ["JSON-serialisable"], lambda p: eo.save(eo.Linear(1, 1), p / "m", metadata=object())),
    (FILE, ["Missing keys"], lambda p: eo.Linear(1, 1).load_state_dict({})),
    (FILE, ["Buffer"], lambda p: with_wrong_buffer()),
    (FILE, ["Ellipsis"], lambda p: _slice_parameters((..., 0), (3, 4))),
    (FILE, ["forward slices only"], lambda p: _slice_parameters(np.s_[::-1], (3, 4))),
    (FILE, ["more entries than"], lambda p: _slice_parameters((0, 0, 0), (3, 4))),
    (FILE, ["training mode"], lambda p: exported(eo.Linear(2, 2), p)),
    (FILE, ["LSTM", "export_onnx_traced"], lambda p: exported(eo.LSTM(2, 2).eval(), p)),
    (FILE, ["track_running_stats"], lambda p: exported(
        eo.BatchNorm1D(2, track_running_stats=False).eval(), p)),
    (EveryOConfigurationError, ["Unsupported"], lambda p: eo.load_config(p / "c.toml")),
    (EveryOConfigurationError, ["Invalid JSON"], lambda p: eo.load_config(
        written(p / "c.json", "{"))),
    (EveryOConfigurationError, ["Unknown configuration section"], lambda p: config.Config.from_dict(
        {"x": {}})),
    (EveryOConfigurationError, ["epochs"], lambda p: eo.TrainingConfig(epochs=0)),
    (EveryOConfigurationError, ["input_size"], lambda p: eo.ModelConfig(input_size=-1)),
    (EveryOConfigurationError, ["optimizer"], lambda p: eo.TrainingConfig(optimizer="x")),
    (FileNotFoundError, [], lambda p: eo.load_config(p / "none.json")),
    (SystemExit, [], lambda p: main([])),
    (SystemExit, [], lambda p: main(["nothing"])),
    (TypeError, ["History"], lambda p: eo.plot_loss(5)),
    (EveryOError, ["empty"], lambda p: eo.plot_loss(eo.History())),
]  # fmt: skip
OPTIONAL = [
    ("onnx", FILE, ["recorded no operations"], lambda p: traced(Constant().eval(), p)),
    ("onnx", FILE, ["training mode"], lambda p: traced(eo.Linear(2, 2), p)),
    ("onnx", FILE, ["opset 13 or newer"], lambda p: traced(eo.Linear(2, 2).eval(), p, opset=12)),
    ("matplotlib", EveryOBackendError, ["Agg"], no_spare_backend),
    ("matplotlib", EveryOError, ["None of the requested metrics"], lambda p: (
        visualization.plot_metric({"loss": [1.0]}, ["x"]))),
    ("matplotlib", EveryOError, ["backend"], lambda p: visualization.plot_benchmark_bars(
        [{"size": 1, "seconds": 2.0}])),
    ("matplotlib", VALUE, ["(n, 2)"], lambda p: visualization.plot_decision_boundary(
        lambda x: x, zeros(3, 3), zeros(3))),
]  # fmt: skip
ERRORS = [(None, *row) for row in OPERATIONS + LAYERS + TRAINING + FILES] + OPTIONAL


@pytest.mark.parametrize(
    ("package", "error", "words", "mistake"),
    ERRORS,
    ids=[f"{row[1].__name__} {' '.join(row[2])}" for row in ERRORS],
)
def test_every_mistake_raises_what_it_raised(package, error, words, mistake, tmp_path):
    if package is not None:
        pytest.importorskip(package)
    with pytest.raises(error) as raised:
        mistake(tmp_path)
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.skipif(eo.cuda.is_available(), reason="there is a device")
def test_without_a_device_only_strict_code_fails():
    assert str(eo.device("cuda")) == "cpu"
    for call in (lambda: eo.device("cuda", strict=True), lambda: t(1).cuda(strict=True)):
        with pytest.raises(EveryOCudaError, match="strict"):
            call()
