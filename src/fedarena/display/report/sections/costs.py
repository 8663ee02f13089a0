"""A metric against bytes and operations, and what it took to reach levels of it, in time and energy, too."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.analysis.leading_metric import leading_metrics, runs_with
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import level_text, or_better
from fedarena.display.drawing.units import ABSENT, BYTES, FLOPS, JOULES, SECONDS, quantity
from fedarena.display.report.figures.cost import compute_figure, traffic_figure
from fedarena.display.report.figures.saved import saved_bytes_figure
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.elements import Plot, if_any, in_pairs, swatches, table
from fedarena.display.report.tables.reach import Reach, reach_table
from fedarena.display.report.tables.saved import Saved, saved_table
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


def costs(runs: Sequence[RunData], plot: Plot, levels: Sequence[float] | None = None) -> Html:
    """Two figures and a table for every metric that runs lead with, and bytes saved; `levels` are of the first."""
    leading = leading_metrics(runs)
    shown = [_costs(runs, metric, plot, levels if number == 0 else None) for number, metric in enumerate(leading)]
    return join([*shown, _saved(runs, plot)])


def _saved(runs: Sequence[RunData], plot: Plot) -> Html:
    """What compression saves, where there is any."""
    rows, marks = saved_table(methods_of(runs)), swatches(runs)
    if not rows:
        return Html("")
    directions = list(dict.fromkeys(row.direction for row in rows))
    heads = [f"{direction} {what}" for direction in directions for what in ("as raw numbers", "sent", "saved")]
    by_method: dict[str, dict[str, Saved]] = {}
    for row in rows:
        by_method.setdefault(row.label, {})[row.direction] = row
    body = [
        [marks[label], *(cell for direction in directions for cell in _saved_cells(found.get(direction)))]
        for label, found in by_method.items()
    ]
    what = "Uploads and downloads" if len(directions) > 1 else f"{directions[0].capitalize()}s"
    note = (
        f"{what} of the jobs whose updates were used, beside what the same would have taken as raw numbers; of methods "
        "that send less than the model by themselves, what the model would have taken. Means over seeds."
    )
    return tag(
        "div", if_any(plot, saved_bytes_figure(runs), note), table(["method", *heads], body, "saved"), class_="apart"
    )


def _saved_cells(saved: Saved | None) -> list[str]:
    if saved is None:
        return [ABSENT] * 3
    return [quantity(saved.raw_bytes, BYTES), quantity(saved.sent_bytes, BYTES), f"{1 - saved.sent_share:.1%}"]


def _costs(runs: Sequence[RunData], metric: MetricInfo, plot: Plot, levels: Sequence[float] | None) -> Html:
    caption = f"Means over seeds. {'Up' if metric.higher_is_better else 'Down'} and to the left is better."
    figures = in_pairs([plot(draw(runs, metric), caption) for draw in (traffic_figure, compute_figure)])
    reached = reach_table(methods_of(runs_with(runs, metric)), metric, levels)
    if not reached or not reached[0]:
        return figures
    marks = swatches(runs)
    heads = [f"to reach {metric.label}", *(level_text(reach.level) for reach in reached[0])]
    body = [[marks[row[0].label], *(_reach_cell(reach) for reach in row)] for row in reached]
    known = [name for name, known in _known_costs(reached).items() if known]
    note = f"First evaluated round {or_better(metric)} the level: {', '.join(known)}. Means over seeds."
    return join([figures, table(heads, body, "reach"), tag("p", note, class_="note")])


def _known_costs(reached: Sequence[Sequence[Reach]]) -> dict[str, bool]:
    """What the cells of the table of levels show, in order, and whether anything of it is known."""
    cells = [reach for row in reached for reach in row]
    return {
        "virtual time": any(reach.hours is not None for reach in cells),
        "traffic": True,
        "compute": True,
        "energy": any(reach.joules is not None for reach in cells),
        "round": True,
    }


def _reach_cell(reach: Reach) -> Html:
    if reach.bytes is None:
        return tag("span", reach.partly, class_="quiet")
    texts = [
        *([] if reach.hours is None else [quantity(3600 * reach.hours, SECONDS)]),
        quantity(reach.bytes, BYTES),
        quantity(reach.flops, FLOPS),
        *([] if reach.joules is None else [quantity(reach.joules, JOULES)]),
        f"round {_round_number(reach)}",
    ]
    first, *others = texts
    return join([first, *(tag("span", f" {text}", class_="below quiet") for text in others)])


def _round_number(reach: Reach) -> str:
    return f"{reach.round:.1f}".removesuffix(".0")
