"""The PTX interpreter: right kernels run and give NumPy's numbers, wrong ones are caught."""

import math

import numpy as np
import pytest

from everyo.compile.cuda import toolchain
from everyo.compile.cuda.memory import FIRST, DeviceMemory

pytestmark = pytest.mark.skipif(
    toolchain.missing() is not None, reason=f"no CUDA compiler: {toolchain.missing()}"
)

if toolchain.missing() is None:
    from cuda_kernels import launched, unset

    from everyo.compile.cuda import lanes, machine, prelude
    from everyo.compile.cuda.ptx import PTXError, parse

X = np.random.default_rng(0).standard_normal(64).astype(np.float32)

REVERSED = """
s = cuda.shared.array(64, t_f32)
st(s, t, ld(p0, t))
cuda.syncthreads()
st(p1, t, ld(s, u32(63) - t))
"""
SUM = """
v = ld(p0, t)
v = v + cuda.shfl_xor_sync(u32(4294967295), v, 16)
v = v + cuda.shfl_xor_sync(u32(4294967295), v, 8)
v = v + cuda.shfl_xor_sync(u32(4294967295), v, 4)
v = v + cuda.shfl_xor_sync(u32(4294967295), v, 2)
v = v + cuda.shfl_xor_sync(u32(4294967295), v, 1)
st(p1, t, v)
"""
LOOP = """
s = f32(0)
i = t
while i < u32(60):
    s = s + ld(p0, i)
    i = u32(i + u32(32))
st(p1, t, s)
"""

# what is wrong, what the error says, the kernel
WRONG = {
    "a missing barrier": (
        "read after write, no barrier", REVERSED.replace("cuda.syncthreads()\n", ""),
    ),
    "a write that meets a read": (
        "write after read, no barrier",
        """
s = cuda.shared.array(64, t_f32)
st(s, t, ld(p0, t))
cuda.syncthreads()
v = ld(s, u32(63) - t)
st(s, t, v * f32(2))
cuda.syncthreads()
st(p1, t, ld(s, t))
""",
    ),
    "two threads that store one element": (
        "two threads store one element", "st(p1, t // u32(2), ld(p0, t))",
    ),
    "a race between blocks in global memory": (
        "race", "st(p1, t, ld(p0, t))\nst(p0, u32(63) - t, f32(0))",
    ),
    "a read of shared memory nobody wrote": (
        "uninitialised shared",
        """
s = cuda.shared.array(65, t_f32)
st(s, t, ld(p0, t))
cuda.syncthreads()
st(p1, t, ld(s, u32(64) - t))
""",
    ),
    "a read of global memory nobody wrote": ("uninitialised global", "st(p0, t, ld(p1, t))"),
    "a store out of bounds": ("out of bounds", "st(p1, t + u32(1), ld(p0, t))"),
    "a load before the beginning": ("out of bounds", "st(p1, t, ld(p0, u64(t) - u64(1)))"),
    "a misaligned vector": (
        "misaligned 16-byte",
        "if t < u32(8):\n    a, b, c, d = ld4(p0, t * u32(4) + u32(1))\n    st(p1, t, a + b + c + "
        "d)",
    ),
    "a misaligned number": (
        "misaligned 4-byte", f"st(p1, t, ld(pointer(t_f32, u64({FIRST + 2})), t % u32(8)))",
    ),
    "a store beyond shared memory": (
        "out of bounds of 256 bytes of shared",
        "s = cuda.shared.array(64, t_f32)\nst(s, t + u32(1), ld(p0, t))\nst(p1, t, f32(0))",
    ),
    "two stores without a barrier between": (
        "write after write, no barrier",
        """
s = cuda.shared.array(64, t_f32)
st(s, t, ld(p0, t))
st(s, t ^ u32(1), f32(1))
cuda.syncthreads()
st(p1, t, ld(s, t))
""",
    ),
    "a barrier that some threads never reach": (
        "lanes of the mask never arrive",
        """
if t % u32(32) < u32(16):
    cuda.syncthreads()
else:
    cuda.syncwarp(u32(4294967295))
st(p1, t, f32(0))
""",
    ),
    "a lane that its own mask leaves out": (
        "a lane that its own mask does not name",
        "v = ld(p0, t)\nst(p1, t, v + cuda.shfl_xor_sync(u32(65535), v, 1))",
    ),
    "a divergent barrier": (
        "divergent barrier",
        """
if t < u32(48):
    st(p1, t, ld(p0, t))
    cuda.syncthreads()
else:
    st(p1, t, ld(p0, t) * f32(3))
    cuda.syncthreads()
""",
    ),
    "a shuffle that not all lanes of the mask reach": (
        "lanes of the mask never arrive|inactive lane",
        """
v = ld(p0, t)
if t % u32(32) < u32(24):
    v = v + cuda.shfl_down_sync(u32(4294967295), v, 16)
    cuda.syncthreads()
st(p1, t, v)
""",
    ),
}  # fmt: skip


def test_a_kernel_with_shared_memory_and_a_barrier_is_right():
    (_, y), launch = launched(REVERSED, [X, unset(64)])
    np.testing.assert_array_equal(y, X[::-1])
    assert launch.counts["barriers"] == 1


@pytest.mark.parametrize("what", WRONG)
def test_wrong_kernels_are_caught(what):
    message, body = WRONG[what]
    with pytest.raises(PTXError, match=message):
        launched(body, [X, unset(64)])


def test_memory_is_checked_outside_of_kernels_too():
    memory = DeviceMemory()
    first, second = memory.allocate(16), memory.allocate(16)
    memory.write(first, np.zeros(4, np.float32))
    with pytest.raises(PTXError, match="copy of uninitialised"):
        memory.read(second, 16)
    with pytest.raises(PTXError, match="out of bounds"):
        memory.write(first, np.zeros(5, np.float32))
    memory.free(first)
    with pytest.raises(PTXError, match="out of bounds"):
        memory.read(first, 16)
    with pytest.raises(PTXError, match="no allocation"):
        memory.free(first)
    assert memory.allocate(16) == first  # the bytes of another are not those of before
    with pytest.raises(PTXError, match="copy of uninitialised"):
        memory.read(first, 16)


def test_a_launch_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 10_000)
    with pytest.raises(PTXError, match="does not end"):
        launched("while ld(p0, t) < f32(1e30):\n    pass\nst(p1, t, f32(0))", [X, unset(64)])


def test_a_wrong_shuffle_gives_another_sum():
    right = launched(SUM, [X, unset(64)])[0][1]
    np.testing.assert_allclose(right, np.repeat(X.reshape(2, 32).sum(1), 32), rtol=1e-5)
    wrong = launched(SUM.replace("v, 4)", "v, 8)"), [X, unset(64)])[0][1]
    assert not np.allclose(wrong, right, rtol=1e-3)


def test_a_wrong_tail_of_a_reduction_is_seen():
    right = launched(LOOP, [X, unset(32)], threads=32)[0][1]
    np.testing.assert_allclose(right.sum(), X[:60].sum(), rtol=1e-5)
    with pytest.raises(PTXError, match="out of bounds"):
        launched(LOOP.replace("u32(60)", "u32(65)"), [X, unset(32)], threads=32)


def test_barriers_of_a_warp_order_the_lanes_of_their_mask():
    body = """
s = cuda.shared.array(64, t_f32)
mask = u32(u32(15) << (t % u32(32) // u32(4) * u32(4)))
st(s, t, ld(p0, t))
cuda.syncwarp(mask)
st(p1, t, ld(s, t ^ u32({})))
"""
    (_, y), _ = launched(body.format(3), [X, unset(64)])
    np.testing.assert_array_equal(y, X[np.arange(64) ^ 3])
    with pytest.raises(PTXError, match="no barrier"):
        launched(body.format(4), [X, unset(64)])


def test_sectors_and_bank_conflicts_are_counted():
    _, dense = launched("st(p1, t, ld(p0, t))", [X, unset(64)])
    assert dense.counts["global load sectors"] == 8  # 256 bytes
    _, spread = launched("st(p1, t, ld(p0, t * u32(16)))", [np.tile(X, 16), unset(64)])
    assert spread.counts["global load sectors"] == 64
    _, vector = launched(
        "a, b, c, d = ld4(p0, t * u32(4))\nst4(p1, t * u32(4), (a, b, c, d))",
        [np.tile(X, 4), unset(256)],
    )
    assert vector.counts["global loads of 128 bits"] == 2
    assert vector.counts["global load sectors"] == 32
    conflict = """
s = cuda.shared.array(2048, t_f32)
st(s, t * u32({0}), ld(p0, t))
st(p1, t, ld(s, t * u32({0})))
"""
    for stride, ways in ((1, 1), (2, 2), (32, 32), (33, 1)):
        if stride * 63 < 2048:
            _, launch = launched(conflict.format(stride), [X, unset(64)])
            counts = launch.counts
            assert counts["shared wavefronts"] == ways * counts["shared requests"], stride


@pytest.mark.parametrize(
    ("op", "want"),
    [  # a = 0xfffe0003: halves 3 and 65534 or -2, bytes 3 0 254 255; b: bytes 1 2 253 128
        ("dp2a.lo.u32.u32", 7 + 3 * 1 + 65534 * 2), ("dp2a.lo.u32.s32", 7 + 3 * 1 + 65534 * 2),
        ("dp2a.hi.u32.s32", 7 + 3 * -3 + 65534 * -128), ("dp2a.lo.s32.u32", 7 + 3 * 1 - 2 * 2),
        ("dp2a.hi.s32.u32", 7 + 3 * 253 - 2 * 128), ("dp2a.hi.s32.s32", 7 + 3 * -3 - 2 * -128),
        ("dp4a.u32.u32", 7 + 3 * 1 + 254 * 253 + 255 * 128),
        ("dp4a.s32.s32", 7 + 3 * 1 - 2 * -3 - 1 * -128),
        ("dp4a.u32.s32", 7 + 3 * 1 + 254 * -3 + 255 * -128),
    ],
)  # fmt: skip
def test_dot_products_of_parts_of_words(op, want):
    words = (np.array([w], np.uint32).view(np.int32) for w in (0xFFFE0003, 0x80FD0201, 7))
    got = lanes.execute(tuple(op.split(".")), list(words))
    assert int(got[0]) == int(np.array(want).astype(got.dtype))


def test_unknown_instructions_and_broken_text_are_errors():
    with pytest.raises(PTXError, match=r"no \.entry"):
        parse("nothing here")
    with pytest.raises(PTXError, match="threads a block"):
        launched("st(p1, t, ld(p0, t))", [X, unset(64)], threads=512)


def reference(name):
    if name in ("erf", "sigmoid"):
        return {"erf": np.vectorize(math.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x))}[name]
    return getattr(np, name)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_the_math_of_kernels_is_that_of_numpy(kind):
    """Every function in one kernel per precision; float32 kernels need no float64 and no local
    memory, which libdevice's sin and cos do."""
    from everyo.compile import math as scalar

    dtype = np.dtype({"f32": "f4", "f64": "f8"}[kind])
    x = np.random.default_rng(1).uniform(0.05, 0.95, 64).astype(dtype)
    names = [n.rpartition("_")[0] for n in prelude.FUNCTIONS if n.endswith(kind)]
    lines = ["x = ld(p0, t)"]
    for i, name in enumerate(names):
        call = f"{name}_{kind}(x, x)" if name in scalar.BINARY else f"{name}_{kind}(x)"
        lines.append(f"st(p1, t + u32({64 * i}), {call})")
    y = np.full(64 * len(names), np.nan, dtype)
    (_, got), _ = launched("\n".join(lines), [x, y], kinds=[kind] * 2)
    for name, row in zip(names, got.reshape(-1, 64), strict=True):
        wide = x.astype(np.float64)
        want = reference(name)(wide, wide) if name in scalar.BINARY else reference(name)(wide)
        np.testing.assert_allclose(
            row, want, rtol=3 * np.finfo(dtype).eps, atol=1e-30, err_msg=name
        )


def test_sin_cos_and_tan_reduce_large_arguments_in_float32():
    from mpmath import mp

    x = np.concatenate([10.0 ** np.arange(-30, 38, 3), np.arange(1, 42) * np.pi / 2])[:64]
    x = x.astype(np.float32)
    x[1::2] *= -1
    body = "x = ld(p0, t)\n" + "\n".join(
        f"st(p1, t + u32({64 * i}), {name}_f32(x))" for i, name in enumerate(("sin", "cos", "tan"))
    )
    (_, got), _ = launched(body, [x, unset(192)])
    with mp.workprec(200):
        for row, name in zip(got.reshape(3, 64), ("sin", "cos", "tan"), strict=True):
            want = np.array([float(getattr(mp, name)(mp.mpf(float(v)))) for v in x])
            error = np.abs(row - want) / np.spacing(np.abs(want).astype(np.float32))
            assert error.max() < 2, name
