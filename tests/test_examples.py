"""Every example runs and prints what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everyo as eo

EXAMPLES = Path(__file__).parents[1] / "examples"

# file and arguments -> a pattern in its output whose group is a number, and the least it may be
SHOWS = {
    "digits.py": (r"Test accuracy: ([\d.]+)%", 97.0),
    "cnn.py": (r"Test accuracy: ([\d.]+)%", 98.5),
    "moons.py": (r"Test accuracy: ([\d.]+)%", 95.0),
    "csv_regression.py": (r"R2 on held-out throws: ([\d.]+)%", 99.0),
    "sequences.py": (r"the worse of the two reaches ([\d.]+)%", 85.0),
    "compile_tour.py": (r"agree with eager code: ([\d.]+)%", 100.0),
    "gpt.py 200": (r"Next letter guessed right in held-out text: ([\d.]+)%", 35.0),
    "pinn.py": (r"the solution is met to ([\d.]+)%", 98.0),
    "mixed_precision.py": (r"Test accuracy: ([\d.]+)%", 95.0),
    "quantization.py": (r"The two agree on ([\d.]+)%", 98.0),
    "onnx_export.py": (r"The same class for ([\d.]+)%", 100.0),
    "save_and_load.py": (r"equal to the last bit: ([\d.]+)%", 100.0),
    "scipy_minimize.py": (r"(\d) of 5 parameters lie within 3 standard errors", 5),
}
NEEDS = {
    "scipy_minimize.py": "scipy",
    "moons.py": "matplotlib",
    "cnn.py": "matplotlib",
    "onnx_export.py": "onnxruntime",
}
ELSEWHERE = {"cuda_training.py", "data_parallel.py"}  # run by the tests of CUDA and of MPI


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_promises(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name.split()[0]), *name.split()[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # pictures are written here
        env=os.environ | {"PYTHONPATH": str(Path(eo.__file__).parents[1])},
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    pattern, least = SHOWS[name]
    found = re.search(pattern, run.stdout)
    assert found, run.stdout
    assert float(found[1]) >= least


def test_every_example_is_in_the_table():
    names = {name.split()[0] for name in SHOWS} | ELSEWHERE
    assert names == {path.name for path in EXAMPLES.glob("*.py")}
