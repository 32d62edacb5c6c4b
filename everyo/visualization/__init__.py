"""Charts with matplotlib, the extra `[plot]`: training curves, predictions, benchmarks, graphs.

Every function returns a matplotlib `Figure`, saves it where `save_path` says and works without a
display. matplotlib is imported when the first chart is drawn.
"""

from everyo.visualization.benchmarks import plot_benchmark, plot_benchmark_bars
from everyo.visualization.curves import plot_accuracy, plot_history, plot_loss, plot_metric
from everyo.visualization.graphs import plot_graph
from everyo.visualization.results import (
    plot_confusion_matrix,
    plot_decision_boundary,
    plot_predictions,
)

__all__ = [
    "plot_accuracy",
    "plot_benchmark",
    "plot_benchmark_bars",
    "plot_confusion_matrix",
    "plot_decision_boundary",
    "plot_graph",
    "plot_history",
    "plot_loss",
    "plot_metric",
    "plot_predictions",
]
