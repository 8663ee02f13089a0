"""What makes a run this run: its name, and what must be the same when it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import as_file_name
from fedarena.core.own_source import OwnSource
from fedarena.core.words import some
from fedarena.data import Federation
from fedarena.models import Task, constant_tensors
from fedarena.models.answers import answers_of, are_alike
from fedarena.runs.attacked import describe_attack
from fedarena.runs.building import Experiment
from fedarena.runs.config import NOT_DECISIVE, RunConfig
from fedarena.runs.deciding import describe_policy
from fedarena.runs.deployed import DeployOptions
from fedarena.runs.environment import describe_environment, describe_repositories
from fedarena.runs.own_source import OWN_SOURCE, changed_source, own_source
from fedarena.simulate.simulation import Simulation, transferred_bytes
from fedarena.storage.checkpoint import FORMAT, read_state
from fedarena.storage.run_files import (
    CONFIG_FILE,
    CONTENT_FINGERPRINT,
    ENVIRONMENT_FILE,
    RUN_ID,
    RunFiles,
    read_constants,
)
from fedarena.train import Groups, count_bytes, flatten_groups

ANSWERS = "model_answers"  # where somebody's own parts could make it another model


def free_name(config: RunConfig, runs_folder: Path, given: Federation | None = None) -> str:
    """A name that says what the run is, with a number if it is not the first; its federation may be given."""
    federation, algorithm = (str(part["name"]).rpartition(":")[2] for part in (config.federation, config.algorithm))
    if federation == "store":  # which says nothing
        federation = as_file_name(given.name if given is not None else Path(config.federation["path"]).name)
    training = [] if config.training == "natural" else [config.training]
    name = "-".join([federation, *training, algorithm, f"seed{config.seed}"])
    number, candidate = 1, name
    while (runs_folder / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def describe_run(experiment: Experiment) -> dict[str, Any]:
    """What ``environment.json`` holds of a run that begins now."""
    source = own_source(experiment.config)
    repositories = {"repositories": describe_repositories(source.files.values())} if source.files else {}
    federation: dict[str, Any] = {
        "federation": experiment.federation.name,
        CONTENT_FINGERPRINT: experiment.federation.content_fingerprint,
    }
    if experiment.federation.notes:
        federation["federation_notes"] = list(experiment.federation.notes)
    attack = describe_attack(experiment.simulation)
    told: dict[str, Any] = {} if attack is None else {"attack": attack}
    policy = describe_policy(experiment.simulation)
    if policy is not None:
        told["policy"] = policy
    if source.fingerprints:
        told[ANSWERS] = answers_of(experiment.simulation.task)
    identity = _identity(experiment, source)
    return describe_environment() | federation | told | measured(experiment) | repositories | identity


def settings_fingerprint(config: RunConfig) -> str:
    """What tells the settings of a run from others."""
    decisive = {key: value for key, value in config.to_dict().items() if key not in NOT_DECISIVE}
    for part in ("policy", "edges", "secure_aggregation", "augmentation", "adaptation"):
        usual = "all" if part == "adaptation" else "none"
        if decisive.get(part) == {"name": usual}:  # as in runs from before there were any
            del decisive[part]
    defaults_of_network = asdict(DeployOptions())  # as in runs from before there was any, or before there were all
    deployed = {key: value for key, value in decisive.pop("deploy", {}).items() if value != defaults_of_network[key]}
    decisive |= {"deploy": deployed} if deployed else {}
    for section, option, defaults in (
        ("local", "clip_norm", (None,)),
        ("engine", "plan", (None, "together")),
        ("engine", "dense", (None, "written")),
        ("engine", "convolutions", (None, "products")),
        ("engine", "kernels", (None, "library")),
        ("privacy", "noise_population", (None,)),
    ):
        if decisive[section].get(option) in defaults:
            decisive[section] = {key: value for key, value in decisive[section].items() if key != option}
    # It is chosen when a run is made, or, for one from before there was a choice, when it goes on.
    decisive["engine"] = {key: value for key, value in decisive["engine"].items() if key != "sample_bytes"}
    settings = json.dumps(decisive, sort_keys=True)
    return hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()


def _identity(experiment: Experiment, source: OwnSource) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    return {
        OWN_SOURCE: source.to_json(),
        "seed": experiment.config.seed,
        "settings_fingerprint": settings_fingerprint(experiment.config),
        **{f"{part}_fingerprint": fingerprint for part, fingerprint in data_fingerprints(experiment).items()},
        "federation_fingerprint": experiment.federation.fingerprint,
    }


def data_fingerprints(experiment: Experiment) -> dict[str, str | None]:
    """What tells a run's data from other data; a federation that was built again from the same samples is the same."""
    fleet = experiment.simulation.fleet
    return {
        "fleet": None if fleet is None else fleet.fleet.fingerprint,
        "federation": experiment.federation.content_fingerprint,
        "weights": experiment.weights_fingerprint,
    }


def measured(experiment: Experiment) -> dict[str, Any]:
    """What a run measures and what it is judged by, for those who look at it before it ends; and bytes to compare."""
    simulation = experiment.simulation
    task = simulation.task
    metrics = [metric.info.to_json() for metric in task.metrics]
    told: dict[str, Any] = {"metrics": metrics, "primary_metric": task.lead.info.name}
    if simulation.real_devices:  # whose times are of all that the method does
        told["compute_factor"] = simulation.compute_factor
    return told | raw_bytes(simulation)


def raw_bytes(simulation: Simulation) -> dict[str, int]:
    """What a job would download and upload as raw numbers, to tell what compression saves.

    A method that sends less than the model, such as a sketch of it, is compared with the model.
    """
    if not simulation.sends:
        return {}
    params = simulation.engine.initial_params()
    whole = count_bytes({"params": params})
    down, up = (simulation.sent_bytes(max(size, whole)) for size in transferred_bytes(simulation.algorithm, params))
    times = simulation.edges.rounds  # that a job downloads and uploads
    return {"raw_download_bytes": down * times, "raw_upload_bytes": up * times}


def check_same_experiment(experiment: Experiment, folder: Path) -> None:
    """Refuses to go on with a run whose settings, data, fleet or weights are no longer those that it began with."""
    path = folder / ENVIRONMENT_FILE
    source = own_source(experiment.config)
    now = _identity(experiment, source)
    try:
        recorded = json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE))
        committed = read_state(folder)
        is_former = committed is not None and committed.format != FORMAT
        if is_former or RUN_ID not in recorded or OWN_SOURCE not in recorded:
            raise BadInputError(
                f"The run {folder} was begun by an earlier version of FedArena; it can be read, but not go on"
            )
        changed = changed_source(source, recorded)
        before = {key: recorded[key] for key in now if key != OWN_SOURCE}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error!r}") from None
    if changed:
        raise BadInputError(
            f"{some(changed)} {'was' if len(changed) == 1 else 'were'} changed after the run {folder} began, "
            "so the run cannot go on; put back what was there, or start a new run"
        )
    if before["settings_fingerprint"] != now["settings_fingerprint"]:
        raise BadInputError(
            f"{folder / CONFIG_FILE} was changed after the run began, so the run cannot go on; "
            f"start a new one with: fedarena run {folder / CONFIG_FILE} name=…"
        )
    same_samples = recorded.get(CONTENT_FINGERPRINT) == experiment.federation.content_fingerprint
    if before["federation_fingerprint"] != now["federation_fingerprint"] and not same_samples:
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
    check_same_constants(experiment.simulation.task.module, RunFiles.open(folder))
    check_same_answers(experiment.simulation.task, folder, "go on")


def check_same_constants(module: nn.Module, files: RunFiles) -> None:
    """Refuses to go on with a model of which what is not trained is no longer what the run began with."""
    found, recorded = constant_tensors(module), read_constants(files)
    for name in sorted({*found, *recorded}):
        if name not in found or name not in recorded or not torch.equal(found[name].cpu(), recorded[name]):
            raise BadInputError(
                f"{name!r} of the model, which is not trained, is no longer what the run {files.folder} began with, "
                "so the run cannot go on"
            )


def check_same_answers(task: Task, folder: Path, purpose: str) -> None:
    """Refuses a model that computes something else than when a run began, though its source is the same."""
    try:
        recorded = json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE)).get(ANSWERS)
        alike = recorded is None or are_alike(recorded, answers_of(task))
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{folder / ENVIRONMENT_FILE} cannot be read: {error!r}") from None
    if not alike:
        raise BadInputError(
            f"The model {type(task.module).__name__} of the run {folder} computes something else than when the run "
            f"began, though its source has not changed, so it cannot {purpose}; it may follow the order of a set of "
            "texts, which differs from one Python process to the next (sort it), an environment variable, or another "
            "file"
        )


def changed_data(now: Mapping[str, str | None], config: RunConfig, recorded: Mapping[str, Any]) -> list[str]:
    """What of the data of a run is not as it is recorded, in words.

    `now` are fingerprints as ``environment.json`` names them; what it lacks is not known, and taken to be as it was.
    """
    words = {
        "federation": f"the federation {recorded.get('federation') or config.federation['name']!r}",
        "fleet": f"the fleet {config.fleet['name']!r}",
        "weights": f"what is in {config.weights}",
    }
    both = [name for name in now if name in recorded]
    changed = [part for part in words if (name := f"{part}_fingerprint") in both and now[name] != recorded[name]]
    if CONTENT_FINGERPRINT in both and now[CONTENT_FINGERPRINT] == recorded[CONTENT_FINGERPRINT]:
        changed = [part for part in changed if part != "federation"]  # built again from the same samples
    return [words[part] for part in changed]


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
