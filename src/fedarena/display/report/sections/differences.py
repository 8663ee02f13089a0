"""Is the difference real? Every pair of methods over seeds and over clients, and all of them ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedarena.analysis.comparison import MOST_CLIENTS, MOST_METHODS, Pair
from fedarena.analysis.paired import FEWEST_FOR_BOOTSTRAP
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import as_title
from fedarena.display.drawing.style import styles
from fedarena.display.drawing.units import ABSENT, count
from fedarena.display.report.figures.ranks import ranks_figure
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.elements import Plot, explanations, swatches, table
from fedarena.display.report.tables.differences import (
    Differences,
    conclusions,
    difference_text,
    interval_text,
    p_value_text,
    verdict,
)
from fedarena.storage.run_data import RunData

MOST_PAIRS_UNFOLDED: Final = 15

_EXPLANATIONS: Final = {
    "conclusion": "what seeds and clients together allow to say; bold where seeds tell the methods apart",
    "difference": "first minus second, mean over the seeds that both have; below, its 95 % interval by Student's t, "
    f"or from {FEWEST_FOR_BOOTSTRAP} seeds on by a bootstrap over seeds",
    "p over seeds": "paired t-test, corrected for all pairs (Holm)",
    "clients": "at how many the first scores higher; below, lower",
    "median": "of the differences at single clients, each a mean over seeds",
    "p over clients": "Wilcoxon's signed-rank test, corrected for all pairs (Holm)",
    "p of signs": "sign test over clients, corrected for all pairs (Holm)",
}


def differences(runs: Sequence[RunData], compared: Sequence[Differences], plot: Plot) -> Html:
    """Conclusions, a table of pairs and a picture of ranks for every metric and all conditions."""
    several = len({found.metric.name for found in compared}) > 1
    return join(
        part
        for found in compared
        for part in (
            *([tag("h3", as_title(found.metric))] if several else []),
            *([tag("h3", found.where)] if found.where else []),
            *_section(runs, found, plot),
        )
    )


def _section(runs: Sequence[RunData], found: Differences, plot: Plot) -> list[Html]:
    comparison, marks = found.found, swatches(runs)
    parts = [tag("p", sentence) for sentence in conclusions(found)]
    shown = table(
        ["first − second", *(tag("abbr", title, title=meaning) for title, meaning in _EXPLANATIONS.items())],
        [_row(pair, found, marks) for pair in comparison.pairs],
        "pairs",
    )
    if len(comparison.pairs) > MOST_PAIRS_UNFOLDED:
        shown = tag("details", tag("summary", f"All {count(len(comparison.pairs), 'pair')}"), shown)
    notes = []
    if len(comparison.labels) > MOST_METHODS:
        notes.append(f"Of more than {MOST_METHODS} methods, each is compared with the best mean alone.")
    if not comparison.looked_at_all_clients:
        notes.append(f"Of the clients, {MOST_CLIENTS:,} at most are looked at, evenly spaced by their ids.")
    parts += [shown, *([tag("p", " ".join(notes), class_="note")] if notes else []), explanations(_EXPLANATIONS)]
    if (ranking := comparison.ranking) is not None:
        look = styles(methods_of(runs))
        caption = (
            f"At every one of {count(ranking.clients, 'client')} methods are ranked; dots are mean ranks. Thick bars "
            "connect methods that Wilcoxon's test with Holm's correction does not tell apart. By Nemenyi's test, mean "
            "ranks must differ by more than the critical difference. That all are alike: "
            f"p {_equals(ranking.friedman_p_value)} (Friedman)."
        )
        parts.append(plot(ranks_figure(ranking, look), caption))
    return parts


def _row(pair: Pair, found: Differences, marks: Mapping[str, Html]) -> list[Html | str]:
    metric, seeds, clients = found.metric, pair.seeds, pair.clients
    said = verdict(pair, metric.higher_is_better)
    return [
        join([tag("span", marks[pair.first], class_="name"), tag("span", " − ", marks[pair.second], class_="name")]),
        tag("strong", said) if pair.differs_over_seeds else said,
        ABSENT if seeds is None else _above(difference_text(metric, seeds.mean), interval_text(metric, seeds.interval)),
        p_value_text(pair.p_seeds),
        ABSENT if clients is None else _above(f"{clients.higher:,} higher", f"{clients.lower:,} lower"),
        ABSENT if clients is None else difference_text(metric, clients.median),
        p_value_text(pair.p_wilcoxon),
        p_value_text(pair.p_sign),
    ]


def _above(number: str, detail: str) -> Html:
    return join([number, tag("span", f" {detail}", class_="below quiet")])


def _equals(p_value: float) -> str:
    text = p_value_text(p_value)
    return text if text.startswith("<") else f"= {text}"
