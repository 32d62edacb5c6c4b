"""Every example runs and prints what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everyo as eo

EXAMPLES = Path(__file__).parents[1] / "examples"

# file -> a pattern in its output whose group is a number, and the least that number may be
SHOWS = {
    "digits.py": (r"Test accuracy: ([\d.]+)%", 97.0),
    "scipy_minimize.py": (r"(\d) of 5 parameters lie within 3 standard errors", 5),
}
NEEDS = {"scipy_minimize.py": "scipy"}  # packages of the [examples] extra


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_promises(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(eo.__file__).parents[1])},
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    pattern, least = SHOWS[name]
    found = re.search(pattern, run.stdout)
    assert found, run.stdout
    assert float(found[1]) >= least
