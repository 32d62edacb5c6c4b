"""`everyo predict`: what a model of `everyo train` says about the rows of a table.

The table has the columns of the one in training, in any order; others are ignored. A line comes
out for each row, as a table again. Where the target is among the columns, its score is reported.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import everyo as eo
from everyo.cli.columns import Plan, Table
from everyo.exceptions import EveryOSerializationError
from everyo.training.metrics import accuracy, mean_absolute_error, r2_score

__all__ = ["Predictions", "predict_table"]

BATCH = 1024  # rows that go through the model together


@dataclass(frozen=True)
class Predictions:
    """The names of the columns, a line for each row, and a sentence about the score, if known."""

    header: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]
    score: str | None

    def write(self, stream: TextIO) -> None:
        """The predictions as CSV."""
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.lines)

    def rows(self) -> list[dict[str, Any]]:
        """The predictions as plain values."""
        return [dict(zip(self.header, line, strict=True)) for line in self.lines]


def predict_table(model_path: str, table_path: str, *, probabilities: bool = False) -> Predictions:
    """Predictions for every row of a table; with `probabilities`, those of all classes."""
    plan = Plan.from_metadata(eo.inspect_archive(model_path)["metadata"], model_path)
    if not Path(table_path).exists():  # before the model is built
        raise FileNotFoundError(2, "No such file or directory", table_path)
    model = eo.load(model_path)
    table = Table.read(table_path, delimiter=plan.delimiter, header=plan.header)
    outputs = _outputs(model, plan.features(table), plan.target.width, model_path)
    name = plan.target.name
    if not plan.target.classes:
        values = plan.target.decode(outputs)
        return Predictions(
            (name,), tuple((float(f"{v:.7g}"),) for v in values), _score(plan, table, outputs)
        )
    chances = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    best = chances.argmax(axis=1)
    header: tuple[str, ...] = (name, "probability")
    shown = chances[np.arange(len(best)), best][:, None]
    if probabilities:
        header, shown = (name, *(f"p({c})" for c in plan.target.classes)), chances
    lines = tuple(
        (plan.target.classes[k], *(round(float(p), 4) for p in row))
        for k, row in zip(best, shown, strict=True)
    )
    return Predictions(header, lines, _score(plan, table, outputs))


def _outputs(model: eo.Module, x: np.ndarray, width: int, where: str) -> np.ndarray:
    """float64 (rows, width); an error if the model in the file does not fit its description."""
    try:
        with eo.no_grad():
            parts = [model(eo.tensor(x[i : i + BATCH])).numpy() for i in range(0, len(x), BATCH)]
        outputs = np.concatenate(parts).astype(np.float64)
    except (eo.EveryOError, AttributeError, TypeError) as error:
        raise EveryOSerializationError(
            f"{where}: the model does not take the {x.shape[1]} numbers per row that the file "
            f"describes: {error}"
        ) from None
    if outputs.shape != (len(x), width):
        raise EveryOSerializationError(
            f"{where}: the model gives {outputs.shape} for {len(x)} rows, not {(len(x), width)}"
        )
    return outputs


def _score(plan: Plan, table: Table, outputs: np.ndarray) -> str | None:
    """How the predictions compare with the target, over the rows that have one."""
    name = plan.target.name
    if name not in table.names:
        return None
    known = np.array([bool(cell) for cell in table.column(name)])
    if not known.any():
        return None
    true = plan.target.encode(table.without(missing=name))
    of = f"over {known.sum()} rows with a value in {name!r}"
    if plan.target.classes:
        return f"accuracy {accuracy(outputs[known], true):.1%} {of}"
    wanted, found = plan.target.decode(true), plan.target.decode(outputs[known])
    error = mean_absolute_error(found, wanted)
    return f"r2 {r2_score(found, wanted):.3f}, mean absolute error {error:.4g} {of}"
