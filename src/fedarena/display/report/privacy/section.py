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
    """By which bound and for which δ, what is protected, and what is only simulated."""
    found = [(method.label, spent) for method in methods_of(runs) for spent in spent_by(method)]
    bounds = listing(list(_by_text((label, spent.bound or spent.accountant) for label, spent in found)))
    deltas = (None if spent.delta is None else delta_text(spent.delta) for _, spent in found)
    told = f"Proved upper bound{f' by {bounds}' if bounds else ''}"
    told += f" for δ = {listing(known)}. " if (known := list(dict.fromkeys(filter(None, deltas)))) else ". "
    protected = _by_text((label, spent.neighbours) for label, spent in found)
    if protected:
        whose = (f"{text} ({listing(labels)})" if len(protected) > 1 else text for text, labels in protected.items())
        told += f"Protected: {'; '.join(whose)}. "
    told += "Dashed: the budget. " if any(spent.budget is not None for _, spent in found) else ""
    cohorts = list(dict.fromkeys(filter(None, (spent.simulated_cohort for _, spent in found))))
    if cohorts:
        told += (
            f"Simulated: it would hold with cohorts of {listing(cohorts)} clients, whose noise was added, not these."
        )
    return told


def _by_text(pairs: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """The labels that go with every text that there is."""
    found: dict[str, dict[str, None]] = {}
    for label, text in pairs:
        if text is not None:
            found.setdefault(text, {})[label] = None
    return {text: list(labels) for text, labels in found.items()}
