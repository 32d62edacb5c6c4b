"""What a training shows while it runs: a line per epoch, and a bar within an epoch.

The bar appears only where standard output is a terminal: tqdm's when that package is installed,
else a single line that is written over. Elsewhere (files, pipes, notebooks' logs) there is none.
"""

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["Bar", "epoch_line"]


def epoch_line(epoch: int, epochs: int, logs: Mapping[str, Any]) -> str:
    """The line of an epoch: `Epoch 3/10  loss=0.1234  accuracy=0.9500  0.41 s`."""
    parts = [f"Epoch {epoch}/{epochs}"]
    parts += [f"{k}={v:.4f}" for k, v in logs.items() if k not in ("epoch", "time")]
    if "time" in logs:
        parts.append(f"{logs['time']:.2f} s")
    return "  ".join(parts)


class Bar:
    """The progress of one epoch; `close()` leaves nothing behind."""

    def __init__(self, label: str, total: int | None, *, shown: bool) -> None:
        self.label, self.total, self.count = label, total, 0
        self._width = 0
        self._shown = shown and sys.stdout.isatty()
        self._tqdm = _tqdm(label, total) if self._shown else None

    def advance(self, loss: float) -> None:
        """One batch more, with its loss."""
        self.count += 1
        if self._tqdm is not None:
            self._tqdm.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self._tqdm.update()
        elif self._shown:
            of = "" if self.total is None else f"/{self.total}"
            self._write(f"{self.label}  batch {self.count}{of}  loss={loss:.4f}")

    def close(self) -> None:
        """Clear the line."""
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._shown:
            self._write("")
            sys.stdout.write("\r")
            sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write("\r" + text.ljust(self._width))
        sys.stdout.flush()
        self._width = len(text)


def _tqdm(label: str, total: int | None) -> Any:
    """A bar of tqdm, or None if it is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=label, leave=False, file=sys.stdout, unit="batch")
