"""`everyo demo`: a small network learns real handwritten digits and is tested on held-out ones.

`examples/digits.py` is the same program written out for reading.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits

__all__ = ["run_demo"]


def run_demo(*, epochs: int = 15, samples: int = 200) -> float:
    """Train for `epochs` on at most `samples` images per digit; return the test accuracy."""
    features, labels = load_uci_digits(samples_per_class=samples)
    train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, seed=0)
    print(f"{len(train_x)} handwritten digits to learn from, {len(test_x)} held out")

    model = eo.Sequential(
        eo.Linear(64, 256, seed=0), eo.ReLU(), eo.Dropout(0.3, seed=1), eo.Linear(256, 10, seed=2)
    )
    optimizer = eo.Adam(model.parameters())
    loss_fn = eo.CrossEntropyLoss()
    loader = eo.DataLoader(eo.ArrayDataset(train_x, train_y), 32, shuffle=True, seed=3)

    @eo.compile
    def train_step(x: eo.Tensor, y: np.ndarray) -> eo.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    began = time.perf_counter()
    batch = next(iter(loader))
    train_step.warmup(eo.tensor(batch[0]), batch[1])
    print(f"The training step compiled in {time.perf_counter() - began:.2f} s")

    began = time.perf_counter()
    for epoch in range(1, epochs + 1):
        optimizer.lr = 0.005 * (1 - (epoch - 1) / epochs)
        total = 0.0
        for x, y in loader:
            total += train_step(eo.tensor(x), y).item() * len(x)
        seconds = time.perf_counter() - began
        _progress(
            f"Epoch {epoch}/{epochs}  loss={total / len(train_x):.4f}  {seconds:.1f} s",
            last=epoch == epochs,
        )

    accuracy = _accuracy(model, test_x, test_y)
    print(f"Test accuracy: {accuracy:.1%} ({round(accuracy * len(test_y))} of {len(test_y)})")
    model.train()
    _report_speed(train_step, eo.tensor(batch[0]), batch[1])
    return accuracy


def _report_speed(step: eo.CompiledFunction, x: eo.Tensor, y: np.ndarray) -> None:
    """Compare the compiled step with the function it was made from."""
    eager, compiled = _seconds(step.__wrapped__, x, y), _seconds(step, x, y)
    print(
        f"A step takes {1e6 * eager:.0f} us eagerly, {1e6 * compiled:.0f} us compiled: "
        f"{eager / compiled:.1f} times faster"
    )


def _seconds(step: Callable[..., eo.Tensor], x: eo.Tensor, y: np.ndarray) -> float:
    """The best of many calls."""
    times = []
    for _ in range(100):
        began = time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - began)
    return min(times)


def _accuracy(model: eo.Module, features: np.ndarray, labels: np.ndarray) -> float:
    model.eval()
    with eo.no_grad():
        predicted = model(eo.tensor(features)).argmax(axis=1)
    return float((predicted == labels).mean())


def _progress(text: str, *, last: bool) -> None:
    """One line that is written over on a terminal; a line each time elsewhere."""
    if sys.stdout.isatty():
        print(f"\r{text}", end="\n" if last else "", flush=True)
    else:
        print(text, flush=True)
