"""`Module`: parameters, buffers and children under names, and what a user does with all of them.

Parameters and children are ordinary attributes, found by their type; buffers are arrays in
`_buffers` and read and written through `everyo.core.state`, so that a trace sees them as state.
Every other attribute is plain. Nothing here computes: layers are ops on tensors.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from everyo.core.device import device as find_device
from everyo.core.device_array import moved, place_of
from everyo.core.dtype import DTypeLike
from everyo.core.namespace import is_array
from everyo.core.random import Generator
from everyo.core.state import Epoch, Tracked, check_names, fitting, load, store
from everyo.core.tensor import Tensor
from everyo.core.watch import Watcher
from everyo.exceptions import EveryOError, EveryOSerializationError

__all__ = ["MODULE_REGISTRY", "Module", "Parameter", "get_module_class", "register_module"]

M = TypeVar("M", bound="Module")

MODULE_REGISTRY: dict[str, type["Module"]] = {}


def register_module(cls: type[M]) -> type[M]:
    """Class decorator: `load` and `Sequential` may build this class from its name and config."""
    MODULE_REGISTRY[cls.__name__] = cls
    return cls


def get_module_class(name: str) -> type["Module"]:
    """The registered class of a name; `EveryOSerializationError` if there is none."""
    try:
        return MODULE_REGISTRY[name]
    except (KeyError, TypeError):
        raise EveryOSerializationError(
            f"Unknown module type {name!r:.80}; known are {', '.join(sorted(MODULE_REGISTRY))}. "
            "Register your own class with @register_module, or load into an instance with model="
        ) from None


class Parameter(Tensor):
    """A tensor that a `Module` trains: assigned as an attribute, it is found by `parameters()`."""

    __slots__ = ()

    def __init__(
        self,
        data: Any,
        *,
        dtype: DTypeLike | None = None,
        requires_grad: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(data, dtype=dtype, requires_grad=requires_grad, name=name)


class Module(Tracked):
    """Base of all layers and models: assign parameters and modules as attributes, define `forward`.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.factor
    """

    _config: tuple[str, ...] = ()  # the arguments of __init__, each kept as an attribute

    _state_attributes = ("_buffers",)

    training: bool
    _buffers: dict[str, Any]

    def __init__(self) -> None:
        self.__dict__["training"] = True
        self.__dict__["_buffers"] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Watcher.active is None:
            return self.forward(*args, **kwargs)
        with Watcher.active.span(type(self).__name__, args):
            return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result; every module defines its own."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    # ------------------------------------------------------------------ attributes

    def __setattr__(self, name: str, value: Any) -> None:
        buffers = self.__dict__.get("_buffers")
        if buffers is None:
            raise EveryOError(
                f"{type(self).__name__}: call super().__init__() before setting {name!r}"
            )
        if name not in buffers:
            super().__setattr__(name, value)
        elif value is None or isinstance(value, Parameter | Module):
            del buffers[name]
            super().__setattr__(name, value)
        else:
            store(buffers, name, _array(value))

    def __getattr__(self, name: str) -> Any:
        buffers = self.__dict__.get("_buffers", {})
        if name in buffers:
            return load(buffers, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if name in self._buffers:
            del self._buffers[name]
        else:
            object.__delattr__(self, name)
        Epoch.now += 1

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._buffers]

    def register_buffer(self, name: str, value: Any) -> None:
        """Keep an array that is saved with the module but not trained, as attribute `name`."""
        self.__dict__.pop(name, None)
        store(self._buffers, name, _array(value, copy=True))
        Epoch.now += 1

    # ------------------------------------------------------------------ finding things

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """(dotted name, module) for this module and all below it, each module once."""
        seen: set[int] = set()
        for name, module in _walk(self, prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter): own ones first, in order of assignment; shared ones once."""
        seen: set[int] = set()
        for name, parameter in _every(self, prefix, _own_parameters):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
        """(dotted name, array) for every buffer of this module and those below."""
        for name, (buffers, key) in _every(self, prefix, _own_buffers):
            yield name, load(buffers, key)

    def children(self) -> list["Module"]:
        """The modules assigned to this one."""
        return [module for _, module in _own_modules(self)]

    def parameters(self) -> list[Parameter]:
        """All parameters, each once."""
        return [p for _, p in self.named_parameters()]

    def buffers(self) -> list[np.ndarray]:
        """All buffers."""
        return [b for _, b in self.named_buffers()]

    def num_parameters(self, trainable_only: bool = False) -> int:
        """How many numbers the parameters hold."""
        return sum(p.size for p in self.parameters() if p.requires_grad or not trainable_only)

    # ------------------------------------------------------------------ modes

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def train(self: M, mode: bool = True) -> M:
        """Switch this module and all below to training mode. Returns the module."""
        for _, module in self.named_modules():
            if module.training != bool(mode):
                module.training = bool(mode)
        return self

    def eval(self: M) -> M:
        """Switch this module and all below to evaluation mode. Returns the module."""
        return self.train(False)

    def to(self: M, device: Any) -> M:
        """Move parameters, gradients and buffers to a device (without CUDA, the CPU). Returns the
        module."""
        place = find_device(device)
        for parameter in self.parameters():
            parameter._move(place)
        for _, (buffers, key) in _every(self, "", _own_buffers):
            if buffers[key] is not None and place_of(buffers[key]) != place:
                store(buffers, key, moved(buffers[key], place))
        return self

    # ------------------------------------------------------------------ state

    def state_dict(self, prefix: str = "") -> dict[str, np.ndarray]:
        """Copies of all parameters, then of all buffers, by name."""
        state = {name: np.array(p.data) for name, p in _every(self, prefix, _own_parameters)}
        state.update((name, np.array(value)) for name, value in self.named_buffers(prefix))
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take over the values of a state, cast to the existing dtypes.

        With `strict=False`, names that only one side has are ignored. Raises
        `EveryOSerializationError` if names or shapes do not match; then nothing has changed.
        """
        parameters = dict(_every(self, "", _own_parameters))
        buffers = dict(_every(self, "", _own_buffers))
        check_names({*parameters, *buffers}, set(state), strict, type(self).__name__)
        new_parameters = [
            (p, fitting(state[name], p, f"Parameter {name!r}"))
            for name, p in parameters.items()
            if name in state
        ]
        new_buffers = [
            (owner, key, fitting(state[name], owner[key], f"Buffer {name!r}"))
            for name, (owner, key) in buffers.items()
            if name in state
        ]
        for parameter, value in new_parameters:
            parameter._write(value)
        for owner, key, value in new_buffers:
            store(owner, key, value)

    def random_state(self) -> dict[str, np.ndarray]:
        """The states of the generators that belong to modules, e.g. of `Dropout(seed=...)`.

        They are not part of `state_dict`; a run resumes exactly only with both.
        """
        return {name: g.get_state() for name, g in _every(self, "", _own_generators)}

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        """Continue the generators from a `random_state`; the names must be the same."""
        generators = dict(_every(self, "", _own_generators))
        check_names(set(generators), set(state), True, f"the generators of {type(self).__name__}")
        words = {
            n: fitting(state[n], g.state, f"Random state {n!r}") for n, g in generators.items()
        }
        for name, generator in generators.items():
            generator.set_state(words[name])

    # ------------------------------------------------------------------ description

    def get_config(self) -> dict[str, Any]:
        """The arguments that build this module again, without seeds; JSON can hold them."""
        kept = {name: "use_bias" if name == "bias" else name for name in self._config}
        return {name: getattr(self, attribute) for name, attribute in kept.items()}

    @classmethod
    def from_config(cls: type[M], config: Mapping[str, Any]) -> M:
        """A new module from a `get_config`."""
        return cls(**config)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses, besides children."""
        return ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())

    def __repr__(self) -> str:
        children = list(_own_modules(self))
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        lines = [f"({name}): {module!r}".replace("\n", "\n  ") for name, module in children]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"

    def summary(self) -> str:
        """A table of the modules and how many parameters each holds."""
        rows = [("Layer", "Type", "Parameters")]
        for name, module in self.named_modules():
            own = sum(p.size for _, p in _own_parameters(module))
            rows.append((name or "(model)", type(module).__name__, f"{own:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        total, trainable = self.num_parameters(), self.num_parameters(trainable_only=True)
        rule = "-" * len(lines[0])
        totals = [f"Total parameters: {total:,}", f"Trainable parameters: {trainable:,}"]
        return "\n".join([lines[0], rule, *lines[1:], rule, *totals])


# ---------------------------------------------------------------------------------- by type


def _own_parameters(module: Module) -> Iterator[tuple[str, Parameter]]:
    return ((k, v) for k, v in module.__dict__.items() if isinstance(v, Parameter))


def _own_modules(module: Module) -> Iterator[tuple[str, Module]]:
    return ((k, v) for k, v in module.__dict__.items() if isinstance(v, Module))


def _own_generators(module: Module) -> Iterator[tuple[str, Generator]]:
    return ((k, v) for k, v in module.__dict__.items() if isinstance(v, Generator))


def _own_buffers(module: Module) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    return ((k, (module._buffers, k)) for k in module._buffers)


def _walk(
    module: Module, prefix: str, above: tuple[Module, ...] = ()
) -> Iterator[tuple[str, Module]]:
    """(dotted name, module), a module once per name, parents before children."""
    yield prefix.removesuffix("."), module
    above = (*above, module)
    for name, child in _own_modules(module):
        if all(child is not parent for parent in above):  # a child may know its parent
            yield from _walk(child, f"{_dotted(prefix)}{name}", above)


def _every(module: Module, prefix: str, own: Any) -> Iterator[tuple[str, Any]]:
    """What `own` finds in each module of the tree, under dotted names."""
    for path, found in _walk(module, prefix):
        for name, value in own(found):
            yield f"{_dotted(path)}{name}", value


def _dotted(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


# ---------------------------------------------------------------------------------- checks


def _array(value: Any, copy: bool = False) -> Any:
    """A buffer's value: an array, or while tracing what stands for one."""
    if isinstance(value, Tensor):
        value = value.data
    if hasattr(value, "__array_ufunc__") and not (is_array(value) or isinstance(value, np.generic)):
        return value
    return np.array(value) if copy else np.asarray(value)
