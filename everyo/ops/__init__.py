"""All operations. Importing this package fills the table `OPS` and the methods of `Tensor`."""

from everyo.ops import (
    activations,
    composite,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    pooling,
    reduce,
    transcendental,
)

__all__ = [
    "activations",
    "composite",
    "contraction",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "movement",
    "pooling",
    "reduce",
    "transcendental",
]
