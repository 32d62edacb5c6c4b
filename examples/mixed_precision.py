"""Mixed precision: products in float16, everything else in float32, in one compiled step.

float16 has 11 bits and ends at 65504; gradients are often smaller than what it can hold. The scaler
multiplies the loss, divides the gradients again before the update, and leaves an update out when
something overflowed. On a CPU this is for trying out what a model will do on a device that is
faster in float16.
"""

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits


def main() -> None:
    features, labels = load_uci_digits()
    train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, seed=0)
    model = eo.Sequential(eo.Linear(64, 64, seed=0), eo.ReLU(), eo.Linear(64, 10, seed=1))
    optimizer = eo.Adam(model.parameters(), lr=0.003)
    loss_fn = eo.CrossEntropyLoss()
    scaler = eo.GradScaler(growth_interval=100)

    @eo.compile
    def train_step(x: eo.Tensor, y: np.ndarray) -> eo.Tensor:
        optimizer.zero_grad()
        with eo.autocast():
            loss = loss_fn(model(x), y)
        scaler.backward(loss)
        scaler.step(optimizer)
        scaler.update()
        return loss

    data = eo.ArrayDataset(train_x, train_y)
    loader = eo.DataLoader(data, 32, shuffle=True, drop_last=True, seed=0)
    for epoch in range(1, 11):
        losses = [train_step(eo.tensor(x), y).item() for x, y in loader]
        print(f"Epoch {epoch:2d}  loss={np.mean(losses):.4f}  scale={scaler.get_scale():.0f}")

    model.eval()
    with eo.no_grad(), eo.autocast():
        outputs = model(eo.tensor(test_x))
    print(f"Outputs are {outputs.dtype}, parameters {model[0].weight.dtype}")
    print(f"Test accuracy: {(outputs.argmax(axis=1) == test_y).mean():.1%}")


if __name__ == "__main__":
    main()
