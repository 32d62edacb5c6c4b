"""The console script `everyo`: one function per command, each returning an exit code.

0 is success, 1 a check-up or a test that failed, 2 something wrong with what was given: the
command line, a file, its contents. That is said in one line, without a traceback.
"""

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everyo._version import __version__
from everyo.cli.benchmark import print_rows, run_benchmark
from everyo.cli.cache import clear_cache, print_cache
from everyo.cli.demo import run_demo
from everyo.cli.environment import print_checkup, print_info
from everyo.cli.predict import predict_table
from everyo.cli.train import print_report, settings_from, train_table
from everyo.exceptions import EveryOError
from everyo.logging import LEVELS, configure_logging

__all__ = ["main"]

LONGEST = 1000  # characters of a message


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the command line) and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.log_level is not None:
        configure_logging(arguments.log_level)
    try:
        return arguments.run(arguments)
    except BrokenPipeError:  # the reader of our output has seen enough
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 0
    except (EveryOError, OSError, MemoryError) as error:
        print(f"everyo: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: BaseException) -> str:
    """The message of an error for a terminal: names in it may come from a file of anybody's."""
    text = " ".join(str(error).split()) or type(error).__name__
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:LONGEST])
    return shown if len(text) <= LONGEST else f"{shown}…"


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

    cache = commands.add_parser("cache", help="look at the compiled kernels on disk")
    actions = cache.add_subparsers(required=True, metavar="ACTION")
    for name, run, what in (
        ("info", print_cache, "show where they are and how many"),
        ("clear", clear_cache, "remove them"),
    ):
        action = actions.add_parser(name, help=what)
        action.add_argument("--json", action="store_true", help="print it as JSON")
        action.set_defaults(run=_cache, action=run)

    demo = commands.add_parser("demo", help="train on real handwritten digits")
    demo.add_argument("--epochs", type=_positive, default=15, help="default: %(default)s")
    demo.add_argument(
        "--samples",
        type=_positive,
        default=200,
        help="images per class at most; default: %(default)s, which is all there are",
    )
    demo.set_defaults(run=_demo)

    _add_train(commands)
    _add_predict(commands)

    benchmark = commands.add_parser("benchmark", help="time matrix products on this machine")
    benchmark.add_argument(
        "--sizes", type=_positive, nargs="+", default=[128, 256, 512], metavar="N",
        help="rows and columns; default: 128 256 512",
    )  # fmt: skip
    benchmark.add_argument(
        "--repeats", type=_positive, default=3, help="runs, of which the best counts; default: 3"
    )
    benchmark.add_argument("--json", action="store_true", help="print the rows as JSON")
    benchmark.add_argument("--output", metavar="FILE", help="also write the rows as JSON")
    benchmark.set_defaults(run=_benchmark)

    test = commands.add_parser("test", help="run pytest")
    test.add_argument("path", nargs="?", help="file or folder; default: what pytest is set up for")
    test.set_defaults(run=_test)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="train a network on a table of your own")
    train.add_argument("table", help="a CSV file; missing cells and text columns are fine")
    train.add_argument(
        "--target", help="the column to predict, by name or number; default: the last one"
    )
    train.add_argument("--output", metavar="FILE", help="the model; default: TABLE.evo, here")
    train.add_argument("--config", metavar="FILE", help="settings in JSON or YAML")
    train.add_argument(
        "--task", choices=("auto", "classification", "regression"), default="auto",
        help="default: seen from the target",
    )  # fmt: skip
    train.add_argument("--skip", nargs="+", default=[], metavar="COLUMN", help="columns to ignore")
    train.add_argument(
        "--delimiter", type=_delimiter, default=",", metavar="CHARACTER",
        help="default: a comma, or what the first line has in its place",
    )  # fmt: skip
    train.add_argument(
        "--no-header", dest="header", action="store_false", help="the first line is data"
    )
    train.add_argument(
        "--patience", type=_positive, default=20,
        help="epochs without improvement before it stops; default: %(default)s",
    )  # fmt: skip
    for flag, (_, kind, text) in _SETTINGS.items():
        train.add_argument(f"--{flag.replace('_', '-')}", type=kind, help=text)
    train.add_argument("--quiet", action="store_true", help="no progress")
    train.add_argument("--json", action="store_true", help="print the report as JSON")
    train.set_defaults(run=_train)


# Flags that override a configuration: the section, the type, the help. Config checks the values.
_SETTINGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "epochs": ("training", int, "at most; default: 200"),
    "batch_size": ("training", int, "rows per step; default: 32"),
    "learning_rate": ("training", float, "default: 0.001"),
    "optimizer": ("training", str, "adam or sgd; default: adam"),
    "validation_split": ("training", float, "the share of rows held out; default: 0.2"),
    "seed": ("training", int, "of the split, the weights and the order; default: 0"),
    "hidden_size": ("model", int, "units in each of the two hidden layers; default: 64"),
    "dropout": ("model", float, "default: 0"),
    "device": ("device", str, "auto, cpu or cuda; default: auto"),
}


def _train(arguments: argparse.Namespace) -> int:
    flags: dict[str, dict[str, Any]] = {}
    for flag, (section, _, _) in _SETTINGS.items():
        value = getattr(arguments, flag)
        if value is not None:
            flags.setdefault(section, {})["preferred" if flag == "device" else flag] = value
    settings = settings_from(
        arguments.config, flags, target=arguments.target, task=arguments.task,
        delimiter=arguments.delimiter, header=arguments.header, skip=tuple(arguments.skip),
        patience=arguments.patience,
    )  # fmt: skip
    report = train_table(arguments.table, arguments.output, settings, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
        print(f"Next        everyo predict {report['files']['model']} NEW_ROWS.csv")
    return 0


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser("predict", help="use a model that `everyo train` made")
    predict.add_argument("model", help="the .evo file")
    predict.add_argument("table", help="a CSV file with the columns of the one in training")
    predict.add_argument("--output", metavar="FILE", help="write them there instead of printing")
    predict.add_argument(
        "--probabilities", action="store_true", help="those of all classes, not only of the best"
    )
    predict.add_argument("--json", action="store_true", help="as JSON instead of CSV")
    predict.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    found = predict_table(arguments.model, arguments.table, probabilities=arguments.probabilities)
    with contextlib.ExitStack() as stack:
        stream = sys.stdout
        if arguments.output is not None:
            stream = stack.enter_context(open(arguments.output, "w", encoding="utf-8", newline=""))
        if arguments.json:
            stream.write(json.dumps(found.rows(), indent=2) + "\n")
        else:
            found.write(stream)
    if found.score is not None:
        print(found.score, file=sys.stderr)
    return 0


def _benchmark(arguments: argparse.Namespace) -> int:
    rows = run_benchmark(arguments.sizes, arguments.repeats)
    text = json.dumps(rows, indent=2)
    if arguments.output is not None:
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")
    if arguments.json:
        print(text)
    else:
        print_rows(rows)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    print_info(as_json=arguments.json)
    return 0


def _cache(arguments: argparse.Namespace) -> int:
    arguments.action(as_json=arguments.json)
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
    code = subprocess.call([sys.executable, "-m", "pytest", *chosen])
    return code if code in (0, 1) else 2


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return int(text)


def _delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1:
        raise argparse.ArgumentTypeError(f"must be one character, or tab; got {text!r}")
    return text
