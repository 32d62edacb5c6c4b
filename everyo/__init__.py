"""EveryO: tensors with gradients on NumPy, neural networks, and `compile` for whole training steps."""

from everyo import cuda, data, datasets, exceptions, nn, optim, training
from everyo._version import VERSION_INFO, __version__
from everyo.compile import CompiledFunction, compile
from everyo.compile.pool import get_num_threads, set_num_threads
from everyo.config import Config, DeviceConfig, ModelConfig, TrainingConfig, load_config
from everyo.core.autograd import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from everyo.core.detect import detect_nan
from everyo.core.device import Device, device
from everyo.core.dtype import DTYPES, dtype_name
from everyo.core.gradcheck import gradcheck
from everyo.core.random import Generator, get_rng_state, manual_seed, set_rng_state
from everyo.core.tensor import Tensor, as_tensor, from_dlpack, is_tensor, tensor
from everyo.core.transforms import grad, hessian, jacobian, value_and_grad, vjp
from everyo.data import (
    ArrayDataset, DataLoader, Dataset, MinMaxScaler, StandardScaler, Subset, TransformDataset, load_csv_dataset,
    one_hot_encode, random_split, standardize, stratified_split, train_test_split,
)  # fmt: skip
from everyo.exceptions import *  # noqa: F403
from everyo.logging import configure_logging, get_logger
from everyo.nn import (
    GRU, LSTM, RNN, AvgPool2D, BatchNorm1D, BatchNorm2D, BCELoss, BCEWithLogitsLoss, Conv2D, CrossEntropyLoss,
    Dropout, Embedding, Flatten, LayerNorm, Linear, LogSoftmax, Loss, MAELoss, MaxPool2D, Module, MSELoss,
    MultiHeadAttention, Parameter, PositionalEncoding, ReLU, Sequential, Sigmoid, Softmax, Tanh,
    TransformerEncoder, TransformerEncoderBlock, causal_mask, padding_mask, scaled_dot_product_attention,
)  # fmt: skip
from everyo.ops.composite import binary_cross_entropy_with_logits, cross_entropy
from everyo.ops.contraction import dot, einsum, matmul, outer, tensordot
from everyo.ops.convolution import conv1d, conv2d, conv_transpose2d
from everyo.ops.creation import (
    arange, eye, full, linspace, normal, one_hot, ones, ones_like, rand, randn, uniform, zeros, zeros_like,
)  # fmt: skip
from everyo.ops.elementwise import (
    abs, acos, add, asin, atan, atan2, cbrt, ceil, clip, cos, cosh, divide, elu, equal, erf, exp, expm1, floor,
    floor_divide, gelu, greater, greater_equal, isfinite, isinf, isnan, leaky_relu, less, less_equal, log, log1p,
    log2, log10, log_sigmoid, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply,
    negative, not_equal, power, reciprocal, relu, remainder, round, sigmoid, sign, silu, sin, sinh, softplus, sqrt,
    square, subtract, tan, tanh, where,
)  # fmt: skip
from everyo.ops.indexing import argsort, gather, scatter_add, sort, take_along_axis, topk
from everyo.ops.movement import (
    broadcast_to, concatenate, flatten, flip, pad, repeat, reshape, roll, split, squeeze, stack, tile, transpose,
    tril, triu, unsqueeze,
)  # fmt: skip
from everyo.ops.pooling import avg_pool2d, max_pool2d
from everyo.ops.reduce import (
    all, any, argmax, argmin, cumsum, log_softmax, logsumexp, max, mean, min, norm, prod, softmax, std, sum,
    variance,
)  # fmt: skip
from everyo.optim import SGD, Adam, Optimizer, clip_grad_norm, clip_grad_value
from everyo.precision import GradScaler, autocast, autocast_dtype, is_autocast_enabled
from everyo.profiler import Profiler, profile, record_function
from everyo.quantization import (
    QuantizationError, QuantizedArray, QuantizedLinear, quantize, quantize_dynamic,
)  # fmt: skip
from everyo.serialization import (
    TRACEABLE_OPERATIONS, export_onnx, export_onnx_traced, inspect_archive, load, load_checkpoint,
    load_weights, onnx_available, run_onnx, save, save_checkpoint, save_weights, trace_operations,
)  # fmt: skip
from everyo.training import (
    Callback, CSVLogger, EarlyStopping, History, LearningRateScheduler, ModelCheckpoint,
    ProgressLogger, ScheduleStepper, Trainer, accuracy, confusion_matrix,
)  # fmt: skip

var = variance
