"""Where figures come from: matplotlib's pyplot, with a way out where there is no display.

matplotlib is imported when the first figure is drawn. If the backend that it chose cannot open a
figure, as on a server, the process switches once to Agg, which only writes files, and tries again.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

from everyo.exceptions import EveryOBackendError

__all__ = ["create_figure", "get_pyplot", "is_available", "using_headless_backend"]

_HEADLESS = False  # whether this module switched to Agg


def is_available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def get_pyplot() -> Any:
    """`matplotlib.pyplot`; `EveryOBackendError` if matplotlib is not installed."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise EveryOBackendError(
            "charts need the package matplotlib: pip install 'everyo[plot]'"
        ) from None
    return pyplot


def using_headless_backend() -> bool:
    """Whether figures can only be saved: Agg is in use, chosen here or by the user."""
    if _HEADLESS:
        return True
    get_pyplot()
    import matplotlib

    return str(matplotlib.get_backend()).lower() == "agg"


def create_figure(build: Callable[[Any], Any]) -> Any:
    """`build(pyplot)`, e.g. `lambda plt: plt.subplots()`; once more with Agg if it fails."""
    global _HEADLESS
    plt = get_pyplot()
    try:
        return build(plt)
    except Exception as error:  # every toolkit has its own classes
        if _HEADLESS:
            raise _no_figure(error) from error
    plt.switch_backend("Agg")
    _HEADLESS = True
    try:
        return build(plt)
    except Exception as error:
        raise _no_figure(error) from error


def _no_figure(error: Exception) -> EveryOBackendError:
    return EveryOBackendError(
        f"matplotlib cannot make a figure, even with the backend Agg, which needs no display: "
        f"{type(error).__name__}: {error}"
    )
