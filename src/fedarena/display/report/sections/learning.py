"""Metrics over rounds: the leading one, also of personal models and on the training data, and all others."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.analysis.leading_metric import leading_metrics, metrics_of
from fedarena.display.drawing.html import Html, join
from fedarena.display.drawing.metrics import score_text
from fedarena.display.report.figures.curves import MAX_BANDS, metric_figure, personal_figure, training_set_figure
from fedarena.display.report.methods import baselines, methods_of
from fedarena.display.report.sections.elements import Plot, if_any, in_pairs
from fedarena.metrics.info import LOSS, MetricInfo
from fedarena.storage.run_data import RunData

_PERSONAL = "Every client with its own model, for the methods that give clients one. "
_TRAINING_SET = "The model as the server has it, on the samples that it is trained on."


def learning(runs: Sequence[RunData], plot: Plot) -> Html:
    """The leading metrics first, then the loss, then what else there is, two beside each other."""
    leading, caption = leading_metrics(runs), _caption(runs)
    every = metrics_of(runs)
    losses = [metric for metric in every if metric.name == LOSS.name]
    rest = [metric for metric in every if metric not in (*leading, *losses)]
    shown = [*leading, *(loss for loss in losses if loss not in leading)]
    parts: list[Html] = []
    for metric in leading:
        rules = [f"Dashed baseline: {rule} ({score_text(metric, s)})." for s, rule in baselines(runs, metric).items()]
        parts.append(plot(metric_figure(runs, metric), (caption + " ".join(rules)).strip()))
        parts.append(if_any(plot, personal_figure(runs, metric), _PERSONAL + caption))
    parts += [plot(metric_figure(runs, loss), caption.strip()) for loss in shown[len(leading) :]]
    parts.append(in_pairs([plot(metric_figure(runs, metric), caption.strip()) for metric in rest]))
    parts.append(in_pairs([_fit(runs, metric, plot) for metric in reversed(shown)]))
    return join(parts)


def _caption(runs: Sequence[RunData]) -> str:
    methods = methods_of(runs)
    band = "The band spans the clients from the 10th to the 90th percentile. "
    several = "Thin lines are single seeds, thick lines their mean. "
    return (
        "Lines weigh clients by their samples. "
        + (band if len(methods) <= MAX_BANDS else "")
        + (several if any(len(method.runs) > 1 for method in methods) else "")
    )


def _fit(runs: Sequence[RunData], metric: MetricInfo, plot: Plot) -> Html:
    return if_any(plot, training_set_figure(runs, metric), _TRAINING_SET)
