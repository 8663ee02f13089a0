"""Metrics of heterogeneity against what came out of runs: scatter plots, a table, a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.association import FEWEST_FOR_INTERVAL, Association, varies
from fedarena.analysis.correlation import Correlation, Group, Point, Study
from fedarena.core.files import write_text
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import level_text
from fedarena.display.drawing.panels import add_panel, places
from fedarena.display.drawing.style import QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import ABSENT, count, listing
from fedarena.display.report.compare_settings import as_text, as_yaml
from fedarena.display.report.page import Plots, document
from fedarena.display.report.sections.elements import in_pairs, table

TITLE: Final = "Heterogeneity and training"
_HEIGHT: Final = 380
_COLUMNS: Final = 3
_FEW_COLOURS: Final = 3


def write_correlations(study: Study, path: Path) -> Path:
    """Writes the study as a self-contained page; returns `path`."""
    plots = Plots()
    sections = {"Correlations": _table(study)}
    sections |= {_heading(group): _section(group, plots) for group in study.groups}
    sections["Runs left out"] = _left_out(study)
    runs = sum(len(point.runs) for group in study.groups for point in group.points)
    folders = list(dict.fromkeys(group.name for group in study.groups))
    header = [
        tag("p", headline(study), class_="headline"),
        tag("p", f"{count(runs, 'run')} · {listing(folders)}", class_="facts"),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(TITLE, "FedArena study", header, [], sections, plots))
    return path


def headline(study: Study) -> str:
    """What the coefficients come to in a sentence."""
    known = [found for group in study.groups for found in group.correlations if found.pearson is not None]
    if not known:
        return "No metric varies together with anything: there is no correlation to show."
    sizes = [abs(found.pearson.value) for found in known if found.pearson is not None]
    weakest, strongest = int(np.argmin(sizes)), int(np.argmax(sizes))
    return (
        f"Over {count(len(known), 'pair')} of a metric and an outcome, |r| is between {sizes[weakest]:.2f} "
        f"({known[weakest].metric}) and {sizes[strongest]:.2f} ({known[strongest].metric})."
    )


def correlation_figure(group: Group, found: Correlation) -> go.Figure:
    """A dot for every fleet, the mean over seeds, and the straight line that fits them best; r is in the title.

    Colours tell the values of a setting apart that has a few of them.
    """
    figure = empty_figure(figure_text(_title(found)), found.metric, figure_text(outcome_text(group)), _HEIGHT)
    draw_correlation(figure, group, found)
    return figure


def overview_figure(title: str, shown: Sequence[tuple[Group, Correlation]]) -> go.Figure:
    """Several correlations in one picture, three beside each other."""
    rows = -(-len(shown) // _COLUMNS)
    figure = empty_figure(title, "", "", height=100 + 320 * rows)
    columns, lines = places(_COLUMNS, 0.09), list(reversed(places(rows, 0.2)))
    for number, (group, found) in enumerate(shown):
        axis = "" if number == 0 else str(number + 1)
        add_panel(figure, axis, columns[number % _COLUMNS], lines[number // _COLUMNS], _title(found))
        draw_correlation(figure, group, found, axis, legend=False)
        figure.update_layout(
            **{
                f"xaxis{axis}": {"title": {"text": group.name}},
                f"yaxis{axis}": {"title": {"text": figure_text(outcome_text(group))}},
            }
        )
    return figure


def draw_correlation(figure: go.Figure, group: Group, found: Correlation, axis: str = "", legend: bool = True) -> None:
    """Dots and the line on the axes of that number."""
    axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
    setting, values = _colouring(group.points)
    for number, value in enumerate(sorted(set(values), key=_as_numbers)):
        chosen = [place for place, other in enumerate(values) if other == value]
        colour = SERIES_LIGHT[number % len(SERIES_LIGHT)]
        name = figure_text(f"{setting} {value}" if setting else "fleets")
        figure.add_scatter(
            x=found.x[chosen],
            y=found.y[chosen],
            customdata=[figure_text(group.points[place].label) for place in chosen],
            mode="markers",
            marker={"color": colour, "size": 8, "opacity": 0.8},
            line={"color": colour},  # for the button that hides them
            name=name,
            legendgroup=name,
            showlegend=legend and bool(setting),
            hovertemplate="%{customdata}: %{x:.3~f}, %{y:.3~f}<extra></extra>",
            **axes,
        )
    if found.pearson is not None:
        slope, height = np.polyfit(found.x, found.y, 1)
        ends = np.array([found.x.min(), found.x.max()])
        figure.add_scatter(
            x=ends,
            y=height + slope * ends,
            mode="lines",
            line={"color": QUIET_INK, "dash": "dash", "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
            **axes,
        )


def _as_numbers(text: str) -> tuple[float, str]:
    """What to sort values by: numbers by their size, all else after them."""
    try:
        return float(text.replace(",", "")), text
    except ValueError:
        return math.inf, text


def _title(found: Correlation) -> str:
    return found.metric if found.pearson is None else f"{found.metric}: r = {_two_digits(found.pearson.value)}"


def outcome_text(group: Group) -> str:
    """What the runs of a group are judged by."""
    label = group.score.label
    return f"test {label}" if group.target is None else f"virtual hours to {level_text(group.target)} {label}"


def coefficient_text(found: Association | None) -> str:
    """A coefficient with its interval, such as "0.91 (0.84 to 0.96)"."""
    if found is None:
        return ABSENT
    value = _two_digits(found.value)
    return value if found.interval is None else f"{value} ({' to '.join(map(_two_digits, found.interval))})"


def _two_digits(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # no "-0.00"


def _heading(group: Group) -> str:
    return f"{group.title}, {group.protocol}"


def _table(study: Study) -> Html:
    heads = ["metric", "runs of", "with", "fleets", "Pearson r", "Spearman ρ"]
    body = [
        [
            found.metric,
            _heading(group),
            outcome_text(group),
            str(len(found.x)),
            coefficient_text(found.pearson),
            coefficient_text(found.spearman),
        ]
        for group in study.groups
        for found in group.correlations
        if varies(found.x)
    ]
    note = (
        f"In brackets: 95 % of a bootstrap over {FEWEST_FOR_INTERVAL} fleets or more; seeds are averaged before. "
        "Metrics that are the same for all runs of a group are left out. "
        "Higher -R is easier, higher -T is harder."
    )
    return join([table(heads, body, "correlations"), tag("p", note, class_="note")])


def _section(group: Group, plots: Plots) -> Html:
    figures = [
        plots(correlation_figure(group, found), _caption(group, found))
        for found in group.correlations
        if varies(found.x)
    ]
    nothing = [] if figures else [tag("p", "No metric differs between these runs.")]
    runs = tag("details", tag("summary", "Every fleet"), tag("div", _runs(group), class_="inner"))
    options = tag("details", tag("summary", "Constants of the metrics"), tag("pre", as_yaml(group.options.as_dict())))
    return join([*nothing, in_pairs(figures), runs, options])


def _caption(group: Group, found: Correlation) -> str:
    return (
        f"{count(len(found.x), 'fleet')}. Pearson's r {coefficient_text(found.pearson)}, "
        f"Spearman's ρ {coefficient_text(found.spearman)}."
    )


def _runs(group: Group) -> Html:
    shown = [found.metric for found in group.correlations if varies(found.x)]
    body = [
        [", ".join(point.runs), *(f"{point.metrics[metric]:.4g}" for metric in shown), f"{point.outcome:.4g}"]
        for point in group.points
    ]
    return table(["runs", *shown, outcome_text(group)], body, "runs")


def _left_out(study: Study) -> Html:
    if not study.notes:
        return tag("p", "None.")
    return tag("ul", *(tag("li", note) for note in study.notes))


def _colouring(points: Sequence[Point]) -> tuple[str, list[str]]:
    """The name of the setting with the fewest values, three or more if there is one, and its value for every point."""
    values: dict[str, list[Any]] = {
        key: [point.settings.get(key) for point in points] for key in (points[0].settings if points else ())
    }
    counts = {key: len(set(map(repr, found))) for key, found in values.items()}
    usable = [key for key, number in counts.items() if 1 < number <= len(SERIES_LIGHT)]
    if not usable:
        return "", [""] * len(points)
    key = min(usable, key=lambda key: (counts[key] < _FEW_COLOURS, counts[key]))
    return key.rpartition(".")[2], [as_text(value) for value in values[key]]
