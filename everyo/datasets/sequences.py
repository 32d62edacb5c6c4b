"""Generated token sequences, each of which asks a network to remember something.

Letters: n samples, t tokens per sequence. Everything is int64.
"""

import numpy as np

from everyo.data.checks import whole


def make_recall_task(
    *,
    n_samples: int = 2000,
    length: int = 20,
    num_classes: int = 4,
    vocab_size: int = 16,
    seed: int | None = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Remember how it began: sequences (n, t), labels (n,).

    The label is the first token, one of 0..num_classes-1. All later tokens are drawn from the rest
    of the vocabulary, num_classes..vocab_size-1, so nothing after the start gives it away.

    >>> sequences, labels = make_recall_task(n_samples=3, length=5)
    >>> bool((sequences[:, 0] == labels).all())
    True
    """
    n = whole("n_samples", n_samples)
    t = whole("length", length)
    classes = whole("num_classes", num_classes)
    vocabulary = whole("vocab_size", vocab_size)
    if vocabulary <= classes:
        raise ValueError(
            f"vocab_size must exceed num_classes, so that there are tokens to fill the sequence "
            f"with; got {vocabulary} and {classes}"
        )
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n, dtype=np.int64) % classes)
    filler = rng.integers(classes, vocabulary, size=(n, t - 1))
    return np.concatenate([labels[:, None], filler], axis=1), labels


def make_copy_task(
    *, n_samples: int = 2000, length: int = 8, vocab_size: int = 10, seed: int | None = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Say it again: sequences (n, t), targets (n, t), equal token for token."""
    n = whole("n_samples", n_samples)
    t = whole("length", length)
    vocabulary = whole("vocab_size", vocab_size)
    sequences = np.random.default_rng(seed).integers(0, vocabulary, size=(n, t))
    return sequences, sequences.copy()


def make_parity_task(
    *, n_samples: int = 2000, length: int = 12, seed: int | None = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Count the ones: bit sequences (n, t), labels (n,), 1 where their number is odd."""
    n = whole("n_samples", n_samples)
    t = whole("length", length)
    bits = np.random.default_rng(seed).integers(0, 2, size=(n, t))
    return bits, bits.sum(axis=1) % 2
