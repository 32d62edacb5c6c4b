"""Run the workloads in every library, in rounds that take turns, and write the table.

Each library runs a workload in a process of its own, so that thread pools do not meet; rounds take
turns so that whatever else the machine does meets all. The table has, per workload, the median of
the rounds in µs, the first call in seconds (compilation included; EveryO's kernel cache is empty in
the first round), how many times faster EveryO is than the best of the others, and a floor: what the
matrix products of the workload take alone, at the rate of a large one. The tuning variables of
OpenBLAS are unset.

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
import tempfile
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


def run_one(side: str, name: str, threads: int, device: str) -> None:
    """Measure one workload in this process and print the result as JSON."""
    module = importlib.import_module(f"benchmarks.compiled.{SIDES[side]}")
    if side == "torch.compile":
        module.COMPILED = True
    module.prepare(threads, device)
    step = module.make(name)
    if step is None:
        print(json.dumps(None))
        return
    measured = timing.measure(step, module.wait)
    alone = module.products(step) if (side, device) == ("everyo", "cpu") else 0.0
    print(json.dumps((*measured, alone)))


class LaunchError(Exception):
    """A workload that did not come to its end."""


def launch(
    side: str, name: str, threads: int, cache: str | None = None, device: str = "cpu",
    seconds: float = 900,
) -> tuple[float, ...] | None:  # fmt: skip
    """`run_one` in a process of its own, on as many cores as threads; None keeps the user's cache
    of kernels."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would take most of a GPU
    if cache is not None:
        environment["EVERYO_CACHE_DIR"] = f"{cache}/everyo"
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/torch"
    command = [sys.executable, "-m", "benchmarks.compiled", "--one", side, name]
    command += ["--threads", str(threads), "--device", device]
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else None
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds,
            preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"more than {seconds:.0f} s") from None
    if done.returncode:
        raise LaunchError(f"exit status {done.returncode}\n{done.stderr[-1500:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return None if result is None else tuple(result)


def table(
    names: list[str], sides: list[str], threads: int, rounds: int, device: str = "cpu"
) -> str:
    """Measure and lay out."""
    lines = [
        f"| workload | {' | '.join(sides)} | EveryO against the best other | products alone |",
        "| --- |" + " ---: |" * (len(sides) + 2),
    ]
    for name in names:
        found: dict[str, list[tuple[float, ...]]] = {s: [] for s in sides}
        with tempfile.TemporaryDirectory() as cache:
            for _ in range(rounds):
                for side in sides:
                    try:
                        result = launch(side, name, threads, cache, device)
                    except LaunchError as error:
                        print(f"{side} {name}: {error}", file=sys.stderr)
                        continue
                    if result is not None:
                        found[side].append(result)
        medians = {s: statistics.median(t for _, t, _ in r) for s, r in found.items() if r}
        cells = [
            f"{medians[s] * 1e6:,.1f} ({firsts(s, found[s])})" if s in medians else "–"
            for s in sides
        ]
        others = [t for s, t in medians.items() if s != "everyo"]
        ratio = (
            f"{min(others) / medians['everyo']:.2f} ×" if others and "everyo" in medians else "–"
        )
        floor = min((r[2] for r in found.get("everyo", ())), default=0.0)
        alone = f"{floor * 1e6:,.1f}" if floor else "–"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {alone} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def firsts(side: str, results: list[tuple[float, ...]]) -> str:
    """Seconds of the first call; of EveryO without stored kernels, and with them."""
    seconds = [r[0] for r in results]
    if side == "everyo" and len(seconds) > 1:
        return f"{seconds[0]:.2f}, {statistics.median(seconds[1:]):.2f}"
    return f"{statistics.median(seconds):.2f}"


def versions(sides: list[str]) -> str:
    packages = ["numpy", "numba", *{s.split(".")[0] for s in sides if s != "everyo"}]
    return ", ".join(f"{p} {metadata.version(p)}" for p in sorted(packages))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES), help="workloads (all)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--output", help="name of the table in benchmarks/results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.names[0], options.threads, options.device)
        return
    unknown = [n for n in options.names if n not in NAMES]
    if unknown:
        parser.error(f"unknown workloads {unknown}; there are {', '.join(NAMES)}")
    body = table(options.names, options.sides, options.threads, options.rounds, options.device)
    if options.output:
        command = " ".join(["python -m benchmarks.compiled", *sys.argv[1:]])
        head = [
            f"# Compiled steps, {options.threads} thread{'s' * (options.threads != 1)}", "",
            f"`{command}`", "",
            "Median µs per call; in brackets the seconds of the first call, compilation included "
            "(EveryO: with an empty kernel cache, then with a filled one). Last, the µs that the "
            "matrix products take alone at the rate of a large one: a floor.",
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
