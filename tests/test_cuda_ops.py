"""Every op on the emulated device: the instructions of the IR on edge values and lengths, and the
op records of the library. One dtype and four lengths in the ordinary run, the rest is slow."""

import numpy as np
import pytest
from ir_builder import Builder
from op_table import CASES, SPECIAL

import everyo as eo
from everyo.compile import ir, passes
from everyo.compile.cuda import toolchain
from everyo.compile.interpret import interpret
from everyo.compile.ir import BOOL, F32, F64, I32, I64, Graph
from everyo.core.op import OPS
from everyo.exceptions import EveryOError

pytestmark = pytest.mark.skipif(
    toolchain.missing() is not None, reason=f"no CUDA compiler: {toolchain.missing()}"
)

LENGTHS = (1, 31, 33, 130)
GROUP = 12  # ops in one graph
LOOSE = {"power": 8, "tan": 4, "log": 4, "arcsin": 4}  # ulp that NumPy and we may differ by


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")


def values(dtype, n, seed):
    """Numbers of every size, and the special ones where they fit."""
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind == "i":
        return rng.integers(-9, 10, n).astype(dtype)
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    x[: len(SPECIAL)] = rng.permutation(SPECIAL)[:n]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def groups():
    """Names of the pointwise ops by the kind of what they take."""
    for kind, dtype in (("f", F32), ("i", I64), ("b", BOOL)):
        names = [n for t in (ir.UNARY, ir.BINARY) for n, (takes, _) in t.items() if kind in takes]
        for i in range(0, len(names), GROUP):
            yield dtype, tuple(names[i : i + GROUP])


def check(dtype, names, n):
    b = Builder()
    x, y = b.input((n,), dtype), b.input((n,), dtype)
    results = []
    for name in names:
        args = (x,) if name in ir.UNARY else (x, y)
        if name == "power" and dtype.kind == "i":
            args = (x, b.op("remainder", y, 4))
        results.append(b.make(name, *args))
    graph = passes.run(Graph("ops", (x, y), tuple(results)))
    arrays = [values(dtype, n, 1), values(dtype, n, 2)]
    got = [o.numpy() for o in eo.cuda.backend().program(graph, eo.Device("cuda"))(arrays)]
    with np.errstate(all="ignore"):
        want, _ = interpret(graph, arrays)
        wide, _ = interpret(graph, arrays, np.float64)
    for name, g, w, exact in zip(names, got, want, wide, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), name
        if g.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, name)
            continue
        finite = np.isfinite(w) & np.isfinite(exact) & np.isfinite(g)
        np.testing.assert_array_equal(g[~finite], w[~finite], name)
        eps = np.finfo(g.dtype).eps * LOOSE.get(name, 3)
        tiny = np.finfo(g.dtype).tiny
        np.testing.assert_allclose(g[finite], w[finite], rtol=eps + 1e-7, atol=tiny, err_msg=name)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("group", list(groups()), ids=lambda g: f"{g[0]}:{g[1][0]}..{g[1][-1]}")
def test_every_instruction_on_every_edge(group, n):
    check(*group, n)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F64, I32], ids=str)
@pytest.mark.parametrize("n", [*range(1, 34), 1025])
def test_every_instruction_in_the_other_precision(dtype, n):
    for kind, names in groups():
        if kind.kind == dtype.kind:
            check(dtype, names, n)


def first_cases():
    """One case per op record that is no pointwise instruction: those are in the table above."""
    out = {}
    for case in CASES:
        if case.op is not None and case.op.primitive is None and case.name not in out:
            out[case.op.name] = out.get(case.op.name, case)
    return list(out.values())


def on_device(case):
    """The operands with floating arrays as tensors on the device."""
    return [
        eo.tensor(np.asarray(a, np.float32), device="cuda", requires_grad=i in case.positions)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
        for i, a in enumerate(case.operands)
    ]  # fmt: skip


def on_host(case):
    return [
        eo.tensor(np.asarray(a, np.float32), requires_grad=i in case.positions)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
        for i, a in enumerate(case.operands)
    ]  # fmt: skip


def agrees(case, gradients):
    mine, theirs = on_device(case), on_host(case)
    try:
        want = case.call(*theirs)
    except EveryOError:
        pytest.skip("not defined in float32")
    got = case.call(*mine)
    assert got.device == "cuda:0", case.name
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-6, err_msg=case.name)
    if gradients and want.requires_grad:
        seed = np.random.default_rng(0).uniform(0.5, 1.5, want.shape).astype(np.float32)
        got.backward(eo.tensor(seed, device="cuda"))
        want.backward(seed)
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(b, eo.Tensor) and b.grad is not None:
                np.testing.assert_allclose(
                    np.asarray(a.grad), b.grad, rtol=5e-5, atol=5e-6, err_msg=case.name
                )


@pytest.mark.parametrize("case", first_cases(), ids=lambda c: c.name)
def test_op_records_on_the_device(case):
    agrees(case, gradients=False)


# Results that no row changes, windows that begin at any address, arrays that an op makes itself.
SPECIAL_CASES = ("normalize-1", "max_pool2d-2", "avg_pool2d-1", "einsum-2")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in SPECIAL_CASES], ids=lambda c: c.name
)
def test_gradients_of_special_cases_on_the_device(case):
    agrees(case, gradients=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.op is not None], ids=lambda c: c.name)
def test_op_records_and_their_gradients_on_the_device(case):
    agrees(case, gradients=True)


def test_the_table_covers_the_records():
    assert {c.op.name for c in CASES if c.op is not None} <= set(OPS)
    assert len(first_cases()) > 30
    assert set(SPECIAL_CASES) <= {c.name for c in CASES}
