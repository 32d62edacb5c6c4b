"""`Optimizer`: the frame around an update rule.

The rule of each optimizer is a pure function of arrays. The frame reads parameters, gradients and
state, calls the rule for each parameter that has a gradient, and then writes everything in place;
so a step that fails changes nothing, and `eo.compile` records it like any other code. State belongs
to a parameter by position. Hyperparameters are `Scalar`s: plain numbers for the user, run-time
inputs of a compiled step. Which of them are in use at all is kept apart, in `structure`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from everyo.core.autograd import current_trace, namespace
from everyo.core.device_array import is_on_device
from everyo.core.namespace import DEVICES, NUMPY
from everyo.core.state import Tracked, check_names, fitting
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError, EveryOSerializationError

__all__ = ["Betas", "Optimizer"]

Check = tuple[str, Callable[[Any, Any], Any]]  # what must hold, and its test (xp, value) -> bool

POSITIVE: Check = ("positive", lambda xp, v: xp.greater(v, 0))
NOT_NEGATIVE: Check = ("non-negative", lambda xp, v: xp.greater_equal(v, 0))
FRACTION: Check = (
    "in [0, 1)",
    lambda xp, v: xp.logical_and(xp.greater_equal(v, 0), xp.less(v, 1)),
)
LEARNING_RATE: Check = ("positive, or 0 at the end of a schedule", NOT_NEGATIVE[1])


class Betas:
    """Several scalars of the owner that the user sees as one tuple."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else tuple(getattr(instance, n) for n in self.names)

    def __set__(self, instance: Any, values: Any) -> None:
        named = self.named(values)
        for name, value in named.items():
            instance._check_scalar(name, value)
        for name, value in named.items():
            setattr(instance, name, value)

    def named(self, values: Any) -> dict[str, Any]:
        """The values by the names of the scalars; `ValueError` for a wrong number of them."""
        given = tuple(values) if isinstance(values, tuple | list) else (values,)
        if len(given) != len(self.names):
            raise ValueError(f"betas must be ({', '.join(self.names)}), got {values!r}")
        return dict(zip(self.names, given, strict=True))


class Optimizer(Tracked):
    """Base of all optimizers: `step()` applies a rule to every parameter that has a gradient.

    A parameter that is given twice counts once. Raises `EveryOError` for no parameters or anything
    that is not a tensor, and `ValueError` for hyperparameters out of range.
    """

    _config: tuple[str, ...] = ()  # the hyperparameters, as the constructor names them
    _checks: ClassVar[Mapping[str, Check]] = {}  # per scalar
    _structural: tuple[str, ...] = ()  # hyperparameters of which a step asks whether they are on
    _state_attributes = ("parameters", "_scalars", "_state", "_steps")

    lr: Any
    parameters: list[Tensor]
    structure: tuple[str, ...]  # those of `_structural` that are on
    _scalars: dict[str, Any]
    _state: dict[str, list[Tensor]]
    _steps: Tensor

    def __init__(self, parameters: Iterable[Tensor], **hyper: Any) -> None:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for p in given:
            if not isinstance(p, Tensor):
                raise EveryOError(
                    f"{type(self).__name__}: every parameter must be an EveryO tensor, got "
                    f"{type(p).__name__}; pass model.parameters()"
                )
        if not given:
            raise EveryOError(f"{type(self).__name__}: there are no parameters to optimise")
        if not hyper["lr"] > 0:  # 0 is for schedules
            raise ValueError(f"lr must be positive, got {hyper['lr']!r}")
        self._begin(list({id(p): p for p in given}.values()), hyper)

    def _begin(self, parameters: list[Tensor], hyper: Mapping[str, Any]) -> None:
        """Set the hyperparameters, and state as before the first step."""
        fields = self.__dict__
        fields["parameters"], fields["structure"] = parameters, ()
        fields["_scalars"], fields["_state"] = {}, {}
        fields["_steps"] = Tensor._wrap(np.zeros((), np.int64))
        for name in self._config:
            bundle = getattr(type(self), name, None)
            if isinstance(bundle, Betas):
                for part, value in bundle.named(hyper[name]).items():
                    self._scalars[part] = self._check_scalar(part, value)
            elif name in self._checks:
                self._scalars[name] = self._check_scalar(name, hyper[name])
            else:
                fields[name] = hyper[name]
        self._restructure()

    # ------------------------------------------------------------------ hyperparameters

    def _check_scalar(self, name: str, value: Any) -> Any:
        """A hyperparameter as a float (while tracing, what stands for one); `ValueError` if it is
        out of range."""
        if isinstance(value, Tensor):
            value = value.data
        if issubclass(type(value), int | float | np.number | np.ndarray):  # not one that records
            value = float(value)
        xp = NUMPY if type(value) is float else namespace()
        words, test = self._checks[name]
        shown = f", got {value!r}" if type(value) is float else ""
        xp.require(test(xp, value), ValueError, f"{name} must be {words}{shown}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._structural:
            super().__setattr__(name, value)
        elif current_trace() is not None:
            self._set_plain(name, value)  # a compiled step cannot change its own structure
        else:
            before = getattr(self, name)
            super().__setattr__(name, value)
            try:
                self._restructure()
            except ValueError:
                super().__setattr__(name, before)
                raise

    def _restructure(self) -> None:
        """Recompute what a step does from the present hyperparameters; add the state it needs."""
        on = tuple(n for n in self._structural if self._scalars.get(n, self.__dict__.get(n)))
        self._check_structure(on)
        if on != self.structure:
            self._set_plain("structure", on)
        for slot in self._slots():
            if slot not in self._state:
                self._state[slot] = [
                    Tensor._wrap(np.full(p.shape, self._initial(slot), p.dtype))
                    for p in self.parameters
                ]

    def _check_structure(self, on: tuple[str, ...]) -> None:
        """Raise `ValueError` for hyperparameters that do not go together."""

    def _if_on(self, name: str) -> Any:
        """A structural hyperparameter, or None if it is off."""
        return getattr(self, name) if name in self.structure else None

    # ------------------------------------------------------------------ the step

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for parameter in self.parameters:
            parameter.zero_grad()

    def step(self, *, when: Any = None) -> None:
        """Update every parameter that has a gradient; without any, nothing changes.

        `when`, a 0-d bool array or tensor, makes the step conditional: if it is false, every value
        stays what it was.
        """
        slots = [self._state[slot] for slot in self._slots()]
        work = []
        for i, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is not None and parameter._requires_grad:
                gradient = gradient.data if isinstance(gradient, Tensor) else gradient
                work.append((parameter, gradient, [slot[i] for slot in slots]))
        if not work:
            return
        self._follow()
        xp = namespace(work[0][0]._data)
        steps = xp.add(self._steps.data, 1)
        targets, values = [self._steps], [steps]
        with np.errstate(all="ignore"):
            shared = self._shared(xp, steps)
            for parameter, gradient, state in work:
                old = [t.data for t in state]
                targets += [parameter, *state]
                values += self._update(xp, parameter.data, gradient, *old, **shared)
        if when is not None:
            condition = when.data if isinstance(when, Tensor) else when
            values = [xp.where(condition, v, t.data) for t, v in zip(targets, values, strict=True)]
        for target, value in zip(targets, values, strict=True):
            target._write(value)

    def _follow(self) -> None:
        """Keep the state of a parameter on the parameter's device, wherever that moves."""
        if DEVICES:
            for slot in self._slots():
                for place, parameter in zip(self._state[slot], self.parameters, strict=True):
                    if is_on_device(parameter._data) or is_on_device(place._data):
                        place._move(parameter.device)

    def _slots(self) -> tuple[str, ...]:
        """The names of the state kept per parameter, in the present structure."""
        return ()

    def _initial(self, slot: str) -> float:
        """The value that a slot begins with."""
        return 0.0

    def _shared(self, xp: Any, steps: Any) -> dict[str, Any]:
        """What the rule needs besides the arrays of one parameter."""
        raise NotImplementedError

    def _update(self, xp: Any, p: Any, g: Any, *state: Any, **shared: Any) -> tuple[Any, ...]:
        """The rule: the new parameter and its new state, one array per slot."""
        raise NotImplementedError

    @property
    def step_count(self) -> int:
        """How many steps were taken."""
        return int(self._steps)

    # ------------------------------------------------------------------ saving

    def get_config(self) -> dict[str, Any]:
        """The hyperparameters by the names of the constructor."""
        return {name: getattr(self, name) for name in self._config}

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on: hyperparameters, step count, and copies of the state arrays by
        position of the parameter."""
        return {
            "optimizer": type(self).__name__,
            "config": self.get_config(),
            "step_count": self.step_count,
            "state": {
                slot: [np.array(t.data) for t in self._state[slot]] for slot in self._slots()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same optimizer over parameters of the same shapes.

        Raises `EveryOSerializationError` if anything does not fit; then nothing has changed.
        """
        fresh = self._read_state(state)
        count = np.int64(state["step_count"])
        for name in self._config:  # checked as a whole before, so the order cannot matter
            if name in fresh.__dict__:
                self.__dict__[name] = fresh.__dict__[name]
        self._scalars.update(fresh._scalars)
        self._restructure()
        for slot in self._slots():
            for place, value in zip(self._state[slot], fresh._state[slot], strict=True):
                place._write(value._data)
        self._steps._write(count)

    def _read_state(self, state: Mapping[str, Any]) -> "Optimizer":
        """Another instance of this class with the hyperparameters and the arrays of `state`."""
        name = type(self).__name__
        check_names({"optimizer", "config", "step_count", "state"}, set(state), True, name)
        if state["optimizer"] != name:
            raise EveryOSerializationError(f"a state of {state['optimizer']} does not fit {name}")
        count = state["step_count"]
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise EveryOSerializationError(f"step_count must be a whole number, got {count!r}")
        check_names(set(self._config), set(state["config"]), True, f"the options of {name}")
        fresh = type(self).__new__(type(self))
        try:
            fresh._begin(self.parameters, state["config"])
        except (ValueError, TypeError) as error:
            raise EveryOSerializationError(f"{name}: a stored option is wrong: {error}") from None
        check_names(set(fresh._slots()), set(state["state"]), True, f"the state of {name}")
        for slot in fresh._slots():
            stored, places = state["state"][slot], fresh._state[slot]
            if len(stored) != len(places):
                raise EveryOSerializationError(
                    f"{name} expects {slot!r} for {len(places)} parameters, "
                    f"the state has {len(stored)}"
                )
            for i, (place, value) in enumerate(zip(places, stored, strict=True)):
                place._data = fitting(value, place._data, f"{slot}[{i}]")
        return fresh

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({len(self.parameters)} parameters, {shown})"
