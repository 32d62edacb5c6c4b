"""What happens to a function under `@eo.compile`: every stage of one small training step, printed.

Run it and read from the top. Each stage is made by one module of `everyo/compile/`, named in its
heading; each is data that can be printed, checked and tested by itself. The step is that of one
layer, so that every stage fits on a screen.
"""

import numpy as np

import everyo as eo
from everyo.compile import passes, rows

WIDTH = 100


def heading(number: int, title: str, module: str, text: str) -> None:
    """A rule, the title and what there is to see."""
    print(f"\n{f' {number}. {title} ({module}) ':=^{WIDTH}}")
    print("\n".join(f"# {line.strip()}" for line in text.strip().splitlines()), end="\n\n")


def training_step() -> tuple:
    """A model, and one step of fitting it, not compiled."""
    eo.manual_seed(0)
    model = eo.nn.Linear(16, 8)
    optimizer = eo.optim.SGD(model.parameters(), lr=0.1)

    def step(x: eo.Tensor, y: eo.Tensor) -> eo.Tensor:
        optimizer.zero_grad()
        loss = ((eo.tanh(model(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def batch(seed: int) -> tuple[eo.Tensor, eo.Tensor]:
    """Inputs and targets, the same for the same seed."""
    generator = np.random.default_rng(seed)
    x, y = (generator.normal(size=(512, n)).astype(np.float32) for n in (16, 8))
    return eo.tensor(x), eo.tensor(y)


def main() -> None:
    """Compile the step, print its stages, and compare it with the step run eagerly."""
    model, step = training_step()
    compiled = eo.compile(step)
    x, y = batch(0)

    heading(
        1, "The trace", "trace.py, builder.py, symbol.py",
        """compiled(x, y) ran the Python function once on arrays that record. This is all that the
        function did: the forward pass, backward() and the update of the parameters alike, because
        all of it is the same engine. Inputs are the arguments, the parameters and the learning
        rate, so that changing `optimizer.lr` needs no new trace. `write` replaces a parameter at
        the very end. Behind # is the line of your code that a value comes from.""",
    )  # fmt: skip
    graph = compiled.graph(x, y)
    print(graph)

    heading(
        2, "The passes", "passes.py, rules.py",
        """Functions from a graph to a graph of the same meaning, bit for bit: constants are folded,
        casts and reshapes of reshapes disappear, what nobody reads goes. Only rewrites that hold
        for every IEEE number are made: x * 0 stays x * 0, because x may be NaN.""",
    )  # fmt: skip
    for one in passes.PIPELINE:
        before, graph = len(str(graph).splitlines()), one(graph)
        print(f"# {one.__name__:<20} {before:>4} lines -> {len(str(graph).splitlines())}")
    print(f"\n{graph}")

    heading(
        3, "The groups", "fuse.py",
        """Which operations share a kernel. Operations join where it saves reading and writing
        memory: chains of elementwise work, reductions with what they reduce and with what uses
        them row by row. A matrix product stands alone, it goes to BLAS. What only lives inside a
        group never reaches memory.""",
    )  # fmt: skip
    plan = rows.Plan(graph, jit=False)
    print(plan.schedule)

    heading(
        4, "The loops", "loops.py, program.py",
        """Each group as a loop nest over the elements of its arrays, with sizes, strides and
        partial sums spelled out. Reductions go by chunks that depend on the shapes alone, so that
        the result has the same bits on any number of threads.""",
    )  # fmt: skip
    for kernel in plan.lowered.values():
        print(kernel, end="\n\n")

    heading(
        5, "The kernels", "emit.py, prelude.py, math.py",
        """The loops as Python text, which Numba turns into machine code. Names of buffers are
        positions, so two layers of one shape share a kernel. f32(...) matters: a bare 1.0 would be
        float64. The same text also runs as plain Python, which is how tests compare it.""",
    )  # fmt: skip
    print(compiled.source(x, y))

    heading(
        6, "The rows", "rows.py, memory.py, native.py, cpu.py",
        """The program: a table that one native executor walks without Python in between. Each row
        calls a kernel, or BLAS, with a table of addresses. Values between rows lie in one block of
        memory, planned ahead. Checks of values come before the first row that writes state, so
        that a call that fails has changed nothing.""",
    )  # fmt: skip
    for i, (row, (_, _, chunks, parallel)) in enumerate(zip(plan.kernels, plan.rows, strict=True)):
        shapes = ", ".join("x".join(map(str, s)) or "a number" for s in row.shapes)
        how = "on several threads" if parallel else "on one thread"
        print(f"row {i}: {row.name:<32} {chunks} chunk(s) {how}; arrays: {shapes}")
    print(f"memory between rows: {plan.arena_bytes} bytes")

    heading(
        7, "The account", "explain.py",
        """The same rows with their times, measured on copies of the state. `share` is the part of
        the whole step; `of peak` compares with what this machine's memory or its products reach.
        compiled.explain(x, y).save("step.svg") draws the graph with its groups.""",
    )  # fmt: skip
    print(compiled.explain(x, y, profile=True))

    heading(
        8, "The calls", "api.py, guards.py, entry.py, launch.py",
        """So far nothing has run: the parameters are untouched. The first call runs the program,
        the second traces once more, without compiling, to find Python state that guards cannot
        see, and from the third on one generated function checks the guards and launches.""",
    )  # fmt: skip
    other, eager = training_step()
    equal = []
    for k in range(5):
        mine, theirs = compiled(*batch(k)), eager(*batch(k))
        losses = f"loss {mine.item():.6f}, eager {theirs.item():.6f}"
        print(f"call {k}: {losses}, {compiled.cache_info()}")
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            equal += np.isclose(p.data, q.data, rtol=1e-5, atol=1e-6).reshape(-1).tolist()
    print(f"\nParameters that agree with eager code: {100 * np.mean(equal):.1f}%")


if __name__ == "__main__":
    main()
