"""`everyo train`: a network for a table of one's own, without writing code.

The target column decides between classes and a quantity, the other columns are scaled or spelled
out, a part of the rows is held out and stops the training when it no longer improves. What comes
out: a report, a model that `everyo predict` uses, the history and, with matplotlib, charts.
"""

import contextlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import everyo as eo
from everyo import visualization
from everyo.cli.columns import Plan, Table, learn_plan
from everyo.config import Config, read_settings
from everyo.data.splits import stratified_split, train_test_split
from everyo.exceptions import EveryOConfigurationError, EveryOError, EveryOShapeError
from everyo.training.metrics import accuracy, mean_absolute_error, r2_score
from everyo.visualization._backend import is_available
from everyo.visualization.style import caption

__all__ = ["Settings", "print_report", "settings_from", "train_table"]

FEWEST_ROWS = 10
# Tables are small and early stopping ends a run, so more epochs than `Config` itself says.
DEFAULTS = {"training": {"epochs": 200}, "model": {"hidden_size": 64}}


@dataclass(frozen=True)
class Settings:
    """How a table is learnt. `sizes` are those that a configuration file insists on."""

    config: Config
    sizes: dict[str, int]
    target: str | None = None
    task: str = "auto"
    delimiter: str = ","
    header: bool = True
    skip: tuple[str, ...] = ()
    patience: int = 20


def settings_from(file: str | None, flags: dict[str, dict[str, Any]], **others: Any) -> Settings:
    """The settings of a configuration file, with what was said on the command line on top."""
    given = {} if file is None else read_settings(file)
    Config.from_dict(given)  # its errors name what is in the file
    merged = {
        name: {**DEFAULTS.get(name, {}), **given.get(name, {}), **flags.get(name, {})}
        for name in ("model", "training", "device")
    }
    named = given.get("model", {})
    sizes = {name: named[name] for name in ("input_size", "output_size") if name in named}
    return Settings(Config.from_dict(merged), sizes, **others)


def train_table(
    path: str, output: str | None, settings: Settings, *, quiet: bool
) -> dict[str, Any]:
    """Train on the table at `path` and write all files; the report, plain values."""
    output = output or f"{Path(path).stem}.evo"
    if Path(output).is_dir():  # said before hours of training, not after
        raise EveryOConfigurationError(f"--output {output} is a folder; give it the name of a file")
    table = Table.read(path, delimiter=settings.delimiter, header=settings.header)
    if settings.header and table.named_by_numbers:
        print(
            f"everyo: {path}: the first line was taken for the names of the columns; with "
            "--no-header it is data",
            file=sys.stderr,
        )
    target = _target_name(table, settings.target)
    for name in settings.skip:
        table.column(name)
    complete = table.without(missing=target)
    if len(complete.rows) < FEWEST_ROWS:
        raise EveryOShapeError(
            f"{path}: {len(complete.rows)} rows have a value in {target!r}; "
            f"at least {FEWEST_ROWS} are needed"
        )
    training = settings.config.training
    train, held_out = _split(complete, target, settings)
    plan, left_out = learn_plan(
        complete, train, target, settings.task, settings.delimiter, settings.header, settings.skip
    )
    for name, size in settings.sizes.items():
        found = plan.width if name == "input_size" else plan.target.width
        if size != found:
            raise EveryOConfigurationError(
                f"the configuration says {name} {size}, but {path} makes it {found}; leave it out"
            )
    x, y = plan.features(complete), plan.target.encode(complete)
    trainer = _trainer(plan, settings.config)
    loader = eo.DataLoader(
        eo.ArrayDataset(x[train], y[train]), training.batch_size, shuffle=True, seed=training.seed
    )
    stopper = eo.EarlyStopping(patience=settings.patience, verbose=not quiet)
    validation: dict[str, Any] = {}
    if len(held_out):
        validation["validation_loader"] = eo.DataLoader(
            eo.ArrayDataset(x[held_out], y[held_out]), max(256, training.batch_size)
        )
        validation["callbacks"] = [stopper]
    # Progress is no part of the report; a training that diverges is told in one line, below.
    with contextlib.redirect_stdout(sys.stderr), np.errstate(over="ignore", invalid="ignore"):
        history = trainer.fit(
            loader,
            epochs=training.epochs,
            verbose=not quiet,
            log_every=max(1, training.epochs // 20),
            **validation,
        )
    best = stopper.state_dict()["weights"]  # also where the epochs ran out before it stopped
    if best is not None:
        trainer.model.load_state_dict(best)
    elif not np.isfinite(history.last()["loss"]):
        raise EveryOError(
            f"the training diverged (loss {history.last()['loss']}); a learning rate below "
            f"{training.learning_rate:g} may help"
        )
    trainer.model.to("cpu")
    scored = held_out if len(held_out) else train
    report: dict[str, Any] = {
        "table": path,
        "task": "classification" if plan.target.classes else "regression",
        "target": target,
        "rows": len(table.rows),
        "rows_without_target": len(table.rows) - len(complete.rows),
        "training_rows": len(train),
        "validation_rows": len(held_out),
        "features": [column.name for column in plan.columns],
        "left_out": left_out,
        "classes": list(plan.target.classes),
        "epochs": len(history),
        "num_parameters": trainer.model.num_parameters(),
        "scored_on": "validation" if len(held_out) else "training",
        **scores(plan, trainer.predict(x[scored]), y[scored], y[train]),
    }
    report["files"] = _write(output, trainer, plan, report, x, y, scored)
    return report


def scores(plan: Plan, outputs: np.ndarray, y: np.ndarray, y_train: np.ndarray) -> dict[str, float]:
    """How good predictions are, beside what a constant guess from the training rows achieves."""
    if plan.target.classes:
        most_common = np.bincount(y_train).argmax()
        return {
            "accuracy": accuracy(outputs, y),
            "baseline_accuracy": float(np.mean(y == most_common)),
        }
    true, predicted = plan.target.decode(y), plan.target.decode(outputs)
    mean = plan.target.decode(y_train).mean()
    return {
        "r2": r2_score(predicted, true),
        "mean_absolute_error": mean_absolute_error(predicted, true),
        "baseline_mean_absolute_error": float(np.abs(true - mean).mean()),
    }


def print_report(report: dict[str, Any]) -> None:
    """The report as lines for people."""
    counts = f"{report['training_rows']} for training, {report['validation_rows']} held out"
    print(f"Table       {report['table']}: {report['rows']} rows; {counts}")
    if report["rows_without_target"]:
        print(f"            rows without a target, left out: {report['rows_without_target']}")
    what = f"{len(report['classes'])} classes" if report["classes"] else "a quantity"
    print(f"Task        {report['task']} of {report['target']!r}: {what}")
    print(f"Features    {', '.join(report['features'])}")
    if report["left_out"]:
        print(f"Left out    {', '.join(report['left_out'])} (constant, or text of many values)")
    epochs = "1 epoch" if report["epochs"] == 1 else f"{report['epochs']} epochs"
    print(f"Training    {epochs}, {report['num_parameters']} parameters")
    title = report["scored_on"].capitalize()
    if report["classes"]:
        print(
            f"{title:<11} accuracy {report['accuracy']:.1%} (always the most common class: "
            f"{report['baseline_accuracy']:.1%})"
        )
    else:
        print(
            f"{title:<11} r2 {report['r2']:.3f}, mean absolute error "
            f"{report['mean_absolute_error']:.4g} (always the mean: "
            f"{report['baseline_mean_absolute_error']:.4g})"
        )
    for name, file in report["files"].items():
        print(f"{name.capitalize():<11} {file}")


def _target_name(table: Table, chosen: str | None) -> str:
    """A column by name or number; by default the last one."""
    if chosen is None:
        return table.names[-1]
    width = len(table.names)
    if chosen not in table.names and chosen.lstrip("-").isdigit() and -width <= int(chosen) < width:
        return table.names[int(chosen)]
    table.column(chosen)
    return chosen


def _split(table: Table, target: str, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """The places of the rows for training and of those held out, classes in equal shares."""
    places, share = np.arange(len(table.rows)), settings.config.training.validation_split
    seed = settings.config.training.seed
    if share == 0:
        return places, places[:0]
    everything, _ = learn_plan(
        table, places, target, settings.task, settings.delimiter, settings.header, settings.skip
    )
    if everything.target.classes:
        labels = everything.target.encode(table)
        if np.bincount(labels).max() >= 2:
            train, held_out, _, _ = stratified_split(places, labels, test_size=share, seed=seed)
            return train, held_out
    train, held_out = train_test_split(places, test_size=share, seed=seed)
    return train, held_out


def _trainer(plan: Plan, config: Config) -> eo.Trainer:
    model, training = config.model, config.training
    seed, hidden = training.seed, model.hidden_size
    layers: list[eo.Module] = []
    for number, width in enumerate((plan.width, hidden)):
        layers += [eo.Linear(width, hidden, seed=seed + 2 * number), eo.ReLU()]
        if model.dropout:
            layers.append(eo.Dropout(model.dropout, seed=seed + 2 * number + 1))
    network = eo.Sequential(*layers, eo.Linear(hidden, plan.target.width, seed=seed + 4))
    optimizer: eo.Optimizer
    if training.optimizer == "adam":
        optimizer = eo.Adam(network.parameters(), lr=training.learning_rate)
    else:
        optimizer = eo.SGD(network.parameters(), lr=training.learning_rate, momentum=0.9)
    classes = bool(plan.target.classes)
    return eo.Trainer(
        network,
        optimizer,
        eo.CrossEntropyLoss() if classes else eo.MSELoss(),
        metrics=["accuracy" if classes else "r2"],
        device=config.device.preferred,
    )


def _write(
    output: str, trainer: eo.Trainer, plan: Plan, report: dict[str, Any], x: np.ndarray,
    y: np.ndarray, scored: np.ndarray,
) -> dict[str, str]:  # fmt: skip
    """All files of a run: kind -> path."""
    metadata = {**plan.to_metadata(), "report": dict(report)}
    model = eo.save(trainer.model, output, metadata=metadata)
    files = {"model": model, "history": trainer.history.to_csv(model.with_suffix(".history.csv"))}
    if not is_available():
        return {kind: str(path) for kind, path in files.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # boxes in their place
        files["curves"] = model.with_suffix(".curves.png")
        _closed(visualization.plot_history(trainer.history, save_path=files["curves"]))
        files["chart"] = model.with_suffix(".predictions.png")
        outputs = trainer.predict(x[scored])
        if plan.target.classes:
            names = list(plan.target.classes)
            figure = visualization.plot_confusion_matrix(
                outputs, y[scored], class_names=names, save_path=files["chart"]
            )
        else:
            figure = visualization.plot_predictions(
                x[scored],
                plan.target.decode(y[scored]),
                plan.target.decode(outputs),
                title=caption(plan.target.name),
                save_path=files["chart"],
            )
        _closed(figure)
    return {kind: str(path) for kind, path in files.items()}


def _closed(figure: Any) -> None:
    from everyo.visualization._backend import get_pyplot

    get_pyplot().close(figure)
