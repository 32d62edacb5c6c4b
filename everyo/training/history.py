"""`History`: what every epoch measured, row by row; one column per name.

Numbers are kept as floats. A row need not have every column: a column lists the rows that have it.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["History"]

PathLike = str | os.PathLike[str]
Row = dict[str, Any]


class History:
    """Rows of measurements, e.g. `{"epoch": 1.0, "loss": 0.7, "val_loss": 0.8, "time": 0.2}`.

    >>> history = History()
    >>> row = history.append(epoch=1, loss=0.5)
    >>> history["loss"], "val_loss" in history, len(history)
    ([0.5], False, 1)
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, **values: Any) -> Row:
        """Add a row, numbers as floats; the row."""
        row = {name: _plain(value) for name, value in values.items()}
        self.rows.append(row)
        return row

    def __getitem__(self, key: str) -> list[Any]:
        found = [row[key] for row in self.rows if key in row]
        if not found:
            known = ", ".join(self.keys) or "none, the history is empty"
            raise KeyError(f"No metric {key!r} in the history; there are: {known}")
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """The column `key`, or `default` if there is none."""
        return self[key] if key in self else default

    def __contains__(self, key: object) -> bool:
        return any(key in row for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def epochs(self) -> list[Any]:
        """The numbers of the epochs, from 1."""
        return self.get("epoch", [])

    @property
    def keys(self) -> "Names":
        """The names of the columns, in the order in which they appeared."""
        return Names(dict.fromkeys(name for row in self.rows for name in row))

    def last(self) -> Row:
        """The latest row; `IndexError` if there is none."""
        if not self.rows:
            raise IndexError("the history is empty: no epoch has been trained yet")
        return self.rows[-1]

    def best(self, key: str = "val_loss", mode: str = "min") -> Row:
        """The row with the smallest (or with mode "max" the largest) value of `key`; NaN never."""
        check_mode(mode)
        self[key]
        rows = [row for row in self.rows if key in row]
        sign = 1 if mode == "min" else -1
        return min(rows, key=lambda row: (row[key] != row[key], sign * row[key]))

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns by name."""
        return {name: self[name] for name in self.keys}

    def to_json(self, path: PathLike) -> Path:
        """Write the columns as JSON; the path."""
        return _written(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def to_csv(self, path: PathLike) -> Path:
        """Write a header and a line per row, empty where a row lacks a column; the path."""
        return _written(path, csv_text(self.keys, self.rows))

    def state_dict(self) -> dict[str, Any]:
        """Copies of the rows."""
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.rows = [dict(row) for row in state["rows"]]

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self.keys)})"


class Names(list[str]):
    """A list of names. Calling it returns it, so `history.keys` may be called as a dict's may."""

    def __call__(self) -> "Names":
        return self


def check_mode(mode: str) -> None:
    """`ValueError` unless the mode is "min" or "max"."""
    if mode not in ("min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")


def csv_text(columns: Sequence[str], rows: Sequence[Row], header: bool = True) -> str:
    """A table as text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)


def _written(path: PathLike, text: str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
