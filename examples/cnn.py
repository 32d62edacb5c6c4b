"""A convolutional network on real handwritten digits, with a picture of what it confuses.

Each image is seen moved by a pixel now and then, so that the network learns shapes and not places.
Takes well under a minute:  python examples/cnn.py [confusion.png]
"""

import sys

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits
from everyo.visualization import plot_confusion_matrix

EPOCHS, RATE = 20, 0.004

features, labels = load_uci_digits()
images = features.reshape(-1, 8, 8, 1)  # (samples, height, width, channels)
train_x, test_x, train_y, test_y = eo.stratified_split(images, labels, test_size=0.2, seed=0)


class Moved(eo.Dataset):
    """Images that are moved by up to one pixel each way, differently every time."""

    def __init__(self, images, labels, seed):
        self.padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        self.labels = labels
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        down, right = self.rng.choice([0, 1, 1, 2], size=2)
        return self.padded[index, down : down + 8, right : right + 8], self.labels[index]


model = eo.Sequential(
    eo.Conv2D(1, 24, 3, padding="same", bias=False, seed=0),
    eo.BatchNorm2D(24),
    eo.ReLU(),
    eo.Conv2D(24, 32, 3, padding="same", bias=False, seed=1),
    eo.BatchNorm2D(32),
    eo.ReLU(),
    eo.MaxPool2D(2),
    eo.Conv2D(32, 48, 3, padding="same", bias=False, seed=2),
    eo.BatchNorm2D(48),
    eo.ReLU(),
    eo.Flatten(),
    eo.Dropout(0.4, seed=3),
    eo.Linear(4 * 4 * 48, 10, seed=4),
)
print(model.summary())

optimizer = eo.Adam(model.parameters(), lr=RATE)
trainer = eo.Trainer(model, optimizer, eo.CrossEntropyLoss(), metrics=["accuracy"])
loader = eo.DataLoader(Moved(train_x, train_y, seed=5), 64, shuffle=True, drop_last=True, seed=6)
slower = eo.ScheduleStepper(
    eo.optim.CosineAnnealingLR(optimizer, EPOCHS * len(loader)), every="batch"
)
trainer.fit(loader, epochs=EPOCHS, callbacks=[slower], log_every=5)

predicted = trainer.predict_classes(test_x)
path = sys.argv[1] if len(sys.argv) > 1 else "confusion.png"
plot_confusion_matrix(predicted, test_y, title="Held-out digits", save_path=path)
right = predicted == test_y
print(f"The confusion matrix is drawn in {path}")
print(f"Test accuracy: {100 * right.mean():.2f}% ({right.sum()} of {len(right)})")
