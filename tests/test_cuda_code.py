"""The machine code of kernels, for three architectures: no spills, no local memory, no float64 in
float32 kernels, 16-byte accesses in vector kernels, registers within bounds."""

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
    from everyo.compile.cuda.runtime import Gemm
    from everyo.compile.ir import F32

ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
REGISTERS = 128  # with 256 threads a block, at least two blocks per multiprocessor


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")


def digits_step():
    """The kernels of a training step on the digits, each text once."""
    layers = [eo.Linear(64, 64, seed=0), eo.ReLU(), eo.Linear(64, 10, seed=1)]
    model = eo.Sequential(*layers).to("cuda")
    optimizer, loss_fn = eo.Adam(model.parameters(), lr=0.01), eo.CrossEntropyLoss()

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step.warmup(np.zeros((32, 64), np.float32), np.zeros(32, np.int64))
    return rows(step)


def block_step():
    """The kernels of a training step of a small transformer block."""
    attention = eo.nn.MultiHeadAttention(32, 4)
    parts = [attention, eo.nn.LayerNorm(32), eo.Linear(32, 128), eo.Linear(128, 32)]
    attention, norm, up, down = (part.to("cuda") for part in parts)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = eo.Adam(parameters, lr=0.01)

    @eo.compile
    def step(x):
        optimizer.zero_grad()
        h = norm(x)
        attended = attention(h, h, h) if takes_three(attention) else attention(h)
        h = x + attended
        out = h + down(eo.gelu(up(norm(h))))
        loss = (out * out).mean()
        loss.backward()
        optimizer.step()
        return loss

    step.warmup(np.zeros((2, 16, 32), np.float32))
    return rows(step)


def takes_three(attention):
    import inspect

    names = [
        p.name for p in inspect.signature(attention.forward).parameters.values()
        if p.default is p.empty
    ]  # fmt: skip
    return len(names) >= 3


def rows(step):
    return list({row.text: row for row in step._latest.program.kernels}.values())


def assert_good(name, text, params, cc):
    found = facts(text, params, cc)
    where = f"{name} on sm_{cc[0]}{cc[1]}\n{text}"
    assert found.stack == 0 and found.count(LOCAL.pattern) == 0, f"local memory: {where}"
    assert found.registers <= REGISTERS, f"{found.registers} registers: {where}"
    if not any(p.startswith("f64") for p in params):
        assert found.count(DOUBLE.pattern) == 0, f"float64: {where}"
    for width in ("ld4(p", "st4(p"):
        if width in text and "f32*" in params:
            pattern = r"LDG.*128" if width == "ld4(p" else r"STG.*128"
            assert found.count(pattern), f"no 16-byte access: {where}"


def test_the_kernels_of_the_digits_step():
    for row in digits_step():
        assert_good(row.name, row.text, row.params, (9, 0))


@pytest.mark.parametrize("cc", [(8, 0), (10, 0)], ids=str)
def test_kernels_assemble_for_other_architectures(cc):
    kinds = {}
    for row in digits_step():
        kinds.setdefault(row.name.split(" ")[0], row)
    for row in kinds.values():
        assert_good(row.name, row.text, row.params, cc)


@pytest.mark.slow
@pytest.mark.parametrize("cc", ARCHITECTURES, ids=str)
def test_all_kernels_of_two_training_steps(cc):
    for row in (*digits_step(), *block_step()):
        assert_good(row.name, row.text, row.params, cc)


@pytest.mark.parametrize("tile", ["LARGE", "MIDDLE"])
def test_products_keep_their_squares_in_registers(tile):
    p = Gemm(F32, 512, 512, 512, False, 512, False, 512, 512, ((1, (0, 0, 0)), (1, (0, 0, 0))))
    made = gemm.kernel(p, getattr(gemm, tile))
    found = facts(made.text, made.params, (9, 0))
    assert found.stack == 0 and found.count(LOCAL.pattern) == 0
    assert found.registers <= 168
    side = getattr(gemm, tile)[3]
    assert found.count(r"FFMA") >= side * side
    assert found.count(r"LDS.*128")


def test_sorting_and_random_numbers_need_no_float64():
    for made in (texts.ranks(F32, 2, 64), texts.merge(F32, 1, 4096, 8), texts.random(F32, 100)):
        assert_good("", made.text, made.params, (9, 0))
