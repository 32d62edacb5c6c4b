"""The loader: batches of NumPy arrays, in an order that a seed fixes.

One generator per loader draws each epoch's order, so equal seeds give equal epochs and successive
epochs differ. The position in the epoch and the generator make up the loader's state; a loader
that takes over another's state delivers exactly the batches that the other had still to deliver.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from copy import deepcopy
from queue import SimpleQueue
from typing import Any

import numpy as np

from everyo.data.checks import whole
from everyo.data.dataset import Dataset, collate
from everyo.exceptions import EveryOSerializationError

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of `dataset`: `(features, targets)` tuples, or bare arrays where it has no targets.

    The last batch of an epoch is shorter when the samples do not divide evenly, unless
    `drop_last`. With `prefetch=k` a background thread keeps up to `k` batches ready; the order
    and the contents are the same as without.

    >>> [batch.tolist() for batch in DataLoader([10, 11, 12, 13, 14], 2)]
    [[10, 11], [12, 13], [14]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        prefetch: int = 0,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"DataLoader needs a data set with __len__ and __getitem__; got "
                f"{type(dataset).__name__}. Wrap arrays in ArrayDataset(features, targets)"
            )
        self.dataset = dataset
        self.batch_size = whole("batch_size", batch_size)
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.seed = seed
        self.prefetch = whole("prefetch", prefetch, at_least=0)
        self._generator = np.random.default_rng(seed)
        self._epoch_start = self._generator_state()
        self._delivered = 0
        self._resume_at = 0

    @property
    def num_samples(self) -> int:
        """How many samples the data set has."""
        return len(self.dataset)

    def __len__(self) -> int:
        full, rest = divmod(self.num_samples, self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def __iter__(self) -> Generator[Any, None, None]:
        epoch_start = self._generator_state()
        order = np.arange(self.num_samples)
        if self.shuffle:
            self._generator.shuffle(order)
        first, self._resume_at = self._resume_at, 0
        steps = range(first, len(self))
        batches = (self._batch(order, step) for step in steps)
        if self.prefetch:
            batches = _made_ahead(batches, self.prefetch)
        with closing(batches):
            for step, batch in zip(steps, batches, strict=True):
                self._epoch_start, self._delivered = epoch_start, step + 1
                yield batch
        self._epoch_start, self._delivered = self._generator_state(), 0

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: the generator as the epoch began and the batches delivered."""
        return {
            "generator": deepcopy(self._epoch_start),
            "delivered": self._delivered,
            "num_samples": self.num_samples,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`: the next iteration delivers the rest of the epoch it was taken in."""
        expected = self.state_dict()
        missing = sorted(expected.keys() - state.keys())
        if missing:
            raise EveryOSerializationError(f"DataLoader state: Missing keys {missing}")
        delivered = state["delivered"]
        for name in ("num_samples", "batch_size", "shuffle"):
            if delivered and state[name] != expected[name]:
                raise EveryOSerializationError(
                    f"DataLoader state: taken in the middle of an epoch with {name}="
                    f"{state[name]!r}, but this loader has {expected[name]!r}; the rest of that "
                    f"epoch cannot be delivered exactly"
                )
        if delivered not in range(len(self) + 1):
            raise EveryOSerializationError(
                f"DataLoader state: {delivered!r} batches delivered of an epoch of {len(self)}"
            )
        try:
            trial = deepcopy(self._generator.bit_generator)  # a bad state must change nothing
            trial.state = state["generator"]
        except (KeyError, TypeError, ValueError) as error:
            raise EveryOSerializationError(
                f"DataLoader state: not the state of a NumPy generator ({error})"
            ) from None
        self._generator.bit_generator.state = trial.state
        self._epoch_start = self._generator_state()
        self._delivered = self._resume_at = int(delivered)

    def _generator_state(self) -> Any:
        return deepcopy(self._generator.bit_generator.state)

    def _batch(self, order: np.ndarray, step: int) -> Any:
        indices = order[step * self.batch_size : (step + 1) * self.batch_size]
        if isinstance(self.dataset, Dataset):
            return self.dataset.take(indices)
        return collate([self.dataset[int(i)] for i in indices])


_END = object()


class _Failure:
    """An exception on its way from the background thread to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _made_ahead(items: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """The same items in the same order, made by a thread that keeps up to `depth` of them ready."""
    ready: SimpleQueue[Any] = SimpleQueue()
    free = threading.Semaphore(depth)
    abandoned = threading.Event()
    thread = threading.Thread(
        target=_make, args=(items, ready.put, free, abandoned), name="everyo-prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            item = ready.get()
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            free.release()
            yield item
    finally:
        abandoned.set()
        free.release()
        if thread is not threading.current_thread():  # a collected cycle may close us from there
            thread.join()


def _make(
    items: Iterator[Any],
    put: Callable[[Any], None],
    free: threading.Semaphore,
    abandoned: threading.Event,
) -> None:
    while True:
        free.acquire()
        if abandoned.is_set():
            return
        try:
            item = next(items, _END)
        except BaseException as error:
            put(_Failure(error))
            return
        put(item)
        if item is _END:
            return
