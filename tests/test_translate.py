"""The translator of kernel texts: it makes of them what Numba makes of them, bit for bit."""

import hashlib
import weakref

import numpy as np
import pytest
from ir_programs import random_graph

from everyo.compile import code, cpu, prelude
from everyo.compile.emit import HEAD
from everyo.compile.ir import IRError
from everyo.compile.translate import translate


def by_numba(text, keep=False):
    """A kernel compiled by Numba."""
    from numba import cfunc

    names = prelude.scope(text)
    exec(text, names)
    kernel = names["kernel"]
    kernel.__name__ = kernel.__qualname__ = f"k{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    made = cfunc(prelude.KERNEL, error_model="numpy")(kernel)
    return code.Function(made.address, made)


def results(function, inputs, count, dtype, chunk=0, chunks=1):
    """What a kernel leaves in its second array, for numbers in its first."""
    given, out = np.array(inputs), np.zeros(count, dtype)
    table = np.array([given.ctypes.data, out.ctypes.data, len(given)], np.int64)
    function.native()(table.ctypes.data, chunk, chunks)
    return out


INTEGERS = [7, -7, 0, 3, -3, 2**40, -(2**40), 2**62, -1, 1]
LOOP = "    for i in range(usz(0), usz(P[2])):\n        x = ld0(p_i64(P[0]), i)\n"


def whole(*lines):
    """A kernel over int64 numbers x that stores y."""
    body = "".join(f"        {line}\n" for line in lines)
    return f"{HEAD}\n{LOOP}{body}        st1(p_i64(P[1]), i, y)\n"


TEXTS = {
    "arithmetic": whole("y = (x + 3) * 2 - (x & 12) + (x | 5) - (x ^ 9)"),
    "division rounds down": whole("y = x // 5 + x // -3"),
    "a remainder has the divisor's sign": whole("y = x % 5 * 100 + x % -7"),
    "division by zero is 0": whole("y = 1000 // x + 10 % (x - 3)"),
    "unsigned division": whole("y = i64(usz(x) // usz(10) + usz(x) % usz(7))"),
    "unsigned comparison": whole("y = i64(usz(x) > usz(5))"),
    "shifts": whole("y = (x >> 3) + i64(u64(x) >> u64(60)) + (x << 2)"),
    "negation": whole("y = -x"),
    "narrow words widen": whole("a = i32(x)", "y = a * a + 1"),
    "a narrow cast cuts": whole("y = i64(i32(x * 3))"),
    "bools": whole("a = x > 0", "b = x < 5", "y = i64(a & b) + i64(a | b) * 10 + i64(a ^ b) * 100"),
    "not": whole("y = i64(not (x > 0)) + i64(not x)"),
    "a word as a condition": whole("y = 0", "if x:", "    y = 1"),
    "minimum and maximum": whole("y = min(x, 3) + max(x, i64(2)) + i64(min(usz(x), usz(9)))"),
    "one of two": whole("y = x * 2 if x > 1 else -x"),
    "and before or": whole("y = 1 if x > 0 and x < 5 or x == -7 else 0"),
    "what is not needed is not evaluated": whole(
        "y = 0", "if x > 0 and peek(P[0]) == 7 or x == 0:", "    y = 1"
    ),
    "an or as a value": whole("a = x > 2 or x < -5", "y = i64(a)"),
    "if, elif, else": whole(
        "y = 0", "if x > 5:", "    y = 1", "elif x > 0:", "    y = 2", "else:", "    y = 3"
    ),
    "while and break": whole(
        "y, n = 0, x", "while n > 0:", "    n = n // 2", "    y += 1", "    if y == 9:",
        "        break",
    ),
    "continue": whole(
        "y = 0", "for k in range(8):", "    if k % 3 == 1:", "        continue", "    y = y * 2 + k"
    ),
    "a range with a step": whole("y = 0", "for k in range(2, 30, 7):", "    y = y * 31 + k"),
    "a range of one number": whole("y = 0", "for k in range(4):", "    y += k * k"),
    "turns abreast": whole("y = 1", "for k in abreast(2, 9):", "    y = y * 31 + k"),
    "narrow words compare": whole(
        "a, b = i32(x), i32(x * 3)", "y = i64(a < b) + i64(a == b) * 2 + i64(a >= b) * 4",
    ),
    "an empty range": whole("y = 5", "for k in range(x, x):", "    y = 6"),
    "a changed counter": whole(
        "y = 0", "for k in range(5):", "    y += k", "    k = 100", "y += k"
    ),
    "names that are exchanged": whole("a, b = x, x + 1", "a, b = b, a", "y = a * 3 + b"),
    "halves of a word": whole("y = i64(mulhi(u64(x), u64(12345678901234567890)))"),
    "words that wrap": whole("y = wadd(wmul(x, x), wsub(x, wneg(x)))"),
    "floats from integers": whole("y = i64(f64(x) * f64(0.5)) + i64(f32(x) / f32(4.0))"),
    "floats from words without a sign": whole("y = i64(f64(u64(x) >> u64(1)))"),
    "halves": whole("y = i64(from_f16(f16(f32(x % 1000) * f32(0.37))) * f32(1000.0))"),
    "comparisons with NaN": whole(
        "a = f64(x) * f64(np.inf)", "b = a - a",
        "y = i64(b == b) + i64(b != b) * 2 + i64(b < b) * 4",
    ),
    "sums of pairs": whole(
        "t, e = f64(0.0), f64(0.0)", "for k in range(9):", "    t, e = pair_add(t, e, f64(x))",
        "y = i64(pair_total(t, e) / f64(3.0))",
    ),
    "an early return": f"{HEAD}\n    if P[2] > 3:\n        poke(P[1], 5)\n        return\n"
    "    poke(P[1], 6)\n",
    "stores through the table": f"{HEAD}\n    P[2] = P[2] + 1\n    poke(P[1], P[2])\n",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_language_means_what_numba_says(name):
    text = TEXTS[name]
    ours, theirs = code._native(text, False), by_numba(text)
    for inputs in (INTEGERS, [1], [5, 4]):
        got = results(ours, inputs, len(inputs), np.int64)
        want = results(theirs, inputs, len(inputs), np.int64)
        assert got.tolist() == want.tolist()


def test_loops_abreast_say_so_to_llvm_and_no_others():
    body = "    for i in {}(usz(0), usz(P[2])):\n        st1(p_i64(P[1]), i, ld0(p_i64(P[0]), i))\n"
    text = HEAD + "\n" + "".join(body.format(walk) for walk in ("abreast", "range", "abreast"))
    lines = str(translate(text, "kernel", "")).splitlines()
    assert sum("!llvm.loop" in line for line in lines) == 2
    assert sum("llvm.loop.interleave.count" in line for line in lines) == 1


def bits(a):
    """The bits of an array, all NaN alike: nobody promises which one an operation gives."""
    if a.dtype.kind == "f":
        a = np.where(np.isnan(a), a.dtype.type(np.nan), a)
    return a.tobytes()


@pytest.mark.parametrize("mood", ["exact", "odd"])
def test_programs_are_the_same_bits_by_numba(mood, monkeypatch):
    """Whatever the printers write: random programs, both ways."""
    cases = [random_graph(seed, 8, mood) for seed in range(4)]

    def finals():
        for graph, given in cases:
            arrays = [cpu.like(a) for a in given]  # programs may write into them
            yield [bits(a) for a in (*cpu.Program(graph)(arrays), *arrays)]

    ours = list(finals())
    monkeypatch.setattr(code.NATIVE, "known", weakref.WeakValueDictionary())
    monkeypatch.setattr(code.NATIVE, "make", by_numba)
    theirs = list(finals())
    assert len(code.NATIVE.known) > 10
    assert ours == theirs


def test_llvm_links_where_our_linker_does_not():
    """On macOS, on Windows, and for whatever relocation is new."""
    import llvmlite.binding as llvm

    for name in ("arithmetic", "halves", "while and break"):
        text = TEXTS[name] + "    # by LLVM\n"
        module, made = code.compiled(text)
        stored = llvm.ObjectFileRef.from_data(made.code)
        ways = (
            lambda engine, module=module: engine.add_module(module),
            lambda engine, stored=stored: engine.add_object_file(stored),
        )
        linked = [code._linked_by_llvm(made.symbol, add) for add in ways]
        assert linked[0].owner is not linked[1].owner  # one engine has no two of one name
        functions = [code._native(TEXTS[name], False), *linked]
        want, *got = (results(f, INTEGERS, len(INTEGERS), np.int64).tolist() for f in functions)
        assert got == [want, want]


WRONG = {
    "a float32 beside a float64": "y = f32(1.0) + f64(2.0)",
    "a float beside a bare number": "y = f32(1.0) * 2.0",
    "a word beside a number": "y = usz(1) + 1",
    "a word beside an int64": "y = usz(1) + P[2]",
    "a variable of two types": "y = f32(1.0)\n    y = f64(1.0)",
    "a string": "y = 'a'",
    "a list": "y = [1]",
    "an unknown name": "y = missing(1)",
    "a power": "y = P[2] ** 2",
    "a chain of comparisons": "y = 0 < P[2] < 3",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_kernel_is_an_error_that_shows_it(name):
    with pytest.raises((IRError, KeyError)):
        code.compiled(f"{HEAD}\n    {WRONG[name]}\n")
