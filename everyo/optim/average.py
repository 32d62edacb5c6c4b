"""`ExponentialMovingAverage`: a smoothed copy of the parameters, often better than the last."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from everyo.core.autograd import namespace
from everyo.core.state import Scalar, Tracked, check_names, fitting
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError, EveryOSerializationError

__all__ = ["ExponentialMovingAverage"]


class ExponentialMovingAverage(Tracked):
    """average <- decay * average + (1 - decay) * parameter, at every `update()`.

    It begins at the present values. Raises `EveryOError` for no parameters, `ValueError` for a
    decay outside [0, 1].
    """

    decay = Scalar()
    _state_attributes = ("parameters", "averages", "_scalars")

    def __init__(self, parameters: Iterable[Tensor], decay: float = 0.999) -> None:
        self.parameters = list({id(p): p for p in parameters}.values())
        if not self.parameters:
            raise EveryOError("ExponentialMovingAverage: there are no parameters to average")
        self._scalars = {"decay": self._check_scalar("decay", decay)}
        self.averages = [Tensor._wrap(np.array(p.data)) for p in self.parameters]

    def _check_scalar(self, name: str, value: Any) -> float:
        if not 0 <= value <= 1:
            raise ValueError(f"decay must lie in [0, 1], got {value!r}")
        return float(value)

    def update(self) -> None:
        """Move the averages towards the present parameters."""
        xp, decay = namespace(), self.decay
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            old = average.data
            step = xp.multiply(xp.subtract(parameter.data, old), 1 - decay)
            average._write(xp.add(old, step))

    def copy_to(self) -> None:
        """Overwrite the parameters with the averages."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            parameter._write(average.data)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The parameters hold the averages inside, e.g. to evaluate, and their own values after."""
        before = [np.array(p.data) for p in self.parameters]
        self.copy_to()
        try:
            yield
        finally:
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter._write(value)

    def state_dict(self) -> dict[str, Any]:
        """The decay and copies of the averages, by position of the parameter."""
        return {"decay": self.decay, "averages": [np.array(a.data) for a in self.averages]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; `EveryOSerializationError` if it does not fit."""
        check_names({"decay", "averages"}, set(state), True, "ExponentialMovingAverage")
        stored = state["averages"]
        if len(stored) != len(self.averages):
            raise EveryOSerializationError(
                f"ExponentialMovingAverage expects {len(self.averages)} averages, the state has "
                f"{len(stored)}"
            )
        values = [
            fitting(value, place, f"averages[{i}]")
            for i, (place, value) in enumerate(zip(self.averages, stored, strict=True))
        ]
        self.decay = state["decay"]
        for place, value in zip(self.averages, values, strict=True):
            place._write(value)
