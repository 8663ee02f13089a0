"""The section about classes: what an average over them hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedarena.display.drawing.html import Html, join, swatch_colour, tag
from fedarena.display.drawing.metrics import as_title, score_text
from fedarena.display.drawing.style import styles
from fedarena.display.drawing.units import ABSENT
from fedarena.display.report.classes.figures import frequency_figure, loss_figure
from fedarena.display.report.classes.table import ClassTable, class_tables
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.elements import Plot, explanations, if_any, in_pairs, table
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics.class_strata import HEAD, STRATA, TAIL
from fedarena.storage.run_data import RunData

MOST_SHOWN: Final = 60  # classes in the table; of more, those are shown that are most and least frequent
_MOST_OPEN: Final = 20  # of more, the table is to be unfolded
_DOTS = (
    "A faint dot is a class, a point of a line the mean over classes of similar frequency. The last evaluation of each "
    "run, means over seeds."
)


def classes(runs: Sequence[RunData], plot: Plot) -> Html:
    """Pictures and tables of every list of classes that runs predict."""
    return join(shown for found in class_tables(runs) for shown in _of_table(runs, found, plot))


def _of_table(runs: Sequence[RunData], found: ClassTable, plot: Plot) -> list[Html]:
    lost = (
        "What a method has of the best method’s mean over a third of the classes; thirds are by training samples. A "
        "line that falls to the right: rare classes lose most."
    )
    figures = in_pairs(
        [
            plot(frequency_figure(runs, found, "samples"), _DOTS),
            plot(frequency_figure(runs, found, "clients"), _DOTS),
            if_any(plot, loss_figure(runs, found), lost),
        ]
    )
    return [_fairness(runs, found), figures, _every_class(runs, found)]


def _fairness(runs: Sequence[RunData], found: ClassTable) -> Html:
    metric, several, marks = found.metric, len(found.methods) > 1, _marks(runs, found)
    columns = {
        "all classes": f"{metric.label}, mean over classes",
        "head": "mean over the third of the classes that most training samples have",
        "middle": "mean over the third between",
        "tail": "mean over the third that fewest training samples have",
        "gap": "how much more the head has than the tail",
        **({"tail kept": "what share of the best method’s mean over the tail a method has"} if several else {}),
        "rank correlation": "Spearman’s, of how many training samples have a class and its score",
    }
    body = []
    for label, scores in found.methods.items():
        thirds = {stratum: scores.spread(found.stratum(stratum)) for stratum in STRATA}
        head, tail, kept = thirds[HEAD], thirds[TAIL], found.kept_share(label, TAIL)
        correlation = found.correlation(label)
        cells = [scores.spread(found.everything), *thirds.values()]
        body.append(
            [
                marks[label],
                *(_score(found, spread) for spread in cells),
                ABSENT if head is None or tail is None else score_text(metric, head.mean - tail.mean),
                *([ABSENT if kept is None else f"{100 * kept:.0f} %"] if several else []),
                ABSENT if correlation is None else f"{correlation:.2f}",
            ]
        )
    heads = ["method", *(tag("abbr", title, title=meaning) for title, meaning in columns.items())]
    return tag("div", table(heads, body, "fairness"), explanations(columns), class_="above")


def _every_class(runs: Sequence[RunData], found: ClassTable) -> Html:
    """A row per class; of very many, the most and the least frequent ones."""
    number, marks = len(found.names), _marks(runs, found)
    places = shown_classes(number)
    heads = ["class", "training samples", "samples", "clients", *(marks[label] for label in found.methods)]
    means = [scores.means for scores in found.methods.values()]
    body: list[list[str]] = [
        [
            found.names[place],
            _count(found.train_samples[place]),
            _count(found.samples[place]),
            _count(found.clients[place]),
            *(score_text(found.metric, values[place]) for values in means),
        ]
        for place in places
    ]
    which = (
        f"all {number:,} classes"
        if len(places) == number
        else f"the {MOST_SHOWN // 2} most and the {MOST_SHOWN // 2} least frequent of {number:,} classes"
    )
    told = f"{as_title(found.metric)} of {which}, the most frequent first."
    shown = table(heads, body, "classes")
    if number <= _MOST_OPEN:
        return join([shown, tag("p", told, class_="note")])
    return tag("details", tag("summary", told), shown)


def shown_classes(number: int, most: int = MOST_SHOWN) -> list[int]:
    """Which of so many classes, the most frequent first, get into a table."""
    if number <= most:
        return list(range(number))
    return [*range(most // 2), *range(number - most // 2, number)]


def _marks(runs: Sequence[RunData], found: ClassTable) -> dict[str, Html]:
    look = styles(methods_of(runs))
    return {
        label: join(
            [
                tag("span", class_="swatch", **swatch_colour(look[scores.method].colour)),
                tag("span", label, class_="label"),
            ]
        )
        for label, scores in found.methods.items()
    }


def _score(found: ClassTable, spread: Spread | None) -> str:
    return ABSENT if spread is None else score_text(found.metric, spread.mean, spread.std)


def _count(number: int | None) -> str:
    return ABSENT if number is None or not np.isfinite(number) else f"{number:,}"
