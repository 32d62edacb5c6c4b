"""Remember how it began: an LSTM and a transformer on sequences whose first token is the answer.

The tokens after the first tell nothing, so a model must carry the answer over all of them. Takes
well under a minute:  python examples/sequences.py
"""

import everyo as eo
from everyo.datasets import make_recall_task

LENGTH, VOCABULARY, CLASSES, WIDTH = 20, 16, 4, 24

sequences, labels = make_recall_task(
    n_samples=2000, length=LENGTH, num_classes=CLASSES, vocab_size=VOCABULARY, seed=0
)
train_x, test_x, train_y, test_y = eo.stratified_split(sequences, labels, seed=0)
print(f"{len(train_x)} sequences, e.g. {' '.join(map(str, train_x[0]))} -> {train_y[0]}")


class Recurrent(eo.Module):
    """Reads token by token; the answer comes from the last state."""

    def __init__(self):
        super().__init__()
        self.tokens = eo.Embedding(VOCABULARY, WIDTH, seed=0)
        self.lstm = eo.LSTM(WIDTH, 32, return_sequences=False, seed=1)
        self.head = eo.Linear(32, CLASSES, seed=2)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids)))


class Attentive(eo.Module):
    """Looks at all tokens at once; the answer comes from their mean."""

    def __init__(self):
        super().__init__()
        self.tokens = eo.Embedding(VOCABULARY, WIDTH, seed=0)
        self.positions = eo.PositionalEncoding(WIDTH, max_length=LENGTH)
        self.encoder = eo.TransformerEncoder(
            WIDTH, 4, num_layers=1, feedforward_dim=48, dropout=0.0, seed=1
        )
        self.head = eo.Linear(WIDTH, CLASSES, seed=2)

    def forward(self, ids):
        x = self.positions(self.tokens(ids) * WIDTH**0.5)
        return self.head(self.encoder(x).mean(axis=1))


def accuracy(model, epochs, rate):
    """The accuracy on held-out sequences after training."""
    print(f"{type(model).__name__}, {model.num_parameters()} parameters:")
    trainer = eo.Trainer(
        model,
        eo.Adam(model.parameters(), lr=rate),
        eo.CrossEntropyLoss(),
        metrics=["accuracy"],
        gradient_clip=1.0,
    )
    train = eo.DataLoader(eo.ArrayDataset(train_x, train_y), 32, shuffle=True, seed=3)
    held_out = eo.DataLoader(eo.ArrayDataset(test_x, test_y), 100)
    trainer.fit(train, epochs=epochs, log_every=3)
    return trainer.evaluate(held_out)["accuracy"]


lstm = accuracy(Recurrent(), 15, 0.003)
transformer = accuracy(Attentive(), 12, 0.003)
print(f"Held-out accuracy: LSTM {lstm:.1%}, transformer {transformer:.1%}")
worse = 100 * min(lstm, transformer)
print(f"Chance would be {1 / CLASSES:.0%}; the worse of the two reaches {worse:.1f}%")
