"""Two half moons: a small network draws the line between them, and the line is drawn.

The picture goes to moons.png, or to the path given:  python examples/moons.py boundary.png
"""

import sys

import everyo as eo
from everyo.datasets import make_moons
from everyo.visualization import plot_decision_boundary

features, labels = make_moons(n_samples=600, noise=0.2, seed=0)
train_x, test_x, train_y, test_y = eo.stratified_split(features, labels, test_size=0.25, seed=0)


def trained(model):
    """A trainer after 150 epochs; batches of 64, a smaller step from epoch 100 on."""
    trainer = eo.Trainer(
        model, eo.Adam(model.parameters(), lr=0.02), eo.CrossEntropyLoss(), metrics=["accuracy"]
    )
    data = eo.ArrayDataset(train_x, train_y)
    loader = eo.DataLoader(data, 64, shuffle=True, drop_last=True, seed=1)
    slower = eo.LearningRateScheduler(lambda epoch, rate: 0.02 if epoch < 100 else 0.002)
    trainer.fit(loader, epochs=150, callbacks=[slower], log_every=50)
    return trainer


held_out = eo.DataLoader(eo.ArrayDataset(test_x, test_y), 64)

print("A straight line:")
line = trained(eo.Sequential(eo.Linear(2, 2, seed=0)))
print("A network with two hidden layers:")
network = trained(
    eo.Sequential(
        eo.Linear(2, 24, seed=0),
        eo.Tanh(),
        eo.Linear(24, 24, seed=1),
        eo.Tanh(),
        eo.Linear(24, 2, seed=2),
    )
)

straight, curved = (t.evaluate(held_out)["accuracy"] for t in (line, network))
print(f"On held-out points the straight line is right in {straight:.1%}")
print(f"Test accuracy: {curved:.1%}")

path = sys.argv[1] if len(sys.argv) > 1 else "moons.png"
plot_decision_boundary(
    network.predict_classes, test_x, test_y, title="What the network learned", save_path=path
)
print(f"The boundary is drawn in {path}")
