"""The section about corrupted clients: what attacks do, who takes part in them, whom defences reject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedarena.analysis.leading_metric import leading_metrics, runs_with
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import count
from fedarena.display.report.attack.figures import attack_tradeoff_figure, corrupted_figure, rejected_figure
from fedarena.display.report.attack.judged import told_attacks
from fedarena.display.report.attack.matrix import SUCCESS, knows, robustness_figure, success_matrix_figure
from fedarena.display.report.attack.table import attack_columns, attack_rows
from fedarena.display.report.figures.curves import attack_success_figure, metric_figure
from fedarena.display.report.sections.elements import Plot, explanations, if_any, in_pairs, swatches, table
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

MOST_ROWS: Final = 12  # of a table that is not folded
_MATRIX: Final = "Means over seeds. A cross: all runs diverged. "


def attacks(runs: Sequence[RunData], plot: Plot) -> Html:
    """Everything about attacks and defences, for every metric that runs lead with."""
    return join(
        [
            _about_attacks(runs),
            *(_of_metric(runs_with(runs, metric), runs, metric, plot) for metric in leading_metrics(runs)),
            in_pairs(
                [
                    *(_tradeoff(runs, metric, plot) for metric in leading_metrics(runs)),
                    if_any(
                        plot,
                        rejected_figure(runs),
                        "How much of the used updates of corrupted clients (found out) and of honest ones (false "
                        "alarms) the defence did not take: those that it rejected, and of others what it took less of.",
                    ),
                    if_any(
                        plot,
                        corrupted_figure(runs),
                        "Share of the updates that a round used which are of corrupted clients. They are drawn once "
                        "for the whole run; how many of them a round invites is chance.",
                    ),
                ]
            ),
        ]
    )


def _about_attacks(runs: Sequence[RunData]) -> Html:
    """What every attack does, and what its threat model lets it see."""
    told = told_attacks(runs)
    items = [tag("li", tag("strong", attack), f": {said}") for attack, said in told.items()]
    return tag("ul", *items) if items else Html("")


def _of_metric(having: Sequence[RunData], runs: Sequence[RunData], metric: MetricInfo, plot: Plot) -> Html:
    success = if_any(
        plot,
        attack_success_figure(runs),
        "Share of the test samples with the backdoor's trigger that get its label; a model that learned no backdoor "
        "is not at 0 if it takes some of them for that label anyway.",
    )
    attacked = [run for run in having if knows(run, SUCCESS)]
    beside = if_any(
        plot, metric_figure(attacked, metric, runs) if attacked else None, "The same runs, on data without a trigger."
    )
    return join(
        [
            if_any(
                plot,
                robustness_figure(having, metric),
                f"{_MATRIX}The fuller its colour, the {'better' if metric.higher_is_better else 'worse'} a defence is.",
            ),
            if_any(plot, success_matrix_figure(having), f"{_MATRIX}The fuller its colour, the worse a defence is."),
            _table(having, runs, metric),
            in_pairs([beside, success]),
        ]
    )


def _tradeoff(runs: Sequence[RunData], metric: MetricInfo, plot: Plot) -> Html:
    better = "Up" if metric.higher_is_better else "Down"
    return if_any(
        plot,
        attack_tradeoff_figure(runs, metric),
        f"After the last evaluation; large dots are means over seeds. {better} and to the left is better.",
    )


def _table(having: Sequence[RunData], runs: Sequence[RunData], metric: MetricInfo) -> Html:
    rows, marks = attack_rows(having, metric), swatches(runs)
    columns = attack_columns(rows, metric)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    body = [[marks[row.label], *(column.text(row) for column in columns)] for row in rows]
    explained = explanations({column.title: column.explanation for column in columns})
    shown = join([table(heads, body, "attacks"), explained])
    if len(rows) > MOST_ROWS:
        title = tag("summary", f"All {count(len(rows), 'method')}, with attack and defence")
        return tag("details", title, tag("div", shown, class_="inner"), class_="above")
    return tag("div", shown, class_="above")
