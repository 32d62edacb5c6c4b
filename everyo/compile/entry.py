"""One compiled version of a function: a trace, its program, and how to run it on a call.

An `Entry` fetches the inputs of its program, runs it, and then does what eager code would have
done: stores gradients, scalars, buffers and attributes, and returns the results. Where a result
requires gradients it hangs a node on it whose backward function is compiled as well, when first
needed.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from everyo.compile import collector, ir
from everyo.compile.buffers import Pool
from everyo.compile.guards import Guards
from everyo.compile.launch import Patience
from everyo.compile.place import common_device, is_on, make_program, prepared
from everyo.compile.traced import Effect, Leaf, Source, Traced, geometry, owner_of
from everyo.compile.tracing import Call, trace_backward
from everyo.compile.tree import flatten, unflatten
from everyo.core.autograd import MODE, Clock, Node, enable_grad, propagate
from everyo.core.device_array import DeviceArray
from everyo.core.namespace import NUMPY, TENSORS
from everyo.core.state import Epoch
from everyo.core.tensor import Tensor
from everyo.exceptions import EveryOGradientError, EveryOTraceError

_MUTABLE = (np.ndarray, set, bytearray)


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
        self.device = common_device(name, traced.sources, leaves, options.device)
        self.graph = prepared(traced.graph, self.device)
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
            copied = self.copied([isinstance(x, Tensor) for x in leaves])
            held = [a.copy() if c else a for a, c in zip(arrays, copied, strict=True)]
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

    def copied(self, tensors: Sequence[bool]) -> list[bool]:
        """Which inputs a later backward() needs copies of: what the call overwrites, and arrays,
        which unlike tensors do not remember that they were written. `tensors` says which arguments
        are tensors."""
        return [
            i in self.written or not (s.kind == "data" or (s.kind == "arg" and tensors[s.owner]))
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
        cells = [t._cell for t in saved]
        for i in self.traced.results:
            results[i].grad_node = self.node(i, leaves, parents, held, cells)
            results[i]._requires_grad = True

    def node(
        self, i: int, leaves: Sequence[Any], parents: list[Any], held: list, cells: list
    ) -> Node:
        """The node of result i."""

        def backward_fn(gradient: Any, xp: Any = NUMPY, through: Node | None = None) -> list[Any]:
            if through is not None or MODE.trace is not None:
                return self._eager_backward(i, leaves, parents, held, gradient, xp)
            return self._compiled_backward(i, leaves, held, gradient)

        return Node(self.name, parents, backward_fn, {}, cells)

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
                graph = prepared(traced.graph, self.device)
                program = make_program(graph, self.device, self.cache)
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
