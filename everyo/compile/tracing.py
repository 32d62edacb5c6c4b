"""Tracing a function: run it on symbols, then ask the trace what it computes, returns and leaves.

`trace_call` is a run of the user's function, `trace_backward` the gradients of one of its results;
both give a `Traced`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from everyo.compile import ir
from everyo.compile.symbol import Symbol, holds_traced
from everyo.compile.trace import Overlap, Trace
from everyo.compile.traced import Effect, Leaf, Place, Traced
from everyo.compile.tree import flatten
from everyo.core.autograd import below, enable_grad, propagate
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOTraceError

Call = Callable[[Sequence[Any]], Any]  # runs the user's function on dynamic leaves


def trace_call(
    name: str, call: Call, leaves: Sequence[Any], table: ir.Table | None = None
) -> Traced:
    """Trace the user's function once. Library state is as before when this returns or raises.
    With the `table` of an earlier trace, what is computed again is the very same node."""
    placeholders = [_outside(leaf) for leaf in leaves]
    merged: frozenset[int] = frozenset()
    while True:
        trace = Trace(name, placeholders, merged, table)
        try:
            return _traced(trace, call, placeholders)
        except Overlap as overlap:
            trace.undo_attributes()
            if overlap.owners <= merged:
                raise trace.error(
                    "two arrays share memory that neither owns, and one is written"
                ) from None
            merged |= overlap.owners


def _traced(trace: Trace, call: Call, placeholders: Sequence[Any]) -> Traced:
    name = trace.name
    try:
        with trace.active():
            result = call(_inside(trace, placeholders))
            traced = finish(trace, result)
            parents = _parents(result, trace)
    except BaseException:
        trace.undo_attributes()
        raise
    _settle_attributes(trace, traced)
    del result
    line = trace.survivor()
    if line is not None:
        raise EveryOTraceError(
            f"{name}: a traced value made at {line} is still held after the function returned (a "
            "side effect: appended to a list, stored in a global or a closure); return it "
            "instead, or compile with fallback='eager'"
        )
    trace.xp.close()
    return _with_parents(traced, parents)


def trace_backward(
    name: str, call: Call, leaves: Sequence[Any], result: int, parents: Sequence[Any]
) -> Traced:
    """Trace the gradients of result leaf `result` by `parents`; the last dynamic leaf is its
    gradient."""
    placeholders = [_outside(leaf) for leaf in leaves]
    trace = Trace(f"{name}.backward", placeholders)
    try:
        with trace.active():
            inside = _inside(trace, placeholders)
            with enable_grad():
                out = flatten(call(inside[:-1]))[0][result]
            wanted = [placeholders[p] if isinstance(p, int) else p for p in parents]
            found = {
                id(t): g for t, g in propagate(out, trace.xp.asarray(inside[-1]), trace.xp, wanted)
            }
            gradients = [found.get(id(t)) for t in wanted]
            gradients = [None if g is None else trace.xp.copy(g) for g in gradients]
            for table in (trace.grads, trace.rebound, trace.items):
                table.clear()
            for storage in trace._storages:
                storage.written = False
            traced = finish(trace, gradients)
    finally:
        trace.undo_attributes()
    return traced


def _outside(leaf: Any) -> Any:
    """What stands for an argument: a tensor with a graph becomes a leaf, the graph stays
    outside."""
    if isinstance(leaf, Tensor) and leaf.grad_node is not None:
        stand_in = Tensor._wrap(leaf._data)
        stand_in._requires_grad = True
        return stand_in
    return leaf


def _inside(trace: Trace, placeholders: Sequence[Any]) -> list[Any]:
    """What the traced function gets: tensors as they are, arrays and floats as symbols."""
    out: list[Any] = []
    for i, leaf in enumerate(placeholders):
        if isinstance(leaf, Tensor):
            out.append(leaf)
        elif type(leaf) is float:
            out.append(trace.number(leaf, i))
        else:
            out.append(trace.array(leaf))
    return out


def _settle_attributes(trace: Trace, traced: Traced) -> None:
    """Traced values stored in attributes become effects; until a call stores them the old value
    stays."""
    values = {e.key: e for e in traced.effects if e.what == "attribute"}
    for (_, name), (owner, value, _, line) in list(trace.attributes.items()):
        if name in values and isinstance(value, Tensor) and value.requires_grad:
            trace.undo_attributes()
            raise EveryOTraceError(
                f"attribute {name!r} of a {type(owner).__name__} is set to a tensor with a graph "
                f"at {line}; store its detach() instead"
            )
        if name not in values:
            del trace.attributes[(id(owner), name)]
    trace.undo_attributes()


def _parents(result: Any, trace: Trace) -> list[Any]:
    """The leaves below the results that require gradients: argument positions, or captured
    tensors."""
    out: dict[int, Any] = {}
    for x in flatten(result)[0]:
        if isinstance(x, Tensor) and x._requires_grad and type(x._data) is Symbol:
            for t in below(x):
                if t.grad_node is None and type(t._data) is not Symbol:
                    out[id(t)] = trace.arguments.get(id(t), t)
    return list(out.values())


def _with_parents(traced: Traced, parents: Sequence[Any]) -> Traced:
    return Traced(
        **{
            **{f: getattr(traced, f) for f in traced.__dataclass_fields__},
            "parents": tuple(parents),
        }
    )


def finish(trace: Trace, result: Any) -> Traced:
    """Everything the call has to compute, return and leave behind."""
    outputs: dict[int, int] = {}
    nodes: list[ir.Node] = []
    inputs = {id(storage): i for i, storage in enumerate(trace._storages)}

    def place(s: Symbol) -> Place:
        at = inputs.get(id(s.storage))
        if at is not None and not s.weak:
            return Place("input", at, s.path)
        if id(s.storage) not in outputs:
            outputs[id(s.storage)] = len(nodes)
            nodes.append(s.storage.node)
            trace.kept.append(s.storage)
        return Place("output", outputs[id(s.storage)], s.path)

    for tensor, before, line in trace.flags.values():
        if tensor._requires_grad is not before:
            raise EveryOTraceError(
                f"requires_grad of a tensor of shape {tensor.shape} is set to {not before} at "
                f"{line} and left so; a compiled function does not run that line again: set it "
                "outside, or back before returning"
            )
    flat, structure = flatten(result)
    places = {id(x): i for i, x in reversed(list(enumerate(flat))) if holds_traced(x)}
    leaves = tuple(
        _leaf(trace, x, place) if places.get(id(x), i) == i else Leaf("same", value=places[id(x)])
        for i, x in enumerate(flat)
    )
    effects = []
    for tensor, s in trace.rebound.values():
        effects.append(Effect("data", _owner(trace, tensor), None, place(s)))
    for tensor, g in trace.grads.values():
        effects.append(_effect(trace, "grad", _owner(trace, tensor), None, g, place))
    for (_, key), (container, value) in trace.items.items():
        effects.append(_effect(trace, "item", container, key, value, place))
    for (_, name), (owner, value, _, _) in trace.attributes.items():
        if holds_traced(value):
            effects.append(_effect(trace, "attribute", owner, name, value, place))
    writes = tuple(
        (node, storage.node)
        for node, storage in zip(trace.table.inputs, trace._storages, strict=True)
        if storage.written and storage.node is not node
    )  # fmt: skip
    graph = ir.Graph(
        trace.name,
        tuple(trace.table.inputs),
        tuple(nodes),
        writes,
        tuple(dict.fromkeys(trace.checks)),
        trace.lines,
    )
    return Traced(
        graph, tuple(trace.sources), leaves, structure, tuple(effects),
        tuple((_owner(trace, t), none) for t, none in trace.grad_none.values()),
        tuple(trace.statics.values()),
        tuple((owner, name, before, line)
              for (_, name), (owner, value, before, line) in trace.attributes.items()
              if not holds_traced(value)),
        views=tuple(trace.views), identical=tuple(trace.identical.values()),
        frozen=tuple(trace.frozen.values()),
        arrays=frozenset(id(s.owner) for s in trace.sources if s.kind == "array"),
        results=tuple(i for i, leaf in enumerate(leaves)
                      if leaf.what == "tensor" and not leaf.is_leaf),
        table=trace.table,
    )  # fmt: skip


def _owner(trace: Trace, tensor: Tensor) -> Any:
    return trace.arguments.get(id(tensor), tensor)


def _leaf(trace: Trace, x: Any, place: Callable[[Symbol], Place]) -> Leaf:
    if isinstance(x, Tensor):
        if type(x._data) is Symbol:
            g = x._grad._data if isinstance(x._grad, Tensor) else x._grad
            own = None if g is None else place(g)
            return Leaf(
                "tensor", place(trace.read(x)), None, x._requires_grad, x.grad_node is None, own
            )
        at = trace.arguments.get(id(x))
        return Leaf("object", value=x) if at is None else Leaf("arg", value=at)
    if isinstance(x, Symbol):
        if x.storage.narrow is None:
            return Leaf("number" if x.weak else "array", place(x))
        x = _argument(trace, x)
    at = trace.arguments.get(id(x))
    return Leaf("object", value=x) if at is None else Leaf("arg", value=at)


def _argument(trace: Trace, x: Symbol) -> Any:
    """The array that a symbol of a narrow integer dtype stands for."""
    array = next((a for a, s in trace.symbols.values() if s.storage is x.storage), None)
    if x.path or array is None:
        raise trace.error(f"a view of an array of dtype {x.dtype} as a result")
    return array


def _effect(
    trace: Trace, what: str, owner: Any, key: Any, value: Any, place: Callable[[Symbol], Place]
) -> Effect:
    if isinstance(value, Tensor) and type(value._data) is Symbol:
        return Effect(what, owner, key, place(trace.read(value)), "tensor")
    if isinstance(value, Symbol):
        return Effect(what, owner, key, place(value), "number" if value.weak else "")
    if holds_traced(value):
        raise trace.error(f"a container of traced values stored in {key!r}")
    return Effect(what, owner, key, value, "object")
