"""More rounds for a run, so that it ends as if it had had them from the start; or a sentence why that cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.runs.building import Experiment
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.simulate.schedules import prepare_schedule
from fedarena.storage.checkpoint import read_state
from fedarena.storage.recorder import Recorder
from fedarena.storage.run_data import is_finished
from fedarena.storage.run_files import ENVIRONMENT_FILE, SUMMARY_FILE, RunFiles
from fedarena.train import Algorithm


def is_other_length(config: RunConfig, rounds: int) -> bool:
    """Whether a run has another number of rounds than this; what cannot be one is refused."""
    return resolve({"rounds": rounds}).rounds != config.rounds


def with_more_rounds(experiment: Experiment, folder: Path, rounds: int) -> RunConfig:
    """The configuration of a run with more rounds; whatever stands against that is refused, and nothing changed."""
    before = experiment.config
    config = resolve({**before.to_dict(), "rounds": rounds})
    rounds = config.rounds
    if rounds < before.rounds:
        raise BadInputError(f"The run {folder} has {counted(before.rounds, 'round')}; give more, not {rounds}")
    committed = read_state(folder)
    done = 0 if committed is None else committed.round
    if is_finished(folder) and done < before.rounds:
        why = json.loads(RunFiles.open(folder).read(SUMMARY_FILE))["message"] or "its hours of virtual time were over"
        raise BadInputError(f"The run {folder} ended after {counted(done, 'round')}: {why}; more rounds change nothing")
    if rounds > before.rounds and before.horizon is None and (part := _goes_by_length(experiment, rounds)) is not None:
        raise BadInputError(
            f"{part} goes by the length of a run, so with {rounds} rounds the first {before.rounds} would have been "
            f"others; a run that may get more rounds needs the setting horizon, for example horizon={rounds}"
        )
    is_extra = before.rounds % before.evaluation.every > 0
    if is_extra and committed is not None and committed.best is not None and committed.best.round == before.rounds:
        raise BadInputError(
            f"The best model of the run {folder} is its last one, which a longer run with evaluation.every="
            f"{before.evaluation.every} would not have evaluated; start a new run"
        )
    return config


def give_more_rounds(before: RunConfig, config: RunConfig, folder: Path) -> None:
    """Makes the run in a folder one of more rounds."""
    environment = json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE))
    environment["settings_fingerprint"] = settings_fingerprint(config)
    environment["rounds_before"] = [*environment.get("rounds_before", ()), before.rounds]
    # The last model is always evaluated, and that of a round which is not the last any more may not be.
    extra = before.rounds if before.rounds % config.evaluation.every else None
    Recorder.change(folder, config.to_yaml(), environment, without_evaluation=extra)


def _goes_by_length(experiment: Experiment, rounds: int) -> str | None:
    """What would have done otherwise in a longer run."""
    simulation, before = experiment.simulation, experiment.config
    for key in ("client_lr_schedule", "server_lr_schedule"):
        schedule = getattr(simulation, key)
        if schedule is None:
            continue
        played = range(1, before.rounds + 1)
        then = [schedule.scale(round) for round in played]
        prepare_schedule(schedule, rounds, before.seed)
        now = [schedule.scale(round) for round in played]
        prepare_schedule(schedule, before.rounds, before.seed)
        if then != now:
            return f"{key} ({getattr(before, key)['name']})"
    kind = type(simulation.algorithm)
    return f"The algorithm {before.algorithm['name']}" if _asks_for_horizon(kind) else None


def _asks_for_horizon(kind: type[Algorithm]) -> bool:
    """Whether an algorithm looks at how long a run is meant to be, or may: one of somebody's own that is told."""
    for base in kind.__mro__[: kind.__mro__.index(Algorithm)]:
        is_ours = base.__module__.partition(".")[0] == __name__.partition(".")[0]
        if "prepare" in vars(base) and not is_ours:
            return True
        functions = [member for member in vars(base).values() if isinstance(member, FunctionType)]
        if any("horizon" in code.co_names for function in functions for code in _with_inner(function.__code__)):
            return True
    return False


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
