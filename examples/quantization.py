"""int8 weights: train in float32, keep a quarter of the bytes, lose almost nothing.

Each output of a `Linear` layer gets a scale of its own; its weights become whole numbers from -127
to 127. Activations stay float32.
"""

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits


def main() -> None:
    features, labels = load_uci_digits()
    train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, seed=0)
    model = eo.Sequential(eo.Linear(64, 128, seed=0), eo.ReLU(), eo.Linear(128, 10, seed=1))
    trainer = eo.Trainer(model, eo.Adam(model.parameters(), lr=0.003), eo.CrossEntropyLoss())
    loader = eo.DataLoader(eo.ArrayDataset(train_x, train_y), 32, shuffle=True, seed=0)
    trainer.fit(loader, epochs=10, verbose=False)

    small = eo.quantize_dynamic(model)
    full_bytes = sum(p.data.nbytes for p in model.parameters())
    small_bytes = sum(array.nbytes for array in small.state_dict().values())
    print(f"{full_bytes} bytes of weights become {small_bytes}")

    exact, rounded = predicted(model, test_x), predicted(small, test_x)
    print(f"Accuracy in float32: {(exact == test_y).mean():.1%}")
    print(f"Accuracy in int8: {(rounded == test_y).mean():.1%}")
    print(f"The two agree on {(exact == rounded).mean():.1%} of the held-out digits")


def predicted(model: eo.Module, features: np.ndarray) -> np.ndarray:
    model.eval()
    with eo.no_grad():
        return model(eo.tensor(features)).argmax(axis=1)


if __name__ == "__main__":
    main()
