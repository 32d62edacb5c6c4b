"""Philox4x64-10, the generator that NumPy has as well.

After Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3 (2011). One
function, words to words: in plain Python here, as LLVM in `prelude`. What numbers are made of the
words is in core/random.py.
"""

from typing import Any

import numpy as np

ROUNDS = 10
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # added to the key from round to round
_WORD = 2**64 - 1


def philox(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Any, ...]:
    """The four words of a counter under a key."""
    keys = [int(k0), int(k1)]
    c = [int(x) for x in (c0, c1, c2, c3)]
    for _ in range(ROUNDS):
        first, second = c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]
        c = [
            second >> 64 ^ c[1] ^ keys[0], second & _WORD,
            first >> 64 ^ c[3] ^ keys[1], first & _WORD,
        ]  # fmt: skip
        keys = [(k + step) & _WORD for k, step in zip(keys, KEY_STEPS, strict=True)]
    return tuple(map(np.uint64, c))
