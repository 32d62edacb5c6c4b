"""The arguments for cuBLAS, tested on a BLAS of the host that stores matrices by columns too."""

import numpy as np
import pytest

from everyo.compile.cuda import cublas
from everyo.compile.cuda.runtime import Gemm

blas = pytest.importorskip("scipy.linalg.blas")


def by_columns(memory, at, rows, columns, lead):
    """The matrix that a BLAS finds at an offset: element (i, j) at i + j * lead."""
    strides = (memory.itemsize, lead * memory.itemsize)
    return np.lib.stride_tricks.as_strided(memory[at:], (rows, columns), strides)


def multiply(p, a, b, c):
    """What the library does with `cublas.arguments`, one batch at a time."""
    call, rounds = cublas.arguments(p)
    for at_a, at_b, at_c in rounds:
        for i in range(call.count):
            shape = (call.k, call.m) if call.turn_first else (call.m, call.k)
            first = by_columns(b, at_b + i * call.stride_first, *shape, call.lead_first)
            shape = (call.n, call.k) if call.turn_second else (call.k, call.n)
            second = by_columns(a, at_a + i * call.stride_second, *shape, call.lead_second)
            out = by_columns(c, at_c + i * call.stride_result, call.m, call.n, call.lead_result)
            kind = {"f": blas.sgemm, "d": blas.dgemm}[c.dtype.char]
            out[...] = kind(1.0, first, second, trans_a=call.turn_first, trans_b=call.turn_second)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 7, 2), (6, 1, 4), (5, 5, 1)], ids=str)
def test_operands_turned_batched_and_with_gaps(sizes, turn_a, turn_b, dtype):
    m, n, k = sizes
    outer, inner, gap = 2, 3, 2
    rng = np.random.default_rng(0)

    def stored(rows, columns, turned):
        """Batches of matrices with gaps between rows, and their strides and lead."""
        if turned:
            rows, columns = columns, rows
        block = rng.standard_normal((outer, inner, rows, columns + gap)).astype(dtype)
        values = block[..., :columns]
        strides = tuple(s // block.itemsize for s in block.strides)
        return block.reshape(-1), values.swapaxes(-1, -2) if turned else values, strides

    a, want_a, steps_a = stored(m, k, turn_a)
    b, want_b, steps_b = stored(k, n, turn_b)
    c, _, steps_c = stored(m, n, False)
    untouched = c.copy().reshape(outer, inner, m, n + gap)[..., n:]
    loops = tuple(
        (size, (steps_a[i], steps_b[i], steps_c[i])) for i, size in enumerate((outer, inner))
    )
    p = Gemm(np.dtype(dtype), m, n, k, turn_a, steps_a[2], turn_b, steps_b[2], steps_c[2], loops)
    multiply(p, a, b, c)
    got = c.reshape(outer, inner, m, n + gap)
    np.testing.assert_allclose(got[..., :n], want_a @ want_b, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[..., n:], untouched)


def test_without_the_library_there_is_no_handle():
    library = cublas.find()
    assert library is None or hasattr(library, "cublasCreate_v2")
