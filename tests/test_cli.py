"""The command line says what it promises, and its exit codes tell whether it worked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import everyo as eo
from everyo.cli import environment
from everyo.cli.main import main
from everyo.logging import get_logger


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert eo.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["--log-level", "LOUD", "info"],
        ["info", "--yaml"],
        ["demo", "--epochs", "0"],
        ["demo", "--samples", "many"],
    ],
)
def test_what_it_does_not_know_ends_it(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: everyo" in capsys.readouterr().err


def test_info_names_versions_and_devices(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("EveryO", eo.__version__, "NumPy", "TensorFlow", "CUDA", "Device"):
        assert word in text


def test_info_as_json_has_the_promised_keys(capsys):
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["everyo_version"] == eo.__version__
    assert facts["tensorflow"] is False
    assert facts["cuda"] is eo.cuda.is_available()


def test_doctor_finds_this_installation_healthy(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for check in environment.CHECKS:
        (line,) = [line for line in lines if check.name in line]
        assert line.startswith("PASS" if check.required else "INFO")
    text = "\n".join(lines)
    for word in ("Autograd", "TensorFlow (optional)", "CUDA (optional)"):
        assert word in text


@pytest.mark.parametrize(("required", "code"), [(True, 1), (False, 0)])
def test_doctor_tells_what_is_broken_and_fails_only_for_what_is_required(
    required, code, capsys, monkeypatch
):
    def broken():
        raise ArithmeticError("two and two make five")

    checks = (environment.Check("Sums", broken, required),)
    monkeypatch.setattr(environment, "CHECKS", checks)
    assert main(["doctor"]) == code
    out = capsys.readouterr().out
    assert "FAIL  Sums" in out
    assert "ArithmeticError: two and two make five" in out


def test_the_demo_shows_progress_and_its_accuracy(capsys):
    assert main(["demo", "--epochs", "2", "--samples", "20"]) == 0
    out = capsys.readouterr().out
    assert "Epoch 1/2" in out
    assert "Epoch 2/2" in out
    assert "loss=" in out
    assert "Test accuracy" in out


def test_the_demo_reads_at_least_97_percent_of_held_out_digits(capsys):
    assert main(["demo"]) == 0
    (line,) = [s for s in capsys.readouterr().out.splitlines() if "Test accuracy" in s]
    assert float(line.split()[2].rstrip("%")) >= 97.0


def test_the_log_level_comes_before_the_command(quiet_log, capsys):
    assert main(["--log-level", "DEBUG", "info"]) == 0
    get_logger("cli").debug("now it is heard")
    assert "now it is heard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "arguments", "code"),
    [("assert True", ["test", "test_sample.py"], 0), ("assert False", ["test"], 1)],
)
def test_test_runs_pytest_and_returns_its_verdict(body, arguments, code, tmp_path, monkeypatch):
    (tmp_path / "test_sample.py").write_text(f"def test_sample():\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code


def test_python_dash_m_is_the_console_script():
    run = subprocess.run(
        [sys.executable, "-m", "everyo", "info", "--json"],
        capture_output=True,
        text=True,
        cwd=Path(eo.__file__).parents[1],
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["everyo_version"] == eo.__version__
