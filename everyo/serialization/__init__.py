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
from everyo.serialization.weights import load_weights, save_weights

__all__ = [
    "DEFAULT_SUFFIX", "FORMAT_VERSION", "MANIFEST_NAME", "PARAMETERS_NAME", "inspect_archive",
    "load", "load_checkpoint", "load_weights", "save", "save_checkpoint", "save_weights",
]  # fmt: skip
