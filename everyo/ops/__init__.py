"""All operations. Importing this package fills the table `everyo.core.op.OPS` and the methods of `Tensor`."""

from everyo.ops import composite, contraction, creation, elementwise, indexing, movement, reduce

__all__ = ["composite", "contraction", "creation", "elementwise", "indexing", "movement", "reduce"]
