"""Everything that needs a GPU, in one script: `python -m benchmarks.device_check` (10 minutes at
most).

First correctness: random elementwise, row and column programs, products, sorting, training steps
and the exchange of arrays, each against NumPy on the host. Then figures: launch cost, bandwidth of
fused kernels as a share of a plain device copy, step times beside torch, torch.compile and JAX
where these are installed. Every line says OK, FAIL or SKIP; the exit status is 1 if anything
failed.
"""

import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np

import everyo as eo

BUDGET = 570.0  # seconds for everything
GOAL = 0.85  # of the bandwidth of a plain copy
STARTED = time.perf_counter()
FAILED: list[str] = []


def check(name: str, run: Callable[[], Any]) -> None:
    """Run one step and print what came of it."""
    if time.perf_counter() - STARTED > BUDGET:
        print(f"SKIP {name}: out of time", flush=True)
        return
    start = time.perf_counter()
    try:
        found = run()
    except ImportError as error:
        print(f"SKIP {name}: {error}", flush=True)
    except Exception as error:
        FAILED.append(name)
        print(f"FAIL {name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        traceback.print_exc(limit=-3)
    else:
        print(f"OK   {name}: {found} ({time.perf_counter() - start:.2f} s)", flush=True)


def versions() -> str:
    """What is installed."""
    names = (
        "everyo numpy numba numba-cuda cuda-core cuda-bindings nvidia-nvvm nvidia-nvjitlink "
        "nvidia-cublas torch jax cupy-cuda13x"
    ).split()
    out = []
    for name in names:
        try:
            out.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            out.append(f"{name} absent")
    return f"{eo.cuda.runtime_info()}; {', '.join(out)}"


def on_device(values: Any) -> eo.Tensor:
    return eo.tensor(np.asarray(values, np.float32), device="cuda")


def median(run: Callable[[], Any], repeats: int = 30) -> float:
    """Median seconds of a call that ends with a synchronisation."""
    runtime = eo.cuda.backend().runtime(0)
    times = []
    for _ in range(repeats):
        runtime.synchronize()
        start = time.perf_counter()
        run()
        runtime.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


# Correctness


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: eo.gelu(x) * eo.sigmoid(x) + eo.sin(x) - eo.sqrt(eo.abs(x)),
    "rows": lambda x: eo.softmax(x, axis=-1) + eo.log_softmax(x * 0.5, axis=-1),
    "columns": lambda x: (x - x.mean(axis=0)) / (x.var(axis=0) + 1e-3).sqrt(),
    "extremes": lambda x: x.max(axis=1) - x.min(axis=1) + x.sum(),
    "products": lambda x: x @ x.T + (x.T @ x).sum(),
    "sorting": lambda x: eo.sort(x, axis=-1),
    "scans": lambda x: eo.cumsum(x, axis=-1),
    "views": lambda x: x.T[::-1, 1:].reshape(-1),
}
SHAPES = [(1, 1), (3, 31), (33, 130), (128, 1024), (1000, 257)]


def functions() -> str:
    """Eager and compiled results on the device against the host, over a table of shapes."""
    worst = 0.0
    for name, function in FUNCTIONS.items():
        compiled = eo.compile(function)
        for shape in SHAPES:
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            want = function(eo.tensor(x.astype(np.float64))).numpy()
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            for kind, run in (("eager", function), ("compiled", compiled), ("graph", compiled)):
                got = run(on_device(x)).numpy()
                error = float(np.abs(got - want).max(initial=0)) / scale
                worst = max(worst, error)
                if error > 2e-4:
                    raise AssertionError(f"{name} {kind} {shape}: error {error:.1e}")
    return f"largest error {worst:.1e} of the largest value"


def build(device: str, sizes: tuple[int, ...]) -> Callable[..., Any]:
    """A compiled training step of a multilayer perceptron."""
    layers: list[Any] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [eo.Linear(a, b, seed=i), eo.ReLU()]
    model = eo.Sequential(*layers[:-1]).to(device)
    optimizer, loss_fn = eo.Adam(model.parameters(), lr=1e-3), eo.CrossEntropyLoss()

    @eo.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def batch(sizes: tuple[int, ...], rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, sizes[0])).astype(np.float32)
    return x, rng.integers(0, sizes[-1], rows)


def training() -> str:
    """Losses of a training run on the device against the CPU."""
    sizes = (64, 128, 10)
    x, y = batch(sizes, 32)
    here, there = build("cpu", sizes), build("cuda", sizes)
    losses = [(here(x, y).item(), there(x, y).item()) for _ in range(20)]
    worst = max(abs(a - b) for a, b in losses)
    if worst > 1e-3:
        raise AssertionError(f"losses differ by {worst}: {losses}")
    return f"losses differ by at most {worst:.1e}, {losses[0][1]:.4f} -> {losses[-1][1]:.4f}"


def own_products() -> str:
    """Our own product kernel against the library's result."""
    from everyo.compile.cuda import gemm, toolchain
    from everyo.compile.cuda.runtime import Buffer, Gemm

    runtime = eo.cuda.backend().runtime(0)
    one = (1, (0, 0, 0))
    out = []
    for m, n, k in ((513, 257, 129), (4096, 4096, 4096)):
        p = Gemm(np.dtype(np.float32), m, n, k, False, k, False, n, n, (one, one))
        rng = np.random.default_rng(0)
        a, b = (on_device(rng.standard_normal(s)) for s in ((m, k), (k, n)))
        c = Buffer(runtime, 4 * m * n)
        text = gemm.kernel(p)
        code = runtime.load(toolchain.compile_ptx(text.text, text.params, runtime.cc))
        args = [a.data.address, b.data.address, c.address]
        seconds = median(
            lambda t=text, f=code, v=args: runtime.launch(f, t.blocks, t.threads, v), 10
        )
        got = runtime.download(c.address, 4 * m * n).view(np.float32).reshape(m, n)
        np.testing.assert_allclose(got, (a @ b).numpy(), rtol=1e-3, atol=1e-3)
        out.append(f"{m}x{n}x{k}: {2 * m * n * k / seconds / 1e12:.1f} Tflop/s")
    return ", ".join(out) + f" (cuBLAS {'found' if runtime.blas else 'not found'})"


def exchange_torch() -> str:
    """PyTorch shares the memory, both ways."""
    import torch

    t = on_device(np.arange(8))
    shared = torch.as_tensor(t, device="cuda")
    shared += 1
    torch.cuda.synchronize()
    np.testing.assert_array_equal(t.numpy(), np.arange(8) + 1)
    through = torch.from_dlpack(t)
    through *= 2
    torch.cuda.synchronize()
    np.testing.assert_array_equal(t.numpy(), 2 * (np.arange(8) + 1))
    return "array interface and DLPack share bytes"


def exchange_cupy() -> str:
    """CuPy shares the memory."""
    import cupy

    t = on_device(np.arange(8))
    cupy.asarray(t.data)[...] *= 3
    cupy.cuda.runtime.deviceSynchronize()
    np.testing.assert_array_equal(t.numpy(), 3 * np.arange(8))
    return "shares bytes"


# Figures


def launches() -> str:
    """Host cost of an eager op, and of a compiled call of many kernels."""
    x = on_device(np.ones(256))
    y = x + 1
    eager = median(lambda: [x + y for _ in range(100)]) / 100
    step = build("cuda", (64, 128, 10))
    data = batch((64, 128, 10), 32)
    for _ in range(5):
        step(*data)
    rows = len(step._latest.program.kernels)
    whole = median(lambda: step(*data))
    return f"{eager * 1e6:.1f} us an eager add, {whole * 1e6:.0f} us a step of {rows} launches"


def bandwidth() -> str:
    """Fused elementwise and reduction kernels against a plain copy on the device."""
    n = 1 << 26
    runtime = eo.cuda.backend().runtime(0)
    x, y = on_device(np.ones(n)), on_device(np.ones(n))
    rows = x.reshape(1 << 14, 1 << 12)
    copy = eo.compile(lambda x: x * 1.5)
    fused = eo.compile(lambda x, y: eo.tanh(x * y + x) * y)
    table = {
        "copy": (copy, (x,), 8 * n), "fused elementwise": (fused, (x, y), 12 * n),
        "sum": (eo.compile(lambda x: x.sum()), (x,), 4 * n),
        "softmax rows": (eo.compile(lambda x: eo.softmax(x, axis=-1)), (rows,), 8 * n),
        "column sums": (eo.compile(lambda x: x.sum(axis=0)), (rows,), 4 * n),
    }  # fmt: skip
    out, plain = [], 0.0
    for name, (function, args, moved) in table.items():
        for _ in range(3):
            function(*args)
        rate = moved / median(lambda f=function, a=args: f(*a)) / 1e9
        plain = plain or rate
        goal = "" if rate >= GOAL * plain or name == "copy" else " BELOW THE GOAL"
        out.append(f"{name} {rate:.0f} GB/s ({rate / plain:.0%}){goal}")
    runtime.synchronize()
    return ", ".join(out)


WORKLOADS = [((16, 32, 10), 32), ((784, 256, 128, 10), 128), ((784, 1024, 1024, 10), 256)]


def steps() -> str:
    """Training steps of the benchmark workloads."""
    out = []
    for sizes, rows in WORKLOADS:
        step, data = build("cuda", sizes), batch(sizes, rows)
        held = (eo.tensor(data[0], device="cuda"), eo.tensor(data[1], dtype="int64", device="cuda"))
        for _ in range(5):
            step(*held)
        out.append(
            f"{'-'.join(map(str, sizes))}/{rows}: "
            f"{median(lambda s=step, h=held: s(*h)) * 1e6:.0f} us"
        )
    return ", ".join(out)


def steps_torch(compiled: bool) -> str:
    """The same steps in PyTorch."""
    import torch

    out = []
    for sizes, rows in WORKLOADS:
        layers: list[Any] = []
        for a, b in pairwise(sizes):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1]).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        forward = torch.compile(model, mode="reduce-overhead") if compiled else model
        x, y = (torch.as_tensor(a).cuda() for a in batch(sizes, rows))

        def step(m: Any = forward, o: Any = optimizer, x: Any = x, y: Any = y) -> None:
            o.zero_grad()
            torch.nn.functional.cross_entropy(m(x), y).backward()
            o.step()
            torch.cuda.synchronize()

        for _ in range(10):
            step()
        out.append(f"{'-'.join(map(str, sizes))}/{rows}: {median(step) * 1e6:.0f} us")
    return ", ".join(out)


def steps_jax() -> str:
    """The same steps in JAX."""
    import jax
    import jax.numpy as jnp

    def loss(p: Any, x: Any, y: Any) -> Any:
        for w, b in p[:-1]:
            x = jax.nn.relu(x @ w + b)
        x = x @ p[-1][0] + p[-1][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def step(p: Any, m: Any, v: Any, t: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)

        def update(p: Any, m: Any, v: Any) -> Any:
            root = jnp.sqrt(v / (1 - 0.999**t)) + 1e-8
            return p - 1e-3 * m / (1 - 0.9**t) / root

        return value, jax.tree.map(update, p, m, v), m, v, t + 1

    fast = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    out = []
    for sizes, rows in WORKLOADS:
        rng = np.random.default_rng(0)
        p = [
            (jnp.asarray(rng.standard_normal((a, b)) * 0.05, jnp.float32), jnp.zeros(b))
            for a, b in pairwise(sizes)
        ]
        state = (p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), 1.0)
        x, y = map(jnp.asarray, batch(sizes, rows))
        times = []
        for _ in range(40):
            start = time.perf_counter()
            value, *state = fast(*state, x, y)
            value.block_until_ready()
            times.append(time.perf_counter() - start)
        out.append(f"{'-'.join(map(str, sizes))}/{rows}: {sorted(times[10:])[15] * 1e6:.0f} us")
    return ", ".join(out)


CHECKS: dict[str, Callable[[], Any]] = {
    "versions": versions, "functions": functions, "training": training,
    "own products": own_products, "exchange with torch": exchange_torch,
    "exchange with cupy": exchange_cupy, "launch cost": launches, "bandwidth": bandwidth,
    "training steps": steps, "training steps, torch": lambda: steps_torch(False),
    "training steps, torch.compile": lambda: steps_torch(True),
    "training steps, JAX": steps_jax,
}  # fmt: skip


def main() -> int:
    """Run every check that time allows."""
    if not eo.cuda.is_available():
        print(f"no CUDA device: {eo.cuda.unavailable_reason()}")
        return 1
    for name, run in CHECKS.items():
        check(name, run)
    print(f"{len(FAILED)} failed: {', '.join(FAILED) or 'none'}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
