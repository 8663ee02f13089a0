"""What training cost by LEAF's metrics files: bytes and FLOPs by round, and the accuracy that they bought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.leaf_metrics import AccuracyCurve, FloatArray, spent_until
from fedarena.display.drawing.html import Html, join
from fedarena.display.drawing.marks import add_line, evenly, logarithmic_marks, points_per_line, shortened
from fedarena.display.drawing.style import Style, empty_figure, figure_text
from fedarena.display.drawing.units import BYTES, FLOPS, Scale, fitting_unit, quantity
from fedarena.display.report.page import Plots
from fedarena.display.report.sections.elements import table

_COSTS: Final = {
    "bytes_written": ("sent by clients", BYTES),
    "bytes_read": ("received by clients", BYTES),
    "local_computations": ("computed by clients", FLOPS),
}
_FAR_APART: Final = 20  # times as much: on one linear axis, the cheaper would be a vertical line
Looks = Mapping[str, Style]
Systems = Mapping[str, tuple[FloatArray, dict[str, FloatArray]]]  # rounds, and sums up to each
Sums = Mapping[str, tuple[FloatArray, FloatArray]]  # rounds, and one sum up to each


def traffic(systems: Systems) -> Sums:
    """Bytes that all clients together sent and received up to each round."""
    return {name: (rounds, costs["bytes_written"] + costs["bytes_read"]) for name, (rounds, costs) in systems.items()}


def computations(systems: Systems) -> Sums:
    """What all clients together computed up to each round."""
    return {name: (rounds, costs["local_computations"]) for name, (rounds, costs) in systems.items()}


def _known(sums: Sums) -> Sums:
    """Without what runs of before do not say."""
    return {name: (rounds, summed) for name, (rounds, summed) in sums.items() if summed[-1] > 0}


def leaf_cost_figure(title: str, scale: Scale, sums: Sums, looks: Looks) -> go.Figure:
    """What had been spent up to each round."""
    factor, unit = fitting_unit(max(float(summed[-1]) for _, summed in sums.values()), scale)
    figure = empty_figure(title, "round", unit, height=360)
    limit = points_per_line(len(sums))
    for name, (rounds, summed) in sums.items():
        shown = evenly(len(rounds), limit)
        add_line(figure, rounds[shown], summed[shown] / factor, figure_text(shortened(name)), looks[name])
    figure.update_yaxes(rangemode="tozero")
    return figure


def leaf_budget_figure(
    title: str, scale: Scale, curves: Mapping[str, AccuracyCurve], sums: Sums, looks: Looks
) -> go.Figure:
    """Accuracy over samples in every evaluated round by what had been spent until then."""
    both = {name: curve for name, curve in curves.items() if name in sums}
    spent = {name: spent_until(curve.rounds, *sums[name]) for name, curve in both.items()}
    most, least = (choose(float(values[-1]) for values in spent.values()) for choose in (max, min))
    factor, unit = fitting_unit(most, scale)
    is_logarithmic = 0 < least < most / _FAR_APART
    figure = empty_figure(title, f"{unit}, logarithmic" if is_logarithmic else unit, "accuracy", height=360)
    limit = points_per_line(len(both))
    for name, curve in both.items():
        drawable = np.flatnonzero(spent[name]) if is_logarithmic else np.arange(len(curve.rounds))
        shown = drawable[evenly(len(drawable), limit)]
        x, y, label = spent[name][shown] / factor, curve.weighted[shown], figure_text(shortened(name))
        hover = f"%{{y:.3~f}} after %{{x:.3~g}} {unit}"
        add_line(figure, x, y, label, looks[name], mode="lines+markers", hovertemplate=hover)
        figure.data[-1].marker.size = 5
    if is_logarithmic:
        drawn = np.concatenate([line.x for line in figure.data])
        figure.update_xaxes(type="log", **logarithmic_marks(drawn))
    figure.update_yaxes(range=[-0.02, 1.02])
    return figure


def accuracy_by_cost(curves: Mapping[str, AccuracyCurve], systems: Systems, looks: Looks, plots: Plots) -> Html:
    """Figures of accuracy by bytes and by FLOPs, of what has both accuracies and costs."""
    caption = "Accuracy over all samples in every evaluated round by what all clients together had spent until then."
    untrained = " The untrained model cost nothing and has no place on a logarithmic axis."
    figures = [
        leaf_budget_figure(title, scale, curves, sums, looks)
        for title, scale, sums in (
            ("Accuracy by bytes sent and received", BYTES, traffic(systems)),
            ("Accuracy by computations", FLOPS, _known(computations(systems))),
        )
        if any(name in curves for name in sums)
    ]
    captions = [caption + untrained * (figure.layout.xaxis.type == "log") for figure in figures]
    return join(plots(*figure_and_caption) for figure_and_caption in zip(figures, captions, strict=True))


def systems_section(systems: Systems, looks: Looks, plots: Plots) -> Html:
    """Figures and a table of what training cost."""
    caption = "The sum over clients and rounds; where lines are equal, the last is seen."
    figures = [
        leaf_cost_figure("Bytes that clients sent and received", BYTES, traffic(systems), looks),
        leaf_cost_figure("What clients computed", FLOPS, computations(systems), looks),
    ]
    heads = ["file", "rounds", *(title for title, _ in _COSTS.values())]
    rows = [
        [
            name,
            f"{len(rounds):,}",
            *(quantity(float(costs[key][-1]), scale) for key, (_, scale) in _COSTS.items()),
        ]
        for name, (rounds, costs) in systems.items()
    ]
    return join([*(plots(figure, caption) for figure in figures), table(heads, rows, "numbers")])
