"""A run's settings as three small sections: model, training, device.

They come from keyword arguments, a dict, or a JSON or YAML file, and go back to a dict. Every
value is checked whenever it is set, also later by assignment, and an error names its field.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

from everyo.exceptions import EveryOConfigurationError

__all__ = ["Config", "DeviceConfig", "ModelConfig", "TrainingConfig", "load_config"]

LIMIT = 1 << 20  # bytes of a configuration file


class _Rule(NamedTuple):
    holds: Callable[[Any], bool]
    wording: str


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _one_of(*names: str) -> _Rule:
    return _Rule(lambda value: value in names, f"one of {', '.join(names)}")


_POSITIVE_WHOLE = _Rule(lambda value: _is_whole(value) and value > 0, "a positive whole number")
_FRACTION = _Rule(lambda value: _is_number(value) and 0 <= value < 1, "a number in [0, 1)")

_RULES = {
    "input_size": _POSITIVE_WHOLE,
    "hidden_size": _POSITIVE_WHOLE,
    "output_size": _POSITIVE_WHOLE,
    "dropout": _FRACTION,
    "epochs": _POSITIVE_WHOLE,
    "batch_size": _POSITIVE_WHOLE,
    "learning_rate": _Rule(
        lambda value: _is_number(value) and 0 < value < math.inf, "a positive finite number"
    ),
    "optimizer": _one_of("sgd", "adam"),
    "validation_split": _FRACTION,
    "seed": _Rule(lambda value: _is_whole(value) and value >= 0, "a whole number of 0 or more"),
    "preferred": _one_of("auto", "cpu", "cuda"),
}


class _Section:
    """Settings that are checked when they are set and refuse names they do not have."""

    def __setattr__(self, name: str, value: Any) -> None:
        rule = _RULES.get(name)
        if rule is None or name not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise EveryOConfigurationError(_unknown(f"field in {type(self).__name__}", name, self))
        if not rule.holds(value):
            raise EveryOConfigurationError(
                f"{type(self).__name__}.{name} must be {rule.wording}; got {_shown(value)}"
            )
        super().__setattr__(name, value)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The section with these values; what is not named keeps its default."""
        _check_mapping(cls.__name__, values)
        for name in values:
            if name not in {f.name for f in fields(cls)}:  # type: ignore[arg-type]
                raise EveryOConfigurationError(_unknown(f"field in {cls.__name__}", name, cls))
        return cls(**values)


@dataclass
class ModelConfig(_Section):
    """Sizes of a feed-forward model."""

    input_size: int = 64
    hidden_size: int = 128
    output_size: int = 10
    dropout: float = 0.0


@dataclass
class TrainingConfig(_Section):
    """How long and how a model is trained."""

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 0.001
    optimizer: str = "adam"
    validation_split: float = 0.2
    seed: int = 0


@dataclass
class DeviceConfig(_Section):
    """Where to compute: `auto` takes CUDA when it is there."""

    preferred: str = "auto"


_SECTIONS: dict[str, type[_Section]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "device": DeviceConfig,
}


@dataclass
class Config:
    """All settings of a run.

    >>> Config.from_dict({"training": {"epochs": 3}}).training.epochs
    3
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        for name, section in _SECTIONS.items():
            given = getattr(self, name)
            if not isinstance(given, section):
                raise EveryOConfigurationError(
                    f"Config.{name} must be a {section.__name__}; got {_shown(given)}. "
                    f"Config.from_dict takes plain dicts"
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The configuration with these sections; what is not named keeps its default."""
        _check_mapping("the configuration", values)
        for name in values:
            if name not in _SECTIONS:
                raise EveryOConfigurationError(_unknown("configuration section", name, cls))
        sections: dict[str, Any] = {n: _SECTIONS[n].from_dict(v) for n, v in values.items()}
        return cls(**sections)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The settings as nested dicts of plain values; `from_dict` takes them back."""
        return asdict(self)


def load_config(path: str | PathLike[str]) -> Config:
    """Read a configuration from a `.json`, `.yaml` or `.yml` file."""
    return Config.from_dict(read_settings(path))


def read_settings(path: str | PathLike[str]) -> Any:
    """What a configuration file says, unchecked."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".json":
        parse = _parse_json
    elif suffix in (".yaml", ".yml"):
        parse = _parse_yaml
    else:
        raise EveryOConfigurationError(
            f"Unsupported configuration file {str(file)!r}; use .json, .yaml or .yml"
        )
    if not file.exists():
        raise FileNotFoundError(f"configuration file {str(file)!r} does not exist")
    if not file.is_file() or file.stat().st_size > LIMIT:
        raise EveryOConfigurationError(
            f"{str(file)!r} is no configuration file: a folder, a device, or over {LIMIT} bytes"
        )
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise EveryOConfigurationError(f"{str(file)!r} is no text in UTF-8") from None
    return parse(text, file)


def _parse_json(text: str, file: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise EveryOConfigurationError(f"Invalid JSON in {str(file)!r}: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a name that occurs twice is a mistake that would go unseen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r:.80} occurs twice")
    return found


def _parse_yaml(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise EveryOConfigurationError(
            f"reading {str(file)!r} needs PyYAML: pip install 'everyo[files]', or use a .json file"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except Exception as error:  # constructors of dates and numbers raise what they like
        raise EveryOConfigurationError(f"Invalid YAML in {str(file)!r}: {error}") from None


def _check_mapping(what: str, values: Any) -> None:
    if not isinstance(values, dict):
        raise EveryOConfigurationError(
            f"{what} must be a mapping of names to values; got {type(values).__name__}"
        )


def _unknown(what: str, name: Any, owner: Any) -> str:
    known = ", ".join(f.name for f in fields(owner))
    return f"Unknown {what}: {name!r:.80}; known are {known}"


def _shown(value: Any) -> str:
    """A value for an error; containers may be endless, or huge in few bytes of YAML."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"
