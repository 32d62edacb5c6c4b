"""One compiled version of a function: a trace, its program, and how to run it on a call.

An `Entry` fetches the inputs of its program, runs it, and then does what eager code would have
done: stores gradients, scalars, buffers and attributes, and returns the results. Where a result
requires gradients it hangs a node on it whose backward function is compiled as well, when first
needed.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from everyo.compile import collector, ir, passes
from everyo.compile.guards import Guards
from everyo.compile.launch import Patience, Pool
from everyo.compile.place import common_device, is_on, make_program
from everyo.compile.symbol import Symbol
from everyo.compile.trace import Effect, Leaf, Overlap, Source, Trace, Traced, geometry, owner_of
from everyo.compile.tree import flatten, unflatten
from everyo.core.autograd import MODE, Clock, Node, enable_grad, propagate, topological_order
from everyo.core.device_array import DeviceArray
from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.state import Epoch
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOGradientError, EveryOTraceError

Call = Callable[[Sequence[Any]], Any]  # runs the user's function on dynamic leaves
_MUTABLE = (np.ndarray, set, bytearray)


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
            traced = trace.finish(result, flatten)
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
            traced = trace.finish(gradients, flatten)
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
            for t in topological_order(x):
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


class Entry:
    """One compiled version."""

    def __init__(
        self,
        name: str,
        call: Call,
        traced: Traced,
        guards: Guards,
        objects: Any,
        leaves: Sequence[Any],
        options: Any,
    ) -> None:
        self.name, self.call, self.guards = name, call, guards
        self.table = traced.table if options.check else None  # until the second trace
        self.traced = traced = replace(
            traced, leaves=tuple(_unshared(leaf, guards) for leaf in traced.leaves), table=None
        )
        self.objects = objects  # keeps the ids of static arguments valid
        self.cache = options.cache
        self.graph = passes.run(traced.graph)
        self.device = common_device(name, traced.sources, leaves, options.device)
        self.program = make_program(self.graph, self.device, self.cache)
        self.verified = False
        self.epoch = Epoch.now
        self.grad = MODE.grad
        self.runs = 0
        self.pools: dict[int, Pool] = {}
        self.patience = Patience()
        self.inputs = tuple(zip(traced.sources, self.graph.inputs, strict=True))
        self.tensors = [t for s in traced.sources if s.kind == "data" for t in (s.owner,)]
        self.flags = [(t, t._requires_grad, t.grad_node is None) for t in self.tensors]
        written = {t for t, _ in self.graph.writes}
        self.written = [i for i, n in enumerate(self.graph.inputs) if n in written]
        self.backward: dict[int, tuple[Traced, Any]] = {}
        self.aliases = _aliases(self._fetch(leaves))
        reached = guards.reached | {id(t) for t in self.tensors}
        owners = (e.owner for e in traced.effects if isinstance(e.owner, Tensor))
        self.captured = (
            reached
            | {id(t) for t in owners}
            | {id(s.owner) for s in traced.sources if s.kind == "array"}
        )
        self.shared = self._shared(leaves)

    def _shared(self, leaves: Sequence[Any]) -> list[int]:
        """The arguments that the function also reaches by another way."""
        return [i for i, leaf in enumerate(leaves) if id(leaf) in self.captured]

    # ------------------------------------------------------------------ may this version run?

    def stale(self, leaves: Sequence[Any]) -> str | None:
        """Why this version does not fit the present state, or None."""
        moved = Epoch.now != self.epoch
        broken = self.guards.broken(fast_only=not moved)
        if broken is not None:
            return str(broken)
        for container, key, value in self.traced.statics:
            now = container.get(key)
            if now is not value and (type(now) is not type(value) or repr(now) != repr(value)):
                return f"{key!r} was {value!r}, is {now!r}"
        for array, contents in self.traced.frozen:
            if array.tobytes() != contents:
                return (
                    f"an array of shape {array.shape} whose contents the function used has changed"
                )
        for owner, none in self.traced.grad_none:
            t = leaves[owner] if isinstance(owner, int) else owner
            if (t._grad is None) is not none:
                before = "None" if none else "set"
                return f"the .grad of a tensor of shape {t.shape} was {before} and is not now"
        if moved:
            for t, requires, leaf in self.flags:
                if t._requires_grad is not requires or (t.grad_node is None) is not leaf:
                    return f"requires_grad of a tensor of shape {t.shape} changed"
            self.epoch = Epoch.now
        return None

    def _fetch(self, leaves: Sequence[Any]) -> list[np.ndarray] | None:
        """The arrays of the inputs, or None if one no longer has the shape, dtype or layout of the
        trace."""
        arrays = []
        for source, node in self.inputs:
            a = source.fetch(leaves)
            if not is_on(a, self.device):
                if type(a) not in (float, int, bool) and not isinstance(a, np.generic):
                    return None
                a = np.asarray(a, node.dtype)
            if a.shape != node.shape or a.dtype != node.dtype or not _laid_out(a, node):
                return None
            arrays.append(a)
        return arrays

    def arrays(self, leaves: Sequence[Any]) -> list[np.ndarray] | None:
        """The inputs of this call, or None if they do not fit this version."""
        arrays = self._fetch(leaves)
        if arrays is None or (self.written and _aliases(arrays) != self.aliases):
            return None
        if not all(arrays[i].flags.writeable for i in self.written):
            return None  # the trace will say so
        if self._shared(leaves) != self.shared:
            return None
        for a, b in self.traced.identical:
            if a.fetch(leaves) is not b.fetch(leaves):
                return None
        for source, at, where in self.traced.views:
            a = source.fetch(leaves)
            if owner_of(a) is not owner_of(arrays[at]) or geometry(a, owner_of(a)) != where:
                return None
        return arrays

    # ------------------------------------------------------------------ running

    def run(self, leaves: Sequence[Any], arrays: list[np.ndarray]) -> Any:
        """Run the program, leave the effects, return the results."""
        traced = self.traced
        held = None
        if traced.results and self.grad and not self.spent:
            held = [
                a.copy() if copied else a
                for a, copied in zip(arrays, self.copied(leaves), strict=True)
            ]
        outputs = self.program(arrays)
        self.runs += 1
        if self.written:
            Clock.written = now = Clock.tick()
            for i in self.written:
                source = traced.sources[i]
                if source.kind in ("data", "arg"):
                    t = source.owner if source.kind == "data" else leaves[source.owner]
                    if isinstance(t, Tensor):
                        t._cell[0] = now
        for effect in traced.effects:
            self._leave(effect, leaves, arrays, outputs)
        results: list[Any] = []
        for leaf in traced.leaves:
            same = leaf.what == "same"
            results.append(
                results[leaf.value] if same else self._result(leaf, leaves, arrays, outputs)
            )
        for leaf, result in zip(traced.leaves, results, strict=True):
            if leaf.what == "tensor" and leaf.is_leaf:
                result._requires_grad = leaf.requires_grad
            if leaf.grad is not None:
                result._grad = leaf.grad.resolve(arrays, outputs)
        if held is not None:
            self.hang(results, leaves, held)
        elif self.spent:
            for i in traced.results:
                results[i].grad_node, results[i]._requires_grad = self.spent_node(), True
        return unflatten(traced.structure, results)

    def _leave(self, e: Effect, leaves: Sequence[Any], arrays: list, outputs: list) -> None:
        owner = leaves[e.owner] if isinstance(e.owner, int) else e.owner
        value = e.value
        if e.wrap != "object":
            value = value.resolve(arrays, outputs)
            if e.wrap == "tensor":
                value = Tensor._wrap(value)
            elif e.wrap == "number":
                value = value.item()
        match e.what:
            case "grad":
                owner._grad = value
            case "data":
                owner._data = value
                owner._cell = [0]
                Epoch.now += 1
                self.epoch += 1  # this version expects it
            case "item":
                owner[e.key] = value
            case "attribute":
                object.__setattr__(owner, e.key, value)
                Epoch.now += 1

    def _result(self, leaf: Leaf, leaves: Sequence[Any], arrays: list, outputs: list) -> Any:
        match leaf.what:
            case "object":
                return leaf.value
            case "fresh":
                return copy.deepcopy(leaf.value)
            case "arg":
                return leaves[leaf.value]
        assert leaf.place is not None
        array = leaf.place.resolve(arrays, outputs)
        match leaf.what:
            case "number":
                return array.item()
            case "array":
                return array
        return Tensor._wrap(array)

    # ------------------------------------------------------------------ gradients from outside

    def copied(self, leaves: Sequence[Any]) -> list[bool]:
        """Which inputs a later backward() needs copies of: what the call overwrites, and arrays,
        which unlike tensors do not remember that they were written."""
        return [
            i in self.written
            or not (s.kind == "data" or (s.kind == "arg" and isinstance(leaves[s.owner], Tensor)))
            for i, (s, _) in enumerate(self.inputs)
        ]

    @property
    def spent(self) -> bool:
        """Whether the call itself overwrites what its results were computed from (a training step):
        then, as in eager code, no gradient flows from the results any more."""
        written = [self.traced.sources[i] for i in self.written]
        parents = {p if isinstance(p, int) else id(p) for p in self.traced.parents}
        return self.grad and any(
            (s.owner if s.kind == "arg" else id(s.owner)) in parents
            for s in written
            if s.kind in ("arg", "data")
        )

    def spent_node(self) -> Node:
        """The node of results whose graph is used up."""
        name = self.name

        def backward_fn(gradient: Any, xp: Any = NUMPY, through: Node | None = None) -> list[Any]:
            raise EveryOGradientError(
                f"{name}: a value saved for its gradient was modified afterwards by an in-place "
                "operation, inside the compiled function itself; call backward() in there, before "
                "the update"
            )

        return Node(
            name, [t for t in self.traced.parents if not isinstance(t, int)], backward_fn, {}
        )

    def hang(self, results: list[Any], leaves: Sequence[Any], held: list[np.ndarray]) -> None:
        """Give the results that require gradients their nodes; `held` are the inputs as they
        were."""
        parents = [leaves[p] if isinstance(p, int) else p for p in self.traced.parents]
        saved = [*parents, *self.tensors, *(x for x in leaves if isinstance(x, Tensor))]
        for i in self.traced.results:
            out = results[i]

            def backward_fn(
                gradient: Any, xp: Any = NUMPY, through: Node | None = None, i: int = i
            ) -> list[Any]:
                if through is not None or MODE.trace is not None:
                    return self._eager_backward(i, leaves, parents, held, gradient, xp)
                return self._compiled_backward(i, leaves, held, gradient)

            out.grad_node = Node(self.name, parents, backward_fn, {}, [t._cell for t in saved])
            out._requires_grad = True

    def _compiled_backward(
        self, i: int, leaves: Sequence[Any], held: list, gradient: np.ndarray
    ) -> list[Any]:
        everything = [*leaves, gradient if type(gradient) is DeviceArray else np.asarray(gradient)]
        if i not in self.backward:
            broken = self.guards.broken()
            if broken is not None:
                raise EveryOTraceError(
                    f"{self.name}: backward() after the function's Python state changed "
                    f"({broken}); call backward() first"
                )
            with collector.paused():
                traced = trace_backward(self.name, self.call, everything, i, self.traced.parents)
                program = make_program(passes.run(traced.graph), self.device, self.cache)
            self.backward[i] = traced, program
        traced, program = self.backward[i]
        known = {_exactly(s): a for s, a in zip(self.traced.sources, held, strict=True)}
        arrays = []
        for source, node in zip(traced.sources, traced.graph.inputs, strict=True):
            a: Any = known.get(_exactly(source))
            a = source.fetch(everything) if a is None else a
            a = a if type(a) is DeviceArray else np.asarray(a, node.dtype)
            arrays.append(a if _laid_out(a, node) else _as_laid_out(np.asarray(a), node))
        outputs = program(arrays)
        return [
            None if leaf.place is None else leaf.place.resolve(arrays, outputs)
            for leaf in traced.leaves
        ]

    def _eager_backward(
        self, i: int, leaves: Sequence[Any], parents: list, held: list, gradient: Any, xp: Any
    ) -> list[Any]:
        """Differentiated again (or inside another trace): the user's own function, run on tensors
        from the state that the call began with."""
        whole = all(self.inputs[i][1].dtype.kind == "i" for i in self.written)  # random states
        if self.traced.effects or not whole or (self.written and MODE.trace is not None):
            raise EveryOGradientError(
                f"{self.name}: the function changes gradients, buffers or attributes, so its "
                "compiled form can be differentiated once only; call the function itself, "
                f"{self.name}.__wrapped__"
            )
        variables = {id(p): TENSORS.identity(p) for p in parents}
        replaced = [variables.get(id(leaf), leaf) for leaf in leaves]
        with self._state(leaves, held), enable_grad():
            out = flatten(self.call(replaced))[0][i]
        wanted = [variables[id(p)] if any(p is x for x in leaves) else p for p in parents]
        found = {id(t): g for t, g in propagate(out, gradient, xp, wanted)}
        return [found.get(id(t)) for t in wanted]

    @contextmanager
    def _state(self, leaves: Sequence[Any], held: list) -> Iterator[None]:
        """The written inputs as they were before the call."""
        places = [(self.inputs[i][0].fetch(leaves), held[i]) for i in self.written]
        present = [(place, place.copy()) for place, _ in places]
        for place, before in places:
            place[...] = before
        try:
            yield
        finally:
            for place, now in present:
                place[...] = now


def _exactly(source: Source) -> tuple[Any, ...]:
    """What identifies a source among all: an array by itself."""
    return (*source.name, id(source.owner)) if source.kind == "array" else source.name


def _unshared(leaf: Leaf, guards: Guards) -> Leaf:
    """A result that the function made itself while it was traced: every call returns a copy of its
    own."""
    made = (
        leaf.what == "object"
        and isinstance(leaf.value, _MUTABLE)
        and id(leaf.value) not in guards.reached
    )
    return replace(leaf, what="fresh", value=copy.deepcopy(leaf.value)) if made else leaf


def _laid_out(a: np.ndarray, node: ir.Node) -> bool:
    strides = node.param("strides")
    if strides is None:
        return a.flags.c_contiguous
    return a.strides == tuple(s * a.itemsize for s in strides)


def _as_laid_out(a: np.ndarray, node: ir.Node) -> np.ndarray:
    if node.param("strides") is None:
        return np.ascontiguousarray(a)
    low = sum(s * (n - 1) for s, n in zip(node.param("strides"), node.shape, strict=True) if s < 0)
    span = sum(abs(s) * (n - 1) for s, n in zip(node.param("strides"), node.shape, strict=True)) + 1
    flat = np.empty(span, a.dtype)
    out = np.lib.stride_tricks.as_strided(
        flat[-low:], node.shape, tuple(s * a.itemsize for s in node.param("strides"))
    )
    out[...] = a
    return out


def _aliases(arrays: Sequence[np.ndarray] | None) -> tuple:
    """Which inputs share memory with which: pairs of positions."""
    if arrays is None:
        return ()
    owners: dict[int, list[int]] = {}
    for i, a in enumerate(arrays):
        base = a
        while isinstance(base.base, np.ndarray):
            base = base.base
        owners.setdefault(id(base), []).append(i)
    return tuple(
        (i, j)
        for group in owners.values() if len(group) > 1
        for k, i in enumerate(group) for j in group[k + 1 :]
        if np.may_share_memory(arrays[i], arrays[j])
    )  # fmt: skip


def differences(first: Traced, second: Traced) -> str | None:
    """What two traces of one function in one state differ in, or None. The second was made with the
    table of the first, so that equal values are one node; arrays that were equal are constants."""
    g, h = first.graph, second.graph
    if (g.inputs, g.roots, g.writes, g.checks) != (h.inputs, h.roots, h.writes, h.checks):
        return _changed(g, h)
    for s, t, node in zip(first.sources, second.sources, first.graph.inputs, strict=True):
        where = first.graph.lines.get(node, "")
        if s.name != t.name:
            return f"an input was read from another {s.kind} in the second trace, at {where}"
        if s.kind == "array" and s.owner is not t.owner and not _equal(s.owner, t.owner):
            return (
                f"an array of shape {s.owner.shape} that the function makes differs between two "
                f"traces, at {where}"
            )
    if repr(first.leaves) != repr(second.leaves) and not _same_leaves(first, second):
        return "the results differ in kind between two traces"
    if len(first.effects) != len(second.effects):
        return "the second trace leaves other effects than the first"
    for e, f in zip(first.effects, second.effects, strict=True):
        if (e.what, e.key, e.wrap) != (f.what, f.key, f.wrap) or (
            e.wrap == "object" and e.value is not f.value and repr(e.value) != repr(f.value)
        ):
            return (
                f"{e.what} {e.key!r} is set to {e.value!r} in the first trace, to {f.value!r} in "
                "the second"
            )
    return None


def _changed(first: ir.Graph, second: ir.Graph) -> str:
    """Where two graphs differ: line by line, since what follows a new node is new too."""
    a, b = (str(replace(g, lines={})).splitlines() for g in (first, second))
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return f"{_described(first, i - 1)}, then {_described(second, i - 1)}"
    return f"first trace {len(a)} operations, second trace {len(b)}"


def _described(graph: ir.Graph, i: int) -> str:
    """Node `i` of the printed graph: the constant or the op, and the user's line that it comes
    from."""
    order = ir.walk((*graph.inputs, *graph.roots))
    if not 0 <= i < len(order):
        return "the end of the trace"
    node = order[i]
    reached = {node}
    reached.update(
        n for n in order[i:] if reached.intersection(n.inputs)
    )  # what is computed from it
    lines = [graph.lines[n] for n in order[i:] if n in reached and n in graph.lines]
    what = (
        f"the constant {node.param('value')!r}"
        if node.op == "const"
        else f"{node.op} of shape {node.shape}"
    )
    return f"{what} at {lines[0]}" if lines else what


def _equal(a: Any, b: Any) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    )


def _same_leaves(first: Traced, second: Traced) -> bool:
    for a, b in zip(first.leaves, second.leaves, strict=False):
        if (a.what, a.place, a.requires_grad) != (b.what, b.place, b.requires_grad):
            return False
        if a.value is not b.value and repr(a.value) != repr(b.value):
            return False
    return len(first.leaves) == len(second.leaves)


__all__ = ["Entry", "Source", "differences", "trace_backward", "trace_call"]
