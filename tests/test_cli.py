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
        ["benchmark", "--sizes", "-1"],
        ["train"],
        ["train", "t.csv", "--delimiter", "abc"],
        ["train", "t.csv", "--task", "guess"],
        ["predict", "model.evo"],
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


def test_the_benchmark_prints_a_table(capsys):
    assert main(["benchmark", "--sizes", "8", "16", "--repeats", "1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "GFLOP/s" in head
    assert [line.split()[1] for line in lines if "numpy-cpu" in line] == ["8", "16"]


def test_the_benchmark_writes_its_rows_as_json(capsys, tmp_path):
    file = tmp_path / "rows.json"
    command = ["benchmark", "--sizes", "8", "--repeats", "2", "--json", "--output", str(file)]
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == json.loads(file.read_text())
    assert {row["backend"] for row in rows} >= {"numpy-cpu", "everyo-eager", "everyo-compiled"}
    for row in rows:
        assert row["benchmark"] == "matmul"
        assert row["size"] == 8
        assert row["seconds"] > 0
        assert row["gflops"] == pytest.approx(2 * 8**3 / row["seconds"] / 1e9)


def test_a_file_that_cannot_be_written_is_one_line_and_code_2(capsys, tmp_path):
    command = ["benchmark", "--sizes", "8", "--output", str(tmp_path / "no" / "rows.json")]
    assert main(command) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_log_level_comes_before_the_command(quiet_log, capsys):
    assert main(["--log-level", "DEBUG", "info"]) == 0
    get_logger("cli").debug("now it is heard")
    assert "now it is heard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "arguments", "code"),
    [
        ("assert True", ["test", "test_sample.py"], 0),
        ("assert False", ["test"], 1),
        ("assert True", ["test", "nowhere.py"], 2),
    ],
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
