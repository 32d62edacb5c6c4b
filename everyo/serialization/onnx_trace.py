"""ONNX export of any model that can be traced: recurrent layers and attention too.

The exported graph is what `eo.compile` records, in evaluation mode and without gradients.
Conditions on values that the model checks (an index in range, say) are not part of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everyo._version import __version__
from everyo.core.autograd import MODE, TRACES, no_grad
from everyo.core.op import OPS
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOSerializationError
from everyo.nn.module import Module
from everyo.serialization.container import PathLike, write_file
from everyo.serialization.onnx_graph import ModelGraph, model_graphs
from everyo.serialization.onnx_nodes import model_proto

__all__ = [
    "IR_VERSION", "MAXIMUM_OPSET", "MINIMUM_OPSET", "TRACEABLE_OPERATIONS", "export_onnx_traced",
    "trace_operations",
]  # fmt: skip

CALLED = {"merge": "concatenate", "clip_between": "clip"}  # record -> the function users call
TRACEABLE_OPERATIONS: tuple[str, ...] = tuple(sorted(CALLED.get(name, name) for name in OPS))
MINIMUM_OPSET, MAXIMUM_OPSET = 13, 21
IR_VERSION = 9


def export_onnx_traced(
    model: Module,
    path: PathLike,
    *,
    example_input: Any,
    input_name: str = "input",
    output_name: str = "output",
    opset: int = 17,
    model_name: str = "everyo_traced_model",
    dynamic_batch: bool = True,
) -> Path:
    """Write what the model does with inputs like `example_input` to an ONNX file; the path.

    With `dynamic_batch` the first axis of the input is symbolic, `batch`, if the model records the
    same operations for other batch sizes and the output's first axis is the batch; otherwise it has
    the size of the example. Of several outputs the first is exported. Raises
    `EveryOSerializationError` for a model in training mode, one that computes nothing, or another
    opset than 13 to 21.
    """
    check_mode(model)
    graphs = model_graphs(model, example_input)
    chosen = [g for g in graphs if dynamic_batch or not g.dynamic]
    if chosen[-1].values[-1].node.op == "input":
        raise EveryOSerializationError(
            f"{type(model).__name__} recorded no operations: its output is its input"
        )
    names = input_name, output_name
    return write_onnx(chosen, path, opset=opset, names=names, model_name=model_name)


def trace_operations(model: Module, example_input: Any) -> list[str]:
    """The names of the operations that the model runs on an input, in order."""
    recorder = _Recorder(MODE.watch)
    MODE.watch = recorder
    TRACES.append(recorder)
    try:
        with no_grad():
            model(example_input if isinstance(example_input, Tensor) else as_tensor(example_input))
    finally:
        MODE.watch = recorder.before
        TRACES.remove(recorder)
    return recorder.names


class _Recorder:
    """Notes every op; see everyo.core.detect for the other one who watches."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.names: list[str] = []

    def forward(self, op: Any, operands: Sequence[Any], out: Any) -> None:
        self.names.append(CALLED.get(op.name, op.name))
        if self.before is not None:
            self.before.forward(op, operands, out)


def write_onnx(
    graphs: Sequence[ModelGraph],
    path: PathLike,
    *,
    opset: int,
    names: tuple[str, str],
    model_name: str,
) -> Path:
    """Write the first of these graphs that ONNX can express, checked, to a file; the path."""
    try:
        import onnx
    except ImportError:
        raise EveryOSerializationError(
            "exporting needs the package onnx: pip install 'everyo[onnx]'"
        ) from None
    if not MINIMUM_OPSET <= opset <= MAXIMUM_OPSET:
        raise EveryOSerializationError(
            f"export needs opset {MINIMUM_OPSET} or newer, up to {MAXIMUM_OPSET}; got {opset}"
        )
    for graph in graphs:
        try:
            proto = model_proto(
                graph,
                opset=opset,
                ir_version=IR_VERSION,
                names=names,
                title=model_name,
                by=__version__,
            )
            break
        except EveryOSerializationError:
            if graph is graphs[-1]:
                raise
    try:
        onnx.checker.check_model(proto, full_check=True)
        data = proto.SerializeToString()
    except Exception as error:  # the checker's own classes, and protobuf's limit of 2 GB
        raise EveryOSerializationError(f"the model cannot be written as ONNX: {error}") from error
    return write_file(path, ".onnx", True, lambda stream: stream.write(data))


def check_mode(model: Module) -> None:
    if not isinstance(model, Module):
        raise EveryOSerializationError(f"not an everyo Module: {type(model).__name__}")
    if any(module.training for _, module in model.named_modules()):
        raise EveryOSerializationError(
            f"{type(model).__name__} is in training mode; call eval() before exporting it"
        )


def _slice_parameters(
    key: Any, in_shape: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """(starts, ends, axes, steps) of ONNX's Slice for a key of ints and forward slices.

    An int is a slice of one element. Raises `EveryOSerializationError` for Ellipsis, new axes,
    arrays, steps that are not positive and keys with more entries than axes.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > len(in_shape):
        raise EveryOSerializationError(f"{key!r} has more entries than {tuple(in_shape)} has axes")
    starts, ends, steps = [], [], []
    for k, n in zip(parts, in_shape, strict=False):
        if k is Ellipsis or k is None:
            raise EveryOSerializationError(f"{key!r}: Ellipsis and None are no slices")
        if isinstance(k, int | np.integer):
            k = slice(int(k) % n, int(k) % n + 1)
        if not isinstance(k, slice) or (k.step is not None and k.step <= 0):
            raise EveryOSerializationError(f"{key!r}: ints and forward slices only")
        start, end, step = k.indices(n)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    return starts, ends, list(range(len(parts))), steps
