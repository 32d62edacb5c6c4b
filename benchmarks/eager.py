"""Eager speed: forward and backward of a tiny network written in primitive ops.

The network is 16-32-10 with ReLU, a batch of 32 and cross-entropy spelled out (max, exp, sum, log).
EveryO, HIPS autograd, MyGrad and PyTorch run in one process, in rounds that take turns, so that
whatever else the machine does meets all of them; the table has the median of each and the ratio to
EveryO's. First every library's gradients are compared with the others'.

    pip install torch autograd mygrad
    python benchmarks/eager.py
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import everyo as eo

BATCH, INPUTS, HIDDEN, CLASSES = 32, 16, 32, 10
PEERS = ("autograd", "mygrad", "torch")
RESULTS = Path(__file__).parent / "results" / "eager.md"

Step = Callable[[], list[np.ndarray]]  # one forward and backward; the gradients of the parameters


def problem() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Inputs, one-hot targets and parameters, all float32."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((BATCH, INPUTS)).astype(np.float32)
    w1 = generator.standard_normal((INPUTS, HIDDEN)).astype(np.float32)
    w2 = generator.standard_normal((HIDDEN, CLASSES)).astype(np.float32)
    b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(CLASSES, np.float32)
    y = np.eye(CLASSES, dtype=np.float32)[generator.integers(0, CLASSES, BATCH)]
    return x, y, [w1, b1, w2, b2]


def everyo_step() -> Step:
    x, y, arrays = problem()
    xt, yt = eo.tensor(x), eo.tensor(y)
    w1, b1, w2, b2 = parameters = [eo.tensor(a, requires_grad=True) for a in arrays]

    def step() -> list[np.ndarray]:
        for p in parameters:
            p.grad = None
        h = eo.relu(xt @ w1 + b1)
        z = h @ w2 + b2
        z = z - z.max(1, keepdims=True)
        log_p = z - eo.log(eo.sum(eo.exp(z), 1, keepdims=True))
        (-eo.mean(eo.sum(log_p * yt, 1))).backward()
        return [p.grad for p in parameters]

    return step


def autograd_step() -> Step:
    import autograd
    import autograd.numpy as anp

    x, y, arrays = problem()

    def loss(parameters: list[np.ndarray]) -> np.ndarray:
        w1, b1, w2, b2 = parameters
        h = anp.maximum(anp.dot(x, w1) + b1, 0)
        z = anp.dot(h, w2) + b2
        z = z - anp.max(z, 1, keepdims=True)
        log_p = z - anp.log(anp.sum(anp.exp(z), 1, keepdims=True))
        return -anp.mean(anp.sum(log_p * y, 1))

    both = autograd.value_and_grad(loss)
    return lambda: both(arrays)[1]


def mygrad_step() -> Step:
    import mygrad as mg

    x, y, arrays = problem()

    def step() -> list[np.ndarray]:
        w1, b1, w2, b2 = parameters = [mg.tensor(a) for a in arrays]
        h = mg.maximum(mg.matmul(x, w1) + b1, 0)
        z = mg.matmul(h, w2) + b2
        z = z - mg.max(z, axis=1, keepdims=True)
        log_p = z - mg.log(mg.sum(mg.exp(z), axis=1, keepdims=True))
        (-mg.mean(mg.sum(log_p * y, axis=1))).backward()
        return [p.grad for p in parameters]

    return step


def torch_step() -> Step:
    import torch

    torch.set_num_threads(1)  # nothing here is worth a second thread, and waking one costs
    x, y, arrays = problem()
    xt, yt = torch.tensor(x), torch.tensor(y)
    w1, b1, w2, b2 = parameters = [torch.tensor(a, requires_grad=True) for a in arrays]

    def step() -> list[np.ndarray]:
        for p in parameters:
            p.grad = None
        h = torch.relu(xt @ w1 + b1)
        z = h @ w2 + b2
        z = z - z.max(1, keepdim=True)[0]
        log_p = z - torch.log(torch.sum(torch.exp(z), 1, keepdim=True))
        (-torch.mean(torch.sum(log_p * yt, 1))).backward()
        return [p.grad for p in parameters]

    return step


def measure(steps: dict[str, Step], rounds: int, calls: int) -> dict[str, float]:
    """The median time of a step in microseconds, over rounds in which the libraries take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(50):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            for _ in range(calls):
                start = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(t) for name, t in times.items()}


def table(medians: dict[str, float]) -> str:
    """The result as a page."""
    own = medians["everyo"]
    rows = [f"| {name} | {t:.0f} | {t / own:.2f} |" for name, t in medians.items()]
    packages = ["numpy", *(n for n in PEERS if n in medians)]
    versions = [f"{n} {importlib.metadata.version(n)}" for n in packages]
    lines = [
        "# Eager: forward and backward of the tiny network in primitive ops",
        "",
        f"`python benchmarks/eager.py`: network {INPUTS}-{HIDDEN}-{CLASSES}, batch {BATCH}, "
        "float32; medians of rounds that take turns in one process.",
        "",
        f"Machine: {cpu_name()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}. PyTorch on one thread.",
        "",
        "| library | µs per step | times EveryO's |",
        "| --- | ---: | ---: |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def cpu_name() -> str:
    """The name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def without_tuning() -> None:
    """Start again without the variables that tune OpenBLAS: they would slow NumPy's users down."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    if len(kept) < len(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], kept)


def main() -> None:
    without_tuning()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="calls per library and round")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    makers = {"autograd": autograd_step, "mygrad": mygrad_step, "torch": torch_step}
    steps = {"everyo": everyo_step()}
    for name in PEERS:
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: left out")
        else:
            steps[name] = makers[name]()
    want = steps["everyo"]()
    for name, step in steps.items():
        for ours, theirs in zip(want, step(), strict=True):
            np.testing.assert_allclose(np.asarray(theirs), ours, rtol=1e-4, atol=1e-5, err_msg=name)
    page = table(measure(steps, options.rounds, options.calls))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
