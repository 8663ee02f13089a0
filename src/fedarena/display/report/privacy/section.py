"""The section about differential privacy: what was spent, of which budget, by which bound, and at which noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import listing
from fedarena.display.report.methods import methods_of
from fedarena.display.report.privacy.figures import (
    clip_norm_figure,
    clipped_share_figure,
    epsilon_figure,
    noise_figure,
)
from fedarena.display.report.privacy.spent import spent_by
from fedarena.display.report.privacy.table import privacy_columns, privacy_rows
from fedarena.display.report.sections.elements import Plot, explanations, if_any, in_pairs, swatches, table
from fedarena.runs.round_text import delta_text
from fedarena.storage.run_data import RunData


def privacy(runs: Sequence[RunData], plot: Plot) -> Html:
    """Everything about the runs that clip updates, add noise or account for privacy."""
    return join(
        [
            _table(runs),
            in_pairs(
                [
                    if_any(plot, epsilon_figure(runs), _about_epsilon(runs)),
                    if_any(
                        plot,
                        noise_figure(runs),
                        "Norm of the noise relative to the norm of what it was added to: above 1, a step of the server "
                        "is more noise than learning. The simulator sees it, no server would.",
                    ),
                    if_any(plot, clip_norm_figure(runs), "Where it adapts to how long updates are."),
                    if_any(
                        plot,
                        clipped_share_figure(runs),
                        "Clients whose updates were longer than the norm that they were clipped to. "
                        "The simulator sees it, no server would.",
                    ),
                ]
            ),
        ]
    )


def _table(runs: Sequence[RunData]) -> Html:
    rows, marks = privacy_rows(methods_of(runs)), swatches(runs)
    columns = privacy_columns(rows)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    body = [[marks[row.label], *(column.text(row) for column in columns)] for row in rows]
    explained = explanations({column.title: column.explanation for column in columns})
    return tag("div", table(heads, body, "privacy"), explained, class_="above")


def _about_epsilon(runs: Sequence[RunData]) -> str:
    """By which bound and for which δ, and what is only simulated."""
    found = [spent for method in methods_of(runs) for spent in spent_by(method)]
    bounds = _distinct(spent.bound or spent.accountant for spent in found)
    deltas = _distinct(None if spent.delta is None else delta_text(spent.delta) for spent in found)
    told = f"Proved upper bound{f' by {bounds}' if bounds else ''}{f' for δ = {deltas}' if deltas else ''}. "
    if neighbours := _distinct(spent.neighbours for spent in found):
        told += f"What the model does not tell: whether {neighbours}. "
    told += "Dashed: the budget. " if any(spent.budget is not None for spent in found) else ""
    if cohorts := _distinct(None if one.noise_cohort is None else f"{one.noise_cohort:,}" for one in found):
        told += f"Simulated: it would hold with cohorts of {cohorts} clients, whose noise was added, not with these."
    return told


def _distinct(texts: Iterable[str | None]) -> str:
    return listing(list(dict.fromkeys(text for text in texts if text is not None)))
