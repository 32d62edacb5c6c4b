"""Settings survive the way to a file and back, and every wrong one is refused by name."""

import dataclasses
import doctest
import io
import json
import logging

import pytest

from everyo import config as config_module
from everyo import logging as everyo_logging
from everyo.config import Config, DeviceConfig, ModelConfig, TrainingConfig, load_config
from everyo.exceptions import EveryOConfigurationError
from everyo.logging import configure_logging, get_logger

DEFAULTS = {
    "model": {"input_size": 64, "hidden_size": 128, "output_size": 10, "dropout": 0.0},
    "training": {
        "epochs": 10,
        "batch_size": 32,
        "learning_rate": 0.001,
        "optimizer": "adam",
        "validation_split": 0.2,
        "seed": 0,
    },
    "device": {"preferred": "auto"},
}
SECTIONS = {"model": ModelConfig, "training": TrainingConfig, "device": DeviceConfig}

CHANGED = {
    "model": {"input_size": 2, "dropout": 0.5},
    "training": {"epochs": 3, "learning_rate": 1, "optimizer": "sgd"},
    "device": {"preferred": "cpu"},
}

BAD_VALUES = [
    ("model", "input_size", 0),
    ("model", "input_size", 2.0),
    ("model", "input_size", True),
    ("model", "hidden_size", -1),
    ("model", "output_size", "ten"),
    ("model", "dropout", 1.0),
    ("model", "dropout", None),
    ("training", "epochs", 0),
    ("training", "epochs", "10"),
    ("training", "batch_size", -32),
    ("training", "learning_rate", 0.0),
    ("training", "learning_rate", float("inf")),
    ("training", "learning_rate", float("nan")),
    ("training", "optimizer", "lbfgs"),
    ("training", "optimizer", ["adam"]),
    ("training", "validation_split", 1.5),
    ("training", "seed", -1),
    ("device", "preferred", "tpu"),
]


def expected_after(changes):
    return {section: DEFAULTS[section] | changes.get(section, {}) for section in DEFAULTS}


def test_the_defaults_are_exact():
    assert Config().to_dict() == DEFAULTS
    assert Config.from_dict({}).to_dict() == DEFAULTS


def test_two_configurations_share_nothing():
    first, second = Config(), Config()
    first.model.input_size = 3
    assert second.model.input_size == 64
    assert first != second


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".JSON"])
def test_files_give_what_was_written_and_defaults_for_the_rest(suffix, tmp_path):
    path = tmp_path / f"run{suffix}"
    text = json.dumps(CHANGED)
    if suffix in (".yaml", ".yml"):
        text = pytest.importorskip("yaml", reason="PyYAML is not installed").safe_dump(CHANGED)
    path.write_text(text)
    loaded = load_config(path)
    assert loaded.to_dict() == expected_after(CHANGED)
    assert Config.from_dict(loaded.to_dict()) == loaded
    assert load_config(str(path)) == loaded


@pytest.mark.parametrize(("section", "name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name_wherever_it_comes_from(section, name, value):
    with pytest.raises(EveryOConfigurationError, match=name):
        Config.from_dict({section: {name: value}})
    with pytest.raises(EveryOConfigurationError, match=name):
        SECTIONS[section](**{name: value})
    config = Config()
    with pytest.raises(EveryOConfigurationError, match=name):
        setattr(getattr(config, section), name, value)
    assert config == Config()


def test_every_setting_has_a_bad_value_in_the_table():
    tried = {(section, name) for section, name, _ in BAD_VALUES}
    assert tried == {(section, name) for section in DEFAULTS for name in DEFAULTS[section]}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"modle": {}}, "Unknown configuration section: 'modle'; known are model"),
        ({"model": {"depth": 3}}, "Unknown field in ModelConfig: 'depth'; known are input_size"),
        ({"device": {"epochs": 3}}, "Unknown field in DeviceConfig: 'epochs'"),
        ({"model": [1]}, "mapping"),
        ([], "mapping"),
        ({3: {}}, "Unknown configuration section: 3"),
        ({"model": {3: 4}}, "Unknown field in ModelConfig: 3"),
    ],
)
def test_unknown_names_and_forms_are_refused(values, match):
    with pytest.raises(EveryOConfigurationError, match=match):
        Config.from_dict(values)


def test_a_section_in_the_wrong_place_is_refused():
    with pytest.raises(EveryOConfigurationError, match=r"Config\.model must be a ModelConfig"):
        Config(model={"input_size": 3})


def test_a_misspelt_assignment_is_refused():
    with pytest.raises(EveryOConfigurationError, match="'epoch'; known are epochs"):
        TrainingConfig().epoch = 3


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("run.toml", "", "Unsupported"),
        ("run", "", "Unsupported"),
        ("run.json", "{", "Invalid JSON"),
        ("run.json", '{"training": {"epochs": -1}}', "epochs"),
        ("run.json", "[]", "mapping"),
        ("run.json", "[" * 100_000, "Invalid JSON"),
        ("run.json", '{"training": {"epochs": ' + "9" * 5000 + "}}", "Invalid JSON"),
        ("run.json", '{"training": {"epochs": 1, "epochs": 2}}', "'epochs' occurs twice"),
        ("run.json", " " * (1 << 20) + "{}", "no configuration file"),
    ],
)
def test_bad_files_are_refused(name, text, match, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(EveryOConfigurationError, match=match):
        load_config(path)


def doubled(times):
    """YAML of a few lines that stands for a list of 9 ** times texts."""
    lines = ["- &a0 [x]", *(f"- &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(times))]
    return "training:\n  epochs:\n" + "".join(f"  {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a: [", "Invalid YAML"),
        ("- 1", "mapping"),
        ("- " * 3000 + "a", "Invalid YAML"),
        ("training: {epochs: 2001-99-99}", "Invalid YAML"),
        ("training: {epochs: !!int many}", "Invalid YAML"),
        ("a: !!timestamp x", "Invalid YAML"),
        ("!!python/object/apply:os.getpid []", "Invalid YAML"),
        ("training: &a {epochs: *a}", "epochs must be .*; got a dict"),
        (doubled(12), "epochs must be .*; got a list"),
    ],
)
def test_bad_yaml_is_refused(text, match, tmp_path):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(EveryOConfigurationError, match=match):
        load_config(path)


def test_a_folder_is_no_configuration(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(EveryOConfigurationError, match="no configuration file"):
        load_config(tmp_path / "run.json")


def test_an_empty_yaml_file_is_the_defaults(tmp_path):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = tmp_path / "run.yaml"
    path.write_text("# nothing here\n")
    assert load_config(path) == Config()


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_missing_file_is_a_missing_file(suffix, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_config(tmp_path / f"nowhere{suffix}")


def test_sections_are_data_classes():
    assert all(dataclasses.is_dataclass(section) for section in SECTIONS.values())
    assert "epochs=10" in repr(Config())


@pytest.mark.parametrize("module", [config_module, everyo_logging])
def test_the_examples_in_the_documentation_run(module):
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0


# The log


def test_the_log_prints_from_its_level_on(quiet_log):
    stream = io.StringIO()
    configure_logging("warning", stream=stream)
    get_logger("data").info("not this")
    get_logger("data").warning("this")
    assert stream.getvalue() == "WARNING everyo.data: this\n"


def test_configuring_again_replaces_the_former_output(quiet_log):
    first, second = io.StringIO(), io.StringIO()
    own = logging.StreamHandler(io.StringIO())
    quiet_log.addHandler(own)
    configure_logging("INFO", stream=first)
    configure_logging(logging.INFO, stream=second)
    get_logger().info("once")
    assert first.getvalue() == ""
    assert second.getvalue() == "INFO everyo: once\n"
    assert own in quiet_log.handlers


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("LOUD")
