"""Trials of a run configuration, each with settings of its own, trained as lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.words import counted
from fedarena.data import Federation
from fedarena.hpo.lanes.carried import CarriedData, CarriedPart, CarriedSamples, CarriedTrials
from fedarena.hpo.lanes.curves import IntArray, TrialCurves
from fedarena.hpo.lanes.making import TrialSettings, make_trials
from fedarena.hpo.lanes.models import ModelSettings
from fedarena.hpo.lanes.planning import Scene
from fedarena.hpo.lanes.training import LaneTrainer, Progress, all_rounds
from fedarena.models import Task
from fedarena.runs.building import Experiment, GivenParts, build_task, prepare
from fedarena.runs.config import AUTOMATIC_MODEL, RunConfig, resolve_settings
from fedarena.runs.observer import Observer
from fedarena.runs.opening import data_spec, open_federation
from fedarena.runs.weights import start_from
from fedarena.train.engine import Part
from fedarena.train.hardware import DeviceName, Hardware

Settings = Mapping[str, Any]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
# What goes along to another machine, or does not matter there; of `_PLAIN` there is nothing to carry.
_CARRIED = frozenset(
    {
        *("name", "label", "seed", "rounds", "horizon", "cohort", "federation", "model", "task", "algorithm", "local"),
        *("evaluation", "selector", "client_lr_schedule", "server_lr_schedule", "keep", "track", "engine"),
        "client_states_ram_bytes",
    }
)
_MAY_DIFFER = frozenset({"seed", "cohort", "local", "model", "algorithm", "name", "label"})
# What lanes do not simulate, and what stands for not asking for it.
_PLAIN: dict[str, Any] = {
    "training": "natural",
    "fleet": "ideal",
    "protocol": "ideal",
    "aggregator": "mean",
    "attack": "none",
    "privacy": "none",
    "download": "none",
    "policy": "none",
    "edges": "none",
    "transforms": [],
    "callbacks": [],
}


def train_trials(
    base: Settings,
    trials: Sequence[Settings],
    *,
    rounds: int,
    note_rounds: Sequence[int] | IntArray | None = None,
    best: bool = False,
    device: DeviceName = "auto",
    workers: int | None = None,
    progress: Progress | None = None,
) -> TrialCurves:
    """Trains all trials, each as `fedarena.run` would train it alone, and gives their scores.

    `base` is the configuration of a run, and each trial is what it overrides (``{"local.lr": 0.1, "seed": 1}``): the
    seed, the cohort, and settings of local training, model and algorithm. Scores on the samples of all parts are noted
    after `note_rounds` (every round, unless said otherwise), those of the models of then or, with `best`, of the models
    that had the smallest validation loss so far. `progress` is told how many rounds of trials are done, and of how
    many.

    >>> curves = train_trials(  # doctest: +SKIP
    ...     {"federation": "digits", "model": "mlp"}, [{"local.lr": lr} for lr in (0.01, 0.1)], rounds=20
    ... )
    >>> curves.metrics["test_loss"].min(axis=1)  # doctest: +SKIP
    """
    order: list[int] = []
    parts: list[TrialCurves] = []
    options: Any = {"note_rounds": note_rounds, "best": best, "device": device, "workers": workers}
    for numbers, curves in train_in_blocks(base, trials, rounds=rounds, progress=progress, **options):
        order += numbers
        parts.append(curves)
    return TrialCurves.join(parts).take(np.argsort(order))


def train_in_blocks(
    base: Settings,
    trials: Sequence[Settings],
    *,
    rounds: int,
    note_rounds: Sequence[int] | IntArray | None = None,
    best: bool = False,
    device: DeviceName = "auto",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[list[int], TrialCurves]]:
    """The same as `train_trials`, a block of trials at a time: their positions among all, and their scores.

    Who keeps finished blocks can go on after an interruption with the trials that are missing.
    """
    if not trials:
        raise BadInputError("There are no trials to train")
    for number, trial in enumerate(trials):
        if not isinstance(trial, Mapping):
            raise BadInputError(f"Trial {number} must be settings such as {{'local.lr': 0.1}}, not {quoted(trial)}")
    noted = _check_rounds(rounds, note_rounds)
    trainer = _make_trainer(base, trials, rounds, noted, best, device, workers)
    for numbers, curves in trainer.run(progress):
        yield numbers, replace(curves, trials=tuple(dict(trials[number]) for number in numbers))


def _check_rounds(rounds: int, note_rounds: Sequence[int] | IntArray | None) -> IntArray:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise BadInputError(f"Trials need a whole number of rounds, at least 1, not {quoted(rounds)}")
    if note_rounds is None:
        return all_rounds(rounds)
    noted = np.unique(np.asarray(note_rounds, dtype=np.int64))
    if not len(noted) or noted[0] < 0 or noted[-1] > rounds:
        raise BadInputError(
            f"note_rounds must be from 0 to {rounds}, the number of rounds, not {list(note_rounds)[:8]}"
        )
    return noted


@dataclass(frozen=True)
class PlannedTrials:
    """Trials that were checked and can be lanes, before their models are built."""

    federation: Federation
    config: RunConfig  # of the first, complete: what all of them have in common
    scene: Scene
    settings: list[TrialSettings]
    horizon: int

    def build(self, model: ModelSettings, seed: int) -> Task:
        """The task of such a model as a run has it, with the weights that it starts from."""
        config = self.config.model_copy(update={"model": dict(model), "seed": seed})
        task = build_task(config, self.federation)
        if config.weights is not None:
            start_from(task.module, Path(config.weights))
        return task


def plan_trials(base: Settings, trials: Sequence[Settings], rounds: int) -> PlannedTrials:
    """Resolves the settings of all trials, and refuses what does not fit or cannot be lanes."""
    settings, given = _with_federation(base)
    settings["rounds"] = rounds
    configs = [resolve_settings(settings, trial) for trial in trials]
    first = configs[0]
    for config in configs:
        _check_same(config, first)
    check_plain(first)
    federation, first = open_federation(first, Observer(), given.federation)
    given = replace(given, federation=federation)
    # Builds and checks every part of a run; all that it would evaluate on are the samples there must be.
    evaluation = replace(first.evaluation, part="train")
    experiment = prepare(first.model_copy(update={"evaluation": evaluation}), Observer(), given)
    if first.engine.get("precision") == "bf16":
        raise BadInputError("Trials as lanes compute in full precision; leave engine.precision out")
    made = [_trial_settings(number, config, first, experiment) for number, config in enumerate(configs)]
    return PlannedTrials(federation, first, _scene(experiment), made, first.horizon or first.rounds)


def carry_trials(base: Settings, trials: Sequence[Settings], *, rounds: int) -> CarriedTrials:
    """The same trials, with their samples, for a machine that has torch and numpy alone."""
    planned = plan_trials(base, trials, rounds)
    config = planned.config
    for name in RunConfig.model_fields:
        plain = RunConfig.model_fields[name].default
        if name not in _CARRIED and name not in _PLAIN and getattr(config, name) != plain:
            raise BadInputError(
                f"Trials with {name}={quoted(getattr(config, name))} cannot be carried to another machine; leave it "
                "out, or train them here"
            )
    parts = {}
    for part, clients in planned.scene.scored.items():
        samples = planned.federation.samples(clients, part)
        parts[part] = CarriedPart(clients, CarriedSamples(dict(samples.columns), samples.offsets))
    return CarriedTrials(
        data=CarriedData(parts),
        spec=data_spec(planned.federation),
        task=config.task,
        selector=config.selector,
        client_lr_schedule=config.client_lr_schedule,
        server_lr_schedule=config.server_lr_schedule,
        rounds=rounds,
        horizon=planned.horizon,
        dtype=config.engine.get("dtype", "float32"),
        precision=config.engine.get("precision", "full"),
        settings=planned.settings,
    )


def _make_trainer(
    base: Settings,
    trials: Sequence[Settings],
    rounds: int,
    note_rounds: IntArray,
    best: bool,
    device: DeviceName,
    workers: int | None,
) -> LaneTrainer:
    planned = plan_trials(base, trials, rounds)
    options = dict(planned.config.engine)
    hardware = Hardware(
        options["device"] if device == "auto" and "device" in options else device,
        threads=1,
        dtype=options.get("dtype", "float32"),
        precision=options.get("precision", "full"),
    )
    made = make_trials(planned.settings, planned.build, len(planned.scene.clients), planned.horizon)
    return LaneTrainer(planned.scene, made, hardware, note_rounds, best, workers)


def _with_federation(base: Settings) -> tuple[dict[str, Any], GivenParts]:
    """The settings, and a federation that was handed in as an object."""
    settings = dict(base)
    federation = settings.get("federation")
    if not isinstance(federation, Federation):
        return settings, GivenParts()
    settings["federation"] = {"name": "store", "path": str(federation.path)}
    return settings, GivenParts(federation)


def _check_same(config: RunConfig, first: RunConfig) -> None:
    for name in RunConfig.model_fields:
        if name not in _MAY_DIFFER and getattr(config, name) != getattr(first, name):
            raise BadInputError(
                f"Trials cannot differ in {name}, only in seed, cohort, and settings of local, model and algorithm; "
                "train those of each value by themselves"
            )


def check_plain(config: RunConfig) -> None:
    """Refuses settings that ask for what lanes do not compute."""
    for name, plain in _PLAIN.items():
        value = getattr(config, name)
        chosen = value["name"] if isinstance(value, dict) else value
        if chosen != plain:
            shown = chosen if isinstance(chosen, str) else ", ".join(part["name"] for part in chosen)
            raise BadInputError(
                f"Trials with {name}={shown} cannot be lanes of one computation; leave it out, or run them one by one"
            )
    if config.clock != RunConfig.model_fields["clock"].default:
        raise BadInputError("Trials in lanes have no clock; leave clock.… out, or run them one by one")
    if config.evaluation.max_clients is not None:
        raise BadInputError("Trials in lanes are scored on all clients; leave evaluation.max_clients out")


def _trial_settings(number: int, config: RunConfig, first: RunConfig, experiment: Experiment) -> TrialSettings:
    clients = experiment.simulation.training_clients
    cohort = config.cohort or experiment.simulation.cohort
    if cohort > len(clients):
        raise BadInputError(
            f"cohort is {cohort} in trial {number}, but the federation {experiment.federation.name!r} has only "
            f"{counted(len(clients), 'client')} to train on"
        )
    model = first.model if config.model["name"] == AUTOMATIC_MODEL else config.model
    return TrialSettings(config.seed, cohort, config.local, model, config.algorithm)


def _scene(experiment: Experiment) -> Scene:
    federation, simulation = experiment.federation, experiment.simulation
    scored: dict[Part, Any] = {}
    for part in PARTS:
        clients = federation.clients("train" if part == "train" else "all")
        clients = clients[federation.counts(clients, part) > 0]
        if len(clients):
            scored[part] = clients
    client, server = simulation.client_lr_schedule, simulation.server_lr_schedule
    return Scene(
        federation,
        simulation.training_clients,
        scored,
        simulation.selector,
        simulation.rounds,
        None if client is None else client.scale,
        None if server is None else server.scale,
    )
