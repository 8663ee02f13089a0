"""What ``summary.json`` says of a run that has just ended: scores and times, and what its parts have to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedarena.privacy.audit import audit_result
from fedarena.runs.attacked import describe_attack
from fedarena.runs.building import Experiment
from fedarena.runs.deciding import summarize_policy
from fedarena.runs.recorded import evaluated_attributes
from fedarena.runs.summary import summarize
from fedarena.simulate import Snapshot


def summary_of(
    experiment: Experiment,
    snapshot: Snapshot | None,
    tables: dict[str, pa.Table],
    status: str,
    message: str | None,
    warnings: Sequence[str],
    secure: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The summary of a run that stands at a snapshot; `secure` tells of its secure aggregation, if it had one."""
    simulation, mechanism = experiment.simulation, experiment.mechanism
    summary = summarize(
        experiment.config,
        simulation.task,
        experiment.baseline,
        len(simulation.training_clients),
        tables,
        status,
        message,
        evaluated_attributes(experiment),
        warnings,
        describe_attack(simulation),
        None if snapshot is None else snapshot.clock.running.clients,
    )
    version = 0 if snapshot is None else snapshot.clock.version
    if (privacy := mechanism.summary(version)) is not None:
        summary["privacy"] = privacy
    if secure is not None:
        summary["secure_aggregation"] = secure
    if (policy := summarize_policy(experiment.config, simulation, snapshot)) is not None:
        summary["policy"] = policy
    if (canaries := simulation.canaries) is not None and snapshot is not None:
        found = audit_result(canaries, snapshot.transform_states[0], mechanism.epsilon(version), mechanism.delta)
        summary.setdefault("privacy", {})["audit"] = found
    return summary
