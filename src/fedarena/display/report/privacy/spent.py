"""What a run spent of its privacy: ε, for which δ, by which bound, and whether it is only simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.display.report.methods import Method, column
from fedarena.runs.round_text import epsilon_text, is_simulated
from fedarena.storage.run_data import RunData

_NO_MECHANISM = ("", "none")
COLUMNS = ("epsilon", "clip_norm", "clipped_share", "noise_to_signal")


@dataclass(frozen=True)
class Audit:
    """What planted clients found out: ε is at least `epsilon_lower`, at this confidence."""

    epsilon_lower: float
    confidence: float
    canaries: int | None


@dataclass(frozen=True)
class PrivacySpent:
    """How private a run was. What is not known is None."""

    epsilon: float  # proved for the run as far as it came
    budget: float | None  # the ε that it would not exceed
    delta: float | None
    accountant: str | None  # which one proved it, in short
    bound: str | None  # the same in words
    neighbours: str | None  # what a reader of the model cannot tell
    mechanism: str
    noise_cohort: int | None  # whose noise was added, if that of another cohort than there was
    noise_population: int | None  # from which that one would be drawn, if not from these clients
    budget_is_spent: bool  # whether that ended the run
    audit: Audit | None

    @property
    def is_simulated(self) -> bool:
        """Whether the run itself was less private than ε says: its noise was that of a larger cohort."""
        return self.noise_cohort is not None

    @property
    def simulated_cohort(self) -> str | None:
        """ "5,000", or "1,000 of 1,000,000", if there is one."""
        if self.noise_cohort is None:
            return None
        return f"{self.noise_cohort:,}" + (
            f" of {self.noise_population:,}" if self.noise_population is not None else ""
        )

    @property
    def is_refuted(self) -> bool:
        """Whether the audit found more than the mechanism claims; one that is only simulated claims nothing of it."""
        return self.audit is not None and not self.is_simulated and self.audit.epsilon_lower > self.epsilon

    @property
    def text(self) -> str:
        """ "1.98", or "1.98 sim."."""
        return epsilon_text(self.epsilon) + (" sim." if self.is_simulated else "")


def privacy_spent(run: RunData) -> PrivacySpent | None:
    """What a run spent; None if it does not say."""
    told = column(run.rounds, "epsilon")
    told = told[~np.isnan(told)]
    if not told.size:
        return None
    settings = run.config.get("privacy") or {}
    summary = run.summary.get("privacy") or {}  # of a run that ended; it knows what settings leave open
    accountant = summary.get("accountant", settings.get("accountant"))
    return PrivacySpent(
        epsilon=float(told[-1]),
        budget=_number(summary.get("budget", settings.get("epsilon"))),
        delta=_number(summary.get("delta", settings.get("delta"))),
        accountant=None if accountant is None else str(accountant).upper(),
        bound=summary.get("bound"),
        neighbours=summary.get("neighbours"),
        mechanism=mechanism_of(run),
        noise_cohort=int(settings["noise_cohort"]) if is_simulated(run.config) else None,
        noise_population=settings.get("noise_population"),
        budget_is_spent=_budget_is_spent(run),
        audit=audit_of(run),
    )


def spent_by(method: Method) -> list[PrivacySpent]:
    """What each run of a method spent that counts and says so."""
    return [spent for run in method.counted if (spent := privacy_spent(run)) is not None]


def claimed_epsilon(run: RunData) -> float | None:
    """The ε that a mechanism claims without a proof that holds for the whole run."""
    return _number((run.summary.get("privacy") or {}).get("claimed_epsilon"))


def mechanism_of(run: RunData) -> str:
    """The name of the mechanism, without where a class of one's own lies; empty without one."""
    name = str((run.config.get("privacy") or {}).get("name") or "").rpartition(":")[2]
    return "" if name in _NO_MECHANISM else name


def tells_privacy(run: RunData) -> bool:
    """Whether there is anything to show: a mechanism, ε, clipping or noise."""
    return bool(mechanism_of(run)) or any(np.isfinite(column(run.rounds, name)).any() for name in COLUMNS)


def is_private(runs: Sequence[RunData]) -> bool:
    """Whether any of the runs is about privacy, and does not clip updates for another reason."""
    return any(mechanism_of(run) or privacy_spent(run) is not None for run in runs)


def _budget_is_spent(run: RunData) -> bool:
    """Whether a run ended before its last round because the next one would have cost too much."""
    done, wanted = run.summary.get("rounds_done"), run.config.get("rounds")
    early = run.status == "finished" and done is not None and wanted is not None and int(done) < int(wanted)
    return early and "budget" in str(run.summary.get("message") or "").lower()


def audit_of(run: RunData) -> Audit | None:
    """What an audit of a run found; None without one."""
    found: dict[str, Any] = (run.summary.get("privacy") or {}).get("audit") or run.summary.get("audit") or {}
    if found.get("epsilon_lower") is None or found.get("confidence") is None:
        return None
    canaries = found.get("canaries")
    return Audit(float(found["epsilon_lower"]), float(found["confidence"]), None if canaries is None else int(canaries))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
