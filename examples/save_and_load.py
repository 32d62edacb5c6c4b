"""Save a model, load it elsewhere, and go on with an interrupted run as if nothing had happened.

Takes a few seconds:  python examples/save_and_load.py
"""

import tempfile
from pathlib import Path

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits

folder = tempfile.TemporaryDirectory()
here = Path(folder.name)
features, labels = load_uci_digits()
train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, seed=0)


def new_run():
    """A trainer and its loader, as a script makes them when it starts."""
    eo.manual_seed(0)
    model = eo.Sequential(
        eo.Linear(64, 128, seed=0), eo.ReLU(), eo.Dropout(0.2), eo.Linear(128, 10, seed=1)
    )
    trainer = eo.Trainer(model, eo.Adam(model.parameters(), lr=0.003), eo.CrossEntropyLoss())
    return trainer, eo.DataLoader(eo.ArrayDataset(train_x, train_y), 32, shuffle=True, seed=2)


# A run of 10 epochs, and the same run interrupted after 4 and resumed by a new trainer.
whole, loader = new_run()
whole.fit(loader, epochs=10, verbose=False)

first, loader = new_run()
first.fit(loader, epochs=4, verbose=False, checkpoint=here / "run.ckpt")
second, loader = new_run()
second.fit(loader, epochs=10, verbose=False, checkpoint=here / "run.ckpt", resume=True)

pairs = zip(whole.model.parameters(), second.model.parameters(), strict=True)
same = sum(int(np.sum(p.numpy() == q.numpy())) for p, q in pairs)
once, resumed = (run.history["loss"][-1] for run in (whole, second))
print(f"Loss of epoch 10: {once:.6f} in one go, {resumed:.6f} resumed")
print(f"Weights that are equal to the last bit: {100 * same / whole.model.num_parameters():.1f}%")

# The model alone, as one file: structure and weights. Loading it needs none of the code above.
path = eo.save(whole.model, here / "digits", metadata={"data": "UCI digits"})
found = eo.inspect_archive(path)
print(f"{path.name}: a {found['class_name']} of {found['num_parameters']} parameters")
print(f"Metadata: {found['metadata']}")
loaded = eo.load(path)
with eo.no_grad():
    before, after = whole.predict(test_x), loaded(eo.tensor(test_x)).numpy()
print(f"Largest difference between its outputs before and after: {np.abs(before - after).max()}")
print(f"Test accuracy of the loaded model: {eo.accuracy(after, test_y):.1%}")

# The weights alone, for a model that the code builds, or for other programs.
other, _ = new_run()
eo.load_weights(eo.save_weights(whole.model, here / "weights.npz"), model=other.model)
print(f"Accuracy with its weights in a new model: {eo.accuracy(other.predict(test_x), test_y):.1%}")
folder.cleanup()
