"""Files: models (`.evo`), weights (`.npz`, `.safetensors`), checkpoints, ONNX."""

from everyo.serialization.archive import (
    DEFAULT_SUFFIX,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PARAMETERS_NAME,
    inspect_archive,
    load,
    save,
)
from everyo.serialization.checkpoint import load_checkpoint, save_checkpoint
from everyo.serialization.onnx_export import export_onnx, onnx_available, run_onnx
from everyo.serialization.onnx_trace import (
    TRACEABLE_OPERATIONS,
    export_onnx_traced,
    trace_operations,
)
from everyo.serialization.weights import load_weights, save_weights

__all__ = [
    "DEFAULT_SUFFIX", "FORMAT_VERSION", "MANIFEST_NAME", "PARAMETERS_NAME",
    "TRACEABLE_OPERATIONS", "export_onnx", "export_onnx_traced", "inspect_archive", "load",
    "load_checkpoint", "load_weights", "onnx_available", "run_onnx", "save", "save_checkpoint",
    "save_weights", "trace_operations",
]  # fmt: skip
