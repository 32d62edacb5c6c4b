"""Random numbers from a counter-based generator whose whole state is a tensor.

The generator is Philox 4x64-10 as NumPy implements it. Its state, two words of key and four of
counter, is an int64 tensor of shape (6,), read and advanced like any other state; a function
compiled with `eo.compile` therefore draws exactly the numbers that eager code would draw. A float64
number is the top 53 bits of a word; of float32 numbers a word gives two, the top 24 bits of its
lower half and of its upper half.
"""

import math
import threading
from typing import Any

import numpy as np

from everyo.core import autograd
from everyo.core.forks import renewed
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError, EveryOShapeError

BLOCK = 32  # bytes per counter


class Generator:
    """A stream of random numbers. `seed` is an int; None takes one from the system."""

    def __init__(self, seed: int | None = None) -> None:
        self.state = Tensor._wrap(seeded(seed))
        self._lock = renewed(threading.Lock())

    def uniform(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Numbers in [0, 1) as an array of float32 or float64."""
        xp = autograd.namespace()
        with self._lock:
            state = self.state.data
            out = xp.random(state, shape=shape, dtype=np.dtype(dtype))
            blocks = -(-math.prod(shape) * out.dtype.itemsize // BLOCK)
            self.state._write(xp.add(state, xp.where(xp.equal(xp.iota((6,), 0), 2), blocks, 0)))
        return out

    def normal(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Standard normal numbers, by Box and Muller's transform of pairs of uniform ones."""
        xp = autograd.namespace()
        n = math.prod(shape)
        half = -(-n // 2)
        u = self.uniform((2, half), dtype)
        radius = xp.sqrt(xp.multiply(xp.log(xp.subtract(1, xp.getitem(u, (0,)))), -2.0))
        angle = xp.multiply(xp.getitem(u, (1,)), 2 * math.pi)
        both = xp.merge(
            xp.multiply(radius, xp.cos(angle)), xp.multiply(radius, xp.sin(angle)), axis=0
        )
        return xp.reshape(xp.getitem(both, (slice(0, n),)), shape)

    def seed(self, seed: int | None) -> None:
        """Start the stream again from `seed`."""
        self.state._write(seeded(seed))

    def get_state(self) -> np.ndarray:
        """The state as an int64 array of 6 words; `set_state` continues from it."""
        return self.state.numpy()

    def set_state(self, state: Any) -> None:
        """Continue from a state that `get_state` returned."""
        words = np.asarray(state)
        if words.shape != (6,) or words.dtype.kind not in "iu":
            raise EveryOShapeError(
                f"a random state is 6 integers, got shape {words.shape}, dtype {words.dtype}"
            )
        self.state._write(words.astype(np.int64))

    def __deepcopy__(self, memo: dict) -> "Generator":
        out = Generator(0)
        out.set_state(self.get_state())
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {"state": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(0)  # type: ignore[misc]
        self.set_state(state["state"])


def seeded(seed: int | None) -> np.ndarray:
    """The state that starts the stream of a seed: NumPy's own Philox(seed)."""
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0
    ):
        raise ValueError(f"a seed is a non-negative int or None, got {seed!r}")
    key = np.random.SeedSequence(None if seed is None else int(seed)).generate_state(2, np.uint64)
    return np.concatenate([key, np.zeros(4, np.uint64)]).view(np.int64)


DEFAULT = Generator()


def manual_seed(seed: int) -> None:
    """Seed the default generator: of random tensors, dropout and initial weights without a seed."""
    DEFAULT.seed(seed)


def get_rng_state() -> np.ndarray:
    """The state of the default generator, an int64 array of 6 words."""
    return DEFAULT.get_state()


def set_rng_state(state: Any) -> None:
    """Continue the default generator from a state that `get_rng_state` returned."""
    DEFAULT.set_state(state)


def host_generator(seed: Any) -> np.random.Generator:
    """NumPy's generator for an explicit seed; a generator itself is used, but not in a trace."""
    if isinstance(seed, np.random.Generator):
        trace = autograd.current_trace()
        if trace is not None:
            raise trace.error(
                "a NumPy Generator draws on the host and would give the same numbers in every "
                "call; use seed=None and eo.manual_seed"
            )
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise EveryOError(f"seed must be an int, a numpy Generator or None, got {seed!r}")
    return np.random.default_rng(seed)
