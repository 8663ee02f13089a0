"""What makes a run this run: its name, and what must be the same when it goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.runs.building import Experiment
from fedarena.runs.config import RunConfig
from fedarena.storage.checkpoint import FORMAT, read_state
from fedarena.storage.run_files import CONFIG_FILE, ENVIRONMENT_FILE, RUN_ID, RunFiles
from fedarena.train import Groups, flatten_groups

# Settings that change nothing about what a run computes.
NOT_DECISIVE = frozenset({"track"})


def free_name(config: RunConfig, runs_folder: Path) -> str:
    """A name that says what the run is, with a number if it is not the first."""
    federation, algorithm = (str(part["name"]).rpartition(":")[2] for part in (config.federation, config.algorithm))
    training = [] if config.training == "natural" else [config.training]
    name = "-".join([federation, *training, algorithm, f"seed{config.seed}"])
    number, candidate = 1, name
    while (runs_folder / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def identity(experiment: Experiment) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    decisive = {key: value for key, value in experiment.config.to_dict().items() if key not in NOT_DECISIVE}
    settings = json.dumps(decisive, sort_keys=True)
    fleet = experiment.simulation.fleet
    return {
        "fleet_fingerprint": None if fleet is None else fleet.fleet.fingerprint,
        "seed": experiment.config.seed,
        "settings_fingerprint": hashlib.blake2b(settings.encode(), digest_size=8).hexdigest(),
        "federation_fingerprint": experiment.federation.fingerprint,
        "weights_fingerprint": experiment.weights_fingerprint,
    }


def measured(experiment: Experiment) -> dict[str, Any]:
    """What a run measures, and what it is judged by, for those who look at it before it ends."""
    task = experiment.simulation.task
    return {"metrics": [metric.info.to_json() for metric in task.metrics], "primary_metric": task.lead.info.name}


def check_same_experiment(experiment: Experiment, folder: Path) -> None:
    """Refuses to go on with a run whose settings, data, fleet or weights are no longer those that it began with."""
    path = folder / ENVIRONMENT_FILE
    now = identity(experiment)
    try:
        recorded = json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE))
        committed = read_state(folder)
        if RUN_ID not in recorded or (committed is not None and committed.format != FORMAT):
            raise BadInputError(
                f"The run {folder} was begun by an earlier version of FedArena; it can be read, but not go on"
            )
        before = {key: recorded[key] for key in now}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error!r}") from None
    if before["settings_fingerprint"] != now["settings_fingerprint"]:
        raise BadInputError(
            f"{folder / CONFIG_FILE} was changed after the run began, so the run cannot go on; "
            f"start a new one with: fedarena run {folder / CONFIG_FILE} name=…"
        )
    if before["federation_fingerprint"] != now["federation_fingerprint"]:
        raise BadInputError(
            f"The federation {experiment.federation.name!r} is not the one that the run {folder} began with "
            f"(fingerprint {now['federation_fingerprint']} instead of {before['federation_fingerprint']}), "
            "so the run cannot go on"
        )
    if before["weights_fingerprint"] != now["weights_fingerprint"]:
        raise BadInputError(
            f"{experiment.config.weights} does not hold the weights that the run {folder} began with, "
            "so the run cannot go on"
        )
    if before["fleet_fingerprint"] != now["fleet_fingerprint"]:
        raise BadInputError(
            f"The fleet {experiment.config.fleet['name']!r} is not the one that the run {folder} began with, "
            "so the run cannot go on"
        )


def check_same_form(state: Groups, fresh: Groups) -> None:
    """Refuses to go on from a state of the server with settings under which it would have another form."""
    forms = [
        {name: (tuple(t.shape), t.dtype) for name, t in flatten_groups(groups).items()} for groups in (state, fresh)
    ]
    different = sorted(name for name in {*forms[0], *forms[1]} if forms[0].get(name) != forms[1].get(name))
    if different:
        raise BadInputError(
            f"A fork cannot go on with these settings: with them, {different[0]} of the server's state would be of "
            "another kind or size"
        )
