"""The trainer: what it computes, shows, calls and refuses; a resumed run is the same run."""

import json
import math

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryOError, EveryOShapeError
from everyo.training import (
    Callback,
    History,
    ProgressLogger,
    ScheduleStepper,
    binary_accuracy,
    get_metric,
    mean_absolute_error,
    mean_squared_error,
    progress,
    r2_score,
)

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
LABELS = (X @ np.array([1.0, -2.0, 0.5, 0.0]) > 0).astype(np.int64)
VALUES = (X @ np.array([[1.0], [-2.0], [0.5], [0.0]])).astype(np.float32)


def network(outputs=2, seed=0, dropout=0.0):
    return eo.Sequential(
        eo.Linear(4, 6, seed=seed), eo.Tanh(), eo.Dropout(dropout),
        eo.Linear(6, outputs, seed=seed + 1),
    )  # fmt: skip


def classifier(*, compiled=False, lr=0.05, metrics=("accuracy",), dropout=0.0, **options):
    model = network(dropout=dropout)
    optimizer = eo.Adam(model.parameters(), lr=lr)
    return eo.Trainer(
        model, optimizer, eo.CrossEntropyLoss(), metrics=metrics, compile=compiled, **options
    )


def batches(size=16, *, shuffle=False, seed=None, targets=LABELS):
    return eo.DataLoader(eo.ArrayDataset(X, targets), size, shuffle=shuffle, seed=seed)


def weights(trainer):
    return np.concatenate([p.numpy().reshape(-1) for p in trainer.model.parameters()])


# ---------------------------------------------------------------------------------- fitting


@pytest.mark.parametrize("compiled", [False, True])
def test_fit_lowers_the_loss_and_keeps_a_row_per_epoch(compiled):
    trainer = classifier(compiled=compiled)
    history = trainer.fit(
        batches(shuffle=True, seed=1), epochs=12, validation_loader=batches(), verbose=False
    )
    assert history is trainer.history and len(history) == trainer.total_epochs == 12
    assert history.keys == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "time"]
    assert history["epoch"] == history.epochs == list(range(1, 13))
    assert all(isinstance(value, float) for row in history for value in row.values())
    assert history["loss"][-1] < 0.5 * history["loss"][0] and history["val_accuracy"][-1] > 0.9


def test_compiled_training_is_eager_training():
    runs = [classifier(compiled=compiled) for compiled in (False, True)]
    for trainer in runs:
        trainer.fit(batches(), epochs=8, verbose=False)
    assert runs[1].train_step.cache_info().calls > 8
    np.testing.assert_allclose(weights(runs[0]), weights(runs[1]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(runs[0].history["loss"], runs[1].history["loss"], rtol=1e-4)


def test_rare_shapes_are_not_compiled():
    trainer = classifier(compiled=True)
    trainer.fit(batches(16), epochs=8, verbose=False)  # of 50 samples: 16, 16, 16, 2
    for size in range(1, 40):
        trainer.evaluate(batches(size))
    assert trainer.train_step.cache_info().entries == 1
    assert trainer.evaluation_step.cache_info().entries <= 4


class Hidden(eo.Module):
    """Leaves the graph by way of NumPy, so that it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x) * float(np.max(np.abs(x.numpy())))


def test_a_model_that_cannot_be_traced_trains_eagerly_with_one_warning():
    results = []
    for compiled in (True, False):
        model = Hidden()
        trainer = eo.Trainer(
            model, eo.SGD(model.parameters(), lr=0.01), eo.CrossEntropyLoss(), compile=compiled
        )
        if compiled:
            with pytest.warns(UserWarning, match="train_step runs eagerly") as caught:
                trainer.fit(batches(10), epochs=6, verbose=False)
            assert len(caught) == 1
        else:
            trainer.fit(batches(10), epochs=6, verbose=False)
        results.append(trainer.history["loss"])
    assert results[0] == results[1]


def test_equal_seeds_give_equal_histories():
    runs = [classifier(), classifier()]
    for trainer in runs:
        trainer.fit(batches(shuffle=True, seed=5), epochs=3, verbose=False)
    np.testing.assert_allclose(runs[0].history["loss"], runs[1].history["loss"], rtol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_an_epoch_is_per_sample_and_independent_of_the_batches(reduction):
    found = []
    for size in (7, 16, 50):
        model = network()
        frozen = eo.Parameter(np.zeros(1), requires_grad=False)
        loss_fn = eo.CrossEntropyLoss(reduction=reduction)
        trainer = eo.Trainer(model, eo.SGD([frozen]), loss_fn, compile=False)
        history = trainer.fit(batches(size), epochs=1, verbose=False)
        evaluated = trainer.evaluate(batches(size))["loss"]
        assert history["loss"][0] == pytest.approx(evaluated, rel=1e-5)
        found.append(evaluated)
    np.testing.assert_allclose(found, found[0], rtol=1e-5)


def test_gradient_clip_limits_the_global_norm():
    limit = 0.01
    trainer = classifier(gradient_clip=limit)
    trainer.optimizer = eo.SGD(trainer.model.parameters(), lr=1.0)
    before = weights(trainer)
    trainer.fit(batches(50), epochs=1, verbose=False)
    assert np.linalg.norm(weights(trainer) - before) == pytest.approx(limit, rel=1e-3)
    assert trainer.gradient_clip == limit


def test_integer_features_reach_the_model_as_float32():
    seen = []

    def model_loss(output, target):
        seen.append(target.dtype)
        return eo.nn.cross_entropy(output, target)

    ids = np.arange(20).reshape(10, 2) % 5
    model = eo.Sequential(eo.Embedding(5, 3, seed=0), eo.Flatten(), eo.Linear(6, 2, seed=1))
    trainer = eo.Trainer(model, eo.SGD(model.parameters()), model_loss, compile=False)
    trainer.fit([(ids, ids[:, 0] % 2)], epochs=1, verbose=False)
    assert seen == ["float32"]


# ---------------------------------------------------------------------------------- evaluating


def test_evaluate_returns_loss_and_metrics_and_changes_nothing():
    def largest(prediction, target):
        assert prediction.shape == (50, 2) and target.dtype == np.int64
        return prediction.max()

    trainer = classifier(metrics=["accuracy", largest])
    before = weights(trainer)
    found = trainer.evaluate(batches())
    assert set(found) == {"loss", "accuracy", "largest"}
    np.testing.assert_array_equal(weights(trainer), before)


def test_modes_are_as_they_were_after_evaluation_and_prediction():
    trainer = classifier(dropout=0.5)
    frozen = trainer.model[2]
    for mode in (True, False):
        trainer.model.train(mode)
        frozen.eval()
        first, second = trainer.predict(X), trainer.predict(X)
        trainer.evaluate(batches())
        np.testing.assert_array_equal(first, second)
        assert trainer.model.training == mode and not frozen.training


def test_predict_takes_arrays_tensors_data_sets_and_loaders():
    trainer = classifier()
    expected = trainer.predict(X)
    assert expected.shape == (50, 2) and expected.dtype == np.float32
    sets = eo.ArrayDataset(X, LABELS), eo.ArrayDataset(X)
    for data in (X.tolist(), eo.tensor(X), *sets, batches(7)):
        np.testing.assert_allclose(trainer.predict(data, batch_size=9), expected, atol=1e-6)
    classes = trainer.predict_classes(X)
    assert classes.dtype.kind == "i"
    np.testing.assert_array_equal(classes, expected.argmax(1))


def test_predict_classes_of_a_single_output_is_a_threshold():
    model = eo.Sequential(network(1), eo.Sigmoid())
    trainer = eo.Trainer(model, eo.SGD(model.parameters()), eo.BCELoss())
    expected = (trainer.predict(X)[:, 0] >= 0.5).astype(int)
    np.testing.assert_array_equal(trainer.predict_classes(X), expected)


# ---------------------------------------------------------------------------------- refusing


class OnlyFeatures(eo.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index]


@pytest.mark.parametrize(
    ("call", "error", "fragment"),
    [
        (lambda: classifier(gradient_clip=0.0), ValueError, "gradient_clip"),
        (lambda: classifier(metrics=["speed"]), ValueError, "Unknown metric"),
        (lambda: classifier().fit(batches(), epochs=0), ValueError, "epochs"),
        (lambda: classifier().fit(batches(), resume=True), ValueError, "checkpoint="),
        (lambda: classifier().fit(batches(), callbacks=[print]), TypeError, "subclass"),
        (
            lambda: classifier().fit(eo.DataLoader(OnlyFeatures()), verbose=False),
            EveryOError,
            r"\(features, targets\)",
        ),
        (lambda: classifier().fit([(X, X, LABELS)]), EveryOError, r"\(features, targets\)"),
        (lambda: classifier().fit([]), EveryOError, "no batches"),
        (lambda: classifier().evaluate([]), EveryOError, "no batches"),
        (lambda: classifier().predict(X[:0]), EveryOError, "no batches"),
        (lambda: eo.EarlyStopping(mode="up"), ValueError, "mode"),
        (lambda: eo.EarlyStopping(patience=-1), ValueError, "patience"),
        (lambda: eo.LearningRateScheduler(0.1), TypeError, "ScheduleStepper"),
        (lambda: ScheduleStepper(None, every="hour"), ValueError, "every"),
        (lambda: ProgressLogger(0), ValueError, "every"),
    ],
)
def test_mistakes_are_named(call, error, fragment):
    with pytest.raises(error, match=fragment):
        call()


# ---------------------------------------------------------------------------------- showing


def test_verbose_prints_a_line_per_epoch_and_quiet_prints_none(capsys):
    classifier().fit(batches(), epochs=1)
    assert "Epoch 1/1" in (line := capsys.readouterr().out) and "loss=" in line
    classifier().fit(batches(), epochs=5, log_every=2)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed] == ["2/5", "4/5", "5/5"]
    classifier().fit(batches(), epochs=1, verbose=False)
    assert capsys.readouterr() == ("", "")


class Terminal:
    """A standard output that says it is a terminal."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_the_bar_is_one_line_that_is_written_over_and_cleared(monkeypatch):
    monkeypatch.setattr(progress, "_tqdm", lambda label, total: None)
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    classifier().fit(batches(), epochs=1)
    *drawn, cleared, line = screen.text.split("\r")
    assert [text.split("loss")[0].strip() for text in drawn[1:]] == [
        f"Epoch 1/1  batch {i}/4" for i in (1, 2, 3, 4)
    ]
    assert cleared.strip() == "" and len(cleared) >= len(drawn[-1].rstrip())
    assert line.startswith("Epoch 1/1  loss=")


def test_a_bar_of_tqdm_is_used_where_it_is_installed(monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    classifier().fit(batches(), epochs=1)
    assert "Epoch 1/1:" in screen.text and "0/4" in screen.text  # later ones if they take long
    assert screen.text.split("\r")[-1].startswith("Epoch 1/1  loss=")


# ---------------------------------------------------------------------------------- callbacks


class Recorder(Callback):
    def __init__(self, name, events):
        self.name, self.events = name, events

    def on_train_begin(self, trainer):
        self.events.append((self.name, "train begin"))

    def on_train_end(self, trainer):
        self.events.append((self.name, "train end"))

    def on_epoch_begin(self, trainer, epoch):
        self.events.append((self.name, "epoch begin", epoch))

    def on_epoch_end(self, trainer, epoch, logs):
        assert len(trainer.history) == epoch  # the row is there already
        self.events.append((self.name, "epoch end", epoch, logs.get("note")))
        logs["note"] = self.name

    def on_batch_begin(self, trainer, batch):
        self.events.append((self.name, "batch begin", batch))

    def on_batch_end(self, trainer, batch, logs):
        assert logs["loss"] > 0
        self.events.append((self.name, "batch end", batch))


def test_hooks_are_called_in_order_and_see_what_earlier_ones_put_into_the_logs():
    events = []
    hooks = [Recorder("a", events), Recorder("b", events)]
    classifier().fit(batches(50), epochs=1, callbacks=hooks, verbose=False)
    whats = ["train begin", "epoch begin", "batch begin", "batch end", "epoch end", "train end"]
    assert [event[:2] for event in events] == [(name, what) for what in whats for name in "ab"]
    assert [event[3] for event in events if event[1] == "epoch end"] == [None, "a"]
    assert ("a", "epoch begin", 1) in events and ("a", "batch begin", 0) in events


class Given(Callback):
    """Puts a made-up validation loss into the logs."""

    def __init__(self, *losses):
        self.losses = losses

    def on_epoch_end(self, trainer, epoch, logs):
        logs["val_loss"] = self.losses[epoch - 1]


def test_early_stopping_stops_after_more_than_patience_bad_epochs(capsys):
    stopping = eo.EarlyStopping(patience=1, min_delta=0.1)
    trainer = classifier()
    trainer.fit(
        batches(), callbacks=[Given(1.0, 0.95, 0.94, 0.1), stopping], epochs=9, verbose=False
    )
    assert len(trainer.history) == stopping.stopped_epoch == 3 and trainer.stop_training
    assert (stopping.best, stopping.best_epoch, stopping.wait) == (1.0, 1, 2)
    printed = capsys.readouterr().out
    assert "Early stopping at epoch 3" in printed
    assert "Restored the best weights from epoch 1" in printed


def test_restored_weights_evaluate_to_the_best_value():
    trainer = classifier(lr=0.5)
    stopping = eo.EarlyStopping(patience=1, verbose=False)
    trainer.fit(
        batches(16, shuffle=True, seed=0),
        validation_loader=[(X, 1 - LABELS)],  # gets worse the more is learned
        callbacks=[stopping],
        verbose=False,
    )
    assert stopping.best_epoch < stopping.stopped_epoch
    assert trainer.evaluate([(X, 1 - LABELS)])["loss"] == pytest.approx(stopping.best, rel=1e-6)


def test_early_stopping_starts_anew_with_every_training(capsys):
    stopping = eo.EarlyStopping(patience=0, mode="max", verbose=False)
    classifier().fit(batches(), epochs=5, callbacks=[Given(3, 2), stopping], verbose=False)
    assert (stopping.best, stopping.best_epoch, stopping.stopped_epoch) == (3.0, 1, 2)
    with pytest.raises(IndexError):  # it stops no more after one bad epoch of the run before
        classifier().fit(batches(), epochs=5, callbacks=[Given(1), stopping], verbose=False)
    assert (stopping.best, stopping.best_epoch, stopping.stopped_epoch) == (1.0, 1, 0)
    assert capsys.readouterr().out == ""


def test_nan_is_never_an_improvement():
    stopping = eo.EarlyStopping(patience=1, verbose=False, restore_best_weights=False)
    losses = Given(math.nan, 1.0, math.nan, math.nan)
    classifier().fit(batches(), epochs=4, callbacks=[losses, stopping], verbose=False)
    assert (stopping.best, stopping.best_epoch, stopping.stopped_epoch) == (1.0, 2, 4)


@pytest.mark.parametrize("make", [eo.EarlyStopping, lambda: eo.ModelCheckpoint("unused.evo")])
def test_a_watched_value_that_is_not_there_is_one_warning(make):
    with pytest.warns(UserWarning, match="validation_loader=") as caught:
        classifier().fit(batches(), epochs=3, callbacks=[make()], verbose=False)
    assert len(caught) == 1


def test_model_checkpoint_saves_what_improves(tmp_path):
    path = tmp_path / "deep" / "best.evo"
    best = eo.ModelCheckpoint(path)
    every = eo.ModelCheckpoint(tmp_path / "last", save_best_only=False)
    trainer = classifier()
    given = Given(3.0, 1.0, 2.0, math.inf)
    trainer.fit(batches(), epochs=4, callbacks=[given, best, every], verbose=False)
    assert (best.saved_epochs, every.saved_epochs) == ([1, 2], [1, 2, 3, 4])
    assert eo.inspect_archive(path)["metadata"]["epoch"] == 2
    loaded = eo.load(tmp_path / "last.evo")
    np.testing.assert_array_equal(loaded(eo.tensor(X)).numpy(), trainer.predict(X))


def test_csv_logger_writes_a_header_and_a_line_per_epoch(tmp_path):
    path = tmp_path / "logs" / "run.csv"
    for _ in range(2):  # a second training begins the file anew
        classifier().fit(batches(), epochs=3, callbacks=[eo.CSVLogger(path)], verbose=False)
    header, *lines = path.read_text().splitlines()
    assert header == "epoch,loss,accuracy,time" and len(lines) == 3
    assert [float(line.split(",")[0]) for line in lines] == [1, 2, 3]


def test_learning_rate_scheduler_applies_at_every_epoch_begin():
    trainer = classifier(lr=0.02)
    halve = eo.LearningRateScheduler(lambda epoch, lr: lr * 0.5)
    trainer.fit(batches(), epochs=3, callbacks=[halve], verbose=False)
    assert trainer.optimizer.lr == pytest.approx(0.02 * 0.5**3)


def test_schedulers_of_optim_step_by_epoch_batch_or_metric():
    trainer = classifier(lr=1.0)
    by_epoch = ScheduleStepper(eo.optim.StepLR(trainer.optimizer, 1, gamma=0.5))
    trainer.fit(batches(), epochs=2, callbacks=[by_epoch], verbose=False)
    assert trainer.optimizer.lr == 0.25
    trainer = classifier(lr=1.0)
    by_batch = ScheduleStepper(eo.optim.StepLR(trainer.optimizer, 1, gamma=0.5), every="batch")
    trainer.fit(batches(), epochs=1, callbacks=[by_batch], verbose=False)
    assert trainer.optimizer.lr == 0.5**4
    trainer = classifier(lr=1.0)
    plateau = ScheduleStepper(eo.optim.ReduceLROnPlateau(trainer.optimizer, patience=0, factor=0.5))
    trainer.fit(batches(), epochs=3, callbacks=[Given(1, 1, 1), plateau], verbose=False)
    assert trainer.optimizer.lr == 0.25
    with pytest.raises(KeyError, match="No metric"):
        trainer.fit(batches(), epochs=1, callbacks=[plateau], verbose=False)


def test_progress_logger_keeps_and_prints_lines(capsys):
    loud, silent = ProgressLogger(2), ProgressLogger(stream=False)
    classifier().fit(batches(), epochs=5, callbacks=[loud, silent], verbose=False)
    assert capsys.readouterr().out.splitlines() == loud.lines
    assert [len(loud.lines), len(silent.lines)] == [2, 5] and "Epoch 2/5" in loud.lines[0]


# ---------------------------------------------------------------------------------- resuming


def a_run(compiled):
    """A run in which everything has state: dropout, momentum, two loaders, schedules, stopping."""
    eo.manual_seed(7)
    model = eo.Sequential(
        eo.Linear(4, 8, seed=0), eo.BatchNorm1D(8), eo.Dropout(0.3), eo.Dropout(0.2, seed=3),
        eo.Linear(8, 2, seed=1),
    )  # fmt: skip
    optimizer = eo.optim.AdamW(model.parameters(), lr=0.02)
    trainer = eo.Trainer(model, optimizer, eo.CrossEntropyLoss(), compile=compiled)
    options = {
        "train_loader": batches(16, shuffle=True, seed=1),
        "validation_loader": batches(20, shuffle=True, seed=2),
        "callbacks": [
            ScheduleStepper(eo.optim.CosineAnnealingLR(optimizer, 40), every="batch"),
            eo.LearningRateScheduler(lambda epoch, lr: lr * 0.97),
            eo.EarlyStopping(patience=2, verbose=False),
        ],
        "verbose": False,
    }
    return trainer, options


@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_run_is_bit_for_bit_the_run_that_never_stopped(compiled, tmp_path):
    whole, options = a_run(compiled)
    whole.fit(**options, epochs=9)
    state = eo.get_rng_state()
    for stop in (3, 7):  # interrupted twice
        first, options = a_run(compiled)
        first.fit(**options, epochs=stop, checkpoint=tmp_path / "run", resume=True)
    eo.manual_seed(99)  # a new process is in any state
    second, options = a_run(compiled)
    second.fit(**options, epochs=9, checkpoint=tmp_path / "run", resume=True)
    assert second.history["loss"] == whole.history["loss"]
    assert second.history["val_loss"] == whole.history["val_loss"]
    assert len(second.history) == len(whole.history)
    for p, q in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
    for p, q in zip(whole.model.buffers(), second.model.buffers(), strict=True):
        np.testing.assert_array_equal(p, q)
    np.testing.assert_array_equal(eo.get_rng_state(), state)
    assert second.optimizer.lr == whole.optimizer.lr


def test_a_resumed_run_that_was_stopped_early_stays_stopped(tmp_path):
    for _ in range(2):
        trainer = classifier()
        callbacks = [Given(1, 2), eo.EarlyStopping(patience=0, verbose=False)]
        trainer.fit(
            batches(), epochs=9, callbacks=callbacks, verbose=False,
            checkpoint=tmp_path / "run.ckpt", resume=True,
        )  # fmt: skip
        assert len(trainer.history) == 2 and trainer.stop_training


def test_the_log_of_a_resumed_run_is_that_of_the_whole_run(tmp_path):
    for epochs in (2, 4):
        trainer = classifier()
        trainer.fit(
            batches(), epochs=epochs, callbacks=[eo.CSVLogger(tmp_path / "log.csv")], verbose=False,
            checkpoint=tmp_path / "run.ckpt", resume=True,
        )  # fmt: skip
    epochs = [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert epochs == ["epoch", "1.0", "2.0", "3.0", "4.0"]


# ---------------------------------------------------------------------------------- history


def test_a_history_is_a_table():
    history = History()
    assert history.append(epoch=1, loss=np.float32(0.5), val_loss=2) == {
        "epoch": 1.0, "loss": 0.5, "val_loss": 2.0,
    }  # fmt: skip
    history.append(epoch=2, loss=0.25, val_loss=math.nan)
    history.append(epoch=3, loss=0.75, val_loss=3.0, extra=1)
    assert history["loss"] == history.get("loss") == [0.5, 0.25, 0.75]
    assert history.get("accuracy") is None and history.get("accuracy", 0) == 0
    assert "loss" in history and "accuracy" not in history and len(history) == 3
    assert [row["epoch"] for row in history] == history.epochs == [1, 2, 3]
    assert history.keys == ["epoch", "loss", "val_loss", "extra"] == history.keys()
    assert history.last()["loss"] == 0.75 and history["extra"] == [1.0]
    assert history.best()["epoch"] == 1 and history.best(mode="max")["epoch"] == 3
    assert history.best("loss")["epoch"] == 2
    assert "3 rows" in repr(history)


def test_a_history_refuses_what_it_does_not_have():
    with pytest.raises(IndexError, match="empty"):
        History().last()
    with pytest.raises(KeyError, match="No metric"):
        History()["loss"]
    with pytest.raises(KeyError, match="No metric"):
        History().best()
    with pytest.raises(ValueError, match="mode"):
        History().best(mode="middle")


def test_a_history_is_written_as_json_and_csv(tmp_path):
    history = History()
    history.append(epoch=1, loss=0.5)
    history.append(epoch=2, loss=0.25, val_loss=1.5)
    path = history.to_json(tmp_path / "a" / "h.json")
    assert json.loads(path.read_text()) == history.to_dict()
    path = history.to_csv(tmp_path / "b" / "h.csv")
    assert path.read_text() == "epoch,loss,val_loss\n1.0,0.5,\n2.0,0.25,1.5\n"


# ---------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    ("name", "prediction", "target", "value"),
    [
        ("accuracy", [[0.1, 0.9], [0.8, 0.2]], [1, 1], 0.5),
        ("accuracy", [1, 0, 2], [1, 0, 1], 2 / 3),
        ("accuracy", [[0.1, 0.9], [0.8, 0.2]], [[0, 1], [1, 0]], 1.0),
        ("accuracy", [1, 0], [[0, 1], [1, 0]], 1.0),
        ("binary_accuracy", [[0.4], [0.5]], [0, 1], 1.0),
        ("mae", [[1.0], [3.0]], [0.0, 1.0], 1.5),
        ("mse", [1.0, 3.0], [0.0, 1.0], 2.5),
        ("r2", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        ("r2", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0.0),
        ("r2", [2.0, 2.0], [2.0, 2.0], 1.0),
        ("r2", [2.0, 3.0], [2.0, 2.0], 0.0),
    ],
)
def test_metrics_have_their_values(name, prediction, target, value):
    metric = get_metric(name)
    assert metric(prediction, target) == pytest.approx(value)
    arrays = eo.tensor(prediction), np.asarray(target)
    assert isinstance(metric(*arrays), float) and metric(*arrays) == pytest.approx(value)


def test_metrics_have_names_and_refuse_others():
    assert get_metric("mae") is mean_absolute_error and get_metric("mse") is mean_squared_error
    assert get_metric("r2") is r2_score and get_metric(r2_score) is r2_score
    with pytest.raises(ValueError, match="Unknown metric"):
        get_metric("speed")
    assert binary_accuracy([0.2, 0.4], [0, 1], threshold=0.3) == 1.0


def test_the_confusion_matrix_has_true_rows_and_predicted_columns():
    assert eo.confusion_matrix([0, 1, 1, 1], [0, 0, 1, 1]).tolist() == [[1, 1], [0, 2]]
    scores = np.eye(3)[[2, 0]]
    matrix = eo.confusion_matrix(scores, [1, 0], num_classes=4)
    assert matrix.shape == (4, 4) and matrix[1, 2] == matrix[0, 0] == 1 and matrix.sum() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: eo.accuracy([1, 2], [1]),
        lambda: eo.accuracy([], []),
        lambda: r2_score([[1.0, 2.0]], [[1.0]]),
        lambda: eo.confusion_matrix([0, 5], [0, 1], num_classes=2),
        lambda: eo.confusion_matrix([0, -1], [0, 1]),
    ],
)
def test_metrics_refuse_what_does_not_fit(call):
    with pytest.raises(EveryOShapeError):
        call()
