"""Charts: what they show, that they need no display, and what they refuse."""

import sys
import xml.etree.ElementTree as Xml
from itertools import pairwise

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryOBackendError, EveryOError, EveryOShapeError
from everyo.visualization import (
    _backend,
    plot_accuracy,
    plot_benchmark,
    plot_benchmark_bars,
    plot_confusion_matrix,
    plot_decision_boundary,
    plot_graph,
    plot_history,
    plot_loss,
    plot_metric,
    plot_predictions,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

COLUMNS = {"epoch": [1, 2, 3], "loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 1.5]}
SCORED = COLUMNS | {"accuracy": [0.1, 0.5, 0.9], "val_accuracy": [0.1, 0.4, 0.8]}
POINTS = np.random.default_rng(0).normal(size=(20, 2))
LABELS = (POINTS[:, 0] > 0).astype(int)
ROWS = [
    {"backend": name, "size": size, "seconds": size * factor}
    for name, factor in (("numpy", 1e-3), ("everyo", 5e-4))
    for size in (128, 256)
]


def graph_tensor():
    return (eo.Linear(3, 2, seed=0)(eo.ones(4, 3)) ** 2).mean()


CHARTS = {
    "loss": lambda **o: plot_loss(COLUMNS, **o),
    "accuracy": lambda **o: plot_accuracy(SCORED, **o),
    "history": lambda **o: plot_history(SCORED, **o),
    "metric": lambda **o: plot_metric(SCORED, "val_loss", **o),
    "confusion": lambda **o: plot_confusion_matrix([0, 1, 1], [0, 1, 0], **o),
    "predictions": lambda **o: plot_predictions(POINTS[:, 0], LABELS, LABELS, **o),
    "boundary": lambda **o: plot_decision_boundary(lambda x: x[:, 0] > 0, POINTS, LABELS, **o),
    "benchmark": lambda **o: plot_benchmark(ROWS, **o),
    "bars": lambda **o: plot_benchmark_bars(ROWS, **o),
    "graph": lambda **o: plot_graph(graph_tensor(), **o),
}


@pytest.mark.parametrize(
    "keys",
    [("loss", "val_loss"), ("loss", "val_loss", "accuracy"), ("val_accuracy", "accuracy", "loss")],
)
def test_no_two_curves_look_alike(keys):
    (axes,) = plot_metric(SCORED, keys).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()]
    assert len(set(looks)) == len(keys)
    colours = {k.removeprefix("val_"): c for k, (c, style) in zip(keys, looks, strict=True)}
    assert len(set(colours.values())) == len(colours)


@pytest.mark.parametrize(
    "names", [["x" * 60, "b"], ["setosa", "versicolor", "virginica"], "abcdefgh"]
)
def test_no_label_of_a_confusion_matrix_is_cut_off_or_covered(names):
    n = len(names)
    figure = plot_confusion_matrix(range(n), range(n), class_names=list(names))
    figure.canvas.draw()
    axes = figure.axes[0]
    whole = figure.get_window_extent()
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label]
    texts += [*axes.get_xticklabels(), *axes.get_yticklabels()]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert all(whole.x0 <= b.x0 and b.x1 <= whole.x1 for b in boxes)
    assert all(whole.y0 <= b.y0 and b.y1 <= whole.y1 for b in boxes)
    if axes.get_xticklabels()[0].get_rotation() == 0:
        places = [text.get_window_extent() for text in axes.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in pairwise(places))


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_a_figure_that_is_saved_where_asked(name, tmp_path):
    path = tmp_path / "new" / "folder" / f"{name}.png"
    figure = CHARTS[name](save_path=path, figsize=(4.0, 3.0))
    assert isinstance(figure, Figure) and tuple(figure.get_size_inches()) == (4.0, 3.0)
    image = plt.imread(path)
    assert image.shape[:2] == (450, 600) and image.std() > 0.01  # something is drawn
    assert isinstance(CHARTS[name](show=True), Figure)  # which without a display does nothing


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_curves_show_the_columns_of_a_history_or_a_dict():
    history = eo.History()
    for epoch, loss, other in zip(*COLUMNS.values(), strict=True):
        history.append(epoch=epoch, loss=loss, val_loss=other)
    for source in (history, COLUMNS):
        (axes,) = plot_loss(source).axes
        assert lines(axes) == {"training": [3, 2, 1], "validation": [3.5, 2.5, 1.5]}
        assert axes.get_lines()[0].get_xdata().tolist() == [1, 2, 3]
    (axes,) = plot_metric(SCORED, ["loss", "accuracy", "speed"]).axes
    assert set(lines(axes)) == {"loss", "accuracy"}


def test_a_history_has_two_charts_with_accuracy_and_one_without():
    assert len(plot_history(SCORED).axes) == 2
    assert len(plot_history(COLUMNS).axes) == 1
    assert len(plot_history({"loss": [1.0], "binary_accuracy": [0.5]}).axes) == 2


def test_a_confusion_matrix_shows_counts_or_fractions():
    def texts(**options):
        figure = plot_confusion_matrix([0, 1, 1, 0], [0, 1, 0, 0], **options)
        return [text.get_text() for text in figure.axes[0].texts]

    assert texts() == ["2", "1", "0", "1"]
    assert texts(normalize=True) == ["0.67", "0.33", "0.00", "1.00"]
    figure = plot_confusion_matrix([0, 1], [1, 1], class_names=["cat", "dog", "cow"])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["cat", "dog", "cow"]


@pytest.mark.parametrize(
    "predict",
    [
        lambda x: (x[:, 0] > 0).astype(int),
        lambda x: (x[:, :1] > 0) * 0.9 + 0.05,  # a probability
        lambda x: eo.tensor(np.stack([-x[:, 0], x[:, 0]], axis=1)),  # scores
    ],
)
def test_a_boundary_takes_labels_probabilities_or_scores(predict):
    (axes,) = plot_decision_boundary(predict, POINTS, LABELS, resolution=30).axes
    border = axes.collections[1].get_paths()[0].vertices
    assert np.abs(border[:, 0]).max() < 0.2  # the line x = 0, to the resolution of the grid
    assert axes.get_legend() is not None


def test_predictions_of_several_features_are_drawn_against_targets():
    (axes,) = plot_predictions(POINTS, LABELS, LABELS).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Target", "Prediction")


def test_benchmarks_have_a_line_or_bar_per_contender():
    (axes,) = plot_benchmark(ROWS).axes
    assert set(lines(axes)) == {"numpy", "everyo"} and axes.get_yscale() == "log"
    assert plot_benchmark(ROWS, log_scale=False).axes[0].get_yscale() == "linear"
    (axes,) = plot_benchmark_bars(ROWS).axes
    assert [bar.get_width() for bar in axes.patches] == [row["seconds"] for row in ROWS]


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_graph_of_a_tensor_has_its_ops_and_the_names_of_parameters(tmp_path):
    model = eo.Sequential(eo.Linear(3, 2, seed=0), eo.ReLU())
    result = model(eo.ones(4, 3)).mean()
    shown = words(plot_graph(result, model=model, title="Net", save_path=tmp_path / "g.svg"))
    assert {"matmul", "add", "relu", "mean", "0.weight", "0.bias", "Net"} <= set(shown)
    assert "float32 3×2" in shown
    assert Xml.parse(tmp_path / "g.svg").getroot().tag.endswith("svg")
    assert "parameter" in words(plot_graph(result))


def test_a_graph_of_a_compiled_function_is_its_trace():
    @eo.compile
    def f(x):
        return eo.exp(x.T * 2.0).sum(axis=0)

    f.warmup(eo.ones(3, 2))
    for target in (f, f.graph()):
        shown = words(plot_graph(target))
        assert {"input 0", "exp", "multiply(·, 2)"} <= set(shown)
        assert any(text.endswith("→ output 0") for text in shown)


# ---------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("call", "error", "fragment"),
    [
        (lambda: plot_loss([1, 2]), TypeError, "History"),
        (lambda: plot_loss(eo.History()), EveryOError, "empty"),
        (lambda: plot_history({"loss": []}), EveryOError, "empty"),
        (lambda: plot_accuracy(COLUMNS), EveryOError, "None of the requested metrics"),
        (lambda: plot_metric(COLUMNS, ["a"]), EveryOError, "None of the requested metrics"),
        (lambda: plot_benchmark([]), EveryOError, "empty"),
        (lambda: plot_benchmark([{"size": 1}]), EveryOError, "seconds"),
        (lambda: plot_benchmark_bars([]), EveryOError, "empty"),
        (lambda: plot_decision_boundary(None, np.zeros((3, 3)), [0] * 3), ValueError, r"\(n, 2\)"),
        (lambda: plot_decision_boundary(None, POINTS, [0]), EveryOShapeError, "same number"),
        (lambda: plot_decision_boundary(None, POINTS[:0], []), EveryOError, "no samples"),
        (
            lambda: plot_decision_boundary(lambda x: x[:3, 0], POINTS, LABELS),
            EveryOShapeError,
            "predict_fn",
        ),
        (lambda: plot_predictions([1, 2], [1], [1]), EveryOShapeError, "same number"),
        (lambda: plot_predictions([], [], []), EveryOError, "empty"),
        (lambda: plot_confusion_matrix([], []), EveryOShapeError, "empty"),
        (lambda: plot_graph(eo.ones(2)), EveryOError, "no graph"),
        (lambda: plot_graph("model"), TypeError, "compiled function"),
    ],
)
def test_mistakes_are_named(call, error, fragment):
    with pytest.raises(error, match=fragment):
        call()


# ---------------------------------------------------------------------------------- backends


@pytest.fixture
def not_headless(monkeypatch):
    monkeypatch.setattr(_backend, "_HEADLESS", False)


def test_a_chart_is_tried_once_more_without_a_display(not_headless, monkeypatch):
    real, calls = plt.subplots, []

    def subplots(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("no display name")
        return real(*args, **kwargs)

    monkeypatch.setattr(plt, "subplots", subplots)
    assert isinstance(plot_loss(COLUMNS), Figure)
    assert len(calls) == 2 and _backend._HEADLESS and _backend.using_headless_backend()
    assert matplotlib.get_backend().lower() == "agg"


@pytest.mark.parametrize("already", [False, True])
def test_a_chart_that_fails_without_a_display_too_is_an_error(already, monkeypatch):
    def fail(*args, **kwargs):
        calls.append(args)
        raise RuntimeError("broken")

    calls = []
    monkeypatch.setattr(_backend, "_HEADLESS", already)
    monkeypatch.setattr(plt, "subplots", fail)
    with pytest.raises(EveryOBackendError, match="Agg"):
        _backend.create_figure(lambda plt: plt.subplots())
    assert len(calls) == (1 if already else 2)


def test_create_figure_is_open_to_users():
    figure, axes = _backend.create_figure(lambda plt: plt.subplots(1, 2))
    assert isinstance(figure, Figure) and len(axes) == 2
    assert _backend.is_available() and _backend.get_pyplot() is plt


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(EveryOBackendError, match=r"everyo\[plot\]"):
        plot_loss(COLUMNS)
