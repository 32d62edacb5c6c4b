"""Tables of numbers in text files, one sample per line.

Only the columns that are used need to hold numbers. A cell that does not is an error that names
its line and column, never a silent NaN.
"""

import csv
from collections.abc import Iterable
from os import PathLike
from typing import NamedTuple

import numpy as np

from everyo.data.dataset import ArrayDataset
from everyo.exceptions import EveryOShapeError

__all__ = ["load_csv_dataset"]


FIRST_LINE = 1 << 20  # characters that are looked at to find the delimiter


class Row(NamedTuple):
    """The stripped cells of a row and the number of its last line."""

    line: int
    cells: list[str]


def load_csv_dataset(
    path: str | PathLike[str],
    *,
    target_column: int | str | None = -1,
    delimiter: str = ",",
    has_header: bool | None = None,
    skip_columns: Iterable[int | str] = (),
) -> ArrayDataset:
    """Read a table as float32: features (n, columns) and targets (n,), the `target_column`.

    Columns are named by the header or counted from 0 (negative: from the end);
    `target_column=None` reads features alone. With `has_header=None` the first line is a header
    when one of its cells (in a column that is not skipped by number) holds text.
    """
    if len(delimiter) != 1:
        raise ValueError(f"delimiter must be a single character; got {delimiter!r}")
    rows = read_rows(path, delimiter)
    if not rows:
        raise EveryOShapeError(f"{path}: empty; expected a numeric table")
    width = len(rows[0].cells)
    skipped = list(skip_columns)
    if has_header is None:
        ignored = {column % width for column in skipped if isinstance(column, int)}
        has_header = any(
            cell and number_in(cell) is None
            for index, cell in enumerate(rows[0].cells)
            if index not in ignored
        )
    names = rows[0].cells if has_header else []
    body = rows[1:] if has_header else rows
    skip = {_column(path, column, names, width) for column in skipped}
    target = None if target_column is None else _column(path, target_column, names, width)
    used = [index for index in range(width) if index not in skip and index != target]
    features = _table(path, body, used, names, width)
    if target is None:
        return ArrayDataset(features)
    return ArrayDataset(features, _table(path, body, [target], names, width)[:, 0])


def read_rows(path: str | PathLike[str], delimiter: str) -> list[Row]:
    """All rows but blank ones; `EveryOShapeError` for a file that is no text table."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            rows = [Row(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
        if any("\0" in cell for row in rows for cell in row.cells):
            raise csv.Error("it contains NUL")
    except (UnicodeDecodeError, csv.Error) as error:
        raise EveryOShapeError(
            f"{path}: not a text table in UTF-8 ({error}); expected a numeric table"
        ) from None
    return [row for row in rows if row.cells not in ([], [""])]  # blank lines


def _column(path: str | PathLike[str], column: int | str, names: list[str], width: int) -> int:
    if isinstance(column, str):
        if column not in names:
            known = f"the columns are {names}" if names else "there is no header"
            raise EveryOShapeError(f"{path}: no column named {column!r}; {known}")
        return names.index(column)
    if not -width <= column < width:
        raise EveryOShapeError(f"{path}: column {column} is out of range for {width} columns")
    return column % width


def _table(
    path: str | PathLike[str], rows: list[Row], columns: list[int], names: list[str], width: int
) -> np.ndarray:
    values = np.empty((len(rows), len(columns)), dtype=np.float32)
    for row, (line, cells) in enumerate(rows):
        if len(cells) != width:
            raise EveryOShapeError(
                f"{path}, line {line}: {len(cells)} cells where the first line has {width}; "
                f"expected a numeric table"
            )
        for position, column in enumerate(columns):
            number = number_in(cells[column])
            if number is None:
                name = f"column {names[column]!r}" if names else f"column {column}"
                raise EveryOShapeError(
                    f"{path}, line {line}, {name}: {cells[column]!r} is not a number; expected a "
                    f"numeric table. Fill the cell, or leave the column out with skip_columns"
                )
            values[row, position] = number
    return values


def number_in(cell: str) -> float | None:
    """The number that a cell holds, NaN and infinities included; None if it holds none. `1_2` is a
    number in a program and a name in a table."""
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def find_delimiter(path: str | PathLike[str], likely: str = ",") -> str:
    """The character between the cells of the first line: `likely` if it divides it, else that of
    semicolon, tab, comma and bar that makes most cells."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            line = file.readline(FIRST_LINE).strip("\r\n")
        cells = {d: len(next(csv.reader([line], delimiter=d), [])) for d in (likely, *";\t,|")}
    except (UnicodeDecodeError, csv.Error):
        return likely  # reading it will say what is wrong
    most = max(cells, key=lambda delimiter: cells[delimiter])  # the first of equals
    return likely if cells[likely] > 1 else most
