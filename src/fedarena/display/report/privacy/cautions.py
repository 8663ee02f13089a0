"""What to know before believing an ε: that it is only simulated, that it ended a run, what an audit says to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedarena.display.drawing.units import count, listing
from fedarena.display.report.methods import Method
from fedarena.display.report.privacy.spent import PrivacySpent, audit_of, privacy_spent, spent_by
from fedarena.runs.round_text import epsilon_text


def privacy_cautions(methods: Sequence[Method]) -> Iterator[str]:
    """A sentence for everything that changes what ε means."""
    yield from _simulated(methods)
    yield from _spent_budgets(methods)
    yield from _audits(methods)


def _simulated(methods: Sequence[Method]) -> Iterator[str]:
    """Methods whose ε nobody has really got."""
    cohorts: dict[tuple[str, int], list[str]] = {}
    for method in methods:
        for spent in spent_by(method)[:1]:
            if spent.simulated_cohort is not None:
                size = int(method.runs[0].config["cohort"])
                cohorts.setdefault((spent.simulated_cohort, size), []).append(method.label)
    for (noise, size), labels in cohorts.items():
        whose = f"of {listing(labels)} " if len(methods) > 1 else ""
        yield (
            f"ε {whose}is only simulated: {count(size, 'client')} a round had the noise of {noise}. It would hold "
            f"with cohorts of {noise}; these clients were less private."
        )


def _spent_budgets(methods: Sequence[Method]) -> Iterator[str]:
    """Methods that stopped learning because their privacy was spent."""
    for method in methods:
        found = [(spent, run) for run in method.runs if (spent := privacy_spent(run)) is not None]
        ended = [(spent, run) for spent, run in found if spent.budget_is_spent]
        if ended:
            spent, run = ended[0]
            seeds = f" ({len(ended)} of {count(len(method.runs), 'seed')})" if len(method.runs) > 1 else ""
            budget = "" if spent.budget is None else f" of ε = {epsilon_text(spent.budget)}"
            yield (
                f"{method.label} stopped after {run.summary['rounds_done']:,} of {count(run.config['rounds'], 'round')}"
                f"{seeds}: its privacy budget{budget} is spent, and the next round would have exceeded it."
            )


def _audits(methods: Sequence[Method]) -> Iterator[str]:
    """What planted clients found out; of several seeds, that which found most."""
    for method in methods:
        audited = [(audit, privacy_spent(run)) for run in method.counted if (audit := audit_of(run)) is not None]
        if audited:
            audit, spent = max(audited, key=lambda pair: pair[0].epsilon_lower)
            canaries = "" if audit.canaries is None else f" of {count(audit.canaries, 'canary client')}"
            yield (
                f"{method.label}: an audit{canaries} shows, with {audit.confidence:.0%} confidence, that ε is at least "
                f"{epsilon_text(audit.epsilon_lower)}. {_verdict(spent)}"
            )


def _verdict(spent: PrivacySpent | None) -> str:
    """What a lower bound means beside the upper one."""
    if spent is None:
        return "No upper bound is proved."
    proved = epsilon_text(spent.epsilon)
    if spent.is_simulated:
        return f"That is about these clients, who had less noise than the simulated {proved} is for."
    if spent.is_refuted:
        return f"That is above the proved {proved}: the mechanism does not do what it claims."
    return f"That agrees with the proved upper bound of {proved}; a lower bound proves no privacy by itself."
