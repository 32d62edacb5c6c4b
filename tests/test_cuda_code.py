"""The machine code of kernels, for three architectures: no spills, no local memory, no float64 in
float32 kernels, 16-byte accesses in vector kernels, registers within bounds."""

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import everyo as eo
from everyo.compile.cuda import toolchain

pytestmark = pytest.mark.skipif(
    toolchain.missing() is not None, reason=f"no CUDA compiler: {toolchain.missing()}"
)

if toolchain.missing() is None:
    from cuda_sass import DOUBLE, LOCAL, facts

    from everyo.compile.cuda import gemm, texts
    from everyo.compile.cuda.plan import Plan
    from everyo.compile.cuda.runtime import Gemm
    from everyo.compile.ir import F32, F64

sys.path.append(str(Path(__file__).parents[1]))  # last: the package itself may be installed
from benchmarks.compiled import workloads  # noqa: E402
from benchmarks.compiled.everyo_side import GPT  # noqa: E402

ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
REGISTERS = 128  # with 256 threads a block, at least two blocks per multiprocessor
TILE_REGISTERS = 168  # of products, whose threads keep squares of the result


@dataclass(frozen=True)
class Kernel:
    """A kernel that a test reads."""

    name: str
    text: str
    params: tuple[str, ...]
    registers: int = REGISTERS


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")


def training_step(model, loss_of):
    """A compiled step of Adam on the device."""
    optimizer = eo.Adam(model.parameters(), lr=0.01)

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def digits_step():
    """The training step on the digits, planned for a batch."""
    layers = [eo.Linear(64, 64, seed=0), eo.ReLU(), eo.Linear(64, 10, seed=1)]
    step = training_step(eo.Sequential(*layers).to("cuda"), eo.CrossEntropyLoss())
    step.warmup(np.zeros((32, 64), np.float32), np.zeros(32, np.int64))
    return step


def gpt_step():
    """The training step of the small GPT, planned for a batch."""
    batch, time, *rest = workloads.GPTS["gpt-small"]
    step = training_step(
        GPT(time, *rest).to("cuda"),
        lambda z, y: eo.nn.cross_entropy(z.reshape(-1, workloads.VOCABULARY), y.reshape(-1)),
    )
    ids = workloads.labels(workloads.VOCABULARY, batch, time)
    step.warmup(ids, ids)
    return step


def kernels_of(step, vector=True):
    """The kernels of a step, each text once."""
    program = step._latest.program
    steps = program.kernels if vector else Plan(program.graph, vector=False).steps
    return {
        s.text: Kernel(s.name, s.text, s.params, REGISTERS if s.product is None else TILE_REGISTERS)
        for s in steps
    }


@functools.cache
def both_steps(vector=True):
    """The kernels of both steps, each text once."""
    found = [kernels_of(make(), vector) for make in (digits_step, gpt_step)]
    assert len(found[0]) > 10 and len(found[1]) > 30
    return list((found[0] | found[1]).values())


def faults(kernel, found):
    """What is wrong with the machine code of a kernel."""
    out = []
    if found.stack or found.local or found.count(LOCAL.pattern):
        out.append(f"local memory: {found}")
    if found.registers > kernel.registers:
        out.append(f"{found.registers} registers")
    doubles = "f64*" in kernel.params or "pointer(t_f64" in kernel.text
    if not doubles and found.count(DOUBLE.pattern):
        out.append(f"float64: {found.instructions}")
    shared = set(re.findall(r"\b(p\d+) = at\(s\d+, ", kernel.text))
    loads, stores = (set(re.findall(rf"\b{x}4\((p\d+), ", kernel.text)) for x in ("ld", "st"))
    loads -= stores  # what was stored need not be loaded
    for name, wide in (("LDG", loads - shared), ("STG", stores - shared)):
        if found.count(rf"{name}\.E\S*\.128") < len(wide):
            out.append(f"16-byte accesses of {wide}: {found.instructions}")
    return [f"{kernel.name}: {fault}" for fault in out]


def assert_good(kernels, cc):
    for k in kernels:  # one kernel after the other: most of the work is done once for all three
        for each in ARCHITECTURES:
            toolchain.compile_ptx(k.text, k.params, each)
    found = facts([(k.text, k.params) for k in kernels], cc)
    wrong = [f for k, facts in zip(kernels, found, strict=True) for f in faults(k, facts)]
    assert not wrong, f"sm_{cc[0]}{cc[1]}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("cc", ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def test_every_kernel_of_the_digits_and_gpt_steps(cc):
    assert_good(both_steps(), cc)


@pytest.mark.slow
@pytest.mark.parametrize("cc", ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def test_every_kernel_for_arrays_of_any_alignment(cc):
    assert_good(both_steps(vector=False), cc)


def test_the_steps_have_vector_kernels_and_shuffles():
    texts = [k.text for k in both_steps()]
    assert sum("ld4(p" in t and "st4(p" in t for t in texts) > 5
    assert sum("shfl_xor_sync" in t for t in texts) > 5
    assert not any("ld4(p" in k.text for k in both_steps(vector=False) if "shared" not in k.text)


WRONG = {
    "local memory": (
        "a = cuda.local.array(64, t_f32)\ni = u32(0)\nwhile i < u32(64):\n"
        "    st(at(a, u32(0)), u32(i * t % u32(64)), ld(p0, i))\n    i = u32(i + u32(1))\n"
        "st(p1, t, ld(at(a, u32(0)), t))"
    ),
    "float64": "st(p1, t, f32(f64(ld(p0, t)) * f64(1.1)))",
    "16-byte accesses": "x = ld(p0, t)\nst(p1, t, x)\nunused = '''ld4(p0, '''",
}


@pytest.mark.parametrize("fault", WRONG)
def test_faults_of_machine_code_are_seen(fault):
    body = "t = u32(cuda.threadIdx.x)\n" + WRONG[fault]
    text = "def kernel(p0, p1):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    kernel = Kernel(fault, text, ("f32*", "f32*"))
    (found,) = facts([(text, kernel.params)], (9, 0))
    assert any(fault in f for f in faults(kernel, found)), found


@pytest.mark.parametrize(
    ("tile", "dtype"), [("LARGE", "float32"), ("MIDDLE", "float32"), ("MIDDLE", "float64")]
)
def test_products_keep_their_squares_in_registers(tile, dtype):
    dtype = {"float32": F32, "float64": F64}[dtype]
    p = Gemm(dtype, 512, 512, 512, False, 512, False, 512, 512, ((1, (0, 0, 0)), (1, (0, 0, 0))))
    made = gemm.kernel(p, getattr(gemm, tile))
    (found,) = facts([(made.text, made.params)], (9, 0))
    assert found.stack == found.local == 0 and found.count(LOCAL.pattern) == 0
    assert found.registers <= TILE_REGISTERS
    side = getattr(gemm, tile)[3]
    assert found.count({F32: "FFMA", F64: "DFMA"}[dtype]) >= side * side
    assert found.count(r"LDS.*128")


def test_sorting_and_random_numbers_need_no_float64():
    made = (texts.ranks(F32, 2, 64), texts.merge(F32, 1, 4096, 8), texts.random(F32, 100))
    assert_good([Kernel("", m.text, m.params) for m in made], (9, 0))
