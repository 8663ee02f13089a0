"""What the folder of a run holds besides its rounds: who is evaluated, on what devices, in which columns of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from fedarena.fleet.statistics import describe_fleet
from fedarena.metrics import PERSONAL
from fedarena.metrics.classes import class_columns
from fedarena.runs.building import Experiment
from fedarena.runs.deciding import policy_columns
from fedarena.simulate import Simulation, Snapshot
from fedarena.simulate.edges import EDGE_COLUMNS
from fedarena.simulate.scoring import SCORED_SAMPLES
from fedarena.simulate.secure_aggregation import SECURE_COLUMNS
from fedarena.storage.recorder import Recorder
from fedarena.train.engine import IntArray


def reopen_recorder(experiment: Experiment, folder: Path) -> tuple[Recorder, Snapshot | None]:
    """What records the rounds of a run that lies in a folder, and how far it is."""
    simulation = experiment.simulation
    fresh = simulation.algorithm.server_init(simulation.engine.initial_params())
    ram_bytes = experiment.config.client_states_ram_bytes
    return Recorder.reopen(folder, simulation.metrics, ram_bytes, fresh, more_columns(simulation))


def more_columns(simulation: Simulation) -> dict[str, list[str]]:
    """Columns of tables that few runs have: of a policy's decisions, of losses that clients compute beside their
    training, of edges, and of what metrics tell of classes.
    """
    columns = class_columns(simulation.task.metrics)
    if simulation.scores_personal_models:
        columns = [prefix + name for prefix in ("", PERSONAL) for name in columns]
    found = policy_columns(simulation) or {}
    if simulation.load().scored_samples is not None:
        found = {**found, "jobs": [SCORED_SAMPLES, *found.get("jobs", [])]}
    if simulation.edge_links is not None:
        found = {**found, "rounds": [*found.get("rounds", []), *EDGE_COLUMNS]}
    if simulation.secure_rounds is not None:
        found = {**found, "rounds": [*found.get("rounds", []), *SECURE_COLUMNS]}
    return {**found, "classes": columns}


def evaluated_ids(experiment: Experiment, clients: IntArray) -> list[str]:
    """What clients are called that are evaluated: those of the federation, unless it has no samples."""
    if experiment.federation.num_samples == 0:
        return experiment.simulation.client_ids(clients.tolist())
    return experiment.federation.client_ids(clients)


def evaluated_attributes(experiment: Experiment) -> pa.Table | None:
    """What is known about the clients that are evaluated."""
    clients = experiment.simulation.evaluation_clients
    if experiment.federation.num_samples == 0:  # real devices have all there is
        return None
    known = experiment.federation.attributes(clients)
    return pa.table({"client": experiment.federation.client_ids(clients), **known}) if known else None


def described_fleet(experiment: Experiment) -> dict[str, Any] | None:
    """What the report shows of the clients' devices."""
    simulation = experiment.simulation
    if simulation.fleet is None:
        return None
    return describe_fleet(simulation.fleet, simulation.training_clients, simulation.seed)
