"""All operations. Importing this package fills the table `OPS` and the methods of `Tensor`."""

from everyo.ops import (
    composite,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    pooling,
    reduce,
)

__all__ = [
    "composite",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "movement",
    "pooling",
    "reduce",
]
