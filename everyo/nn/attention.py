"""Attention and transformer encoders, over (batch, time, embed_dim)."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from everyo.core.autocast import widened
from everyo.core.autograd import namespace
from everyo.core.dtype import FLOAT32
from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.nn.checks import last_axis, positive_sizes
from everyo.nn.initialization import claim
from everyo.nn.layers import Dropout, Linear, next_seed
from everyo.nn.module import Module, register_module
from everyo.nn.normalization import LayerNorm
from everyo.ops.activations import relu
from everyo.ops.contraction import matmul
from everyo.ops.movement import reshape, transpose
from everyo.ops.reduce import softmax

__all__ = [
    "MASK_VALUE",
    "MultiHeadAttention",
    "PositionalEncoding",
    "TransformerEncoder",
    "TransformerEncoderBlock",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
]

MASK_VALUE = -1e9  # added to a score, it makes the weight exactly 0


def causal_mask(size: int) -> np.ndarray:
    """A mask (1, 1, size, size) that hides later positions: 0 on and below the diagonal."""
    positive_sizes("causal_mask", "size", size=size)
    later = np.triu(np.ones((size, size), bool), 1)
    return np.where(later, FLOAT32.type(MASK_VALUE), FLOAT32.type(0))[None, None]


def padding_mask(lengths: Any, size: int) -> np.ndarray:
    """A mask (batch, 1, 1, size) that hides what lies behind each sequence's length."""
    positive_sizes("padding_mask", "size", size=size)
    given = np.asarray(lengths)
    if given.ndim != 1 or not ((given >= 0) & (given <= size)).all():
        raise EveryOShapeError(
            f"padding_mask: lengths must lie in [0, {size}], one per sequence, got {lengths!r}"
        )
    behind = np.arange(size) >= given[:, None]
    return np.where(behind, FLOAT32.type(MASK_VALUE), FLOAT32.type(0))[:, None, None]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d) + mask) v: (..., Q, d), (..., K, d), (..., K, e) -> (..., Q, e).

    Returns the result and the weights (..., Q, K). `mask` is added to the scores; `dropout`, a
    layer, is applied to the weights.
    """
    query, key, value = as_tensor(query), as_tensor(key), as_tensor(value)
    if query.shape[-1] != key.shape[-1]:
        raise EveryOShapeError(
            f"attention: query and key depths differ, {query.shape[-1]} and {key.shape[-1]}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise EveryOShapeError(
            f"attention: there must be as many keys as values, got {key.shape[-2]} and "
            f"{value.shape[-2]}"
        )
    axes = (*range(key.ndim - 2), key.ndim - 1, key.ndim - 2)
    scores = widened(matmul(query * (1.0 / math.sqrt(query.shape[-1])), transpose(key, axes)))
    if mask is not None:
        scores = scores + as_tensor(mask).astype(scores.dtype)
    weights = softmax(scores)
    return matmul(weights if dropout is None else dropout(weights), value), weights


def _sequence(owner: str, x: Any, embed_dim: int) -> Tensor:
    x = as_tensor(x)
    if x.ndim != 3:
        raise EveryOShapeError(
            f"{owner} expects an input (batch, time, embed_dim), got shape {x.shape}"
        )
    last_axis(owner, x, embed_dim, "embed_dim")
    return x


@register_module
class MultiHeadAttention(Module):
    """Attention in `num_heads` parts of the embedding: (N, Q, E) -> (N, Q, E).

    Keys default to the query, values to the keys. `mask`, as in `scaled_dot_product_attention`, is
    broadcast to (N, heads, Q, K). After an eager call `last_attention_weights` has that shape.
    """

    _config = ("embed_dim", "num_heads", "dropout", "bias")
    _debug_attributes = ("last_attention_weights",)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        seed: Any = None,
    ) -> None:
        super().__init__()
        positive_sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise EveryOShapeError(
                f"MultiHeadAttention: num_heads={num_heads} must divide evenly into "
                f"embed_dim={embed_dim}"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim, self.use_bias = embed_dim // num_heads, bool(bias)
        for i, name in enumerate(("query", "key", "value", "output")):
            projection = Linear(
                embed_dim,
                embed_dim,
                bias=bias,
                initializer="xavier_uniform",
                seed=next_seed(seed, i),
            )
            setattr(self, f"{name}_projection", projection)
        self.attention_dropout = Dropout(dropout, seed=_stream(seed, 4))
        self.last_attention_weights: Tensor | None = None

    @property
    def dropout(self) -> float:
        """The probability with which an attention weight is dropped in training."""
        return self.attention_dropout.p

    def forward(
        self, query: Any, key: Any = None, value: Any = None, *, mask: Any = None
    ) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        query, key, value = (
            _sequence("MultiHeadAttention", x, self.embed_dim) for x in (query, key, value)
        )
        result, weights = scaled_dot_product_attention(
            self._heads(self.query_projection(query)),
            self._heads(self.key_projection(key)),
            self._heads(self.value_projection(value)),
            mask=mask,
            dropout=self.attention_dropout,
        )
        self.last_attention_weights = weights.detach()
        batch, length, _ = query.shape
        joined = reshape(transpose(result, (0, 2, 1, 3)), (batch, length, self.embed_dim))
        return self.output_projection(joined)

    def _heads(self, x: Tensor) -> Tensor:
        """(N, T, E) -> (N, heads, T, E / heads)."""
        batch, length, _ = x.shape
        return transpose(reshape(x, (batch, length, self.num_heads, self.head_dim)), (0, 2, 1, 3))


def _stream(seed: Any, offset: int) -> int | None:
    """The seed of a dropout layer: an own stream only where the module has an int as seed."""
    return seed + offset if isinstance(seed, int) else None


@register_module
class PositionalEncoding(Module):
    """Adds sines and cosines of the position: (N, T, E) -> (N, T, E).

    Columns 2i and 2i + 1 hold sin and cos of position * 10000 ** (-2i / E).
    """

    _config = ("embed_dim", "max_length", "dropout")

    def __init__(self, embed_dim: int, *, max_length: int = 5000, dropout: float = 0.0) -> None:
        super().__init__()
        positive_sizes("PositionalEncoding", embed_dim=embed_dim, max_length=max_length)
        self.embed_dim, self.max_length = embed_dim, max_length
        self.output_dropout = Dropout(dropout)
        claim((max_length, embed_dim))
        even = np.arange(0, embed_dim, 2)
        angle = np.arange(max_length)[:, None] * 10000.0 ** (-even / embed_dim)
        encoding = np.zeros((max_length, embed_dim), FLOAT32)
        encoding[:, 0::2] = np.sin(angle)
        encoding[:, 1::2] = np.cos(angle[:, : embed_dim // 2])
        self.register_buffer("encoding", encoding)

    @property
    def dropout(self) -> float:
        """The probability with which an element of the result is dropped in training."""
        return self.output_dropout.p

    def forward(self, x: Any) -> Tensor:
        x = _sequence("PositionalEncoding", x, self.embed_dim)
        if x.shape[1] > self.max_length:
            raise EveryOShapeError(
                f"PositionalEncoding: a sequence of length {x.shape[1]} exceeds max_length "
                f"{self.max_length}"
            )
        xp = namespace()
        rows = xp.getitem(self.encoding, (slice(0, x.shape[1]),))
        return self.output_dropout(x + Tensor._wrap(xp.astype(rows, x.dtype)))


@register_module
class TransformerEncoderBlock(Module):
    """Attention and a two-layer network, each around a residual connection: (N, T, E) -> (N, T, E).

    With `norm_first` each part sees its input normalised; otherwise each sum is normalised.
    """

    _config = ("embed_dim", "num_heads", "feedforward_dim", "dropout", "norm_first")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        feedforward_dim: int | None = None,
        dropout: float = 0.1,
        norm_first: bool = True,
        seed: Any = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.feedforward_dim = 4 * embed_dim if feedforward_dim is None else feedforward_dim
        self.norm_first = bool(norm_first)
        self.attention = MultiHeadAttention(embed_dim, num_heads, dropout=dropout, seed=seed)
        self.linear_in = Linear(embed_dim, self.feedforward_dim, seed=next_seed(seed, 5))
        self.linear_out = Linear(
            self.feedforward_dim, embed_dim, initializer="xavier_uniform", seed=next_seed(seed, 6)
        )
        self.attention_norm, self.feedforward_norm = LayerNorm(embed_dim), LayerNorm(embed_dim)
        self.residual_dropout = Dropout(dropout, seed=_stream(seed, 7))

    @property
    def dropout(self) -> float:
        """The probability with which attention weights and residuals are dropped in training."""
        return self.residual_dropout.p

    def forward(self, x: Any, *, mask: Any = None) -> Tensor:
        x = _sequence("TransformerEncoderBlock", x, self.embed_dim)
        if self.norm_first:
            x = x + self._attend(self.attention_norm(x), mask)
            return x + self._feed(self.feedforward_norm(x))
        x = self.attention_norm(x + self._attend(x, mask))
        return self.feedforward_norm(x + self._feed(x))

    def _attend(self, x: Tensor, mask: Any) -> Tensor:
        return self.residual_dropout(self.attention(x, mask=mask))

    def _feed(self, x: Tensor) -> Tensor:
        return self.residual_dropout(self.linear_out(relu(self.linear_in(x))))


@register_module
class TransformerEncoder(Module):
    """`num_layers` blocks in a row: (N, T, E) -> (N, T, E). `norm_first` ends with a layer norm."""

    _config = ("embed_dim", "num_heads", "num_layers", "feedforward_dim", "dropout", "norm_first")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_layers: int = 2,
        feedforward_dim: int | None = None,
        dropout: float = 0.1,
        norm_first: bool = True,
        seed: Any = None,
    ) -> None:
        super().__init__()
        positive_sizes("TransformerEncoder", num_layers=num_layers)
        self.embed_dim, self.num_heads, self.num_layers = embed_dim, num_heads, num_layers
        self.norm_first = bool(norm_first)
        for i in range(num_layers):
            block = TransformerEncoderBlock(
                embed_dim,
                num_heads,
                feedforward_dim=feedforward_dim,
                dropout=dropout,
                norm_first=norm_first,
                seed=next_seed(seed, 8 * i),
            )
            setattr(self, f"block{i}", block)
        if norm_first:
            self.norm = LayerNorm(embed_dim)

    @property
    def blocks(self) -> list[TransformerEncoderBlock]:
        """The blocks in order."""
        return [m for m in self.children() if isinstance(m, TransformerEncoderBlock)]

    @property
    def feedforward_dim(self) -> int:
        """The width of the inner layer of each block."""
        return self.blocks[0].feedforward_dim

    @property
    def dropout(self) -> float:
        """The probability with which attention weights and residuals are dropped in training."""
        return self.blocks[0].dropout

    def forward(self, x: Any, *, mask: Any = None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.norm(x) if self.norm_first else as_tensor(x)
