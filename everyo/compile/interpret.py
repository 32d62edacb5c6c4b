"""The meaning of the IR: run a `Graph` with NumPy, one node after the other.

`interpret` is the yardstick of the compiler: every pass and every kernel is compared with it. Each
value is kept in C order, so that the same values in the same shape give the same bits wherever they
came from. With `real=np.float64` all floats are computed in that dtype: a reference for float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.compile import ir, staged
from everyo.compile.ir import Graph, Node, Shape
from everyo.compile.scan import Past, Scan, strides_of
from everyo.compile.widen import computes_halves
from everyo.core.namespace import NUMPY

Arrays = list[np.ndarray]


def interpret(
    graph: Graph, arrays: Sequence[np.ndarray], real: Any = None
) -> tuple[Arrays, Arrays]:
    """The outputs of `graph` and the values it writes, as fresh arrays.

    `arrays` are the values of `graph.inputs`, in order, and are left alone. A check that fires
    raises its error. `real` replaces every float dtype; None computes each node in its own.
    """
    value: dict[Node, np.ndarray] = {}
    for node, array in zip(graph.inputs, arrays, strict=True):
        array = np.asarray(array)
        fits = (array.shape, array.dtype) == (node.shape, node.dtype)
        ir.require(fits, "input", node, "got", array.dtype, array.shape)
        value[node] = np.asarray(array, dtype=float_dtype(node.dtype, real), order="C")
    with np.errstate(all="ignore"):
        for node in ir.walk(graph.roots):
            if node not in value:
                value[node] = evaluate(node, [value[i] for i in node.inputs], real)
    for check in graph.checks:
        if value[check.bad]:
            raise check.error(check.message)
    return [value[n].copy() for n in graph.outputs], [value[v].copy() for _, v in graph.writes]


def float_dtype(dtype: np.dtype, real: Any) -> np.dtype:
    """The dtype in which values of `dtype` are computed."""
    return np.dtype(real) if real is not None and dtype.kind == "f" else dtype


def evaluate(node: Node, args: Sequence[np.ndarray], real: Any = None) -> np.ndarray:
    """The value of one node from those of its operands. NumPy's warnings are the caller's."""
    if real is None and computes_halves(node):
        wide = [a.astype(np.float32) if a.dtype == ir.F16 else a for a in args]
        return evaluate(node, wide, np.float32).astype(node.dtype)
    dtype, params = float_dtype(node.dtype, real), dict(node.params)
    match node.op:
        case "const":
            out = params["value"]
        case "iota":
            out = np.indices(node.shape, dtype=dtype)[params["axis"]]
        case "erf" | "sigmoid":
            out = {"erf": erf, "sigmoid": sigmoid}[node.op](args[0])
        case op if op in ir.UNARY or op in ir.BINARY or op in ("where", "matmul"):
            out = getattr(np, op)(*args)
        case "cast":
            out = args[0].astype(dtype)
        case "take":
            out = np.take(args[0], args[1], axis=0, mode="clip")
        case "reshape":
            out = args[0].reshape(node.shape)
        case "transpose":
            out = args[0].transpose(params["axes"])
        case "broadcast":
            out = np.broadcast_to(args[0], node.shape)
        case "slice":
            out = args[0][box(params["starts"], params["steps"], params["sizes"])]
        case "window":
            out = NUMPY.windows(args[0], **params)
        case "sum" | "prod":
            out = getattr(np, node.op)(args[0], axis=params["axes"], dtype=dtype)
        case "max" | "min":
            out = getattr(np, node.op)(args[0], axis=params["axes"])
        case "scatter_add":
            out = scatter_add(args[0], args[1], node.shape)
        case "assemble":
            out = args[0].copy()
            for piece, start, step in zip(args[1:], params["starts"], params["steps"], strict=True):
                out[box(start, step, piece.shape)] = piece
        case "cumsum":
            out = np.cumsum(args[0], axis=-1, dtype=dtype)
        case "argsort":
            out = np.argsort(args[0], axis=-1, kind="stable")
        case "exchange":
            out = staged.EXCHANGES[params["host"]](args[0])
        case "random":
            out = uniform(args[0], node.shape, node.dtype)
        case "scan":
            out = scanned(Scan.of(params), args, dtype, real)
        case _:
            raise ir.IRError(f"no meaning for {node!r}")
    return np.asarray(out, dtype=dtype, order="C")


def box(starts: Shape, steps: Shape, sizes: Shape) -> tuple[slice, ...]:
    """The index of `sizes` elements per axis, from `starts` on, `steps` apart."""

    def along(start: int, step: int, size: int) -> slice:
        if size == 0:
            return slice(0, 0)
        stop = start + size * step
        return slice(start, stop if stop >= 0 else None, step)

    return tuple(map(along, starts, steps, sizes))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(np.signbit(x), e, np.ones_like(e)) / (1 + e)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, rounded from float64."""
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def scatter_add(index: np.ndarray, updates: np.ndarray, shape: Shape) -> np.ndarray:
    """Zeros of `shape` with `updates` added to rows, in order; rows are clamped, as in `take`."""
    out = np.zeros(shape, updates.dtype)
    if shape[0]:
        np.add.at(out, np.clip(index, 0, shape[0] - 1), updates)
    return out


def scanned(scan: Scan, operands: Sequence[np.ndarray], dtype: np.dtype, real: Any) -> np.ndarray:
    """The series of all iterations, one after the other."""
    body, out = scan.body.graph, np.zeros(scan.size, dtype)
    order = ir.walk(body.roots)
    flat = [np.ascontiguousarray(o).reshape(-1) for o in operands]

    def keep(output: int, iteration: int, value: np.ndarray) -> None:
        at = scan.place(output, iteration)
        out[at : at + value.size] = value.reshape(-1)

    for k, s in enumerate(scan.series):
        for i, operand in enumerate(s.lead):
            keep(k, i - len(s.lead), operands[operand])
    for i in range(scan.count):
        value: dict[Node, np.ndarray] = {}
        for k, (node, read) in enumerate(zip(body.inputs, scan.reads, strict=True)):
            if isinstance(read, Past):
                at, source, strides = scan.place(read.output, i - read.distance), out, None
            elif read.operand < 0:
                wide = float_dtype(node.dtype, real)
                at, source, strides = i, scan.constants(k).astype(wide), None
            else:
                at, source = read.start + i * read.step, flat[read.operand]
                strides = tuple(k * source.itemsize for k in strides_of(node))
            value[node] = np.ndarray(
                node.shape, source.dtype, source, at * source.itemsize, strides
            ).copy()
        for node in order:
            if node not in value:
                value[node] = evaluate(node, [value[o] for o in node.inputs], real)
        for k, o in enumerate(body.outputs):
            keep(k, i, value[o])
    return out


def uniform(state: np.ndarray, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Uniform numbers in [0, 1), see core/random.py: word by word, then the halves of each."""
    words = state.astype(np.int64).view(np.uint64)
    count = math.prod(shape)
    raw = np.random.Philox(key=words[:2], counter=words[2:]).random_raw(count)
    if dtype == ir.F32:
        halves = np.stack([raw % np.uint64(2**32), raw >> np.uint64(32)], -1).ravel()[:count]
        return ((halves >> np.uint64(8)) * 2.0**-24).reshape(shape)
    return ((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)
