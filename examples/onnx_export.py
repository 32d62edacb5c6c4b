"""ONNX: a recurrent network leaves for another run time and gives the same answers there.

The exporter traces the model, as `eo.compile` does, so whatever can be traced can be exported. The
number of sequences in a batch stays free. Needs the extra [onnx].
"""

import numpy as np

import everyo as eo
from everyo.datasets import make_recall_task


class Reader(eo.Module):
    """Token ids (batch, time) -> scores of classes (batch, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = eo.Embedding(16, 12, seed=0)
        self.memory = eo.GRU(12, 24, return_sequences=False, seed=1)
        self.head = eo.Linear(24, 4, seed=2)

    def forward(self, tokens: eo.Tensor) -> eo.Tensor:
        return self.head(self.memory(self.embedding(tokens)))


def main() -> None:
    tokens, labels = make_recall_task(n_samples=600, length=8, seed=0)
    model = Reader()
    trainer = eo.Trainer(model, eo.Adam(model.parameters(), lr=0.01), eo.CrossEntropyLoss())
    loader = eo.DataLoader(eo.ArrayDataset(tokens, labels), 50, shuffle=True, seed=0)
    trainer.fit(loader, epochs=8, verbose=False)

    model.eval()
    example = eo.tensor(tokens[:3], dtype="int64")
    path = eo.export_onnx_traced(model, "reader.onnx", example_input=example)
    print(f"{path} has {path.stat().st_size} bytes")

    there = eo.run_onnx(path, tokens[:200])
    with eo.no_grad():
        here = model(eo.tensor(tokens[:200], dtype="int64")).numpy()
    print(f"The largest difference between the two is {np.abs(there - here).max():.1e}")
    print(f"The same class for {(there.argmax(1) == here.argmax(1)).mean():.1%} of 200 sequences")


if __name__ == "__main__":
    main()
