"""What a run tells about the policy that decided about its hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedarena.display.report.methods import FloatArray, column
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class ArmTable:
    """The arms of a table, and under which columns of the table of rounds their probabilities are."""

    columns: tuple[str, ...]
    arms: tuple[Mapping[str, Any], ...]

    def probabilities(self, run: RunData) -> list[FloatArray]:
        """Of every arm, over all rounds."""
        return [column(run.rounds, name) for name in self.columns]


def has_policy(run: RunData) -> bool:
    """Whether something decided about hyperparameters of jobs."""
    return policy_name(run) != "none"


def policy_name(run: RunData) -> str:
    """The policy of a run; runs from before there were any have none."""
    return str((run.config.get("policy") or {}).get("name") or "none")


def settings_searched(run: RunData) -> list[str]:
    """The settings that it decides on."""
    return list(_told(run).get("search") or {})


def tables_of(run: RunData) -> list[ArmTable]:
    """The tables of arms that it chooses from, if it is such a policy."""
    return [
        ArmTable(tuple(found["columns"]), tuple(found["arms"]))
        for found in _told(run).get("tables") or []
        if all(name in run.rounds.column_names for name in found["columns"])
    ]


def best_settings(run: RunData) -> Mapping[str, Any]:
    """What it found to be best; empty as long as the run is not over."""
    return (run.summary.get("policy") or {}).get("best") or {}


def settings_text(settings: Mapping[str, Any]) -> str:
    """``local.lr=0.1 local.steps=2``, as a user would write them."""
    return " ".join(f"{name}={value:.4g}" for name, value in settings.items())


def policy_sentence(run: RunData) -> str | None:
    """What is worth saying about it in one line."""
    best = best_settings(run)
    if not best:
        return None
    likely = (run.summary["policy"].get("probabilities") or [[]])[0]
    chance = f", probability {max(likely):.2f}" if likely and len(run.summary["policy"]["probabilities"]) == 1 else ""
    return f"Policy {policy_name(run)} found {settings_text(best)}{chance}"


def _told(run: RunData) -> Mapping[str, Any]:
    told: Mapping[str, Any] = run.summary.get("policy") or run.environment.get("policy") or {}
    return told
