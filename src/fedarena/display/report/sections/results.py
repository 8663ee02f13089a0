"""The results: scores after the last evaluation and what they cost, and all metrics where there are more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import as_title
from fedarena.display.drawing.units import count
from fedarena.display.report.sections.elements import explanations, swatches, table
from fedarena.display.report.tables.final import FinalTable, final_table
from fedarena.display.report.tables.final_columns import OTHER, Column
from fedarena.display.report.tables.final_row import FinalRow
from fedarena.storage.run_data import RunData

# Below the labels, in the section about virtual time, and in a table of their own.
_SHOWN_ELSEWHERE: Final = ("seeds", "status", "failed", "wasted", "energy", OTHER)
# Numbers with a unit, which goes below the number: so many columns would not fit beside each other otherwise.
_WITH_UNIT: Final = ("time_to", "virtual_time", "traffic", "real_traffic", "compute", "time", "epsilon")


def results(runs: Sequence[RunData], levels: Sequence[float] | None = None) -> Html:
    """The final table of every metric that runs lead with; `levels` are of the first of them."""
    leading = leading_metrics(runs)
    shown: list[Html] = []
    for number, metric in enumerate(leading):
        found = final_table(runs, metric, levels if number == 0 else None)
        heading = [tag("h3", as_title(metric))] if len(leading) > 1 else []
        shown += [*heading, _scores(runs, found), _all_metrics(runs, found)]
    return join(shown)


def _scores(runs: Sequence[RunData], found: FinalTable) -> Html:
    columns = [column for column in found.columns if column.key not in _SHOWN_ELSEWHERE]
    notes = ["Last evaluation of each run."]
    if any(len(row.seeds) > 1 for row in found.rows):
        notes.append("± is the standard deviation over seeds.")
    if len(found.rows) > 1:
        notes.append(_what_is_bold(found))
    if any(row.status != "finished" for row in found.rows):
        notes.append("Runs that did not finish count only where a method has no finished run.")
    return join(
        [
            _table(runs, found.rows, columns, "results"),
            tag("p", " ".join(notes), class_="note"),
            explanations({column.title: column.explanation for column in columns}),
        ]
    )


def _what_is_bold(found: FinalTable) -> str:
    if all(len(row.seeds) < 2 for row in found.rows):
        return "Nothing is bold: with one seed, no test tells whether the best value is more than luck."
    if not any(column.best(found.rows) for column in found.columns):
        return "Nothing is bold: over seeds, no test tells any two values apart."
    return (
        "Bold: better than another method and not worse than any, as far as seeds tell (paired t-tests, p < 0.05 after "
        "Holm's correction)."
    )


def _all_metrics(runs: Sequence[RunData], found: FinalTable) -> Html:
    """Every metric of the task; nothing where the table of scores has them all."""
    if not any(column.key == OTHER for column in found.columns):
        return Html("")
    columns = [column for column in found.columns if column.key in ("score", "loss", OTHER)]
    lower = [metric.label for metric in (found.metric, *found.others) if not metric.higher_is_better]
    note = "All metrics, over all samples." + (f" Less is better: {', '.join(lower)}." if lower else "")
    return join([_table(runs, found.rows, columns, "metrics"), tag("p", note, class_="note")])


def _table(runs: Sequence[RunData], rows: Sequence[FinalRow], columns: Sequence[Column], name: str) -> Html:
    marks = swatches(runs)
    best = [column.best(rows) for column in columns]
    body = []
    for row in rows:
        state = count(len(row.seeds), "seed") if row.status == "finished" else row.status
        cells = [join([marks[row.label], tag("span", state, class_="below quiet")])]
        cells += [_cell(column, row, row.label in winners) for column, winners in zip(columns, best, strict=True)]
        body.append(cells)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    return table(heads, body, name)


def _cell(column: Column, row: FinalRow, is_best: bool) -> Html:
    """A number, and below it its deviation or its unit."""
    separator = " " if column.key in _WITH_UNIT else " ± "
    number, _, below = column.text(row).partition(separator)
    quiet = tag("span", f"{separator}{below}", class_="below quiet") if below else ""
    return join([tag("strong", number) if is_best else number, quiet])
