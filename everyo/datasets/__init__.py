"""Data to learn from without a download: one real data set and generated ones.

Everything returns a pair of NumPy arrays. Features are float32, class labels int64, regression
targets float32, token sequences int64. The same `seed` gives the same arrays.
"""

from everyo.datasets.digits import load_digits, load_uci_digits, render_digit
from everyo.datasets.points import (
    make_blobs,
    make_moons,
    make_regression,
    make_spirals,
    make_xor,
)
from everyo.datasets.sequences import make_copy_task, make_parity_task, make_recall_task

__all__ = [
    "load_digits",
    "load_uci_digits",
    "make_blobs",
    "make_copy_task",
    "make_moons",
    "make_parity_task",
    "make_recall_task",
    "make_regression",
    "make_spirals",
    "make_xor",
    "render_digit",
]
