"""What `explain` shows: the rows of a program as a table, and a picture of its graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everyo.compile import ir
from everyo.compile.machine import machine
from everyo.compile.rows import every


def _of_peak(row: Any, seconds: float) -> str:
    """The larger of the shares of the machine's bandwidth and of its matmul rate; a row whose data
    lie in the caches can pass 100 % of the bandwidth."""
    if not seconds:
        return "-"
    share = max(row.bytes / seconds / machine().bandwidth, row.flops / seconds / machine().flops)
    return f"{100 * share:.0f} %"


class Explanation:
    """A printable account of a compiled function. `rows` are the program's steps in order."""

    def __init__(self, graph: ir.Graph, program: Any, seconds: Sequence[float] | None) -> None:
        self.graph = graph
        self.schedule = program.schedule
        self.rows = program.kernels
        self.arena_bytes = program.arena_bytes
        self.seconds = None if seconds is None else tuple(seconds)

    def __str__(self) -> str:
        head = ["", "kernel", "shapes", "chunks", "kB", "kflop"]
        if self.seconds is not None:
            head += ["us", "share", "GB/s", "Gflop/s", "of peak"]
        table = [head]
        total = sum(self.seconds) if self.seconds else 0.0
        for i, row in enumerate(self.rows):
            shapes = " ".join("x".join(map(str, s)) or "1" for s in row.shapes)
            line = [
                str(i),
                row.name,
                shapes,
                str(row.chunks),
                f"{row.bytes / 1e3:.1f}",
                f"{row.flops / 1e3:.1f}",
            ]
            if self.seconds is not None:
                t = self.seconds[i]
                line += [
                    f"{t * 1e6:.2f}", f"{100 * t / total:.0f} %" if total else "-",
                    f"{row.bytes / t / 1e9:.1f}" if t else "-",
                    f"{row.flops / t / 1e9:.1f}" if t else "-",
                    _of_peak(row, t),
                ]  # fmt: skip
            table.append(line)
        table = [[c if len(c) <= 60 else c[:57] + "..." for c in r] for r in table]
        widths = [max(len(r[k]) for r in table) for k in range(len(head))]
        left = {1, 2}
        lines = []
        for cells in table:
            padded = enumerate(zip(cells, widths, strict=True))
            line = [c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in padded]
            lines.append("  ".join(line).rstrip())
        texts = len({row.text for row in every(self.rows)})
        arena = f"arena {self.arena_bytes / 1e3:.1f} kB"
        lines.append(f"{len(self.rows)} rows, {texts} distinct kernels, {arena}")
        if self.seconds is not None:
            m = machine()
            lines.append(
                f"{total * 1e6:.1f} us in all; peaks: {m.bandwidth / 1e9:.1f} GB/s of a plain "
                f"copy, {m.flops / 1e9:.0f} Gflop/s of a matrix product on one thread"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def svg(self) -> str:
        """The graph with its fused groups, as SVG text."""
        from everyo.compile import draw

        return draw.svg(self.schedule.graph, self.schedule.groups)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file and return its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.svg(), encoding="utf-8")
        return target
