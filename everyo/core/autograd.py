"""The engine: the graph of `Node`s and the walk back through it.

An op computes its result and, where gradients are wanted, hangs a `Node` on it: the name of the
operation, the operands that want gradients (`parents`) and a closure that turns the gradient of the
result into theirs. `backward` visits the graph from the result, consumers first, and sums what
arrives at each tensor. Nothing here knows which arrays it works on: `xp` is NumPy's namespace in
eager mode, a recorder while `eo.compile` traces, and the ops on tensors themselves when the
gradient is to be differentiated again (`create_graph=True`).
"""

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from everyo.core.namespace import DEVICES, NUMPY, TENSORS, is_array
from everyo.exceptions import EveryOGradientError

F = TypeVar("F", bound=Callable[..., Any])


class _Mode(threading.local):
    """What the current thread is doing."""

    def __init__(self) -> None:
        self.before: list[bool] = []  # the gradient modes to return to

    grad = True
    trace: Any = None  # the trace that records here, see everyo.compile
    where: Any = None  # the data that new tensors go beside, if it is on a device
    watch: Any = None  # who looks at every result, see everyo.core.detect


MODE = _Mode()
TRACES: list[Any] = []  # every active trace and watch of any thread: almost always empty


def current_trace() -> Any:
    """The trace that records the ops of this thread, or None."""
    return MODE.trace if TRACES else None


class Clock:
    """Numbers what happens: every node, and every write of the library into a tensor."""

    tick = itertools.count(1).__next__
    written = 0  # the number of the last write


class Node:
    """How a tensor was computed: `operation`, `parents`, `backward_fn(gradient)`, `attributes`.

    `number` grows from parents to results. `saved` holds the write cells of the values that
    `backward_fn` reads: one that was written after the node was made is stale.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "backward_fn",
        "number",
        "operation",
        "parents",
        "retained",
        "saved",
    )

    def __init__(
        self,
        operation: str,
        parents: Sequence[Any],
        backward_fn: Callable[..., Sequence[Any]],
        attributes: dict[str, Any],
        saved: Sequence[list[int]] = (),
    ) -> None:
        self.operation = operation
        self.parents = parents
        self.backward_fn = backward_fn
        self.attributes = attributes
        self.saved = saved
        self.number = Clock.tick()
        self.retained: Any = None  # weak reference to the result, if it keeps its gradient

    def check_saved(self) -> None:
        """Raise if a value that the gradient needs was overwritten after it was saved."""
        for cell in self.saved:
            if cell[0] > self.number:
                raise EveryOGradientError(
                    f"{self.operation}: a value saved for its gradient was modified afterwards by "
                    "an in-place operation; call backward() first, or work on a clone()"
                )

    def __repr__(self) -> str:
        return f"<Node {self.operation}>"


def below(root: Any, oldest: int = 0) -> list[Any]:
    """The tensors below `root` that require gradients, itself first; none that is older than the
    node with number `oldest`. Iterative: depth is no limit."""
    seen, found = {_key(root)}, [root]
    for tensor in found:  # which grows meanwhile
        node = tensor.grad_node
        if node is not None:
            for parent in node.parents:
                key = parent.grad_node or parent
                if key not in seen and (not oldest or _age(parent) >= oldest):
                    seen.add(key)
                    found.append(parent)
    return found


def topological_order(root: Any, oldest: int = 0) -> list[Any]:
    """What is `below`, consumers first and leaves last."""
    found = below(root, oldest)
    computed = [tensor for tensor in found if tensor.grad_node is not None]
    computed.sort(key=_NUMBER, reverse=True)
    return computed + [tensor for tensor in found if tensor.grad_node is None]


_NUMBER = operator.attrgetter("grad_node.number")  # which grows from parents to results


def _key(tensor: Any) -> Any:
    """What a tensor is known by in a graph: its node, or a leaf itself. Both hash by identity."""
    return tensor.grad_node or tensor


def _age(tensor: Any) -> int:
    """The number of the node; 0 for a leaf, which nothing precedes."""
    node = tensor.grad_node
    return 0 if node is None else node.number


def unbroadcast(gradient: Any, shape: tuple[int, ...], xp: Any = None) -> Any:
    """Sum a gradient back to `shape`: the derivative of broadcasting from `shape`."""
    if gradient.shape == shape:
        return gradient
    xp = xp or (NUMPY if is_array(gradient) else TENSORS)
    extra = len(gradient.shape) - len(shape)
    if gradient.shape[extra:] != shape:
        pairs = zip(shape, gradient.shape[extra:], strict=True)
        inner = tuple([extra + i for i, (n, m) in enumerate(pairs) if n != m])
        gradient = xp.sum(gradient, axis=inner, keepdims=True)
    return xp.sum(gradient, axis=tuple(range(extra)), keepdims=False) if extra else gradient


def propagate(
    root: Any, seed: Any, xp: Any, wanted: Sequence[Any] | None = None
) -> list[tuple[Any, Any]]:
    """Carry `seed` back from `root`; the (tensor, gradient) pairs of leaves and retained tensors,
    or of exactly the `wanted` tensors. Nothing is stored: a failure changes nothing."""
    if not DEVICES:
        return _propagate(root, seed, xp, wanted)
    before, MODE.where = MODE.where, root._data  # rules make new tensors beside it
    try:
        return _propagate(root, seed, xp, wanted)
    finally:
        MODE.where = before


def _propagate(
    root: Any, seed: Any, xp: Any, wanted: Sequence[Any] | None
) -> list[tuple[Any, Any]]:
    through = xp is TENSORS
    watch = MODE.watch if TRACES else None
    found: list[tuple[Any, Any]] = []
    targets = None if wanted is None else {_key(t): t for t in wanted}
    oldest = min((_age(t) for t in wanted), default=0) if wanted is not None else 0
    gradients = {_key(root): seed}
    for tensor in topological_order(root, oldest):
        node = tensor.grad_node
        gradient = gradients.pop(node or tensor, None)
        if gradient is None:
            continue
        if targets is not None:
            if (node or tensor) in targets:
                found.append((targets[node or tensor], gradient))
        elif node is None:
            found.append((tensor, _owned(gradient, seed, xp)))
        elif node.retained is not None and (kept := node.retained()) is not None:
            found.append((kept, _owned(gradient, seed, xp, always=True)))
        if node is None:
            continue
        if Clock.written > node.number:
            node.check_saved()
        results = node.backward_fn(gradient, xp, node if through else None)
        if watch is not None:
            watch.backward(node, gradient, results)
        parents = node.parents
        if len(results) != len(parents):
            raise EveryOGradientError(
                f"the backward function of {node.operation} gives {len(results)} gradients for "
                f"{len(parents)} operands"
            )
        for i, parent in enumerate(parents):
            result = results[i]
            if result is None:
                continue
            data = parent._data
            if result.shape != data.shape:
                result = unbroadcast(result, data.shape, xp)
            dtype = data.dtype
            if result.dtype is not dtype and result.dtype != dtype:
                result = xp.astype(result, dtype)
            key = parent.grad_node or parent
            known = gradients.get(key)
            if known is not None:
                gradients[key] = xp.add(known, result)
            elif result is gradient and key is parent:
                gradients[key] = xp.copy(result)  # two leaves never share one array
            else:
                gradients[key] = result
    return found


def _owned(gradient: Any, seed: Any, xp: Any, always: bool = False) -> Any:
    """The gradient as an array that nobody else holds."""
    if xp is TENSORS:
        return gradient
    if always or gradient is seed or getattr(gradient, "base", None) is not None:
        return xp.copy(gradient)
    return np.asarray(gradient) if isinstance(gradient, np.generic) else gradient


def seed_for(root: Any, gradient: Any, xp: Any) -> Any:
    """The gradient to start from: ones for one element, else the one given, its shape checked."""
    shape = root.shape
    if not root._requires_grad:
        raise EveryOGradientError(
            f"backward() on a tensor of shape {shape} that does not require gradients; "
            "create it, or a tensor it is computed from, with requires_grad=True"
        )
    if gradient is None:
        if root.size != 1:
            raise EveryOGradientError(
                f"backward() on a tensor of shape {shape} needs an explicit gradient of its shape; "
                "only a scalar (one element) has an implicit one"
            )
        ones = xp.ones(shape, root._data.dtype)
        return ones.to(root.device) if DEVICES and xp is TENSORS else ones
    value = _seed_value(gradient, xp)
    if value.shape != shape:
        raise EveryOGradientError(
            f"the gradient passed to backward() has shape {value.shape}, the tensor has shape "
            f"{shape}; they must be equal"
        )
    dtype = root._data.dtype
    return value if value.dtype == dtype else xp.astype(value, dtype)


def _seed_value(gradient: Any, xp: Any) -> Any:
    if xp is TENSORS:
        return xp.as_tensor(gradient)
    if hasattr(gradient, "grad_node"):
        trace = current_trace()
        return gradient._data if trace is None else trace.read(gradient)
    value = gradient if hasattr(gradient, "__array_ufunc__") else np.asarray(gradient)
    return xp.asarray(value) if DEVICES else value


def backward(root: Any, gradient: Any = None, *, create_graph: bool = False) -> None:
    """Accumulate gradients of `root` in the `.grad` of every leaf and retained tensor below it."""
    xp = TENSORS if create_graph else namespace(root._data)
    before, MODE.grad = MODE.grad, create_graph
    try:
        with np.errstate(all="ignore"):
            found = propagate(root, seed_for(root, gradient, xp), xp)
            sums = [(t, g if (old := t.grad) is None else xp.add(old, g)) for t, g in found]
    finally:
        MODE.grad = before
    for tensor, total in sums:
        tensor._store_grad(total)


def namespace(data: Any = None) -> Any:
    """The array namespace of this thread: the recorder of the active trace, that of the device
    where `data` is, or NumPy's."""
    trace = current_trace()
    if trace is not None:
        return trace.xp
    return getattr(data, "xp", NUMPY) if DEVICES else NUMPY


class set_grad_enabled:
    """Switch the recording of gradients on or off: a context manager and a decorator, per thread,
    re-entrant, restored on exit also after an exception."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)

    def __enter__(self) -> "set_grad_enabled":
        MODE.before.append(MODE.grad)
        MODE.grad = self.mode
        return self

    def __exit__(self, *exc: object) -> None:
        MODE.grad = MODE.before.pop()

    def __call__(self, function: F) -> F:
        mode = self.mode

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(mode):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(set_grad_enabled):
    """Build no graph inside: results do not require gradients."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(set_grad_enabled):
    """Build the graph inside, also within `no_grad`."""

    def __init__(self) -> None:
        super().__init__(True)


def is_grad_enabled() -> bool:
    """Whether ops record a graph in this thread."""
    return MODE.grad
