"""Random user programs, eager and compiled, over four calls with all their state.

A program is a list of instructions on a stack of tensors: arithmetic, views, reductions, products,
random numbers, in-place writes, backward passes, optimizer steps. It is run eagerly, by its trace
and (fewer, as each is compiled anew) as machine code; results, parameters, gradients, optimizer
state, buffers and random state must agree after every call. A failure prints the program.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from traced import interpreted

import everyo as eo
from everyo.compile.differences import differences
from everyo.compile.tracing import trace_call

ROWS, COLUMNS = 3, 4  # every value is a matrix of this shape, or with axes of size 1
Stack = list[Any]


class Machine:
    """The state of one run: a parameter matrix, a bias, a buffer, an optimizer."""

    def __init__(self) -> None:
        g = np.random.default_rng(1)
        eo.manual_seed(11)
        self.w = eo.tensor(g.normal(size=(COLUMNS, COLUMNS)) * 0.5, requires_grad=True)
        self.b = eo.tensor(g.normal(size=(1, COLUMNS)), requires_grad=True)
        self.buffer = eo.tensor(g.normal(size=(ROWS, COLUMNS)))
        self.opt = eo.optim.Adam([self.w, self.b], lr=0.01)
        self.index = np.array([2, 0, 2])

    def look(self) -> list[Any]:
        """All state, copied."""
        arrays = [self.w.data, self.b.data, self.buffer.data, self.w.grad, self.b.grad]
        arrays += [a for slot in self.opt.state_dict()["state"].values() for a in slot]
        return [None if a is None else np.array(a) for a in (*arrays, eo.get_rng_state())]


def full(a: Any) -> Any:
    return a + eo.zeros((ROWS, COLUMNS), dtype="float64")


def write_buffer(m: Machine, a: Any) -> Any:
    with eo.no_grad():
        m.buffer *= 0.9
        m.buffer += 0.1 * eo.tanh(a.detach())
    return m.buffer * 1.0


def write_row(m: Machine, a: Any) -> Any:
    with eo.no_grad():
        m.buffer[1] = full(eo.tanh(a.detach()))[0]
        m.buffer.data[:, ::2] *= 0.5
    return m.buffer[1:].sum(axis=0, keepdims=True)


def write_view(m: Machine, a: Any) -> Any:
    view = m.buffer.data.T[1:3]
    view[...] = view * 0.5 + 0.25
    return a + m.buffer


def rebind(m: Machine, a: Any) -> Any:
    m.w.data = m.w.data * 0.9
    return a


def backward(m: Machine, a: Any) -> Any:
    (eo.tanh(full(a)) @ m.w + m.b).sum().backward()
    return a


def use_gradient(m: Machine, a: Any) -> Any:
    return a if m.b.grad is None else a + eo.as_tensor(m.b.grad)


def scale_gradient(m: Machine, a: Any) -> Any:
    if m.b.grad is not None:
        m.b.grad *= 0.5
    return a


def step(m: Machine, a: Any) -> Any:
    m.opt.step()
    return a


def zero(m: Machine, a: Any) -> Any:
    m.opt.zero_grad()
    return a


def slope(m: Machine, a: Any) -> Any:
    return eo.grad(lambda t: (eo.tanh(t) ** 2 * m.b).sum())(a)


def schedule(m: Machine, a: Any) -> Any:
    m.opt.lr = m.opt.lr * 0.9
    return a


ONE: dict[str, Callable[[Machine, Any], Any]] = {
    "tanh": lambda m, a: eo.tanh(a), "exp": lambda m, a: eo.exp(-eo.abs(a)),
    "sqrt": lambda m, a: eo.sqrt(eo.abs(a) + 0.5), "negative": lambda m, a: -a,
    "scale": lambda m, a: 1.5 * a - 0.25, "cube": lambda m, a: eo.tanh(a) ** 3,
    "rows": lambda m, a: a.sum(axis=1, keepdims=True), "columns": lambda m,
    a: a.mean(axis=0, keepdims=True),
    "all": lambda m, a: a.mean(keepdims=True), "largest": lambda m, a: a.max(axis=1, keepdims=True),
    "softmax": lambda m, a: eo.softmax(full(a), axis=1), "variance": lambda m,
    a: a.var(axis=1, keepdims=True),
    "flip": lambda m, a: full(a)[::-1, ::-1], "row": lambda m, a: full(a)[1:2],
    "column": lambda m, a: full(a)[:, 2:3], "step": lambda m,
    a: eo.repeat(full(a)[:, ::2], 2, axis=1),
    "turn": lambda m, a: full(a).T.reshape(ROWS, COLUMNS), "take": lambda m, a: full(a)[m.index],
    "roll": lambda m, a: eo.roll(full(a), 1, axis=1), "cumsum": lambda m, a: full(a).cumsum(axis=1),
    "sort": lambda m, a: eo.sort(full(a), axis=1), "product": lambda m, a: eo.tanh(full(a)) @ m.w,
    "bias": lambda m, a: a + m.b, "buffer": lambda m, a: a * m.buffer, "detach": lambda m,
    a: a.detach(),
    "single": lambda m, a: a.astype("float32").astype("float64"), "sign": lambda m,
    a: (a > 0.1) * a,
    "join": lambda m, a: eo.concatenate([full(a)[:2], eo.tanh(full(a))[:1]]),
    "random": lambda m, a: a + eo.tensor(eo.rand(1, COLUMNS), dtype="float64"),
    "dropout": lambda m, a: full(a) * (eo.tensor(eo.rand(ROWS, COLUMNS), dtype="float64") > 0.5),
    "write buffer": write_buffer, "write row": write_row, "write view": write_view,
    "rebind": rebind,
    "backward": backward, "use gradient": use_gradient, "scale gradient": scale_gradient,
    "optimizer": step, "zero": zero, "slope": slope, "schedule": schedule,
}  # fmt: skip
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a,
    b: eo.tanh(a) * b,
    "divide": lambda a, b: a / (b * b + 1.0), "maximum": eo.maximum, "choose": lambda a,
    b: eo.where(a > b, a, b * 0.5),
    "inner": lambda a, b: full(a) @ eo.tanh(full(b)).T @ full(b),
}  # fmt: skip

instruction = st.one_of(
    st.tuples(st.sampled_from(sorted(ONE)), st.integers(0, 5)),
    st.tuples(st.sampled_from(sorted(TWO)), st.integers(0, 5), st.integers(0, 5)),
)
programs = st.lists(instruction, min_size=1, max_size=30)


def program(instructions: list[tuple]) -> Callable[[Machine], Callable[..., Any]]:
    """The user's function of one machine, from a list of (name, positions on the stack)."""

    def of(m: Machine) -> Callable[..., Any]:
        def function(x: Any, y: Any) -> Any:
            stack = [x, y]
            for name, *at in instructions:
                operands = [stack[-1 - k % len(stack)] for k in at]
                stack.append(ONE[name](m, *operands) if name in ONE else TWO[name](*operands))
            return stack[-1].detach(), [t.detach() * 1.0 for t in stack[2:5]]

        return function

    return of


def agree(got: Any, want: Any, what: str) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if b is None or a is None:
            assert a is None and b is None, f"{what} {i}: {a!r}, eager {b!r}"
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{what} {i}"
        with np.errstate(invalid="ignore"):
            scale = float(np.abs(b[np.isfinite(b)]).max(initial=0)) if b.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(
            a, b, rtol=1e-6, atol=1e-7 * max(1.0, scale), err_msg=f"{what} {i}"
        )


def run(instructions: list[tuple], wrap: Callable[[Any], Any], calls: int = 4) -> list[Any]:
    """Results and state after each call."""
    machine = Machine()
    function = wrap(program(instructions)(machine))
    out, held = [], []
    with np.errstate(all="ignore"):
        for k in range(calls):
            g = np.random.default_rng(k)
            x = eo.tensor(g.normal(size=(ROWS, COLUMNS)))
            y = eo.tensor(g.normal(size=(1, COLUMNS)))
            last, others = function(x, y)
            results = [last, *others]
            held.append([(t, np.array(t.data)) for t in others])
            out.append(
                [[np.array(t.data) for t in results], machine.look(), [x.numpy(), y.numpy()]]
            )
    for pairs in held:  # what was returned stays as it was
        for t, before in pairs:
            np.testing.assert_array_equal(t.data, before)
    return out


def same_everywhere(instructions: list[tuple], wrap: Callable[[Any], Any]) -> None:
    want = run(instructions, lambda f: f)
    got = run(instructions, wrap)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        for what, left, right in zip(("result", "state", "argument"), a, b, strict=True):
            agree(left, right, f"call {k}, {what}")


RELAXED = dict(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)


@settings(max_examples=150, **RELAXED)
@given(programs)
def test_the_trace_of_a_random_program_equals_eager(instructions):
    same_everywhere(instructions, interpreted)


@settings(max_examples=100, **RELAXED)
@given(programs)
def test_the_optimised_trace_of_a_random_program_equals_eager(instructions):
    same_everywhere(instructions, lambda f: interpreted(f, optimised=True))


@settings(max_examples=8, **RELAXED)
@given(st.lists(instruction, min_size=1, max_size=8))
def test_a_random_program_compiled_equals_eager(instructions):
    same_everywhere(instructions, eo.compile)


@settings(max_examples=60, **RELAXED)
@given(programs, programs)
def test_a_second_trace_is_the_first_node_by_node_and_nothing_else_is(instructions, others):
    machine = Machine()
    leaves = [eo.tensor(np.ones((ROWS, COLUMNS))), eo.tensor(np.ones((1, COLUMNS)))]

    def trace(instructions: list[tuple], table: Any = None) -> Any:
        function = program(instructions)(machine)
        return trace_call("f", lambda values: function(*values), leaves, table)

    with np.errstate(all="ignore"):
        first = trace(instructions)
        made = first.table.count
        assert differences(first, trace(instructions, first.table)) is None
        assert first.table.count == made
        other = trace(others, first.table)
    texts = [str(replace(t.graph, lines={})) for t in (first, other)]
    alike = texts[0] == texts[1] and len(first.effects) == len(other.effects)
    assert (differences(first, other) is None) == alike


@pytest.mark.slow
@seed(0)
@settings(max_examples=3000, **{**RELAXED, "derandomize": False})
@given(programs)
def test_the_traces_of_many_random_programs_equal_eager(instructions):
    same_everywhere(instructions, interpreted)


@pytest.mark.slow
@seed(1)
@settings(max_examples=400, **{**RELAXED, "derandomize": False})
@given(programs)
def test_many_random_programs_compiled_equal_eager(instructions):
    same_everywhere(instructions, eo.compile)


@pytest.mark.parametrize("name", sorted(ONE))
def test_every_instruction_alone_and_twice_traced_equals_eager(name):
    same_everywhere([(name, 0)], interpreted)
    same_everywhere(
        [("add", 0, 1), (name, 0), ("multiply", 0, 1), (name, 0), (name, 1)], interpreted
    )
