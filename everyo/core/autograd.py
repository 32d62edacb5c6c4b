"""The engine: the graph of `Node`s and the walk back through it.

An op computes its result and, where gradients are wanted, hangs a `Node` on it: the name of the
operation, the operands that want gradients (`parents`) and a closure that turns the gradient of the
result into theirs. `backward` visits the graph from the result, consumers first, and sums what
arrives at each tensor. Nothing here knows which arrays it works on: `xp` is NumPy's namespace in
eager mode, a recorder while `eo.compile` traces, and the ops on tensors themselves when the
gradient is to be differentiated again (`create_graph=True`).
"""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from everyo.core.namespace import NUMPY, TENSORS
from everyo.exceptions import EveryOGradientError

F = TypeVar("F", bound=Callable[..., Any])


class _Mode(threading.local):
    """What the current thread is doing."""

    grad = True
    trace: Any = None  # the trace that records here, see everyo.compile


MODE = _Mode()
TRACES: list[Any] = []  # every active trace of any thread: empty almost always, and cheap to test


def current_trace() -> Any:
    """The trace that records the ops of this thread, or None."""
    return MODE.trace if TRACES else None


class Clock:
    """Counts the writes that the library makes into tensors: a saved value is stale if written later."""

    now = 0


class Node:
    """How a tensor was computed: `operation`, `parents`, `backward_fn(gradient)`, `attributes`."""

    __slots__ = ("attributes", "backward_fn", "operation", "parents", "retained", "saved", "time")

    def __init__(
        self,
        operation: str,
        parents: Sequence[Any],
        backward_fn: Callable[..., Sequence[Any]],
        attributes: dict[str, Any],
        saved: Sequence[Any] = (),
    ) -> None:
        self.operation = operation
        self.parents = parents
        self.backward_fn = backward_fn
        self.attributes = attributes
        self.saved = saved  # the write cells of the values that backward_fn reads
        self.time = Clock.now
        self.retained: Any = None  # weak reference to the result, if it keeps its gradient

    def check_saved(self) -> None:
        """Raise if a value that the gradient needs was overwritten after it was saved."""
        for cell in self.saved:
            if cell[0] > self.time:
                raise EveryOGradientError(
                    f"{self.operation}: a value saved for its gradient was modified afterwards by an "
                    "in-place operation; call backward() first, or work on a clone()"
                )

    def __repr__(self) -> str:
        return f"<Node {self.operation}>"


def topological_order(root: Any) -> list[Any]:
    """The tensors below `root` that require gradients, consumers first. Iterative: depth is no limit."""
    order, seen, path, stack = [], set(), [], [root]
    while stack:
        tensor = stack.pop()
        if tensor is None:  # everything below the last tensor of the path is done
            order.append(path.pop())
            continue
        node = tensor.grad_node
        key = id(tensor if node is None else node)
        if key in seen:
            continue
        seen.add(key)
        if node is None:
            order.append(tensor)
        else:
            path.append(tensor)
            stack.append(None)
            stack.extend(node.parents)
    order.reverse()
    return order


def unbroadcast(gradient: Any, shape: tuple[int, ...], xp: Any = None) -> Any:
    """Sum a gradient back to `shape`: the derivative of broadcasting from `shape`."""
    if gradient.shape == shape:
        return gradient
    xp = xp or (NUMPY if isinstance(gradient, np.ndarray) else TENSORS)
    extra = len(gradient.shape) - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + i for i, n in enumerate(shape) if n == 1 and gradient.shape[extra + i] != 1
    )
    return xp.reshape(xp.sum(gradient, axis=axes, keepdims=False), shape)


def propagate(
    root: Any, seed: Any, xp: Any, wanted: Iterable[Any] | None = None
) -> list[tuple[Any, Any]]:
    """Carry `seed` back from `root`; the (tensor, gradient) pairs of leaves and retained tensors,
    or of exactly the `wanted` tensors. Nothing is stored: a failure changes nothing."""
    through = xp is TENSORS
    found: list[tuple[Any, Any]] = []
    targets = None if wanted is None else {_key(t): t for t in wanted}
    gradients = {_key(root): seed}
    for tensor in topological_order(root):
        node = tensor.grad_node
        gradient = gradients.pop(id(tensor if node is None else node), None)
        if gradient is None:
            continue
        if targets is not None:
            if _key(tensor) in targets:
                found.append((targets[_key(tensor)], gradient))
        elif node is None:
            found.append((tensor, _owned(gradient, seed, xp)))
        elif node.retained is not None and (kept := node.retained()) is not None:
            found.append((kept, _owned(gradient, seed, xp, always=True)))
        if node is None:
            continue
        if node.time != Clock.now:
            node.check_saved()
        results = node.backward_fn(gradient, xp, node if through else None)
        for parent, result in zip(node.parents, results, strict=True):
            if result is None:
                continue
            data = parent._data
            if result.shape != data.shape:
                result = unbroadcast(result, data.shape, xp)
            if result.dtype != data.dtype:
                result = xp.astype(result, data.dtype)
            above = parent.grad_node
            key = id(parent if above is None else above)
            if key in gradients:
                gradients[key] = xp.add(gradients[key], result)
            elif above is None and result is gradient:
                gradients[key] = xp.copy(result)  # two leaves never share one array
            else:
                gradients[key] = result
    return found


def _key(tensor: Any) -> int:
    return id(tensor.grad_node or tensor)


def _owned(gradient: Any, seed: Any, xp: Any, always: bool = False) -> Any:
    """The gradient as an array that nobody else holds."""
    if xp is TENSORS:
        return gradient
    if always or gradient is seed or getattr(gradient, "base", None) is not None:
        return xp.copy(gradient)
    return gradient


def seed_for(root: Any, gradient: Any, xp: Any) -> Any:
    """The gradient to start from: ones for a single element, else the one given, its shape checked."""
    shape = root.shape
    if not root._requires_grad:
        raise EveryOGradientError(
            f"backward() on a tensor of shape {shape} that does not require gradients; create it, or a "
            "tensor it is computed from, with requires_grad=True"
        )
    if gradient is None:
        if root.size != 1:
            raise EveryOGradientError(
                f"backward() on a tensor of shape {shape} needs an explicit gradient of that shape; only "
                "a scalar (one element) has an implicit one"
            )
        return xp.ones(shape, root.dtype)
    value = _seed_value(gradient, xp)
    if value.shape != shape:
        raise EveryOGradientError(
            f"the gradient passed to backward() has shape {value.shape}, the tensor has shape {shape}; "
            "they must be equal"
        )
    return value if value.dtype == root.dtype else xp.astype(value, root.dtype)


def _seed_value(gradient: Any, xp: Any) -> Any:
    if xp is TENSORS:
        return xp.as_tensor(gradient)
    if hasattr(gradient, "grad_node"):
        trace = current_trace()
        return gradient._data if trace is None else trace.read(gradient)
    return gradient if hasattr(gradient, "__array_ufunc__") else np.asarray(gradient)


def backward(root: Any, gradient: Any = None, *, create_graph: bool = False) -> None:
    """Accumulate the gradients of `root` in the `.grad` of every leaf and retained tensor below it."""
    xp = TENSORS if create_graph else namespace()
    with set_grad_enabled(create_graph), np.errstate(all="ignore"):
        found = propagate(root, seed_for(root, gradient, xp), xp)
        sums = [(t, g if (old := t.grad) is None else xp.add(old, g)) for t, g in found]
    for tensor, total in sums:
        tensor._store_grad(total)


def namespace() -> Any:
    """The array namespace of this thread: NumPy's, or the recorder of the active trace."""
    trace = current_trace()
    return NUMPY if trace is None else trace.xp


class set_grad_enabled:
    """Switch the recording of gradients on or off: a context manager and a decorator, per thread,
    re-entrant, restored on exit also after an exception."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self.previous: list[bool] = []

    def __enter__(self) -> "set_grad_enabled":
        self.previous.append(MODE.grad)
        MODE.grad = self.mode
        return self

    def __exit__(self, *exc: object) -> None:
        MODE.grad = self.previous.pop()

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
