"""Run the workloads in every library, in rounds that take turns, and write the table.

Each library runs a workload in a process of its own, so that thread pools do not meet; rounds take
turns so that whatever else the machine does meets all. The table has, per workload, the median of
the rounds in µs, the first call in seconds (compilation included), and how many times faster EveryO
is than the best of the others. The tuning variables of OpenBLAS are unset.

    pip install torch jax
    python -m benchmarks.compiled                       # everything, all cores
    python -m benchmarks.compiled --threads 1 mlp-tiny mlp-small mlp-mid
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.compiled import timing
from benchmarks.compiled.workloads import NAMES

SIDES = {
    "everyo": "everyo_side",
    "torch": "torch_side",
    "torch.compile": "torch_side",
    "jax": "jax_side",
}
RESULTS = Path(__file__).parent.parent / "results"


def run_one(side: str, name: str, threads: int) -> None:
    """Measure one workload in this process and print the result as JSON."""
    module = importlib.import_module(f"benchmarks.compiled.{SIDES[side]}")
    if side == "torch.compile":
        module.COMPILED = True
    module.prepare(threads)
    step = module.make(name)
    print(json.dumps(None if step is None else timing.measure(step, module.wait)))


def launch(side: str, name: str, threads: int) -> tuple[float, float] | None:
    """`run_one` in a process of its own, on as many cores as threads."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment["OMP_NUM_THREADS"] = str(threads)
    command = [
        sys.executable,
        "-m",
        "benchmarks.compiled",
        "--one",
        side,
        name,
        "--threads",
        str(threads),
    ]
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else None
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900,
        preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    if done.returncode:
        print(f"{side} {name} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
        return None
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return None if result is None else tuple(result)


def table(names: list[str], sides: list[str], threads: int, rounds: int) -> str:
    """Measure and lay out."""
    lines = [
        f"| workload | {' | '.join(sides)} | EveryO against the best other |",
        "| --- |" + " ---: |" * (len(sides) + 1),
    ]
    for name in names:
        found: dict[str, list[tuple[float, float]]] = {s: [] for s in sides}
        for _ in range(rounds):
            for side in sides:
                result = launch(side, name, threads)
                if result is not None:
                    found[side].append(result)
        medians = {s: statistics.median(t for _, t in r) for s, r in found.items() if r}
        cells = [
            f"{medians[s] * 1e6:,.1f} ({statistics.median(f for f, _ in found[s]):.2f})"
            if s in medians
            else "–"
            for s in sides
        ]  # fmt: skip
        others = [t for s, t in medians.items() if s != "everyo"]
        ratio = (
            f"{min(others) / medians['everyo']:.2f} ×" if others and "everyo" in medians else "–"
        )
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def versions(sides: list[str]) -> str:
    packages = ["numpy", "numba", *{s.split(".")[0] for s in sides if s != "everyo"}]
    return ", ".join(f"{p} {metadata.version(p)}" for p in sorted(packages))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES), help="workloads (all)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--output", help="name of the table in benchmarks/results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.names[0], options.threads)
        return
    unknown = [n for n in options.names if n not in NAMES]
    if unknown:
        parser.error(f"unknown workloads {unknown}; there are {', '.join(NAMES)}")
    body = table(options.names, options.sides, options.threads, options.rounds)
    if options.output:
        command = " ".join(["python -m benchmarks.compiled", *sys.argv[1:]])
        head = [
            f"# Compiled steps, {options.threads} thread{'s' * (options.threads != 1)}", "",
            f"`{command}`", "",
            "Median µs per call; in brackets the seconds of the first call, compilation included.",
            f"Machine: {processor()}, {platform.system()}, Python {platform.python_version()}, "
            f"{versions(options.sides)}.", "",
        ]  # fmt: skip
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / options.output).write_text(
            "\n".join(head) + "\n" + body + "\n", encoding="utf-8"
        )


def processor() -> str:
    """The model of the processor, without the address of anything."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
