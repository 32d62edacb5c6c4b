"""What `everyo info` shows and what `everyo doctor` checks.

A check is a function that returns a few words about what it found and raises when something is
wrong. Optional parts are reported, and never fail the check-up.
"""

import json
import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

import everyo as eo
from everyo.datasets import load_uci_digits

__all__ = ["CHECKS", "Check", "facts", "print_checkup", "print_info"]


def facts() -> dict[str, Any]:
    """Versions and devices, as plain values."""
    return {
        "everyo_version": eo.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "numpy": np.__version__,
        "numba": metadata.version("numba"),
        "tensorflow": False,
        "cuda": eo.cuda.is_available(),
        "cuda_unavailable_reason": eo.cuda.unavailable_reason(),
        "device": str(eo.device("auto")),
    }


def print_info(*, as_json: bool = False) -> None:
    """Print `facts()`, as JSON or as a table."""
    found = facts()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        ("EveryO", found["everyo_version"]),
        ("Python", found["python"]),
        ("Platform", found["platform"]),
        ("NumPy", found["numpy"]),
        ("Numba", found["numba"]),
        ("TensorFlow (optional)", _tensorflow()),
        ("CUDA (optional)", _cuda()),
        ("Device", found["device"]),
    ]
    for name, value in rows:
        print(f"{name:<22} {value}")


def print_checkup() -> bool:
    """Run all checks, print a line for each, and tell whether all that is required works."""
    healthy = True
    for check in CHECKS:
        try:
            verdict, detail = ("PASS" if check.required else "INFO"), check.run()
        except Exception as error:
            verdict, detail = "FAIL", f"{type(error).__name__}: {error}"
            healthy = healthy and not check.required
        print(f"{verdict}  {check.name:<22} {detail}")
    print("Everything that is required works." if healthy else "Something does not work; see FAIL.")
    return healthy


class Check(NamedTuple):
    """One line of the check-up."""

    name: str
    run: Callable[[], str]
    required: bool = True


def _python() -> str:
    return platform.python_version()


def _numpy() -> str:
    if int(np.__version__.split(".")[0]) < 2:
        raise RuntimeError(f"NumPy 2.0 or newer is needed; this is {np.__version__}")
    return np.__version__


def _numba() -> str:
    return metadata.version("numba")


def _autograd() -> str:
    x = eo.tensor(np.linspace(-2.0, 2.0, 9), requires_grad=True)
    (x * eo.exp(x)).sum().backward()
    expected = (1.0 + x.data) * np.exp(x.data)
    worst = float(np.abs(x.grad - expected).max())
    if not worst < 1e-12:
        raise RuntimeError(f"the gradient of x * exp(x) is off by {worst:.1e}")
    return f"the gradient of x * exp(x) is right to {worst:.0e}"


def _compiler() -> str:
    @eo.compile(cache=False)
    def step(x: eo.Tensor) -> eo.Tensor:
        return (x * eo.exp(x)).sum()

    x = eo.tensor(np.linspace(-2.0, 2.0, 9), requires_grad=True)
    step(x).backward()
    worst = float(np.abs(x.grad - (1.0 + x.data) * np.exp(x.data)).max())
    if not worst < 1e-12:
        raise RuntimeError(f"the compiled gradient of x * exp(x) is off by {worst:.1e}")
    kernels = step.cache_info().kernels
    return f"compiled to {kernels} kernels, right to {worst:.0e}"


def _training() -> str:
    features, targets = eo.datasets.make_regression(n_samples=64, noise=0.0, seed=0)
    model = eo.Linear(1, 1, seed=0)
    optimizer = eo.SGD(model.parameters(), lr=0.1)
    loss_fn = eo.MSELoss()
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = loss_fn(model(eo.tensor(features)), eo.tensor(targets))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not losses[-1] < 1e-6:
        raise RuntimeError(f"the loss of a line fit went from {losses[0]:.2g} to {losses[-1]:.2g}")
    return f"the loss of a line fit fell from {losses[0]:.2g} to {losses[-1]:.1g}"


def _data() -> str:
    features, _ = load_uci_digits()
    return f"{len(features)} handwritten digits are in place"


def _tensorflow() -> str:
    return "not used by this version"


def _cuda() -> str:
    reason = eo.cuda.unavailable_reason()
    return f"not available: {reason}" if reason else f"{eo.cuda.device_count()} device(s)"


CHECKS = (
    Check("Python", _python),
    Check("NumPy", _numpy),
    Check("Numba", _numba),
    Check("Autograd", _autograd),
    Check("Compiler", _compiler),
    Check("Training", _training),
    Check("Data", _data),
    Check("TensorFlow (optional)", _tensorflow, required=False),
    Check("CUDA (optional)", _cuda, required=False),
)
