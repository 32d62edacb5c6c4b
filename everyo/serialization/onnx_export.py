"""ONNX export of feed-forward models, and running ONNX files.

`export_onnx` wants layers of which the output for one sample never depends on the batch, and always
writes a symbolic batch. Everything else is for `export_onnx_traced`; both write with one exporter.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from everyo import nn
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOSerializationError
from everyo.nn.module import Module
from everyo.serialization.container import PathLike
from everyo.serialization.onnx_graph import ModelGraph, model_graphs
from everyo.serialization.onnx_trace import check_mode, write_onnx

__all__ = ["export_onnx", "onnx_available", "run_onnx"]

LAYERS: tuple[type[Module], ...] = (
    nn.Sequential, nn.Linear, nn.Conv1D, nn.Conv2D, nn.ConvTranspose2D, nn.MaxPool2D,
    nn.AvgPool2D, nn.Flatten, nn.Dropout, nn.BatchNorm1D, nn.BatchNorm2D, nn.LayerNorm,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.LogSigmoid, nn.Softplus,
    nn.Tanh, nn.Softmax, nn.LogSoftmax,
)  # fmt: skip


def export_onnx(
    model: Module,
    path: PathLike,
    *,
    input_shape: tuple[int, ...],
    input_name: str = "input",
    output_name: str = "output",
    opset: int = 17,
    model_name: str = "everyo_model",
) -> Path:
    """Write a feed-forward model to an ONNX file with a symbolic batch; the path.

    `input_shape` has the batch first: `(1, 8, 8, 1)`, or `None` there; where the model does not
    take that, it is the shape of one sample. Raises
    `EveryOSerializationError` for a model in training mode, layers that are not feed-forward, batch
    normalisation without running statistics, and other opsets than 13 to 21.
    """
    check_mode(model)
    for name, module in model.named_modules():
        if type(module) not in LAYERS:
            raise EveryOSerializationError(
                f"{type(module).__name__} ({name or 'the model'}) is not one of the layers that "
                "export_onnx takes; use export_onnx_traced(model, path, example_input=...)"
            )
        if getattr(module, "track_running_stats", True) is False:
            raise EveryOSerializationError(
                f"{type(module).__name__} ({name or 'the model'}) has track_running_stats=False: "
                "it normalises by the batch, which a graph for single samples cannot"
            )
    try:
        graph = _graph(model, input_shape[1:])
    except EveryOSerializationError as error:
        try:
            graph = _graph(model, input_shape)
        except (EveryOSerializationError, TypeError):
            raise error from None
    if not graph.dynamic:
        raise EveryOSerializationError(
            f"{type(model).__name__}: the output for a batch is not one row per sample; use "
            "export_onnx_traced(model, path, example_input=...)"
        )
    names = input_name, output_name
    return write_onnx([graph], path, opset=opset, names=names, model_name=model_name)


def _graph(model: Module, sample_shape: tuple[int, ...]) -> ModelGraph:
    return next(model_graphs(model, Tensor._wrap(np.zeros((2, *sample_shape), np.float32))))


def onnx_available() -> bool:
    """Whether the packages `onnx` and `onnxruntime` are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def run_onnx(path: PathLike, inputs: Any, *, input_name: str = "input") -> np.ndarray:
    """The first output of an ONNX file for an input, cast to the dtype that the file wants.

    Raises `EveryOSerializationError` without the package onnxruntime, for a file that is missing or
    damaged, and for an input that does not fit.
    """
    try:
        import onnxruntime
    except ImportError:
        raise EveryOSerializationError(
            "running ONNX files needs the package onnxruntime: pip install 'everyo[onnx]'"
        ) from None
    if not Path(path).exists():
        raise EveryOSerializationError(f"{path} not found")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        kinds = {i.name: i.type for i in session.get_inputs()}
        array = np.asarray(inputs)
        wanted: np.dtype = _DTYPES.get(kinds.get(input_name, ""), array.dtype)
        return session.run(None, {input_name: array.astype(wanted, copy=False)})[0]
    except Exception as error:  # the runtime has classes of its own, none of them public
        raise EveryOSerializationError(f"{path} cannot be run: {error}") from error


_DTYPES: dict[str, np.dtype] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(bool),
}
