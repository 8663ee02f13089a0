"""A metric against bytes and operations, and what it took to reach levels of it, in time and energy, too."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.analysis.leading_metric import leading_metrics, runs_with
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import level_text, or_better
from fedarena.display.drawing.units import BYTES, FLOPS, JOULES, SECONDS, quantity
from fedarena.display.report.figures.cost import compute_figure, traffic_figure
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.elements import Plot, in_pairs, swatches, table
from fedarena.display.report.tables.reach import Reach, reach_table
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


def costs(runs: Sequence[RunData], plot: Plot, levels: Sequence[float] | None = None) -> Html:
    """Two figures and a table for every metric that runs lead with; `levels` are of the first of them."""
    leading = leading_metrics(runs)
    return join(_costs(runs, metric, plot, levels if number == 0 else None) for number, metric in enumerate(leading))


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
