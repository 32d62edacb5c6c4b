"""Running a trace with NumPy: what a compiled function means, without compiling it.

`interpreted(function)` is called like the compiled function. Every call traces anew and evaluates
the graph with the interpreter; results, in-place writes and gradients are stored as a compiled call
would.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import everyo as eo
from everyo.compile import passes
from everyo.compile.interpret import interpret
from everyo.compile.tracing import trace_call
from everyo.compile.tree import unflatten


def interpreted(function: Callable[..., Any], optimised: bool = False) -> Callable[..., Any]:
    """The function by its traced graph, or by the graph after all passes."""
    compiled = eo.compile(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, _, rebuild = compiled._signature(args, kwargs)
        traced = trace_call("traced", compiled._caller(rebuild), leaves)
        graph = passes.run(traced.graph) if optimised else traced.graph
        fetched = [s.fetch(leaves) for s in traced.sources]
        arrays = [np.asarray(a, n.dtype) for a, n in zip(fetched, graph.inputs, strict=True)]
        outputs, writes = interpret(graph, arrays)
        for (target, _), value in zip(graph.writes, writes, strict=True):
            arrays[graph.inputs.index(target)][...] = value
        for e in traced.effects:
            store(e, leaves[e.owner] if isinstance(e.owner, int) else e.owner, arrays, outputs)
        results: list[Any] = []
        for leaf in traced.leaves:
            same = leaf.what == "same"
            results.append(results[leaf.value] if same else result(leaf, leaves, arrays, outputs))
        return unflatten(traced.structure, results)

    return call


def store(e: Any, owner: Any, arrays: Any, outputs: Any) -> None:
    """One effect."""
    value = e.value if e.wrap == "object" else e.value.resolve(arrays, outputs)
    if e.wrap in ("tensor", "number"):
        value = eo.Tensor._wrap(value) if e.wrap == "tensor" else value.item()
    if e.what == "item":
        owner[e.key] = value
    else:
        object.__setattr__(owner, {"grad": "_grad", "data": "_data"}.get(e.what, e.key), value)


def result(leaf: Any, leaves: Any, arrays: Any, outputs: Any) -> Any:
    """One leaf of the result."""
    if leaf.what in ("object", "fresh"):
        return leaf.value
    if leaf.what == "arg":
        return leaves[leaf.value]
    array = leaf.place.resolve(arrays, outputs)
    if leaf.what == "number":
        return array.item()
    return eo.Tensor._wrap(array) if leaf.what == "tensor" else array
