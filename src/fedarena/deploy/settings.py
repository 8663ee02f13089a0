"""What devices are told about a run: names and options, never code. And what they could not do is refused before.

The other direction is `fedarena.client.building`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedarena.client.building import aggregator_settings, described_spec, private_transform_settings
from fedarena.client.trust import DEVICE_PARTS, refuse_files
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.models.answers import answers_of
from fedarena.models.trainable import constant_tensors
from fedarena.runs.building import Experiment
from fedarena.runs.opening import data_spec
from fedarena.runs.own_source import own_source
from fedarena.simulate import Selector
from fedarena.simulate.selectors import PowerOfChoice
from fedarena.transforms import Transform

# Settings that make up something which real devices have by themselves or cannot have.
_OF_SIMULATIONS = {
    "attack": "attackers are made up in simulations, and real ones do not say so",
    "policy": "policies decide in simulations only",
    "edges": "there are no servers between a real server and its clients",
}
# Mechanisms of which a part runs in local training, or with packages that phones do not have.
_NOT_ON_DEVICES = {
    "dp_sgd": "its noise in every local step",
    "nbafl": "its noise in local models",
    "privunit": "SciPy",
}


def device_settings(experiment: Experiment, all_transforms: bool = False) -> dict[str, Any]:
    """What devices build their part of a run from; `all_transforms`: also those that the server could make sure of."""
    check_deployable(experiment)
    config, federation = experiment.config, experiment.federation
    algorithm, sources = experiment.simulation.algorithm, _sources(experiment)
    return {
        "seed": config.seed,
        "population": algorithm.population,
        "horizon": algorithm.horizon,
        "data": {
            "spec": described_spec(data_spec(federation)),
            "columns": {name: [column.dtype, list(column.shape)] for name, column in federation.columns.items()},
        },
        **{part: dict(getattr(config, part)) for part in DEVICE_PARTS},
        "sources": sources,
        "answers": answers_of(experiment.simulation.task) if sources else None,
        "local": asdict(config.local),
        "transforms": _transforms(experiment, all_transforms),
        "secure": _secure(experiment),
        "engine": {
            "dtype": config.engine.get("dtype", "float32"),
            "precision": config.engine.get("precision", "full"),
            "threads": config.engine.get("threads", 1),
        },
    }


def _sources(experiment: Experiment) -> dict[str, str]:
    """Fingerprints of modules of somebody's own: devices have copies, which must be the same."""
    found = own_source(experiment.config)
    return {module: found.fingerprints[module] for module in found.files}


def _secure(experiment: Experiment) -> dict[str, Any] | None:
    """What devices must know to add their updates up securely; None: the server gets every update."""
    simulation = experiment.simulation
    sums = simulation.path.sums
    if sums is None:
        return None
    aggregator = aggregator_settings(simulation.path.aggregator, experiment.config.aggregator)
    return {"fixed_point": asdict(sums.fixed_point), "notes": list(sums.notes), "aggregator": aggregator}


def constants(experiment: Experiment) -> Tensors:
    """What of the model is not trained, which devices download once: frozen weights and buffers. Often nothing."""
    return {name: t.detach().cpu() for name, t in constant_tensors(experiment.simulation.task.module).items()}


def check_deployable(experiment: Experiment) -> None:
    """Refuses what real devices cannot do, before anybody is invited."""
    config, simulation = experiment.config, experiment.simulation
    if config.training != "natural":
        raise BadInputError(
            f"training={config.training} mixes the samples of clients, and those of real ones stay where they are; "
            "choose training=natural"
        )
    for setting, why in _OF_SIMULATIONS.items():
        if (name := getattr(config, setting)["name"]) != "none":
            raise BadInputError(f"{setting}={name} cannot be deployed: {why}; leave {setting} out")
    if simulation.canaries is not None:
        raise BadInputError("An audit with canaries needs clients that are made up; leave privacy.audit out")
    if (what := _NOT_ON_DEVICES.get(config.privacy["name"])) is not None:
        raise BadInputError(
            f"privacy={config.privacy['name']} needs {what}, which devices cannot do; choose gaussian, "
            "correlated_gaussian, local_gaussian or local_laplace"
        )
    if config.engine.get("precision") == "tf32":
        raise BadInputError("engine.precision=tf32 needs a GPU on every device; choose full or bf16")
    if _asks_for_losses(simulation.selector) and simulation.cohort < len(simulation.training_clients):
        raise BadInputError(
            "selector.losses=current asks for losses on training samples, which are on devices; choose "
            "selector.losses=latest, or another selector"
        )
    refuse_files(config.to_dict())
    _transforms(experiment, all_transforms=False)


def _asks_for_losses(selector: Selector) -> bool:
    return isinstance(selector, PowerOfChoice) and selector.losses == "current" and selector.oversample > 1


def _transforms(experiment: Experiment, all_transforms: bool) -> list[dict[str, Any]]:
    """Names and options of the transforms that devices execute."""
    config, path = experiment.config, experiment.simulation.path
    number = len(path.transforms) if all_transforms else path.on_devices
    chosen = len(config.transforms)
    return [
        dict(config.transforms[place]) if place < chosen else _of_privacy(transform, config.privacy["name"])
        for place, transform in enumerate(path.transforms[:number])
    ]


def _of_privacy(transform: Transform, mechanism: str) -> dict[str, Any]:
    settings = private_transform_settings(transform)
    if settings is None:
        raise BadInputError(f"privacy={mechanism} does something to updates that devices cannot do; choose another")
    return settings
