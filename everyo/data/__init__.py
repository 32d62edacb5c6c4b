"""Getting data in front of a model: data sets, a loader, tables, scaling and splits.

Everything here works on NumPy arrays and gives NumPy arrays (tensors are accepted where arrays
are); nothing depends on the engine.
"""

from everyo.data.dataset import ArrayDataset, Dataset, Subset, TransformDataset
from everyo.data.loader import DataLoader
from everyo.data.preprocessing import (
    MinMaxScaler,
    StandardScaler,
    min_max_scale,
    normalize,
    one_hot_encode,
    shuffle_arrays,
    standardize,
)
from everyo.data.splits import random_split, stratified_split, train_test_split
from everyo.data.tables import load_csv_dataset

__all__ = [
    "ArrayDataset",
    "DataLoader",
    "Dataset",
    "MinMaxScaler",
    "StandardScaler",
    "Subset",
    "TransformDataset",
    "load_csv_dataset",
    "min_max_scale",
    "normalize",
    "one_hot_encode",
    "random_split",
    "shuffle_arrays",
    "standardize",
    "stratified_split",
    "train_test_split",
]
