"""Real handwritten digits, from the data to the accuracy, with nothing hidden.

`everyo demo` runs the same training. Takes a few seconds:  python examples/digits.py
"""

import time

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits

EPOCHS = 15


def show(image: np.ndarray) -> None:
    """Print an 8x8 image with darker characters for more ink."""
    for row in image.reshape(8, 8):
        print("   " + "".join(" .:*#"[round(4 * ink)] * 2 for ink in row))


# 1,797 images of 8x8 pixels in [0, 1], as rows of 64, and the digit each one shows.
features, labels = load_uci_digits()
train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, test_size=0.2, seed=0)
print(f"{len(train_x)} digits to learn from, {len(test_x)} held out")

model = eo.Sequential(
    eo.Linear(64, 256, seed=0),
    eo.ReLU(),
    eo.Dropout(0.3, seed=1),
    eo.Linear(256, 10, seed=2),
)
print(f"{model.num_parameters()} parameters")

optimizer = eo.Adam(model.parameters())
loss_fn = eo.CrossEntropyLoss()
loader = eo.DataLoader(eo.ArrayDataset(train_x, train_y), batch_size=32, shuffle=True, seed=3)


@eo.compile  # the whole step becomes one program; without this line the same numbers come slower
def train_step(x, y):
    """One step of Adam on a batch; returns the mean loss of the batch."""
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


start = time.perf_counter()
train_step.warmup(eo.tensor(train_x[:32]), train_y[:32])
print(f"Compiled in {time.perf_counter() - start:.2f} s")

for epoch in range(1, EPOCHS + 1):
    optimizer.lr = 0.005 * (1 - (epoch - 1) / EPOCHS)  # smaller steps towards the end
    total = 0.0
    for x, y in loader:
        total += train_step(eo.tensor(x), y).item() * len(x)
    print(f"Epoch {epoch}/{EPOCHS}  loss={total / len(train_x):.4f}")


def seconds_per_step(step, x, y):
    """The best of many calls."""
    times = []
    for _ in range(100):
        begin = time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - begin)
    return min(times)


model.eval()  # no dropout from here on
with eo.no_grad():
    scores = model(eo.tensor(test_x))
    probabilities = eo.softmax(scores).numpy()

predicted = probabilities.argmax(axis=1)
right = predicted == test_y
print(f"Test accuracy: {right.mean():.1%} ({right.sum()} of {len(right)})")

wrong = np.flatnonzero(~right)
if wrong.size:
    worst = wrong[probabilities[wrong, test_y[wrong]].argmin()]
    print(f"The worst mistake: this {test_y[worst]} was read as {predicted[worst]}")
    show(test_x[worst])

model.train()
batch = eo.tensor(train_x[:32]), train_y[:32]
eager, compiled = (seconds_per_step(step, *batch) for step in (train_step.__wrapped__, train_step))
print(
    f"A step takes {1e6 * eager:.0f} us eagerly, {1e6 * compiled:.0f} us compiled: "
    f"{eager / compiled:.1f} times faster"
)
