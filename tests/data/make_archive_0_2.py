"""Writes `archive_0_2.evo`: an archive in the format of EveryO 0.2, without the library.

The weights are those of a small network by formula, so that a test can say what it must predict.
"""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

WEIGHTS = {
    "0.weight": (np.arange(12, dtype=np.float32).reshape(3, 4) - 5) / 8,
    "0.bias": np.array([0.5, -0.25, 0.0, 1.0], np.float32),
    "3.weight": (np.arange(8, dtype=np.float32).reshape(4, 2) - 3) / 4,
    "3.bias": np.array([0.125, -0.5], np.float32),
}
LAYERS = [
    {
        "class_name": "Linear",
        "config": {"in_features": 3, "out_features": 4, "bias": True, "initializer": "he_uniform"},
    },
    {"class_name": "ReLU", "config": {}},
    {"class_name": "Dropout", "config": {"p": 0.25}},
    {
        "class_name": "Linear",
        "config": {"in_features": 4, "out_features": 2, "bias": True, "initializer": "he_uniform"},
    },
]
MANIFEST = {
    "format_version": 1,
    "everyo_version": "0.2.0",
    "created_at": "2025-11-02T09:30:00+00:00",
    "architecture": {"class_name": "Sequential", "config": {"layers": LAYERS}},
    "parameters": {k: {"shape": list(v.shape), "dtype": str(v.dtype)} for k, v in WEIGHTS.items()},
    "num_parameters": 26,
    "metadata": {"epochs": 12, "note": "from 0.2"},
}


def main() -> None:
    arrays = io.BytesIO()
    np.savez(arrays, **WEIGHTS)
    with zipfile.ZipFile(
        Path(__file__).with_name("archive_0_2.evo"), "w", zipfile.ZIP_DEFLATED
    ) as archive:
        archive.writestr("manifest.json", json.dumps(MANIFEST, indent=2))
        archive.writestr("parameters.npz", arrays.getvalue())


if __name__ == "__main__":
    main()
