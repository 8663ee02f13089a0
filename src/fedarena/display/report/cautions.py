"""What to know before believing a comparison: methods that broke, clients without a job, days that were too short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from fedarena.display.drawing.units import SECONDS, count, listing, quantity
from fedarena.display.fleets.picture import percent
from fedarena.display.report.methods import Method, column, evaluation_curve, has_clock, methods_of
from fedarena.display.report.privacy.cautions import privacy_cautions
from fedarena.storage.run_data import DATA, RunData

BROKEN: Final = ("diverged", "failed")
_DAY_HOURS: Final = 24.0
_ALWAYS: Final = 0.999  # of the time on average: phones that never leave miss nothing


def cautions(runs: Sequence[RunData]) -> list[str]:
    """A sentence for everything that changes what the results mean."""
    methods = methods_of(runs)
    return [
        *_changed_data(runs),
        *_federation_notes(runs),
        *_different_samples(runs),
        *_broken(methods),
        *_steps_left_out(methods),
        *privacy_cautions(methods),
        *_never_invited(methods),
        *_short_days(methods),
    ]


def _federation_notes(runs: Sequence[RunData]) -> Iterator[str]:
    """What is to be known of the samples, such as that they are made up."""
    notes = dict.fromkeys((run.federation_name, note) for run in runs for note in run.federation_notes)
    for name, note in notes:
        yield f"{name}: {note}"


def _different_samples(runs: Sequence[RunData]) -> Iterator[str]:
    """Runs on the same data whose models were scored on other samples of it."""
    by_federation: dict[str, dict[tuple[str, int | None], list[str]]] = {}
    for run in runs:
        evaluation, named = run.config["evaluation"], repr(run.config.get("federation"))
        scored = (str(evaluation["part"]), evaluation.get("max_clients"))  # which seeds do not change
        by_federation.setdefault(named, {}).setdefault(scored, []).append(run.label)
    for found in by_federation.values():
        if len(found) > 1:
            which = [
                f"{listing(list(dict.fromkeys(labels)))} on the {part} data of "
                + ("all clients" if most is None else f"at most {count(most, 'client')}")
                for (part, most), labels in found.items()
            ]
            yield f"Models were scored on different samples, so their scores do not compare: {'; '.join(which)}."


def _changed_data(runs: Sequence[RunData]) -> Iterator[str]:
    """Runs whose settings name the same data, which was not the same."""
    for part, words in DATA.items():
        versions: dict[str, dict[str, list[str]]] = {}
        for run in runs:
            # Of weights it is known which of them a model took.
            settings = (part, "model", "adaptation", "federation") if part == "weights" else (part,)
            named = repr([run.config.get(name) for name in settings])
            if (found := run.data_fingerprint(part)) is not None:
                versions.setdefault(named, {}).setdefault(found, []).append(run.name)
        for different in versions.values():
            if len(different) > 1:
                which = listing([_few(names) for names in different.values()])
                yield (
                    f"{words} changed between runs: settings are the same, and the data is not, for {which}. What was "
                    "made from one is not averaged or tested with what was made from another."
                )


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} ({len(names) - 1:,} more)"


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


def _steps_left_out(methods: Sequence[Method]) -> Iterator[str]:
    """Rounds in which updates came, but too few for the defence, so that the model stayed as it was."""
    for method in methods:
        rounds = left_out = 0
        for run in method.counted:
            if "rejected" in run.rounds.column_names:
                succeeded, rejected = (column(run.rounds, name)[1:] for name in ("succeeded", "rejected"))
                rounds += len(succeeded)
                left_out += int(((succeeded == 0) & (rejected > 0)).sum())
        if left_out:
            name = method.runs[0].config["aggregator"]["name"]
            of = f"under {method.label} " if len(methods) > 1 else ""
            yield (
                f"In {left_out:,} of {count(rounds, 'round')} {of}fewer updates came than the aggregator {name} needs, "
                "and the model stayed as it was."
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
