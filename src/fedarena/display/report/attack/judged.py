"""Who attacked, and what a defence made of it: how many corrupted and how many honest updates it rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedarena.display.drawing.units import count
from fedarena.display.report.methods import FloatArray, Method, column
from fedarena.storage.run_data import RunData

NO_ATTACK: Final = "none"


@dataclass(frozen=True)
class Judged:
    """Shares of used updates over all rounds; NaN where there is none, or no defence that judges."""

    corrupted: float  # of corrupted clients among all
    rejected_corrupted: float  # of the corrupted ones, what a defence rejected: its true positives
    rejected_honest: float  # the same of the honest ones: its false positives
    counted_corrupted: float  # how much of a corrupted update it took, where it weighs them
    counted_honest: float

    @property
    def left_out(self) -> dict[str, float]:
        """How much of the updates of each kind the defence did not take, where that is known."""
        kinds = {
            "corrupted": (self.counted_corrupted, self.rejected_corrupted),
            "honest": (self.counted_honest, self.rejected_honest),
        }
        found = {kind: 1 - taken if np.isfinite(taken) else rejected for kind, (taken, rejected) in kinds.items()}
        return {kind: share for kind, share in found.items() if np.isfinite(share)}

    @property
    def weighs(self) -> bool:
        """Whether the defence did not only take updates or leave them."""
        kept = (1 - self.rejected_corrupted, 1 - self.rejected_honest)
        taken = (self.counted_corrupted, self.counted_honest)
        return any(abs(a - b) > 1e-6 for a, b in zip(kept, taken, strict=True) if np.isfinite(a - b))


def judged(runs: Sequence[RunData]) -> Judged:
    """What became of the used updates of some runs, all together."""
    totals = {name: _total(runs, name) for name in ("corrupted", "clients", "rejected", "rejected_corrupted")}
    attacked = [run for run in runs if _knows(run, "corrupted")]
    defended = [run for run in runs if _knows(run, "rejected")]
    corrupted, honest = _by_kind(defended)
    honest_rejected = totals["rejected"] - totals["rejected_corrupted"]
    return Judged(
        corrupted=_share(totals["corrupted"], _total(attacked, "clients")),
        rejected_corrupted=_share(totals["rejected_corrupted"], corrupted) if defended else np.nan,
        rejected_honest=_share(honest_rejected, honest) if defended else np.nan,
        counted_corrupted=_counted(defended, True),
        counted_honest=_counted(defended, False),
    )


def is_attacked(run: RunData) -> bool:
    """Whether some clients of a run are corrupted."""
    return attack_of(run) != NO_ATTACK


def has_attack_or_defence(run: RunData) -> bool:
    """Whether there is something to show: clients that attack, or a defence that says whom it rejects."""
    return is_attacked(run) or _knows(run, "rejected")


def attack_of(run: RunData) -> str:
    """The name of the attack, without where a class of one's own lies."""
    name = str((run.config.get("attack") or {}).get("name") or NO_ATTACK)
    return name.rpartition(":")[2]


def defence_of(run: RunData) -> str:
    """The name of the aggregator, without where a class of one's own lies."""
    return str((run.config.get("aggregator") or {}).get("name") or "mean").rpartition(":")[2]


def told_attacks(runs: Sequence[RunData]) -> dict[str, str]:
    """Of every attack that runs tell about, in a sentence: what corrupted clients do and see, and how many they are."""
    found: dict[str, dict[str, str]] = {}  # by attack and by what is said with numbers, what is said without
    for run in runs:
        if told := run.summary.get("attack") or run.environment.get("attack"):
            deed = f"they {told['they']}; they see {told['they_see']}."
            begin = "" if told["from_round"] == 1 else f", from round {told['from_round']} on"
            who = f"{told['corrupted_clients']:,} of {count(told['clients'], 'client')} corrupted{begin}; {deed}"
            found.setdefault(attack_of(run), {})[who] = deed
    return {attack: next(iter(said if len(said) == 1 else said.values())) for attack, said in found.items()}


def corrupted_share(run: RunData) -> FloatArray:
    """Of every round, the share of used updates that are of corrupted clients; NaN without any."""
    corrupted, clients = column(run.rounds, "corrupted"), column(run.rounds, "clients")
    shares: FloatArray = np.divide(corrupted, clients, out=np.full(clients.shape, np.nan), where=clients > 0)
    return shares


def last_success(method: Method) -> list[float]:
    """The attack's success in the last evaluation of every seed that knows it."""
    return [float(values[-1]) for run in method.counted if (values := _known(run, "attack_success")).size]


def _by_kind(runs: Sequence[RunData]) -> tuple[float, float]:
    """How many used updates of corrupted and of honest clients a defence judged."""
    corrupted = sum(float(np.nansum(column(run.rounds, "corrupted")[_judging(run)])) for run in runs)
    return corrupted, sum(float(column(run.rounds, "clients")[_judging(run)].sum()) for run in runs) - corrupted


def _judging(run: RunData) -> FloatArray:
    return np.isfinite(column(run.rounds, "rejected"))


def _counted(runs: Sequence[RunData], corrupted: bool) -> float:
    """The mean of what a defence took of the updates of one kind."""
    taken = [column(run.jobs, "counted")[column(run.jobs, "corrupted") == corrupted] for run in runs]
    values = np.concatenate([np.empty(0), *taken])
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else np.nan


def _knows(run: RunData, name: str) -> bool:
    return _known(run, name).size > 0


def _known(run: RunData, name: str) -> FloatArray:
    values = column(run.rounds, name)
    return values[np.isfinite(values)]


def _total(runs: Sequence[RunData], name: str) -> float:
    return sum(float(np.nansum(column(run.rounds, name))) for run in runs)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else np.nan
