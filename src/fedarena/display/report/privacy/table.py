"""The table of what methods spent of their privacy and what that did to updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.display.drawing.units import ABSENT, listing, significant
from fedarena.display.report.methods import Method, column
from fedarena.display.report.privacy.spent import PrivacySpent, claimed_epsilon, mechanism_of, spent_by, tells_privacy
from fedarena.runs.round_text import delta_text, epsilon_text


@dataclass(frozen=True)
class PrivacyRow:
    """A method: what its seeds spent, and means over their rounds; NaN where nothing is known."""

    label: str
    mechanism: str
    spent: tuple[PrivacySpent, ...]
    claimed: float | None  # ε without a proof
    clip_norm: float  # of the last round
    clipped_share: float
    noise_to_signal: float


@dataclass(frozen=True)
class PrivacyColumn:
    """A title, what it means, and the text of a row's cell."""

    title: str
    explanation: str
    text: Callable[[PrivacyRow], str]


PRIVACY_COLUMNS: tuple[PrivacyColumn, ...] = (
    PrivacyColumn("mechanism", "which mechanism of differential privacy", lambda row: row.mechanism or ABSENT),
    PrivacyColumn(
        "ε",
        "proved upper bound of what the whole run gives away, the most of any seed; sim.: only if the cohort were as "
        "large as its noise is made for",
        lambda row: _most(row.spent),
    ),
    PrivacyColumn(
        "claimed ε",
        "what the mechanism's authors claim by their formula; it is no bound for the whole run",
        lambda row: ABSENT if row.claimed is None else epsilon_text(row.claimed),
    ),
    PrivacyColumn(
        "budget",
        "ε that a run does not exceed: it stops before",
        lambda row: _each(row, lambda spent: None if spent.budget is None else epsilon_text(spent.budget)),
    ),
    PrivacyColumn(
        "δ",
        "the chance for which ε does not speak",
        lambda row: _each(row, lambda spent: None if spent.delta is None else delta_text(spent.delta)),
    ),
    PrivacyColumn("bound", "the accounting that proves ε", lambda row: _each(row, lambda spent: spent.accountant)),
    PrivacyColumn(
        "noise of cohort",
        "size of the cohort whose noise is simulated",
        lambda row: _each(row, lambda spent: spent.simulated_cohort),
    ),
    PrivacyColumn(
        "audited ε",
        "lower bound that planted clients found, at its confidence; above the proved ε, something is broken",
        lambda row: _each(row, _audited),
    ),
    PrivacyColumn("clipping norm", "that of the last round", lambda row: significant(row.clip_norm)),
    PrivacyColumn(
        "clipped",
        "share of the clients whose updates were longer, mean over rounds",
        lambda row: f"{row.clipped_share:.1%}" if np.isfinite(row.clipped_share) else ABSENT,
    ),
    PrivacyColumn(
        "noise / update",
        "norm of the noise relative to that of what it is added to, mean over rounds",
        lambda row: significant(row.noise_to_signal),
    ),
)


def privacy_rows(methods: Sequence[Method]) -> list[PrivacyRow]:
    """A row for every method that tells something about its privacy."""
    return [
        PrivacyRow(
            method.label,
            mechanism_of(method.runs[0]),
            tuple(spent_by(method)),
            claimed_epsilon(method.runs[0]),
            _known(method, "clip_norm", last=True),
            _known(method, "clipped_share"),
            _known(method, "noise_to_signal"),
        )
        for method in methods
        if any(map(tells_privacy, method.counted))
    ]


def privacy_columns(rows: Sequence[PrivacyRow]) -> list[PrivacyColumn]:
    """The columns that have something to say about these rows."""
    return [column for column in PRIVACY_COLUMNS if any(column.text(row) != ABSENT for row in rows)]


def _most(spent: Sequence[PrivacySpent]) -> str:
    return max(spent, key=lambda one: one.epsilon).text if spent else ABSENT


def _each(row: PrivacyRow, text: Callable[[PrivacySpent], str | None]) -> str:
    """What the seeds say, which is the same as a rule."""
    texts = dict.fromkeys(found for spent in row.spent if (found := text(spent)) is not None)
    return listing(list(texts)) or ABSENT


def _audited(spent: PrivacySpent) -> str | None:
    audit = spent.audit
    return None if audit is None else f"≥ {epsilon_text(audit.epsilon_lower)} ({audit.confidence:.0%})"


def _known(method: Method, name: str, last: bool = False) -> float:
    """The mean over the seeds that know it, of the mean over rounds or of the last value."""
    known = [values[np.isfinite(values)] for run in method.counted for values in [column(run.rounds, name)]]
    found = [float(values[-1] if last else values.mean()) for values in known if values.size]
    return float(np.mean(found)) if found else float("nan")
