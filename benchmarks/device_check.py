"""Everything that needs a GPU, in one script: `python -m benchmarks.device_check` (10 minutes at
most).

First correctness: the driver, random elementwise, row and column programs, products, sorting,
training steps and the exchange of arrays, each against NumPy on the host. Then figures: launch
cost, bandwidth of fused kernels as a share of a plain device copy, times of the benchmark workloads
beside torch, JAX and torch.compile where these are installed. Every part runs in a process of its
own with a time limit, since a fault on a device ends all that its process does there; what came of
it is printed and added to a file at once. Lines say OK, FAIL or SKIP; the exit status is 1 if
anything failed. On the emulator sizes are small, and figures mean nothing.

    python -m benchmarks.device_check                         # everything
    python -m benchmarks.device_check functions bandwidth     # some parts
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import everyo as eo
from benchmarks.compiled.__main__ import LaunchError, launch

BUDGET = 570.0  # seconds for everything
LIMIT = 120.0  # and for a part
GOAL = 0.85  # of the bandwidth of a plain copy
SKIPPED, FAILED = 3, 1  # exit statuses of a part
ROOT = Path(__file__).parents[1]


def run_part(name: str) -> int:
    """Run one part in this process and print what came of it."""
    start = time.perf_counter()
    try:
        found = PARTS[name]()
    except ImportError as error:
        print(f"SKIP {name}: {error}", flush=True)
        return SKIPPED
    except Exception as error:
        print(f"FAIL {name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        traceback.print_exc(limit=-3)
        return FAILED
    print(f"OK   {name}: {found} ({time.perf_counter() - start:.1f} s)", flush=True)
    return 0


def emulated() -> bool:
    return eo.cuda.runtime_info()["emulated"]


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
    return f"{eo.cuda.runtime_info()}; {os.cpu_count()} cores; {', '.join(out)}"


def driver() -> str:
    """Allocate, copy, launch, capture and give back, without anything of the compiler's."""
    from everyo.compile.cuda import toolchain

    runtime = eo.cuda.backend().runtime(0)
    text = "def kernel(p0, p1):\n    i = u32(cuda.threadIdx.x)\n    st(p1, i, ld(p0, i) + f32(1))\n"
    kernel = runtime.load(toolchain.compile_ptx(text, ("f32*", "f32*"), runtime.cc))
    places = [runtime.allocate(256) for _ in range(2)]
    x = np.arange(64, dtype=np.float32)
    runtime.upload(places[0], x)
    runtime.launch(kernel, 1, 64, places)
    replay = runtime.capture(lambda: runtime.launch(kernel, 1, 64, places[::-1]))
    np.testing.assert_array_equal(runtime.download(places[1], 256).view(np.float32), x + 1)
    np.testing.assert_array_equal(runtime.download(places[0], 256).view(np.float32), x)
    replay()
    np.testing.assert_array_equal(runtime.download(places[0], 256).view(np.float32), x + 2)
    for place in places:
        runtime.free(place)
    return "memory, copies, launches and graphs"


def on_device(values: Any) -> eo.Tensor:
    return eo.tensor(np.asarray(values, np.float32), device="cuda")


def median(run: Callable[[], Any], repeats: int = 30) -> float:
    """Median seconds of a call that ends with a synchronisation."""
    runtime = eo.cuda.backend().runtime(0)
    times = []
    for _ in range(3 if emulated() else repeats):
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
SHAPES = [(3, 31), (33, 130), (1000, 257)]


def functions() -> str:
    """Eager and compiled results on the device against the host, over a table of shapes."""
    worst = 0.0
    for name, function in FUNCTIONS.items():
        compiled = eo.compile(function)
        for shape in SHAPES[: 1 if emulated() else None]:
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
    losses = [(here(x, y).item(), there(x, y).item()) for _ in range(5 if emulated() else 20)]
    worst = max(abs(a - b) for a, b in losses)
    if worst > 1e-3:
        raise AssertionError(f"losses differ by {worst}: {losses}")
    return f"losses differ by at most {worst:.1e}, {losses[0][1]:.4f} -> {losses[-1][1]:.4f}"


def own_products() -> str:
    """Our own product kernel against the library's result."""
    from everyo.compile.cuda import gemm, toolchain
    from everyo.compile.cuda.runtime import Buffer, Gemm

    runtime = eo.cuda.backend().runtime(0)
    library = "cuBLAS found" if getattr(runtime, "blas", None) else "cuBLAS not found"
    one = (1, (0, 0, 0))
    out = []
    for m, n, k in ((65, 33, 17),) if emulated() else ((513, 257, 129), (4096, 4096, 4096)):
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
    return ", ".join(out) + f" ({library})"


def needs_a_gpu() -> None:
    """Other libraries have no emulator."""
    if emulated():
        raise ImportError("the emulated device exists for EveryO only")


def exchange_torch() -> str:
    """PyTorch shares the memory, both ways."""
    import torch

    needs_a_gpu()
    t = on_device(np.arange(8))
    shared = torch.as_tensor(t, device="cuda")
    shared += 1
    torch.cuda.synchronize()
    np.testing.assert_array_equal(t.numpy(), np.arange(8) + 1)
    through = torch.from_dlpack(t)
    through *= 2
    torch.cuda.synchronize()
    np.testing.assert_array_equal(t.numpy(), 2 * (np.arange(8) + 1))
    theirs = torch.arange(6.0, device="cuda").reshape(2, 3).T
    ours = eo.from_dlpack(theirs)
    ours += 1
    np.testing.assert_array_equal(ours.numpy(), theirs.cpu().numpy())
    np.testing.assert_array_equal(ours.numpy(), np.arange(1.0, 7).reshape(2, 3).T)
    with torch.cuda.stream(torch.cuda.Stream()):  # both ways, on a stream of its own
        later = torch.from_dlpack(on_device(np.ones(1 << 20)) * 3).sum()
        again = eo.from_dlpack(later.reshape(1) * 2)
    assert again.item() == 6 << 20, again.item()
    return "array interface and DLPack share bytes, both ways"


def exchange_cupy() -> str:
    """CuPy shares the memory."""
    import cupy

    needs_a_gpu()
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
    count = 1 if emulated() else 100
    eager = median(lambda: [x + y for _ in range(count)]) / count
    step = build("cuda", (64, 128, 10))
    data = batch((64, 128, 10), 32)
    for _ in range(5):
        step(*data)
    rows = len(step._latest.program.kernels)
    whole = median(lambda: step(*data))
    return f"{eager * 1e6:.1f} us an eager add, {whole * 1e6:.0f} us a step of {rows} launches"


def plain_copy(size: int) -> float:
    """Seconds of the driver's own copy of so many bytes on the device; of ours on the emulator."""
    runtime = eo.cuda.backend().runtime(0)
    source, target = (runtime.allocate(size) for _ in range(2))
    if emulated():
        runtime.upload(source, np.zeros(size, np.uint8))
        return median(lambda: runtime.upload(target, runtime.download(source, size)), 3)
    from cuda.bindings import driver

    times = []
    for _ in range(20):
        start = runtime.event()
        (status,) = driver.cuMemcpyDtoDAsync(target, source, size, runtime.stream.handle)
        assert int(status) == 0, status
        times.append(runtime.elapsed(start, runtime.event()))
    for place in (source, target):
        runtime.free(place)
    return sorted(times)[len(times) // 2]


def bandwidth() -> str:
    """Fused elementwise and reduction kernels against a plain copy on the device; the times are
    those of the kernels, between events."""
    n, width = (1 << 12, 1 << 6) if emulated() else (1 << 28, 1 << 12)
    plain = 8 * n / plain_copy(4 * n) / 1e9
    x, y = on_device(np.ones(n)), on_device(np.ones(n))
    rows = x.reshape(n // width, width)
    fused = eo.compile(lambda x, y: eo.tanh(x * y + x) * y)
    table = {
        "x * 1.5": (eo.compile(lambda x: x * 1.5), (x,), 8 * n),
        "fused elementwise": (fused, (x, y), 12 * n),
        "sum": (eo.compile(lambda x: x.sum()), (x,), 4 * n),
        "row sums": (eo.compile(lambda x: x.sum(axis=1)), (rows,), 4 * n),
        "column sums": (eo.compile(lambda x: x.sum(axis=0)), (rows,), 4 * n),
        "softmax rows": (eo.compile(lambda x: eo.softmax(x, axis=-1)), (rows,), 8 * n),
    }  # fmt: skip
    out = []
    for name, (function, args, moved) in table.items():
        seconds = sum(function.explain(*args, profile=True).seconds)
        rate = moved / seconds / 1e9
        goal = "" if rate >= GOAL * plain else " BELOW THE GOAL"
        out.append(f"{name} {rate:.0f} GB/s ({rate / plain:.0%}){goal}")
    return f"plain copy {plain:.0f} GB/s; " + ", ".join(out)


WORKLOADS = (
    "mlp-tiny", "mlp-small", "mlp-mid", "mlp-big", "gelu-1e7", "cross-entropy", "layer-norm",
    "gpt-small", "gpt-medium", "cnn", "residual", "pinn", "lstm",
)  # fmt: skip
SIDES = ("torch", "jax", "torch.compile")


def chosen_workloads() -> tuple[str, ...]:
    """All of them; one on the emulator."""
    return WORKLOADS[: 1 if emulated() else None]


def steps(side: str, seconds: float, report: Callable[[str], None]) -> dict[str, float]:
    """Median seconds of the workloads in one library, reported one by one, while time is left."""
    end, found = time.perf_counter() + seconds, dict[str, float]()
    if find_spec(side.split(".")[0]) is None:
        report(f"SKIP {side}: not installed")
        return found
    for name in chosen_workloads():
        left = end - time.perf_counter()
        if left < 5:
            report(f"SKIP {side} {name}: out of time")
            continue
        try:
            result = launch(side, name, os.cpu_count() or 1, None, "cuda", min(left, LIMIT))
        except LaunchError as error:
            report(f"FAIL {side} {name}: {error}")
            continue
        if result is None:
            report(f"SKIP {side} {name}: not written for it")
            continue
        found[name] = result[1]
        report(f"OK   {side} {name}: {result[1] * 1e6:.1f} us, first call {result[0]:.1f} s")
    return found


PARTS: dict[str, Callable[[], Any]] = {
    "versions": versions, "driver": driver, "functions": functions, "training": training,
    "own-products": own_products, "launch-cost": launches, "bandwidth": bandwidth,
    "exchange-torch": exchange_torch, "exchange-cupy": exchange_cupy,
}  # fmt: skip


def main() -> int:
    """Run the parts, then the workloads while time allows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}, steps (all)")
    parser.add_argument("--seconds", type=float, default=BUDGET)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/device.txt")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return run_part(options.part)
    chosen = options.parts or [*PARTS, "steps"]
    if unknown := set(chosen) - {*PARTS, "steps"}:
        parser.error(f"no parts {sorted(unknown)}")
    started = time.perf_counter()
    failed: list[str] = []
    options.output.parent.mkdir(exist_ok=True, parents=True)
    options.output.write_text("")

    def report(line: str) -> None:
        print(line, flush=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def left() -> float:
        return options.seconds - (time.perf_counter() - started)

    if not eo.cuda.is_available():
        report(f"no CUDA device: {eo.cuda.unavailable_reason()}")
        return FAILED
    for name in [n for n in PARTS if n in chosen]:
        command = [sys.executable, "-m", "benchmarks.device_check", "--part", name]
        limit = min(LIMIT, left())
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            report(f"FAIL {name}: more than {limit:.0f} s\n{said}".rstrip())
            failed.append(name)
            continue
        report(done.stdout.rstrip())
        if done.returncode not in (0, SKIPPED):
            report(f"FAIL {name}: exit status {done.returncode}")
            failed.append(name)
    if "steps" in chosen:
        mine = steps("everyo", left(), report)
        failed += [] if len(mine) == len(chosen_workloads()) else ["steps"]
        for i, side in enumerate(SIDES):
            theirs = steps(side, left() / (len(SIDES) - i), report)
            for name in theirs.keys() & mine.keys():
                report(f"     {name}: {theirs[name] / mine[name]:.2f} x as fast as {side}")
    report(f"{len(failed)} failed: {', '.join(failed) or 'none'}; {options.seconds - left():.0f} s")
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
