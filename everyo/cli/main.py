"""The console script `everyo`: one function per command, each returning an exit code."""

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from everyo._version import __version__
from everyo.cli.demo import run_demo
from everyo.cli.environment import print_checkup, print_info
from everyo.logging import LEVELS, configure_logging

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the command line) and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.log_level is not None:
        configure_logging(arguments.log_level)
    return arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="everyo", description="EveryO: autograd on NumPy that compiles whole training steps."
    )
    parser.add_argument("--version", action="version", version=f"EveryO {__version__}")
    parser.add_argument("--log-level", choices=LEVELS, help="print log messages from this level on")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="show versions and devices")
    info.add_argument("--json", action="store_true", help="print it as JSON")
    info.set_defaults(run=_info)

    doctor = commands.add_parser("doctor", help="check that this installation works")
    doctor.set_defaults(run=_doctor)

    demo = commands.add_parser("demo", help="train on real handwritten digits")
    demo.add_argument("--epochs", type=_positive, default=15, help="default: %(default)s")
    demo.add_argument(
        "--samples",
        type=_positive,
        default=200,
        help="images per class at most; default: %(default)s, which is all there are",
    )
    demo.set_defaults(run=_demo)

    test = commands.add_parser("test", help="run pytest")
    test.add_argument("path", nargs="?", help="file or folder; default: what pytest is set up for")
    test.set_defaults(run=_test)
    return parser


def _info(arguments: argparse.Namespace) -> int:
    print_info(as_json=arguments.json)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    return 0 if print_checkup() else 1


def _demo(arguments: argparse.Namespace) -> int:
    run_demo(epochs=arguments.epochs, samples=arguments.samples)
    return 0


def _test(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("pytest") is None:
        print("everyo test needs pytest: pip install 'everyo[test]'", file=sys.stderr)
        return 1
    chosen = [] if arguments.path is None else [arguments.path]
    return subprocess.call([sys.executable, "-m", "pytest", *chosen])


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
