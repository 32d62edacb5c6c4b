"""Train the digits network on a CUDA device, and compare with the same steps on the CPU.

On a machine without a GPU it says so and runs a few batches on the emulator, which interprets the
very kernels that a GPU would run (that needs the compiler: pip install 'everyo[cuda]').
"""

import os
import time

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits

BATCH = 32


def build(device):
    """A network, and a compiled training step for it, on a device."""
    layers = [eo.Linear(64, 64, seed=0), eo.ReLU(), eo.Linear(64, 10, seed=1)]
    model = eo.Sequential(*layers).to(device)
    optimizer = eo.Adam(model.parameters(), lr=0.003)
    loss_fn = eo.CrossEntropyLoss()

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def train(device, features, labels, batches):
    """The losses of so many batches, the trained parameters, and the seconds they took."""
    model, step = build(device)
    order = np.random.default_rng(0).permutation(len(features))
    losses = []
    start = time.perf_counter()
    for i in range(batches):
        chosen = order[np.arange(i * BATCH, (i + 1) * BATCH) % len(order)]
        losses.append(step(features[chosen], labels[chosen]))
    losses = [loss.item() for loss in losses]
    return losses, [p.numpy() for p in model.parameters()], time.perf_counter() - start


def main():
    batches = 400
    if not eo.cuda.is_available():
        print(f"No CUDA device: {eo.cuda.unavailable_reason()}")
        os.environ["EVERYO_CUDA"] = "emulator"
        if not eo.cuda.is_available():
            print(f"No emulator either: {eo.cuda.unavailable_reason()}")
            return
        print("Running a few batches on the emulator instead.")
    if eo.cuda.runtime_info()["emulated"]:
        batches = 3
    features, labels = load_uci_digits()
    features = (features / features.max()).astype(np.float32)
    here = train("cpu", features, labels, batches)
    there = train("cuda", features, labels, batches)
    device = eo.cuda.runtime_info()["devices"][0]["name"]
    print(
        f"{batches} batches of {BATCH}: cpu {here[2]:.2f} s, {device} {there[2]:.2f} s, first "
        "calls included"
    )
    print(f"loss on the cpu {here[0][-1]:.4f}, on {device} {there[0][-1]:.4f}")
    apart = max(float(np.abs(a - b).max()) for a, b in zip(here[1], there[1], strict=True))
    print(f"the parameters differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
