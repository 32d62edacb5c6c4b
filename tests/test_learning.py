"""What models learn, on held-out data: real digits, points in the plane, a token to remember."""

import numpy as np
import pytest

import everyo as eo
from everyo.datasets import load_uci_digits, make_moons, make_recall_task, make_regression


def learned(model, data, *, epochs, lr, batch_size=32, loss=None, metric="accuracy", **options):
    """(the metric on held-out data, the trainer) after training on the rest, a fifth held out."""
    loss = eo.CrossEntropyLoss() if loss is None else loss
    train_x, test_x, train_y, test_y = data
    trainer = eo.Trainer(
        model, eo.Adam(model.parameters(), lr=lr), loss, metrics=[metric], **options
    )
    loader = eo.DataLoader(
        eo.ArrayDataset(train_x, train_y), batch_size, shuffle=True, drop_last=True, seed=3
    )
    cosine = eo.optim.CosineAnnealingLR(trainer.optimizer, epochs)
    trainer.fit(loader, epochs=epochs, callbacks=[eo.ScheduleStepper(cosine)], verbose=False)
    held_out = eo.DataLoader(eo.ArrayDataset(test_x, test_y), 128)
    return trainer.evaluate(held_out)[metric], trainer


def digits(shape):
    features, labels = load_uci_digits()
    return eo.stratified_split(features.reshape(-1, *shape), labels, test_size=0.2, seed=0)


def test_a_network_reads_real_digits():
    model = eo.Sequential(
        eo.Linear(64, 256, seed=0), eo.ReLU(), eo.Dropout(0.3, seed=1), eo.Linear(256, 10, seed=2)
    )
    untrained = eo.accuracy(model(eo.tensor(digits((64,))[1])).numpy(), digits((64,))[3])
    accuracy, trainer = learned(model, digits((64,)), epochs=20, lr=0.004)
    assert untrained < 0.4 and accuracy >= 0.97
    assert trainer.history["loss"][-1] < 0.2 * trainer.history["loss"][0]


def test_a_convolutional_network_reads_real_digits_better():
    model = eo.Sequential(
        eo.Conv2D(1, 16, 3, padding="same", bias=False, seed=0), eo.BatchNorm2D(16), eo.ReLU(),
        eo.Conv2D(16, 32, 3, padding="same", bias=False, seed=1), eo.BatchNorm2D(32), eo.ReLU(),
        eo.MaxPool2D(2), eo.Flatten(), eo.Dropout(0.4, seed=3), eo.Linear(512, 10, seed=4),
    )  # fmt: skip
    accuracy, _ = learned(model, digits((8, 8, 1)), epochs=15, lr=0.004)
    assert accuracy >= 0.985


def test_a_network_separates_moons_that_a_line_does_not():
    features, labels = make_moons(n_samples=500, noise=0.2, seed=0)
    data = eo.stratified_split(features, labels, test_size=0.3, seed=0)
    line = eo.Sequential(eo.Linear(2, 2, seed=0))
    network = eo.Sequential(
        eo.Linear(2, 16, seed=0), eo.Tanh(), eo.Linear(16, 16, seed=1), eo.Tanh(),
        eo.Linear(16, 2, seed=2),
    )  # fmt: skip
    by_line, by_network = (
        learned(model, data, epochs=60, lr=0.02, compile=False)[0] for model in (line, network)
    )
    assert by_network >= 0.95 and by_network > by_line


def test_a_line_fits_a_line():
    features, targets = make_regression(n_samples=300, n_features=3, noise=0.1, seed=0)
    data = eo.train_test_split(features, targets, seed=0)
    model = eo.Sequential(eo.Linear(3, 1, seed=0))
    r2, _ = learned(model, data, epochs=40, lr=0.05, loss=eo.MSELoss(), metric="r2", compile=False)
    assert r2 > 0.95


class Recall(eo.Module):
    """Tokens to the class of the first: by a recurrent layer, or by attention over all."""

    def __init__(self, kind, width=24):
        super().__init__()
        self.tokens = eo.Embedding(16, width, seed=0)
        if kind == "transformer":
            self.positions = eo.PositionalEncoding(width, max_length=20)
            self.body = eo.TransformerEncoder(
                width, 4, num_layers=1, feedforward_dim=48, dropout=0.0, seed=1
            )
        else:
            self.positions = None
            self.body = getattr(eo, kind)(width, 32, return_sequences=False, seed=1)
        self.head = eo.Linear(width if kind == "transformer" else 32, 4, seed=2)

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is None:
            return self.head(self.body(x))
        return self.head(self.body(self.positions(x * 5.0)).mean(axis=1))


@pytest.mark.parametrize(
    ("kind", "lr"),
    [
        pytest.param("RNN", 0.005, marks=pytest.mark.slow),
        pytest.param("LSTM", 0.003, marks=pytest.mark.slow),
        ("GRU", 0.005),
        pytest.param("transformer", 0.003, marks=pytest.mark.slow),
    ],
)
def test_a_model_remembers_how_a_sequence_began(kind, lr):
    data = eo.stratified_split(*make_recall_task(n_samples=2000, length=20, seed=0), seed=0)
    epochs = 12 if kind == "transformer" else 15
    accuracy, _ = learned(Recall(kind), data, epochs=epochs, lr=lr, gradient_clip=1.0)
    assert accuracy >= 0.85


def test_a_model_learns_through_a_compiled_step_as_through_an_eager_one():
    data = eo.stratified_split(*make_recall_task(n_samples=400, length=6, seed=0), seed=0)
    losses = []
    for compiled in (True, False):
        _, trainer = learned(Recall("LSTM"), data, epochs=4, lr=0.003, compile=compiled)
        losses.append(trainer.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-3)
