"""Regression from a CSV file: how far does a ball fly, with air in the way?

A simulation writes the table; everything after that would be the same with a table of your own.
Takes a few seconds:  python examples/csv_regression.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import everyo as eo
from everyo.training import r2_score


def distance(speed, angle, mass, radius):
    """How far balls fly until they fall to the ground, in metres: small steps of time."""
    drag = 0.5 * 1.2 * 0.47 * np.pi * radius**2 / mass
    x, y = np.zeros_like(speed), np.zeros_like(speed)
    vx, vy = speed * np.cos(np.radians(angle)), speed * np.sin(np.radians(angle))
    step = 0.005
    while np.any(y >= 0):
        flying = y >= 0
        v = np.hypot(vx, vy)
        x, y = x + flying * step * vx, np.where(flying, y + step * vy, y)
        vx, vy = vx - step * drag * v * vx, vy - step * (9.81 + drag * v * vy)
    return x


folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "throws.csv"
rng = np.random.default_rng(0)
causes = rng.uniform((5, 10, 0.05, 0.02), (40, 80, 1.0, 0.12), size=(3000, 4))
measured = distance(*causes.T) * rng.normal(1.0, 0.01, len(causes))  # measured to a percent
with path.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["speed", "angle", "mass", "radius", "distance"])
    writer.writerows(np.column_stack([causes, measured]).round(4))

table = eo.load_csv_dataset(path, target_column="distance")
print(f"{len(table)} throws with {table.feature_shape[0]} causes each")

train_x, test_x, train_y, test_y = eo.train_test_split(
    table.features, table.targets[:, None], test_size=0.2, seed=0
)
x_scaler, y_scaler = eo.StandardScaler(), eo.StandardScaler()
train = eo.ArrayDataset(x_scaler.fit_transform(train_x), y_scaler.fit_transform(train_y))
fitting, validation = eo.random_split(train, (0.85, 0.15), seed=1)

model = eo.Sequential(
    eo.Linear(4, 64, seed=0),
    eo.nn.SiLU(),
    eo.Linear(64, 64, seed=1),
    eo.nn.SiLU(),
    eo.Linear(64, 1, seed=2),
)
optimizer = eo.optim.AdamW(model.parameters(), lr=0.005)
trainer = eo.Trainer(model, optimizer, eo.MSELoss(), metrics=["r2"])
trainer.fit(
    eo.DataLoader(fitting, 64, shuffle=True, drop_last=True, seed=2),
    validation_loader=eo.DataLoader(validation, 128),
    epochs=120,
    callbacks=[
        eo.LearningRateScheduler(lambda epoch, rate: 0.98 * rate),
        eo.EarlyStopping(patience=25),
    ],
    log_every=20,
)

predicted = y_scaler.inverse_transform(trainer.predict(x_scaler.transform(test_x)))
for cause, true, guess in zip(test_x[:5], test_y[:5, 0], predicted[:5, 0], strict=True):
    speed, angle, mass, radius = cause
    print(
        f"{mass:.2f} kg, {200 * radius:4.1f} cm wide, {speed:4.1f} m/s at {angle:2.0f} degrees: "
        f"{guess:6.1f} m, measured {true:6.1f} m"
    )
off = np.median(np.abs(predicted - test_y) / test_y)
print(f"Half of the held-out throws are predicted to {off:.1%} or better")
print(f"R2 on held-out throws: {100 * r2_score(predicted, test_y):.2f}%")
folder.cleanup()
