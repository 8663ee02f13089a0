"""What to know before believing a comparison: methods that broke, clients without a job, days that were too short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from fedarena.display.drawing.units import SECONDS, count, listing, quantity
from fedarena.display.fleets.picture import percent
from fedarena.display.report.methods import Method, evaluation_curve, has_clock, methods_of
from fedarena.storage.run_data import RunData

BROKEN: Final = ("diverged", "failed")
_DAY_HOURS: Final = 24.0
_ALWAYS: Final = 0.999  # of the time on average: phones that never leave miss nothing


def cautions(runs: Sequence[RunData]) -> list[str]:
    """A sentence for everything that changes what the results mean."""
    methods = methods_of(runs)
    return [*_broken(methods), *_never_invited(methods), *_short_days(methods), *_audits(runs)]


def _broken(methods: Sequence[Method]) -> Iterator[str]:
    """Methods of which only some seeds ended well: the others would have made their averages worse."""
    for method in methods:
        broken = Counter(run.status for run in method.runs if run.status in BROKEN)
        number = sum(broken.values())
        if 0 < number < len(method.runs):
            what = listing(list(broken))
            yield (
                f"{method.label} {what} with {number} of {count(len(method.runs), 'seed')}: its averages are of the "
                "others, and better than the method is."
            )


def _never_invited(methods: Sequence[Method]) -> Iterator[str]:
    """Training clients that no model has ever seen."""
    shares: dict[str, list[str]] = {}
    totals: set[int] = set()
    for method in methods:
        known = [found for run in method.counted if (found := run.summary.get("participation"))]
        if known:
            mean = sum(found["never_invited_share"] for found in known) / len(known)
            totals.update(int(found["clients"]) for found in known)
            if mean > 0:
                shares.setdefault(percent(mean), []).append(method.label)
    if not shares:
        return
    of = f"the {count(totals.pop(), 'training client')}" if len(totals) == 1 else "the training clients"
    if len(methods) == 1:
        yield f"{next(iter(shares))} of {of} were never invited: the model has not seen their data."
    else:
        who = listing([f"{share} under {listing(labels)}" for share, labels in shares.items()])
        yield f"Of {of}, some were never invited, so that no model has seen their data: {who}."


def _audits(runs: Sequence[RunData]) -> Iterator[str]:
    """What canaries showed about privacy, beside what is proved."""
    for run in runs:
        audit = (run.summary.get("privacy") or {}).get("audit")
        if not audit:
            continue
        of = f" of {run.path.name}" if len(runs) > 1 else ""
        shown = (
            f"ε of at least {audit['epsilon_lower']:.3g} (with {audit['confidence']:.0%} confidence, from "
            f"{audit['canaries']:,} canaries)"
        )
        if audit["epsilon_upper"] is None:
            yield f"The audit{of} shows an {shown}."
        elif audit["holds"]:
            yield f"The audit{of} shows an {shown}; at most {audit['epsilon_upper']:.3g} is proved."
        else:
            yield (
                f"The privacy mechanism{of} is broken: the audit shows an {shown}, more than the "
                f"{audit['epsilon_upper']:.3g} that is promised."
            )


def _short_days(methods: Sequence[Method]) -> Iterator[str]:
    """Budgets of virtual time that are shorter than the day with which phones come and go."""
    short: dict[str, list[str]] = {}
    for method in methods:
        runs = [run for run in method.counted if has_clock(run) and _comes_and_goes(run)]
        hours = [float(evaluation_curve(run)["hours"][-1]) for run in runs]
        if hours and max(hours) < _DAY_HOURS:
            short.setdefault(quantity(3600 * sum(hours) / len(hours), SECONDS), []).append(method.label)
    if short:
        lasting = listing(
            [f"{time} ({listing(labels)})" if len(methods) > 1 else time for time, labels in short.items()]
        )
        yield (
            f"Shorter than a day of virtual time: {lasting}. Phones come and go with day and night; those that are "
            "there at other hours could not take part."
        )


def _comes_and_goes(run: RunData) -> bool:
    return run.fleet is not None and (run.fleet.get("shares") or {}).get("mean", 1.0) < _ALWAYS
