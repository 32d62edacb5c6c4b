"""EveryO: tensors with gradients on NumPy, neural networks, and `compile` for whole training steps.

Eager code needs what is imported here. The rest (data, training, files, charts, the inner parts of
the compiler) is loaded when one of its names is first used, so that `import everyo` stays quick.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from everyo import cuda, exceptions, nn, optim
from everyo._version import VERSION_INFO, __version__
from everyo.compile import compile
from everyo.core.autograd import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from everyo.core.detect import detect_nan
from everyo.core.device import Device, device
from everyo.core.dtype import DTYPES, dtype_name
from everyo.core.gradcheck import gradcheck
from everyo.core.random import Generator, get_rng_state, manual_seed, set_rng_state
from everyo.core.tensor import Tensor, as_tensor, from_dlpack, is_tensor, tensor
from everyo.core.transforms import grad, hessian, jacobian, value_and_grad, vjp
from everyo.exceptions import (
    EveryOBackendError,
    EveryOConfigurationError,
    EveryOCudaError,
    EveryODeviceError,
    EveryODTypeError,
    EveryOError,
    EveryOGradientError,
    EveryOIndexError,
    EveryOSerializationError,
    EveryOShapeError,
    EveryOTraceError,
)  # fmt: skip
from everyo.logging import configure_logging, get_logger
from everyo.nn import (
    GRU,
    LSTM,
    RNN,
    AvgPool2D,
    BatchNorm1D,
    BatchNorm2D,
    BCELoss,
    BCEWithLogitsLoss,
    Conv2D,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    LogSoftmax,
    Loss,
    MAELoss,
    MaxPool2D,
    Module,
    MSELoss,
    MultiHeadAttention,
    Parameter,
    PositionalEncoding,
    ReLU,
    Sequential,
    Sigmoid,
    Softmax,
    Tanh,
    TransformerEncoder,
    TransformerEncoderBlock,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)  # fmt: skip
from everyo.ops.activations import (
    elu,
    gelu,
    leaky_relu,
    log_sigmoid,
    relu,
    sigmoid,
    silu,
    softplus,
)  # fmt: skip
from everyo.ops.composite import binary_cross_entropy_with_logits, cross_entropy
from everyo.ops.contraction import dot, einsum, matmul, outer, tensordot
from everyo.ops.convolution import conv1d, conv2d, conv_transpose2d
from everyo.ops.creation import (
    arange,
    eye,
    full,
    linspace,
    normal,
    one_hot,
    ones,
    ones_like,
    rand,
    randn,
    uniform,
    zeros,
    zeros_like,
)  # fmt: skip
from everyo.ops.elementwise import (
    abs,
    add,
    ceil,
    clip,
    divide,
    equal,
    floor,
    floor_divide,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    reciprocal,
    remainder,
    round,
    sign,
    square,
    subtract,
    where,
)  # fmt: skip
from everyo.ops.indexing import argsort, gather, scatter_add, sort, take_along_axis, topk
from everyo.ops.movement import (
    broadcast_to,
    concatenate,
    flatten,
    flip,
    pad,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    tril,
    triu,
    unsqueeze,
)  # fmt: skip
from everyo.ops.pooling import avg_pool2d, max_pool2d
from everyo.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    cumsum,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    softmax,
    std,
    sum,
    variance,
)  # fmt: skip
from everyo.ops.transcendental import (
    acos,
    asin,
    atan,
    atan2,
    cbrt,
    cos,
    cosh,
    erf,
    exp,
    expm1,
    log,
    log1p,
    log2,
    log10,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)  # fmt: skip
from everyo.optim import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    Optimizer,
    RMSprop,
    clip_grad_norm,
    clip_grad_value,
)  # fmt: skip
from everyo.precision import GradScaler, autocast, autocast_dtype, is_autocast_enabled

if _TYPE_CHECKING:
    from everyo import (
        config,
        data,
        datasets,
        distributed,
        profiler,
        quantization,
        serialization,
        training,
        visualization,
    )  # fmt: skip
    from everyo.compile.api import CompiledFunction
    from everyo.compile.pool import get_num_threads, set_num_threads
    from everyo.config import Config, DeviceConfig, ModelConfig, TrainingConfig, load_config
    from everyo.data import (
        ArrayDataset,
        DataLoader,
        Dataset,
        MinMaxScaler,
        StandardScaler,
        Subset,
        TransformDataset,
        load_csv_dataset,
        one_hot_encode,
        random_split,
        standardize,
        stratified_split,
        train_test_split,
    )  # fmt: skip
    from everyo.profiler import Profiler, profile, record_function
    from everyo.quantization import (
        QuantizationError,
        QuantizedArray,
        QuantizedLinear,
        quantize,
        quantize_dynamic,
    )  # fmt: skip
    from everyo.serialization import (
        TRACEABLE_OPERATIONS,
        export_onnx,
        export_onnx_traced,
        inspect_archive,
        load,
        load_checkpoint,
        load_weights,
        onnx_available,
        run_onnx,
        save,
        save_checkpoint,
        save_weights,
        trace_operations,
    )  # fmt: skip
    from everyo.training import (
        Callback,
        CSVLogger,
        EarlyStopping,
        History,
        LearningRateScheduler,
        ModelCheckpoint,
        ProgressLogger,
        ScheduleStepper,
        Trainer,
        accuracy,
        confusion_matrix,
    )  # fmt: skip
    from everyo.visualization import (
        plot_accuracy,
        plot_benchmark,
        plot_benchmark_bars,
        plot_confusion_matrix,
        plot_decision_boundary,
        plot_graph,
        plot_history,
        plot_loss,
        plot_metric,
        plot_predictions,
    )  # fmt: skip

__all__ = [
    "DTYPES", "GRU", "LSTM", "RNN", "SGD", "TRACEABLE_OPERATIONS", "VERSION_INFO", "Adagrad",
    "Adam", "AdamW", "ArrayDataset", "AvgPool2D", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1D",
    "BatchNorm2D", "CSVLogger", "Callback", "CompiledFunction", "Config", "Conv2D",
    "CrossEntropyLoss", "DataLoader", "Dataset", "Device", "DeviceConfig", "Dropout",
    "EarlyStopping", "Embedding", "EveryOBackendError", "EveryOConfigurationError",
    "EveryOCudaError", "EveryODTypeError", "EveryODeviceError", "EveryOError",
    "EveryOGradientError", "EveryOIndexError", "EveryOSerializationError", "EveryOShapeError",
    "EveryOTraceError", "Flatten", "Generator", "GradScaler", "History", "LayerNorm",
    "LearningRateScheduler", "Linear", "Lion", "LogSoftmax", "Loss", "MAELoss", "MSELoss",
    "MaxPool2D", "MinMaxScaler", "ModelCheckpoint", "ModelConfig", "Module",
    "MultiHeadAttention", "Optimizer", "Parameter", "PositionalEncoding", "Profiler",
    "ProgressLogger", "QuantizationError", "QuantizedArray", "QuantizedLinear", "RMSprop",
    "ReLU", "ScheduleStepper", "Sequential", "Sigmoid", "Softmax", "StandardScaler", "Subset",
    "Tanh", "Tensor", "Trainer", "TrainingConfig", "TransformDataset", "TransformerEncoder",
    "TransformerEncoderBlock", "__version__", "abs", "accuracy", "acos", "add", "all", "any",
    "arange", "argmax", "argmin", "argsort", "as_tensor", "asin", "atan", "atan2", "autocast",
    "autocast_dtype", "avg_pool2d", "binary_cross_entropy_with_logits", "broadcast_to",
    "causal_mask", "cbrt", "ceil", "clip", "clip_grad_norm", "clip_grad_value", "compile",
    "concatenate", "config", "configure_logging", "confusion_matrix", "conv1d", "conv2d",
    "conv_transpose2d", "cos", "cosh", "cross_entropy", "cuda", "cumsum", "data", "datasets",
    "detect_nan", "device", "distributed", "divide", "dot", "dtype_name", "einsum", "elu",
    "enable_grad",
    "equal", "erf", "exceptions", "exp", "expm1", "export_onnx", "export_onnx_traced", "eye",
    "flatten", "flip", "floor", "floor_divide", "from_dlpack", "full", "gather", "gelu",
    "get_logger", "get_num_threads", "get_rng_state", "grad", "gradcheck", "greater",
    "greater_equal", "hessian", "inspect_archive", "is_autocast_enabled", "is_grad_enabled",
    "is_tensor", "isfinite", "isinf", "isnan", "jacobian", "leaky_relu", "less", "less_equal",
    "linspace", "load", "load_checkpoint", "load_config", "load_csv_dataset", "load_weights",
    "log", "log1p", "log2", "log10", "log_sigmoid", "log_softmax", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "manual_seed", "matmul", "max", "max_pool2d",
    "maximum", "mean", "min", "minimum", "multiply", "negative", "nn", "no_grad", "norm",
    "normal", "not_equal", "one_hot", "one_hot_encode", "ones", "ones_like", "onnx_available",
    "optim", "outer", "pad", "padding_mask", "plot_accuracy", "plot_benchmark",
    "plot_benchmark_bars", "plot_confusion_matrix", "plot_decision_boundary", "plot_graph",
    "plot_history", "plot_loss", "plot_metric", "plot_predictions", "power", "prod", "profile",
    "profiler", "quantization", "quantize", "quantize_dynamic", "rand", "randn", "random_split",
    "reciprocal", "record_function", "relu", "remainder", "repeat", "reshape", "roll", "round",
    "run_onnx", "save", "save_checkpoint", "save_weights", "scaled_dot_product_attention",
    "scatter_add", "serialization", "set_grad_enabled", "set_num_threads", "set_rng_state",
    "sigmoid", "sign", "silu", "sin", "sinh", "softmax", "softplus", "sort", "split", "sqrt",
    "square", "squeeze", "stack", "standardize", "std", "stratified_split", "subtract", "sum",
    "take_along_axis", "tan", "tanh", "tensor", "tensordot", "tile", "topk", "trace_operations",
    "train_test_split", "training", "transpose", "tril", "triu", "uniform", "unsqueeze",
    "value_and_grad", "var", "variance", "visualization", "vjp", "where", "zeros", "zeros_like",
]  # fmt: skip

var = variance

# Loaded at first use: module -> the names that come from it, as in the block above.
_LAZY = {
    "everyo.compile.api": ("CompiledFunction",),
    "everyo.compile.pool": ("get_num_threads", "set_num_threads"),
    "everyo.config": ("Config", "DeviceConfig", "ModelConfig", "TrainingConfig", "load_config"),
    "everyo.data": (
        "ArrayDataset", "DataLoader", "Dataset", "MinMaxScaler", "StandardScaler", "Subset",
        "TransformDataset", "load_csv_dataset", "one_hot_encode", "random_split", "standardize",
        "stratified_split", "train_test_split",
    ),
    "everyo.datasets": (),
    "everyo.distributed": (),
    "everyo.profiler": ("Profiler", "profile", "record_function"),
    "everyo.quantization": (
        "QuantizationError", "QuantizedArray", "QuantizedLinear", "quantize", "quantize_dynamic",
    ),
    "everyo.serialization": (
        "TRACEABLE_OPERATIONS", "export_onnx", "export_onnx_traced", "inspect_archive", "load",
        "load_checkpoint", "load_weights", "onnx_available", "run_onnx", "save", "save_checkpoint",
        "save_weights", "trace_operations",
    ),
    "everyo.training": (
        "CSVLogger", "Callback", "EarlyStopping", "History", "LearningRateScheduler",
        "ModelCheckpoint", "ProgressLogger", "ScheduleStepper", "Trainer", "accuracy",
        "confusion_matrix",
    ),
    "everyo.visualization": (
        "plot_accuracy", "plot_benchmark", "plot_benchmark_bars", "plot_confusion_matrix",
        "plot_decision_boundary", "plot_graph", "plot_history", "plot_loss", "plot_metric",
        "plot_predictions",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> _Any:
    if f"everyo.{name}" in _LAZY:
        return _import_module(f"everyo.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'everyo' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
