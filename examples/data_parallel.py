"""One network, trained by several processes: `mpiexec -n 2 python examples/data_parallel.py`.

Every rank takes its share of each batch, the gradients are averaged with a single all-reduce, and
all ranks take the same step: the result is that of one process on the whole batches. The step is
compiled as a whole, the exchange in the middle of it.
"""

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits
from everyo.distributed import average_gradients, shard_indices, world

BATCH, EPOCHS = 64, 12


def main() -> None:
    group = world()
    features, labels = load_uci_digits()
    train_x, test_x, train_y, test_y = eo.train_test_split(features, labels, seed=0)
    model = eo.Sequential(eo.Linear(64, 64, seed=0), eo.ReLU(), eo.Linear(64, 10, seed=1))
    group.broadcast([p.data for p in model.parameters()])  # equal, however they were made
    optimizer = eo.Adam(model.parameters(), lr=0.003)

    @eo.compile
    def train_step(x, y):
        optimizer.zero_grad()
        loss = eo.nn.cross_entropy(model(x), y)
        loss.backward()
        average_gradients(model.parameters(), group)
        optimizer.step()
        return loss

    mine = shard_indices(BATCH, group.rank, group.world_size)
    loader = eo.DataLoader(
        eo.ArrayDataset(train_x, train_y), BATCH, shuffle=True, drop_last=True, seed=0
    )
    for epoch in range(EPOCHS):
        losses = []
        for x, y in loader:  # the same order on every rank
            losses.append(train_step(x[mine], y[mine]).item())
        if group.is_main:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f} on rank 0")
    if group.is_main:
        with eo.no_grad():
            predicted = model(eo.tensor(test_x)).argmax(axis=1)
        accuracy = (predicted == test_y).mean()
        print(f"Test accuracy with {group.world_size} processes: {accuracy:.1%}")


if __name__ == "__main__":
    main()
