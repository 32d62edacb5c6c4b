"""The scalar math of kernels: accuracy, special values, vector code; integers as NumPy has them."""

import itertools
import platform
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from math_reference import TRUE, distance, true_value, wide_distance, wide_value, worst
from numba import from_dtype, njit

from everyo.compile import ir
from everyo.compile import math as kernel_math
from everyo.compile.intrinsics import define, fmax, fmin, narrow, radd, rmul, select

DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
FLOATS, INTEGERS = ("f32", "f64"), ("i32", "i64")
LIMIT = 2.0  # ulp
# Ops that are single instructions of the generated text, or tests of a bit pattern.
PLAIN = {
    "negative", "isnan", "isinf", "isfinite", "copy", "add", "subtract", "multiply", "divide",
    "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
}  # fmt: skip
EXACT = ("abs", "sign", "floor", "ceil", "rint", "remainder", "floor_divide")
LOOPS = ("remainder", "floor_divide")  # whose code loops, so that no vectors come of it
UNARY = sorted(TRUE.keys() - kernel_math.BINARY)


def is_binary(name: str) -> bool:
    return name in kernel_math.BINARY


@cache
def kernel(name: str, suffix: str) -> Callable[..., None]:
    """A loop over arrays around the function."""
    return loop_around(kernel_math.FUNCTIONS[f"{name}_{suffix}"], suffix, is_binary(name))


def loop_around(function: Any, suffix: str, binary: bool) -> Callable[..., None]:
    def pairs(x: Any, y: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i], y[i])

    def singles(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = function(x[i])

    array = from_dtype(np.dtype(DTYPES[suffix]))[::1]
    return njit((array,) * 3)(pairs) if binary else njit((array,) * 2)(singles)


def apply(loop: Callable[..., None], *args: np.ndarray) -> np.ndarray:
    out = np.empty_like(args[0])
    loop(*args, out)
    return out


def evaluate(name: str, suffix: str, *args: Any) -> np.ndarray:
    args = np.broadcast_arrays(*(np.asarray(a, DTYPES[suffix]) for a in args))
    return apply(kernel(name, suffix), *(np.ascontiguousarray(a) for a in args))


# Arguments


def random_bits(rng: np.random.Generator, suffix: str, n: int) -> np.ndarray:
    """Finite floats other than 0, every bit pattern alike."""
    word = {"f32": np.uint32, "f64": np.uint64}[suffix]
    x = rng.integers(0, np.iinfo(word).max, n, word, endpoint=True).view(DTYPES[suffix])
    return x[np.isfinite(x) & (x != 0)]


def ranges(name: str, suffix: str) -> list[tuple[float, float]]:
    """The intervals in which a function of one variable is interesting."""
    edge = {"f32": 105.0, "f64": 750.0}[suffix]
    if name in ("log", "log2", "log10", "sqrt", "cbrt"):
        return [(0.0, 1.0), (0.6, 1.6), (0.0, 100.0)]
    if name == "log1p":
        return [(-1.0, 1.0), (-0.01, 0.01), (1.0, 1000.0)]
    if name in ("arcsin", "arccos"):
        return [(-1.0, 1.0), (0.49, 0.51), (0.99, 1.0)]
    if name in ("sin", "cos", "tan"):
        return [(-1.6, 1.6), (-10.0, 10.0), (-1e4, 1e4), (-1e9, 1e9)]
    return [(-1.0, 1.0), (-6.0, 6.0), (-edge, edge)]


def arguments(name: str, suffix: str, n: int, seed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """About n arguments from each source: grids, magnitudes, neighbours of points, bit patterns."""
    rng, dtype = np.random.default_rng(seed), DTYPES[suffix]
    edge = {"f32": 88.0, "f64": 708.0}[suffix]
    bits = random_bits(rng, suffix, n)
    sign = rng.choice([-1, 1], n)
    magnitudes = (np.exp2(rng.uniform(-edge, edge, n)) * sign).astype(dtype)
    if name == "arctan2":
        yield bits, rng.permutation(bits)
        yield magnitudes, (magnitudes * rng.uniform(-4, 4, n)).astype(dtype)
    elif name == "power":
        positive = abs(magnitudes)
        yield abs(bits), rng.permutation(bits)
        yield positive, rng.uniform(-2, 2, n).astype(dtype)
        for spread, exponent in ((1, edge), (0.01, 1e4)):
            x = np.exp2(rng.uniform(-spread, spread, n)).astype(dtype)
            yield x, rng.uniform(-exponent, exponent, n).astype(dtype)
        yield -positive, (rng.integers(1, 10, n) * sign).astype(dtype)
    else:
        yield (bits,)
        yield (magnitudes,)
        for low, high in ranges(name, suffix):
            grid = np.linspace(low, high, n).astype(dtype)
            yield (grid[grid != 0],)
        # Where sines vanish or turn, quarter turns of every size.
        turns = (rng.integers(1, 2**20, n) * np.pi / 2).astype(dtype)
        yield (turns,)
        yield (np.nextafter(turns, (sign * np.inf).astype(dtype)),)


CASES = [(n, s) for n in sorted(TRUE) for s in FLOATS]


def doubtful(name: str, suffix: str, wide: Any, n: int, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Of n arguments per source those that NumPy's wider float puts farthest from the truth."""
    found = []
    for args in arguments(name, suffix, n, seed):
        true = wide_value(name, wide, *args)
        if true is not None:
            errors = wide_distance(evaluate(name, suffix, *args), true)
            last = np.argsort(errors)[-10:]
            found.append(tuple(a[last] for a in args))
    return found


def assert_accurate(name: str, suffix: str, points: list[tuple[np.ndarray, ...]]) -> None:
    for args in points:
        error, where = worst(name, evaluate(name, suffix, *args), args, DTYPES[suffix])
        assert error <= LIMIT, f"{name}_{suffix} at {where}: {error:.2f} ulp from the true value"


WIDE = {"f32": np.float64, "f64": np.longdouble}


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_every_function_is_within_2_ulp_of_the_truth(name: str, suffix: str) -> None:
    assert_accurate(name, suffix, list(arguments(name, suffix, 80, seed=1)))
    assert_accurate(name, suffix, doubtful(name, suffix, WIDE[suffix], 20_000, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_every_function_is_within_2_ulp_at_very_many_points(name: str, suffix: str) -> None:
    assert_accurate(name, suffix, list(arguments(name, suffix, 3_000, seed=3)))
    assert_accurate(name, suffix, doubtful(name, suffix, WIDE[suffix], 1_000_000, seed=4))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
def test_float32_functions_are_within_2_ulp_at_every_101st_bit_pattern(name: str) -> None:
    points = []
    for start in range(0, 2**32, 101 * 2**20):
        patterns = np.arange(start, min(start + 101 * 2**20, 2**32), 101, dtype=np.int64)
        x = patterns.astype(np.uint32).view(np.float32)
        x = x[np.isfinite(x) & (x != 0)]
        if x.size:
            true = wide_value(name, np.float64, x)
            errors = wide_distance(evaluate(name, "f32", x), true)
            points.append((x[np.argsort(errors)[-3:]],))
    assert_accurate(name, "f32", points)


# The checker


def shifted(name: str, suffix: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Arguments and results that are wrong by that many representable numbers in one place."""
    x = np.linspace(0.5, 0.9, 50).astype(DTYPES[suffix])
    y = evaluate(name, suffix, x)
    for _ in range(steps):
        y[17] = np.nextafter(y[17], DTYPES[suffix](np.inf))
    return x, y


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "log1p"])
def test_the_checker_catches_an_error_of_3_ulp(name: str, suffix: str) -> None:
    assert worst(name, *_checked(shifted(name, suffix, 0), suffix))[0] <= LIMIT
    error, (where,) = worst(name, *_checked(shifted(name, suffix, 4), suffix))
    assert LIMIT < error < 6
    assert where == shifted(name, suffix, 4)[0][17]


def _checked(points: tuple[np.ndarray, np.ndarray], suffix: str) -> tuple[Any, ...]:
    x, y = points
    return y, (x,), DTYPES[suffix]


@pytest.mark.parametrize("suffix", FLOATS)
def test_the_checker_catches_a_wrong_coefficient(suffix: str, monkeypatch: Any) -> None:
    from everyo.compile import math_exp

    width = {"f32": 32, "f64": 64}[suffix]
    wrong = list(math_exp.EXP[width])
    wrong[1] *= 1.0001
    monkeypatch.setitem(math_exp.EXP, width, tuple(wrong))
    kind = from_dtype(np.dtype(DTYPES[suffix]))
    loop = loop_around(define(math_exp.exp, kind(kind)), suffix, binary=False)
    x = np.linspace(-20, 20, 400).astype(DTYPES[suffix])
    assert worst("exp", apply(loop, x), (x,), DTYPES[suffix])[0] > LIMIT


def test_the_two_checkers_agree() -> None:
    x = np.concatenate([np.linspace(-104, 88, 301), [1e-40, -1e-40]]).astype(np.float32)
    y = np.exp(x) * np.float32(1.000001)
    fast = wide_distance(y, wide_value("exp", np.float64, x))
    slow = [
        distance(float(b), true_value("exp", float(a)), np.float32)
        for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(fast, slow, rtol=1e-6, atol=1e-6)


# Special values


def specials(suffix: str) -> np.ndarray:
    info = np.finfo(DTYPES[suffix])
    values = [
        0.0, np.inf, np.nan, info.smallest_subnormal, info.tiny / 2, info.tiny, info.max, info.eps,
        0.5, 0.66, 1.0, 1.0 + info.eps, 1.0 - info.epsneg, 1.5, 2.0, 3.0, np.pi / 2, np.pi, 17.3,
        60.5, 88.72, 89.5, 103.9, 104.1, 709.7, 710.5, 745.1, 746.0, 2.0**20, 2.0**24 + 2, 2.0**53,
        1e9, 1e30,
    ]  # fmt: skip
    return np.array(values + [-v for v in values]).astype(DTYPES[suffix])


def numpy_value(name: str, *args: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = wide_value(name, np.float64, *(a.astype(np.float32) for a in args))
        return wide if name in ("sigmoid", "erf") else getattr(np, name)(*args)


@pytest.mark.parametrize(("name", "suffix"), CASES)
def test_special_values_are_those_of_numpy(name: str, suffix: str) -> None:
    values = specials(suffix)
    points = itertools.product(values, repeat=2 if is_binary(name) else 1)
    args = [np.array(a) for a in zip(*points, strict=True)]
    got = evaluate(name, suffix, *args)
    for y, n, *point in zip(got, numpy_value(name, *args), *args, strict=True):
        where = f"{name}_{suffix}{tuple(map(float, point))}: {y}, NumPy {n}"
        if all(np.isfinite(a) and a != 0 for a in point):
            true = true_value(name, *map(float, point))
            assert distance(float(y), true, DTYPES[suffix]) <= LIMIT, where
            assert np.isnan(y) or np.signbit(y) == (true < 0), where
        elif np.isnan(n):
            assert np.isnan(y), where
        else:
            assert np.signbit(y) == np.signbit(n), where
            assert y == n or abs(y / n - 1) <= 4 * np.finfo(DTYPES[suffix]).eps, where


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize(
    ("suffix", "x"), [("f32", 16367173 * 2.0**72), ("f64", 6381956970095103 * 2.0**797)]
)
def test_the_argument_nearest_to_a_quarter_turn_keeps_all_digits(
    name: str, suffix: str, x: float
) -> None:
    assert abs(true_value("cos", x)) < 1e-8  # of every float of its size and larger
    assert_accurate(name, suffix, [(np.array([x, -x], DTYPES[suffix]),)])


@pytest.mark.parametrize("suffix", FLOATS)
def test_exp_of_a_masked_score_is_exactly_zero(suffix: str) -> None:
    x = np.array([-1e9, -1e30, -np.inf, np.finfo(DTYPES[suffix]).min])
    for name in ("exp", "sigmoid"):
        assert not evaluate(name, suffix, x).any()


@pytest.mark.parametrize("suffix", FLOATS)
def test_log2_of_a_power_of_two_is_exact(suffix: str) -> None:
    info = np.finfo(DTYPES[suffix])
    k = np.arange(info.minexp - info.nmant, info.maxexp)
    np.testing.assert_array_equal(evaluate("log2", suffix, np.ldexp(DTYPES[suffix](1), k)), k)


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "erf", "sigmoid"])
def test_bounded_functions_stay_within_their_bounds(name: str, suffix: str) -> None:
    for (x,) in arguments(name, suffix, 20_000, seed=5):
        y = evaluate(name, suffix, x)
        assert abs(y).max() <= 1
        assert name != "sigmoid" or y.min() >= 0


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize(
    "name", ["expm1", "log1p", "sin", "tan", "arcsin", "arctan", "sinh", "tanh"]
)
def test_functions_like_x_keep_subnormals_and_the_sign_of_zero(name: str, suffix: str) -> None:
    info = np.finfo(DTYPES[suffix])
    x = np.array(
        [0.0, -0.0, *(s * v for s in (1, -1) for v in (info.smallest_subnormal, info.tiny / 3))]
    )
    x = x.astype(DTYPES[suffix])
    y = evaluate(name, suffix, x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


# Exact functions


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal values, NaN and the signs of zeros included."""
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_float_functions_equal_numpy(name: str, suffix: str) -> None:
    rng = np.random.default_rng(6)
    values = np.concatenate([specials(suffix), random_bits(rng, suffix, 200), rng.normal(0, 9, 60)])
    values = np.concatenate([values, np.arange(-4.5, 5, 0.5)]).astype(DTYPES[suffix])
    args = [values]
    if is_binary(name):
        args = [a.ravel() for a in np.meshgrid(values, values)]
    with np.errstate(all="ignore"):
        assert_same(evaluate(name, suffix, *args), getattr(np, name)(*args))


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize("name", LOOPS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_remainders_of_any_two_floats_equal_numpy(name: str, suffix: str, data: Any) -> None:
    width = {"f32": 32, "f64": 64}[suffix]
    x, y = (data.draw(arrays(DTYPES[suffix], 8, elements=st.floats(width=width))) for _ in range(2))
    with np.errstate(all="ignore"):
        assert_same(evaluate(name, suffix, x, y), getattr(np, name)(x, y))


def edges(suffix: str) -> np.ndarray:
    info = np.iinfo(DTYPES[suffix])
    values = [0, 1, 2, 3, 7, 10, 46341, 65536, info.max // 2, info.max - 1, info.max]
    return np.array(values + [-v for v in values] + [info.min, info.min + 1], DTYPES[suffix])


@pytest.mark.parametrize("suffix", INTEGERS)
@pytest.mark.parametrize("name", ["abs", "sign", "floor_divide", "remainder", "power"])
def test_integer_functions_equal_numpy(name: str, suffix: str) -> None:
    rng = np.random.default_rng(7)
    values = np.concatenate([edges(suffix), rng.integers(-99, 99, 40)]).astype(DTYPES[suffix])
    if name in ("abs", "sign"):
        np.testing.assert_array_equal(evaluate(name, suffix, values), getattr(np, name)(values))
        return
    other = values[values >= 0] if name == "power" else values
    x, y = (a.ravel() for a in np.meshgrid(values, other))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(name, suffix, x, y), getattr(np, name)(x, y))


# Code


def test_every_op_that_is_no_instruction_has_a_function() -> None:
    wanted = {
        f"{name}_{suffix}"
        for name, (kinds, gives) in (ir.UNARY | ir.BINARY).items()
        if name not in PLAIN and gives == "same"
        for suffix in [*(FLOATS if "f" in kinds else ()), *(INTEGERS if "i" in kinds else ())]
    }
    assert wanted == set(kernel_math.FUNCTIONS)
    assert all(getattr(kernel_math, name) is f for name, f in kernel_math.FUNCTIONS.items())


@pytest.mark.parametrize(("name", "suffix"), [*CASES, *itertools.product(EXACT, FLOATS)])
def test_an_element_has_the_same_value_wherever_it_stands(name: str, suffix: str) -> None:
    """Vector bodies and scalar remainders round alike."""
    rng = np.random.default_rng(8)
    x = rng.uniform(-1, 1, 75).astype(DTYPES[suffix])
    args = (abs(x), rng.uniform(-3, 3, 75).astype(DTYPES[suffix])) if is_binary(name) else (x,)
    whole = evaluate(name, suffix, *args)
    parts = [evaluate(name, suffix, *(a[i : i + 1] for a in args)) for i in range(75)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="reads x86-64 assembly"
)
VECTORS = [*CASES, *((n, s) for n in EXACT if n not in LOOPS for s in FLOATS)]


def assembly(loop: Any) -> str:
    return "\n".join(loop.inspect_asm().values())


def foreign(text: str) -> set[str]:
    """The symbols it refers to, other than Python's, Numba's and the module's own."""
    names = re.findall(r"(?:call\w*|jmp|movabsq)\s+\$?([A-Za-z_]\w*)", text)
    return {n for n in names if not re.match(r"_?Py|_Z|NRT_|numba_|_?memcpy", n)}


@x86
@pytest.mark.parametrize(("name", "suffix"), VECTORS)
def test_a_loop_around_a_function_is_vector_code(name: str, suffix: str) -> None:
    """Packed instructions in the widest registers of the machine, no gathers, no calls of libm."""
    text = assembly(kernel(name, suffix))
    widest = next(r for r in "zyx" if f"%{r}mm" in assembly(kernel("exp", suffix)))
    if widest == "x":
        pytest.skip("two numbers a register: not always worth it")
    stored = rf"\bv?mov(?:[au]p[sd]|dq[au]\w*)\s+%{widest}mm\d+, ?-?\w*\("
    assert re.search(stored, text)
    arithmetic = rf"\bv?(?:f?n?m(?:ul|add|sub)|add|sub|div|sqrt)\w*p[sd]\s.*%{widest}mm"
    assert name in EXACT or re.search(arithmetic, text)
    assert "gather" not in text
    assert not foreign(text)


@x86
@pytest.mark.parametrize(("name", "suffix"), [n.rsplit("_", 1) for n in kernel_math.FUNCTIONS])
def test_no_function_calls_a_library(name: str, suffix: str) -> None:
    assert not foreign(assembly(kernel(name, suffix)))


@x86
def test_a_call_of_a_library_would_be_seen() -> None:
    import math

    def loop(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = math.sin(x[i])

    array = from_dtype(np.dtype(np.float64))[::1]
    assert foreign(assembly(njit((array, array))(loop))) & {"sin", "cos", "sincos"}


@x86
def test_a_power_with_a_constant_integer_exponent_is_vector_code() -> None:
    power = kernel_math.FUNCTIONS["power_i32"]

    def loop(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = power(x[i], np.int32(5))

    array = from_dtype(np.dtype(np.int32))[::1]
    compiled = njit((array, array))(loop)
    x = np.arange(-50, 50, dtype=np.int32)
    np.testing.assert_array_equal(apply(compiled, x), x**5)
    assert re.search(r"\bv?pmulld\s", assembly(compiled))


# Instructions


@njit
def extremes(a: Any, b: Any) -> Any:
    return fmax(a, b), fmin(a, b)


@pytest.mark.parametrize("suffix", [*FLOATS, *INTEGERS, "b8"])
def test_fmax_and_fmin_are_maximum_and_minimum(suffix: str) -> None:
    dtype = (DTYPES | {"b8": np.bool_})[suffix]
    values = {"b8": [False, True]}.get(suffix, [-3, 0, 2, 5])
    if suffix in FLOATS:
        values = [*values, np.nan, np.inf, -np.inf, 0.1]
    for a, b in itertools.product(np.array(values, dtype), repeat=2):
        np.testing.assert_array_equal(extremes(a, b), (np.maximum(a, b), np.minimum(a, b)))


def test_select_takes_the_first_value_where_the_condition_holds() -> None:
    pick = njit(lambda c, a, b: select(c, a, b))
    assert (pick(True, 1.5, 2.5), pick(False, 1.5, 2.5)) == (1.5, 2.5)
    assert (pick(True, 3, 4), pick(False, 3, 4)) == (3, 4)


@pytest.mark.parametrize("x", [-(2**63), -5, -1, 0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1])
def test_narrow_keeps_every_comparison_with_an_index(x: int) -> None:
    n = njit(lambda x: narrow(x))(x)
    for index in (0, 1, 1000, 2**31 - 2):
        assert (n < index, n == index, n > index) == (x < index, x == index, x > index)


@pytest.mark.parametrize("suffix", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize(("fold", "start", "reference"), [(radd, 0, np.sum), (rmul, 1, np.prod)])
def test_relaxed_folds_give_sums_and_products(
    fold: Any, start: int, reference: Any, suffix: str
) -> None:
    dtype = DTYPES[suffix]

    @njit
    def run(x: Any, total: Any) -> Any:
        for i in range(x.size):
            total = fold(total, x[i])
        return total

    x = np.resize(np.array([1, 2, -3, 4, 1, -1, 1, 2], dtype), 61)
    np.testing.assert_array_equal(dtype(run(x, dtype(start))), reference(x, dtype=dtype))


@x86
def test_relaxed_sums_fill_vectors() -> None:
    @njit("float32(float32[::1])")
    def total(x: Any) -> Any:
        t = np.float32(0)
        for i in range(x.size):
            t = radd(t, x[i])
        return t

    assert re.search(r"\bv?addps\s", assembly(total))
