"""`Embedding`: a table of vectors, looked up by whole numbers."""

from typing import Any

from everyo.core.autograd import namespace
from everyo.core.tensor import Tensor
from everyo.nn.checks import positive_sizes, whole_numbers
from everyo.nn.layers import new_weight
from everyo.nn.module import Module, register_module
from everyo.ops.composite import require_inside
from everyo.ops.indexing import getitem

__all__ = ["Embedding"]


@register_module
class Embedding(Module):
    """A row of `weight` (num_embeddings, dim) per id: ids of any shape -> ids.shape + (dim,).

    Ids are whole numbers in a nested list, an array or a tensor, of any dtype. Raises
    `EveryOShapeError` for anything else and for ids outside [0, num_embeddings).
    """

    _config = ("num_embeddings", "embedding_dim", "initializer")

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        initializer: str = "normal",
        seed: Any = None,
    ) -> None:
        super().__init__()
        positive_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.initializer = initializer
        self.weight = new_weight(initializer, (num_embeddings, embedding_dim), seed)

    def forward(self, ids: Any) -> Tensor:
        values = ids.data if isinstance(ids, Tensor) else namespace().asarray(ids)
        ids = whole_numbers(values, "Embedding: ids")
        require_inside(namespace(), ids, self.num_embeddings, "Embedding: ids")
        return getitem(self.weight, (ids,))
