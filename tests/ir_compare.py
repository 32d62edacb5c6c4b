"""What results of a graph are compared with, and the smallest program that fails."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from everyo.compile import ir
from everyo.compile.interpret import interpret
from everyo.compile.ir import Graph, Node

Arrays = list[np.ndarray]
ROUNDED = {*ir.UNARY} - {
    "negative", "abs", "sign", "sqrt", "floor", "ceil", "rint", "isnan", "isinf", "isfinite",
    "logical_not", "copy",
} | {"power", "arctan2", "sum", "prod", "cumsum", "scatter_add", "matmul"}  # fmt: skip


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shape, dtype and bits, all NaNs being one."""
    if (a.shape, a.dtype) != (b.shape, b.dtype) or not np.array_equal(
        a, b, equal_nan=a.dtype.kind == "f"
    ):
        return False
    return a.dtype.kind != "f" or bool(((np.signbit(a) == np.signbit(b)) | np.isnan(a)).all())


def assert_same_bits(got: tuple[Arrays, Arrays], want: tuple[Arrays, Arrays], what: object) -> None:
    for kind, left, right in zip(("output", "write"), got, want, strict=True):
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert same_bits(a, b), f"{kind} {i}: {a!r}, expected {b!r}\n{what}"


def is_rounded(node: Node) -> bool:
    """Whether implementations may round the result of this node differently."""
    return node.op in ROUNDED and node.dtype.kind == "f"


def rounded_nodes(graph: Graph) -> set[Node]:
    """The nodes whose bits depend on how something was rounded."""
    out: set[Node] = set()
    for n in ir.walk(graph.roots):
        if is_rounded(n) or any(i in out for i in n.inputs):
            out.add(n)
    return out


def compare(graph: Graph, arrays: Arrays, got: tuple[Arrays, Arrays]) -> None:
    """Assert that outputs and writes `got` from an implementation are right.

    A result that no rounding reaches must have the interpreter's bits. For any other, `want` is the
    interpreter in float64, `rough` the interpreter in the graph's own dtypes, and the error may be
    8 times the largest of |rough - want| (NumPy in float32 is off as much, and ops differ by a few
    ulp) plus 32 eps of the largest result and of the largest rounded value anywhere in the graph: a
    sum that cancels keeps the rounding of its terms. eps is that of the coarsest float below.
    NaN and infinity must be where `want` and `rough` agree on them.
    """
    rough = interpret(graph, arrays)
    want = interpret(graph, arrays, np.float64)
    rounded = rounded_nodes(graph)
    floats = tuple(n for n in rounded if n.dtype.kind == "f")
    values, _ = interpret(replace(graph, outputs=floats), arrays)
    below = {n.dtype for n in ir.walk(floats) if n.dtype.kind == "f"}
    eps = max((float(np.finfo(d).eps) for d in below), default=0.0)
    noise = 32 * eps * max((largest(v) for v in values), default=0.0)
    roots = graph.outputs, [v for _, v in graph.writes]
    for kind, nodes, g, w, r in zip(("output", "write"), roots, got, want, rough, strict=True):
        for i, (node, a, b, c) in enumerate(zip(nodes, g, w, r, strict=True)):
            what = f"{kind} {i}, {node!r}: got\n{a!r}\nexpected\n{b!r}\n{graph}"
            if node not in rounded:
                assert same_bits(a, c), "bits differ, " + what
                continue
            assert (a.shape, a.dtype) == (c.shape, c.dtype), what
            finite = np.isfinite(b) & np.isfinite(c)
            bound = 8 * largest(c[finite] - b[finite]) + 32 * eps * largest(b) + noise
            error = float(np.abs(a[finite] - b[finite]).max(initial=0))
            assert error <= bound, f"error {error}, allowed {bound}, " + what
            clear = ~np.isfinite(b) & ((b == c) | (np.isnan(b) & np.isnan(c)))
            assert np.array_equal(a[clear], b[clear], equal_nan=True), "not finite, " + what


def largest(values: np.ndarray) -> float:
    """The largest magnitude of the finite values."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0))


# Shrinking


def smallest(
    graph: Graph, arrays: Arrays, fails: Callable[[Graph, Arrays], bool]
) -> tuple[Graph, Arrays]:
    """A small program that still `fails`: roots are dropped and nodes become inputs, in turn."""
    while True:
        found = next((case for case in smaller(graph, arrays) if fails(*case)), None)
        if found is None:
            return graph, arrays
        graph, arrays = found


def smaller(graph: Graph, arrays: Arrays) -> Iterable[tuple[Graph, Arrays]]:
    for field in ("outputs", "writes", "checks"):
        roots = getattr(graph, field)
        for i in range(len(roots)):
            less = replace(graph, **{field: (*roots[:i], *roots[i + 1 :])})
            if less.roots:
                yield without_unused(less, arrays)
    for node in reversed(ir.walk(graph.roots)):
        if node.op not in ir.LEAVES and node not in graph.roots:
            yield cut(graph, arrays, node)


def cut(graph: Graph, arrays: Arrays, node: Node) -> tuple[Graph, Arrays]:
    """The program with `node` as one more input, of the value it has."""
    (value,), _ = interpret(Graph("", graph.inputs, (node,)), arrays)
    return rebuild(graph, arrays, {node: value})


def without_unused(graph: Graph, arrays: Arrays) -> tuple[Graph, Arrays]:
    return rebuild(graph, arrays, {})


def rebuild(graph: Graph, arrays: Arrays, given: dict[Node, np.ndarray]) -> tuple[Graph, Arrays]:
    """The program with `given` nodes as inputs, and the inputs that it still needs."""
    table, new, values = ir.Table(), {}, []
    known = dict(zip(graph.inputs, arrays, strict=True)) | given
    targets = [t for t, _ in graph.writes]
    stack = [*reversed(graph.roots), *targets]
    while stack:
        n = stack[-1]
        missing = [] if n in given else [i for i in n.inputs if i not in new]
        if missing:
            stack += missing
            continue
        stack.pop()
        if n in new:
            continue
        if n in known:
            strides = n.param("strides") if n.op == "input" else None
            new[n] = table.input(n.shape, n.dtype, strides)
            values.append(known[n])
        else:
            new[n] = table.make(n.op, *[new[i] for i in n.inputs], **dict(n.params))
    return replace(
        graph,
        inputs=tuple(table.inputs),
        outputs=tuple(new[o] for o in graph.outputs),
        writes=tuple((new[t], new[v]) for t, v in graph.writes),
        checks=tuple(ir.Check(new[c.bad], c.error, c.message) for c in graph.checks),
        lines={},
    ), values
