"""From the cells of a table to the numbers of a network, and back.

What was learnt from the training rows (which columns are used, how each is scaled or spelled out as
0 and 1, what the target's classes or units are) is a `Plan` of plain values. It travels in the
metadata of the `.evo` file, so that `everyo predict` treats new rows in exactly the same way.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from everyo.data.preprocessing import StandardScaler, one_hot_encode
from everyo.data.tables import Row, find_delimiter, number_in, read_rows
from everyo.exceptions import EveryOSerializationError, EveryOShapeError

__all__ = ["Column", "Plan", "Table", "Target", "learn_plan"]

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
MOST_CATEGORIES = 50  # a text column with more distinct values is a name, not a category
MOST_CLASSES = 20  # whole numbers with more distinct values are a quantity, not a class
LARGEST = 1e150  # in size; the squares of such numbers can still be added up
FAR = 1e6  # spreads from the mean; what is farther off counts as that far
COMMA_FOR_POINT = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
KIND = "everyo train"  # marks the metadata as ours


@dataclass(frozen=True)
class Table:
    """A text table: names of the columns (numbers from 0 where it has none) and rows."""

    path: str
    names: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def read(
        cls, path: str | PathLike[str], *, delimiter: str = ",", header: bool = True
    ) -> "Table":
        """The table in a file; `EveryOShapeError` if it is empty or its lines differ in length.

        Where the first line lacks the delimiter, it is looked for. Between semicolons, `0,5` is a
        number.
        """
        delimiter = find_delimiter(path, delimiter)
        rows = read_rows(path, delimiter)
        if delimiter == ";":
            rows = [Row(line, [_with_point(cell) for cell in cells]) for line, cells in rows]
        if len(rows) < 1 + header:
            raise EveryOShapeError(f"{path}: there are no rows")
        width = len(rows[0].cells)
        named = rows[0].cells if header else [""] * width
        names = [name or str(i) for i, name in enumerate(named)]
        for line, cells in rows:
            if len(cells) != width:
                raise EveryOShapeError(
                    f"{path}, line {line}: {len(cells)} cells where the first line has {width}"
                )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise EveryOShapeError(
                f"{path}: two columns are named {twice[0]!r} (is the first line data? --no-header)"
            )
        return cls(str(path), tuple(names), tuple(rows[header:]))

    @property
    def named_by_numbers(self) -> bool:
        """Whether the names look like data: all those above numbers are numbers, some with a
        fraction."""
        above = [
            name
            for name in self.names
            if all(number_in(cell) is not None for cell in self.column(name) if cell)
        ]
        values = [number_in(name) for name in above]
        return None not in values and any(v is not None and v % 1 for v in values)

    def column(self, name: str) -> list[str]:
        """The cells of a column, missing ones empty."""
        if name not in self.names:
            raise EveryOShapeError(
                f"{self.path}: no column named {name!r}; the columns are {', '.join(self.names)}"
            )
        at = self.names.index(name)
        cells = [row.cells[at] for row in self.rows]
        return ["" if cell.lower() in MISSING else cell for cell in cells]

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64, missing cells NaN; an error that names the line of any text."""
        values = np.empty(len(self.rows))
        for i, cell in enumerate(self.column(name)):
            number = number_in(cell) if cell else math.nan
            if number is None or abs(number) > LARGEST:
                fault = "is not a finite number"
                if number is not None and math.isfinite(number):
                    fault = f"is too large a number; up to {LARGEST:g} are taken"
                raise EveryOShapeError(
                    f"{self.path}, line {self.rows[i].line}, column {name!r}: {cell!r} {fault}"
                )
            values[i] = number
        return values

    def without(self, missing: str) -> "Table":
        """The rows in which this column has a value."""
        kept = [row for row, cell in zip(self.rows, self.column(missing), strict=True) if cell]
        return Table(self.path, self.names, tuple(kept))


@dataclass(frozen=True)
class Column:
    """A feature: a number with its mean and spread, or a category with the values it may have."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return len(self.values) or 1

    def encode(self, table: Table) -> np.ndarray:
        """float32 (rows, width): missing numbers count as the mean, unknown categories as none."""
        if not self.values:
            scaled = _scaled(table.numbers(self.name), self.mean, self.std)
            return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]
        places = {value: i for i, value in enumerate(self.values)}
        codes = [places.get(cell, len(places)) for cell in table.column(self.name)]
        return one_hot_encode(codes, len(places) + 1)[:, :-1]


@dataclass(frozen=True)
class Target:
    """What is predicted: one of `classes`, or without any a number with its mean and spread."""

    name: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    @property
    def width(self) -> int:
        return len(self.classes) or 1

    def encode(self, table: Table) -> np.ndarray:
        """int64 labels (rows,), or scaled float32 (rows, 1)."""
        if not self.classes:
            scaled = _scaled(table.numbers(self.name), self.mean, self.std)
            return scaled.astype(np.float32)[:, None]
        places = {value: i for i, value in enumerate(self.classes)}
        labels = [_label(cell) for cell in table.column(self.name)]
        for row, label in zip(table.rows, labels, strict=True):
            if label not in places:
                raise EveryOShapeError(
                    f"{table.path}, line {row.line}: the class {label!r} was not among those in "
                    f"training: {', '.join(self.classes)}"
                )
        return np.array([places[label] for label in labels], np.int64)

    def decode(self, scaled: np.ndarray) -> np.ndarray:
        """Outputs of a regression in the units of the target, float64 (rows,)."""
        return scaled.reshape(-1).astype(np.float64) * self.std + self.mean


@dataclass(frozen=True)
class Plan:
    """How the columns of a table become the inputs of a network, and its outputs a prediction."""

    columns: tuple[Column, ...]
    target: Target
    delimiter: str
    header: bool

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def features(self, table: Table) -> np.ndarray:
        """float32 (rows, width)."""
        return np.concatenate([column.encode(table) for column in self.columns], axis=1)

    def to_metadata(self) -> dict[str, Any]:
        """Plain values for the metadata of a model file."""
        return {"made_by": KIND, "plan": asdict(self)}

    @classmethod
    def from_metadata(cls, metadata: Any, where: str) -> "Plan":
        """The plan that `to_metadata` wrote; `EveryOSerializationError` for anything else."""
        if not isinstance(metadata, dict) or metadata.get("made_by") != KIND:
            raise EveryOSerializationError(
                f"{where} was not written by `everyo train`: it does not say how to read a table"
            )
        try:
            plan = metadata["plan"]
            columns = tuple(
                Column(_text(c["name"]), *_scale(c), _texts(c["values"])) for c in plan["columns"]
            )
            target = plan["target"]
            aim = Target(_text(target["name"]), _texts(target["classes"]), *_scale(target))
            delimiter = _text(plan["delimiter"])
            if not columns or len(aim.classes) == 1 or len(delimiter) != 1:
                raise ValueError("no columns, a single class or no delimiter")
            if any(len(column.values) > MOST_CATEGORIES for column in columns):
                raise ValueError(f"a column has more than {MOST_CATEGORIES} categories")
            return cls(columns, aim, delimiter, bool(plan["header"]))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise EveryOSerializationError(
                f"{where}: its description of the table is damaged ({error!r})"
            ) from None


def learn_plan(
    table: Table, train: Iterable[int], target: str, task: str, delimiter: str, header: bool,
    skip: Sequence[str] = (),
) -> tuple[Plan, list[str]]:  # fmt: skip
    """A plan for this table, its statistics taken from the rows `train`, and the names of the
    columns that are of no use: constant ones, and texts of which there are too many."""
    seen = Table(table.path, table.names, tuple(table.rows[i] for i in train))
    columns, left_out = [], []
    for name in table.names:
        if name == target or name in skip:
            continue
        column = _learn_column(table, seen, name)
        if column is None:
            left_out.append(name)
        else:
            columns.append(column)
    if not columns:
        raise EveryOShapeError(f"{table.path}: no column is left to predict {target!r} from")
    aim = _learn_target(table, seen, target, task)
    return Plan(tuple(columns), aim, delimiter, header), left_out


def _learn_column(table: Table, seen: Table, name: str) -> Column | None:
    cells = seen.column(name)
    present = [cell for cell in cells if cell]
    if len(set(present)) < 2 and len(present) == len(cells):
        return None
    if all(number_in(cell) is not None for cell in table.column(name) if cell):
        numbers = seen.numbers(name)
        numbers = numbers[~np.isnan(numbers)]
        if len(np.unique(numbers)) < 2:
            return None
        return Column(name, *_mean_and_std(numbers))
    values = sorted(set(present))
    if not values or len(values) > min(MOST_CATEGORIES, max(2, len(cells) // 2)):
        return None
    return Column(name, values=tuple(values))


def _learn_target(table: Table, seen: Table, name: str, task: str) -> Target:
    kind = task if task != "auto" else detect_task(table.column(name))
    if kind == "classification":
        classes = sorted({_label(cell) for cell in table.column(name)}, key=_in_order)
        if len(classes) < 2:
            raise EveryOShapeError(
                f"{table.path}: column {name!r} is {classes[0]!r} in every row; there is nothing "
                "to tell apart"
            )
        if 2 * len(classes) > len(table.rows):
            raise EveryOShapeError(
                f"{table.path}: column {name!r} has {len(classes)} different values in "
                f"{len(table.rows)} rows; classes must come up more than once to be learnt"
            )
        return Target(name, tuple(classes))
    values = seen.numbers(name)
    if values.min() == values.max():
        raise EveryOShapeError(
            f"{table.path}: column {name!r} is {values[0]:g} in every row; nothing can be learnt"
        )
    mean, std = _mean_and_std(values)
    return Target(name, (), mean, std)


def detect_task(cells: Sequence[str]) -> str:
    """Text and few different whole numbers are classes; all else is a quantity."""
    numbers = [number_in(cell) for cell in cells]
    if None in numbers:
        return "classification"
    distinct = {n for n in numbers if n is not None}
    whole = all(math.isfinite(n) and n == math.floor(n) for n in distinct)
    few = len(distinct) <= min(MOST_CLASSES, max(2, len(cells) // 2))
    return "classification" if whole and few else "regression"


def _label(cell: str) -> str:
    """The name of a class: `1`, `1.0` and `01` are one."""
    number = number_in(cell)
    return cell if number is None or not math.isfinite(number) else f"{number:.17g}"


def _in_order(label: str) -> tuple[float, str]:
    number = number_in(label)
    return (math.inf if number is None or math.isnan(number) else number, label)


def _mean_and_std(values: np.ndarray) -> tuple[float, float]:
    """As `StandardScaler` takes them, in units (a power of two) in which the largest is about 1:
    its least spread is for such numbers, and a column may be of billionths."""
    unit = 2.0 ** math.frexp(np.abs(values).max())[1]
    scaler = StandardScaler().fit(values.astype(np.float64)[:, None] / unit)
    assert scaler.mean is not None and scaler.std is not None
    return float(scaler.mean[0]) * unit, float(scaler.std[0]) * unit


def _scaled(values: np.ndarray, mean: float, std: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return ((values - mean) / std).clip(-FAR, FAR)


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if COMMA_FOR_POINT.fullmatch(cell) else cell


def _scale(values: Any) -> tuple[float, float]:
    mean, std = float(values["mean"]), float(values["std"])
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise ValueError(f"mean {mean} and spread {std}")
    return mean, std


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # JSON can spell halves of characters, which cannot be printed
    return value


def _texts(values: Any) -> tuple[str, ...]:
    texts = tuple(map(_text, values))
    if len(set(texts)) < len(texts):
        raise ValueError(f"{texts} has a value twice")
    return texts
