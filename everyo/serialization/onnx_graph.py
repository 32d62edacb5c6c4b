"""A model as one graph for every batch size.

The model is traced, in evaluation mode, at several batch sizes. Where the graphs have the same
nodes and each number in them (sizes, slice bounds) is a multiple of the batch plus a constant, they
are one graph with a symbolic batch; where not, the graph of the example's own size is all there is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyo.compile import ir
from everyo.compile.traced import Source, Traced
from everyo.compile.tracing import trace_call
from everyo.compile.tree import flatten
from everyo.core.autograd import namespace, no_grad
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOError, EveryOSerializationError
from everyo.nn.module import Module


@dataclass(frozen=True)
class Size:
    """The integer `each` * batch + `more`."""

    each: int
    more: int

    @property
    def fixed(self) -> bool:
        """Whether it does not depend on the batch."""
        return self.each == 0

    def __str__(self) -> str:
        if self.fixed:
            return str(self.more)
        text = "batch" if self.each == 1 else f"{self.each}*batch"
        return f"{text}{self.more:+d}" if self.more else text


BATCH = Size(1, 0)
ONE = Size(0, 1)
Sizes = tuple[Size, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """One node: `inputs` are positions of other values, every int in `params` is a `Size`."""

    node: ir.Node
    inputs: tuple[int, ...]
    params: dict[str, Any]
    shape: Sizes


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """Values in an order that computes them; the last is the output. `arrays` are the inputs of the
    graph that the model itself holds, by position, with their names."""

    values: tuple[Value, ...]
    argument: int | None  # the position of the model's input, None if nothing depends on it
    shape: Sizes  # of the model's input
    dtype: np.dtype
    arrays: dict[int, tuple[str, np.ndarray]]

    @property
    def dynamic(self) -> bool:
        """Whether the batch is symbolic."""
        return bool(self.shape) and not self.shape[0].fixed


def model_graphs(model: Module, example: Any) -> Iterator[ModelGraph]:
    """The graphs of a model for inputs like `example`: first, if there is one, that with a symbolic
    batch, then that of the example's own size."""
    example = example if isinstance(example, Tensor) else _leaf(np.asarray(example))
    try:
        own = _traced(model, example)
    except EveryOError as error:
        raise EveryOSerializationError(
            f"{type(model).__name__} cannot be traced for export: {error}"
        ) from error
    if example.shape and example.shape[0]:
        found = _for_any_batch(model, example)
        if found is not None:
            yield found
    fixed = _unified(model, [own], (0,))
    assert fixed is not None
    yield fixed


def _for_any_batch(model: Module, example: Any) -> ModelGraph | None:
    """The graph with a symbolic batch, or None. A batch of 1 is looked at too: there the model may
    take another way (squeeze, say), and its output another shape."""
    b = max(example.shape[0], 2)
    batches = (b, 2 * b, 3 * b)
    try:
        traces = [_traced(model, _repeated(example, n)) for n in (*batches, 1)]
        found = _unified(model, traces[:3], batches)
    except Exception:  # whatever the model raises: it has one batch size
        return None
    if found is None:
        return None
    shape = found.values[-1].shape
    alone = tuple(s.each + s.more for s in shape)
    return found if shape[:1] == (BATCH,) and traces[3].graph.outputs[0].shape == alone else None


def _leaf(array: np.ndarray) -> Any:
    """Floating input as a tensor; integers stay integers, as for a compiled function."""
    return Tensor._wrap(array) if array.dtype.kind == "f" else array


def _repeated(example: Any, n: int) -> Any:
    """The example with its rows repeated to a batch of n."""
    array = example._data if isinstance(example, Tensor) else example
    rows = np.take(array, np.arange(n) % array.shape[0], axis=0)
    return Tensor._wrap(rows) if isinstance(example, Tensor) else rows


def _traced(model: Module, example: Any) -> Traced:
    """The trace of one call; its single output is the first tensor that the model returns."""

    def call(leaves: Sequence[Any]) -> Any:
        found = [x for x in flatten(model(leaves[0]))[0] if isinstance(x, Tensor)]
        if not found:
            raise EveryOSerializationError(f"{type(model).__name__} returns no tensor")
        return Tensor._wrap(namespace().copy(found[0].data))

    with no_grad():
        return trace_call(type(model).__name__, call, [example])


def _unified(model: Module, traces: Sequence[Traced], batches: Sequence[int]) -> ModelGraph | None:
    """The traces as one graph, or None if they differ in more than multiples of the batch."""
    orders = [ir.walk(t.graph.outputs) for t in traces]
    if len({len(order) for order in orders}) != 1:
        return None
    positions = [{n: i for i, n in enumerate(order)} for order in orders]
    names = _names(model)
    values: list[Value] = []
    arrays: dict[int, tuple[str, np.ndarray]] = {}
    argument = None
    for nodes in zip(*orders, strict=True):
        at = len(values)
        inputs = {tuple(p[i] for i in n.inputs) for p, n in zip(positions, nodes, strict=True)}
        kinds = {(n.op, n.dtype) for n in nodes}
        sizes = fitted([n.shape for n in nodes], batches)
        differ = nodes[0].op == "const" and len({repr(n.params) for n in nodes}) > 1
        given = [{} if n.op in ("input", "const") else dict(n.params) for n in nodes]
        params = fitted(given, batches)
        if len(inputs) != 1 or len(kinds) != 1 or sizes is None or params is None or differ:
            return None
        if nodes[0].op == "input":
            sources = [t.sources[n.param("index")] for t, n in zip(traces, nodes, strict=True)]
            if len({s.name for s in sources}) != 1:
                return None
            if _is_argument(sources[0]):
                argument = at
            else:
                held = _common([np.asarray(s.fetch([])) for s in sources])
                if held is None:
                    return None
                arrays[at] = (_name_of(sources[0], names), held)
        values.append(Value(nodes[0], inputs.pop(), params, sizes))
    leaves = [leaf for t in traces for leaf in _arguments_of(t)]
    if not leaves:
        raise EveryOSerializationError(
            f"{type(model).__name__} recorded no operations on its input"
        )
    shape = fitted([n.shape for n in leaves], batches)
    if shape is None:
        return None
    return ModelGraph(tuple(values), argument, shape, leaves[0].dtype, arrays)


def _common(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array that all of these are: where only sizes differ and one number fills them all, that
    number in one element; None if they are different arrays."""
    first = arrays[0]
    if len({a.shape for a in arrays}) == 1:
        return first if all(a.tobytes() == first.tobytes() for a in arrays) else None
    if any(a.size == 0 or a.ndim != first.ndim for a in arrays):
        return None
    one = first.reshape(-1)[:1]
    if any(a.tobytes() != one.tobytes() * a.size for a in arrays):
        return None
    return one.reshape((1,) * first.ndim)


def _arguments_of(traced: Traced) -> list[ir.Node]:
    """The graph's input that is the model's, if the graph reads it."""
    pairs = zip(traced.graph.inputs, traced.sources, strict=True)
    return [node for node, source in pairs if _is_argument(source)]


def _is_argument(source: Source) -> bool:
    return source.kind == "arg" or (source.kind == "cast" and _is_argument(source.owner))


def fitted(given: Sequence[Any], batches: Sequence[int]) -> Any:
    """What all traces agree on, with a `Size` for each integer; None if they do not agree."""
    first = given[0]
    if any(type(x) is not type(first) for x in given):
        return None
    if isinstance(first, dict):
        if any(x.keys() != first.keys() for x in given):
            return None
        found = {key: fitted([x[key] for x in given], batches) for key in first}
        return None if any(v is None for v in found.values()) else found
    if isinstance(first, tuple):
        if any(len(x) != len(first) for x in given):
            return None
        parts = tuple(fitted(list(x), batches) for x in zip(*given, strict=True))
        return None if any(p is None for p in parts) else parts
    if isinstance(first, bool) or not isinstance(first, int | np.integer):
        return first if all(x == first for x in given) else None
    if len(given) == 1:
        return Size(0, int(first))
    (a, b), (m, n) = given[:2], batches[:2]
    each, left = divmod(b - a, n - m)
    size = Size(int(each), int(a - each * m))
    fits = all(size.each * n + size.more == x for x, n in zip(given, batches, strict=True))
    return size if left == 0 and fits else None


def _names(model: Module) -> dict[Any, str]:
    """The names of parameters, by their id, and of buffers, by the id of their dict and the key."""
    names: dict[Any, str] = {id(p): name for name, p in model.named_parameters()}
    for path, module in model.named_modules():
        for key in module._buffers:
            names[id(module._buffers), key] = f"{path}.{key}" if path else key
    return names


def _name_of(source: Source, names: dict[Any, str]) -> str:
    if source.kind == "cast":
        return _name_of(source.owner, names)
    if source.kind == "item":
        return names.get((id(source.owner), source.key), str(source.key))
    return names.get(id(source.owner), "constant")
