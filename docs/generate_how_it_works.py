"""Fills docs/how-it-works.md with the real text of each stage, and draws its figure.

The page is prose with marked blocks, `<!-- stage: NAME -->` to `<!-- end -->`. The Python code of
the page itself is traced and compiled here, and what every stage says about it goes into its block.
Run `python docs/generate_how_it_works.py` after a change of the compiler; a test compares.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import everyo as eo
from everyo.compile import fuse, passes, rows
from everyo.core.autograd import topological_order

FOLDER = Path(__file__).parent
PAGE = FOLDER / "how-it-works.md"
FIGURE = FOLDER / "figures" / "how-it-works.svg"
BLOCK = re.compile(r"(<!-- stage: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
X86 = platform.machine() in ("x86_64", "AMD64")
CPU = "haswell"  # the assembly on the page does not depend on the machine that makes the page


@cache
def example() -> dict[str, Any]:
    """The names that the page's first block of code defines, after one compiled step."""
    code = CODE.search(PAGE.read_text(encoding="utf-8"))
    assert code is not None
    scope: dict[str, Any] = {"__name__": "train"}
    exec(compile(code[1], "train.py", "exec"), scope)
    return scope


def graph() -> Any:
    return example()["train_step"].graph()


def schedule() -> fuse.Schedule:
    return fuse.fuse(passes.run(graph()))


@cache
def plan() -> rows.Plan:
    return rows.Plan(passes.run(graph()), False)


def row_step() -> int:
    """The place of the largest group: softmax and cross-entropy, both ways."""
    sizes = [len(g.nodes) for g in plan().schedule.groups]
    return sizes.index(max(sizes))


def kernel_text(name: str) -> str:
    """The text of the kernel whose name begins like this."""
    return next(row.text for row in plan().kernels if row.name.startswith(name))


def eager_nodes() -> str:
    """The nodes that hang on an eager loss, in the order in which backward visits them."""
    scope = example()
    model, x, y = scope["model"], scope["x"], scope["y"]
    loss = eo.CrossEntropyLoss()(model(x), y)
    names = {id(p): f"model.{name}" for name, p in model.named_parameters()} | {id(x): "x"}
    lines = []
    for tensor in topological_order(loss):
        node = tensor.grad_node
        if node is not None:
            parents = [names.get(id(p)) or p.grad_node.operation for p in node.parents]
            what = f"{node.operation:<14} shape {tensor.shape!s:<9}"
            lines.append(f"{what} from {', '.join(parents)}")
    return "\n".join(lines)


def assembly() -> str:
    """The inner loop of the parameter update, compiled for `CPU` in a process of its own."""
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": CPU,
        "NUMBA_CPU_FEATURES": "+avx2,+avx,+sse4.2",
        "PYTHONPATH": str(Path(eo.__file__).parents[1]),  # the package that is described here
    }
    command = [sys.executable, __file__, "--assembly"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.rstrip()


def inner_loop() -> str:
    """The longest block of vector instructions in the update's kernel that jumps to itself."""
    from everyo.compile import code

    listing = code.assembly(kernel_text("map 640"))
    blocks = re.split(r"^(\.?\w+):.*$", listing, flags=re.MULTILINE)
    found = []
    for label, body in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = [line.split("#")[0].rstrip() for line in body.splitlines()]
        lines = [s for s in lines if s and not s.lstrip().startswith(".")]
        jumps = [i for i, s in enumerate(lines) if re.search(rf"\bj\w+\s+{re.escape(label)}$", s)]
        if jumps and any("vsubps" in s for s in lines):
            found.append([f"{label}:", *lines[: jumps[0] + 1]])
    return "\n".join(max(found, key=len)).expandtabs(8)


STAGES: dict[str, Callable[[], str]] = {
    "eager": eager_nodes,
    "graph": lambda: str(graph()),
    "passes": lambda: str(passes.run(graph())),
    "groups": lambda: str(schedule()),
    "loops": lambda: str(plan().lowered[row_step()]),
    "kernel": lambda: kernel_text("row 32"),
    "update": lambda: kernel_text("map 640"),
    "assembly": assembly,
    "rows": lambda: str(example()["train_step"].explain()),
}
LANGUAGES = {"kernel": "py", "update": "py", "assembly": "asm"}  # "py" is shown, not run


def page(text: str, stages: Callable[[str], bool] = lambda name: True) -> str:
    """The page with its blocks made anew; those that `stages` refuses stay as they are."""

    def filled(match: re.Match[str]) -> str:
        name = match[2]
        if not stages(name):
            return match[0]
        body = "\n".join(line.rstrip() for line in STAGES[name]().rstrip().splitlines())
        return f"{match[1]}```{LANGUAGES.get(name, 'text')}\n{body}\n```\n{match[3]}"

    return BLOCK.sub(filled, text)


def figure() -> str:
    """The graph with its groups, as SVG."""
    return example()["train_step"].explain().svg()


if __name__ == "__main__":
    if sys.argv[1:] == ["--assembly"]:
        print(inner_loop())
    else:
        PAGE.write_text(
            page(PAGE.read_text(encoding="utf-8"), lambda name: X86 or name != "assembly"),
            encoding="utf-8",
        )
        FIGURE.parent.mkdir(exist_ok=True)
        FIGURE.write_text(figure(), encoding="utf-8")
