"""An experiment: a configuration put together, run, recorded, and continued where it stopped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from fedarena.algorithms import ALGORITHMS
from fedarena.core import streams
from fedarena.core.errors import BadInputError, DamagedFileError, DivergedError
from fedarena.core.options import resolve_part
from fedarena.core.registry import Registry
from fedarena.data import Federation, PooledFederation, load_federation
from fedarena.fleet.statistics import describe_fleet
from fedarena.models import MODELS, TASKS, DataSpec, InputSpec, build_model, default_model
from fedarena.models.tasks import AUTOMATIC_TASK, task_class
from fedarena.runs.baseline import baseline_of
from fedarena.runs.config import AUTOMATIC_MODEL, RunConfig, read_settings, resolve
from fedarena.runs.environment import describe_environment
from fedarena.runs.summary import summarize
from fedarena.runs.virtual_time import check_feasible, clock_options, match_fleet
from fedarena.runs.weights import start_from
from fedarena.simulate import (
    PROTOCOLS,
    SELECTORS,
    Protocol,
    RoundOutcome,
    Selector,
    Simulation,
    Snapshot,
    simulate,
)
from fedarena.storage.checkpoint import FORMAT, read_state
from fedarena.storage.recorder import CONFIG_FILE, Recorder, check_new
from fedarena.storage.run_data import RunData, load_run
from fedarena.train import ENGINES, JOB, Algorithm, LocalTraining, count_training_flops, personal_notes
from fedarena.train.engine import IntArray, Part

P = TypeVar("P")


class Observer:
    """Is told what happens during a run; a progress bar overrides what it wants to show."""

    def preparing(self, fraction: float, message: str) -> None:
        """The federation is being built."""

    def warned(self, message: str) -> None:
        """Something the user should know, though the run goes on."""

    folder: Path | None = None  # of the run that was started last

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        """Rounds begin, or go on after those that are done."""
        self.folder = folder

    def finished_round(self, outcome: RoundOutcome) -> None:
        """A round is done and recorded."""

    def stopped(self, folder: Path) -> None:
        """The user stopped the run; all finished rounds are on disk."""


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start: every part is built and fits the others."""

    config: RunConfig  # complete: the model is named, too
    federation: Federation
    simulation: Simulation
    baseline: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)
    weights_fingerprint: str | None = None  # of those in a file that the model starts from


def prepare(config: RunConfig, observer: Observer) -> Experiment:
    """Builds every part of a run. Whatever does not fit is refused here, before anything is written."""
    federation, config = open_federation(config, observer)
    spec = data_spec(federation)
    warnings: list[str] = []
    training_clients = _training_clients(federation, warnings)
    fit_clients = _at_most(training_clients, config) if config.evaluation.training_set else None
    local = LocalTraining(**config.local.model_dump())
    data, training_clients = _training_data(federation, training_clients, local, config)
    if config.cohort > len(training_clients):
        raise BadInputError(
            f"cohort is {config.cohort}, but the federation {federation.name!r} has only "
            f"{len(training_clients)} clients to train on; choose a cohort of at most that many"
        )
    evaluation_clients = _evaluation_clients(federation, config)
    options, task_options = dict(config.model), dict(config.task)
    kind = task_class(task_options.pop("name"), spec)
    spec = kind.model_spec(spec)
    module = build_model(
        options.pop("name"), spec, options, config.seed, lambda module: kind(module, spec, **task_options)
    )
    weights = None if config.weights is None else start_from(module, Path(config.weights))
    warnings += weights.notes if weights else []
    task = kind(module, spec, **task_options)
    algorithm = _make(ALGORITHMS, config.algorithm, Algorithm, "an algorithm")
    centralized = config.training == "centralized"
    algorithm.prepare(1 if centralized else len(training_clients), local, config.rounds)
    options = dict(config.engine)
    engine = ENGINES.get(options.pop("name"))(task, algorithm, local, data, config.seed, **options)
    params = engine.initial_params()
    memory = algorithm.memory_init(algorithm.broadcast(algorithm.server_init(params)))
    if centralized and memory.keys() - {JOB}:
        raise BadInputError(
            f"{config.algorithm['name']} needs clients that keep something between their rounds, "
            "and training=centralized has none; choose another algorithm, such as fedavg"
        )
    warnings += [*engine.notes, *algorithm.notes(params)]
    if algorithm.expects_weights and config.weights is None:
        warnings.append(
            f"{config.algorithm['name']} is for pretrained models, and this one starts from scratch, "
            "so there is little to learn; weights=… names a file or a run to start from"
        )
    warnings += personal_notes(algorithm, params, federation, evaluation_clients, config.evaluation.split)
    if config.training == "iid" and algorithm.personalizes and memory:
        warnings.append("Made-up clients train, so the personal models of real ones are what a newcomer begins with")
    config = config.model_copy(update={"engine": config.engine | engine.plan})
    fleet, remarks = match_fleet(config, data, training_clients)
    selector: Selector = (
        SELECTORS.get("in_turn")() if centralized else _make(SELECTORS, config.selector, Selector, "a selector")
    )
    protocol = _make(PROTOCOLS, config.protocol, Protocol, "a protocol")
    protocol.prepare(config.cohort, len(training_clients))
    if protocol.overlaps and not algorithm.tolerates_stale_updates:
        raise BadInputError(
            f"{config.algorithm['name']} adds up what clients keep, which updates to older models would break; "
            f"choose another protocol than {config.protocol['name']}, or another algorithm"
        )
    flops, plain_flops = count_training_flops(task, algorithm), count_training_flops(task)
    simulation = Simulation(
        seed=config.seed,
        rounds=config.rounds,
        cohort=config.cohort,
        task=task,
        algorithm=algorithm,
        engine=engine,
        training_clients=training_clients,
        evaluation_clients=evaluation_clients,
        evaluation_part=config.evaluation.split,
        evaluate_every=config.evaluation.every,
        flops_per_sample=flops,
        compute_factor=flops / plain_flops if flops and plain_flops else 1.0,
        client_ids=data.client_ids,
        selector=selector,
        protocol=protocol,
        fleet=fleet,
        clock=clock_options(config),
        fit_clients=fit_clients,
        sends=not centralized,
    )
    warnings += [*remarks, *check_feasible(simulation)]
    baseline = baseline_of(task, federation, evaluation_clients, config.evaluation.split)
    return Experiment(config, federation, simulation, baseline, warnings, weights.fingerprint if weights else None)


def _make(registry: Registry[Any], settings: dict[str, Any], base: type[P], what: str) -> P:
    """A named part, which may be of somebody's own."""
    options = dict(settings)
    part = registry.get(options.pop("name"))
    if not (isinstance(part, type) and issubclass(part, base)):
        raise BadInputError(f"{settings['name']} is not {what}: a subclass of {base.__module__}.{base.__qualname__}")
    return part(**options)


def open_federation(config: RunConfig, observer: Observer) -> tuple[Federation, RunConfig]:
    """The federation of a run, and its configuration with the task and the model that automatic choices come to."""
    options = dict(config.federation)
    federation = load_federation(options.pop("name"), options, observer.preparing)
    if config.task["name"] == AUTOMATIC_TASK:
        task = resolve_part(TASKS, config.task | {"name": federation.task.kind}, "task")
        config = config.model_copy(update={"task": task})
    if config.model["name"] == AUTOMATIC_MODEL:
        model = resolve_part(MODELS, default_model(data_spec(federation)), "model")
        config = config.model_copy(update={"model": model})
    return federation, config


def data_spec(federation: Federation) -> DataSpec:
    """The form of a federation's samples, as models want to know it."""
    task, columns = federation.task, federation.columns
    if task.kind == "next_token":
        length = columns["tokens"].shape[0] - 1
        return DataSpec("next_token", task.classes, (length,), task.padding, task.unknown)
    inputs = tuple(InputSpec(name, columns[name].shape, values) for name, values in (task.inputs or {}).items())
    shape = () if inputs else columns["x"].shape
    return DataSpec(task.kind, task.classes, shape, task.padding, task.unknown, task.tokens, inputs, task.value_range)


def _training_clients(federation: Federation, warnings: list[str]) -> IntArray:
    clients = federation.clients("train")
    useful = clients[federation.counts(clients, "train") > 0]
    if len(useful) == 0:
        raise BadInputError(f"No client of the federation {federation.name!r} has a training sample")
    if len(useful) < len(clients):
        empty = len(clients) - len(useful)
        warnings.append(f"{empty:,} of {len(clients):,} clients have no training sample and are never invited")
    return useful


def _training_data(
    federation: Federation, clients: IntArray, local: LocalTraining, config: RunConfig
) -> tuple[Federation | PooledFederation, IntArray]:
    """Where training samples come from, and who holds them."""
    if config.training == "natural":
        return federation, clients
    if config.training == "iid":
        pooled = PooledFederation(federation, clients, config.seed, samples_per_client=None)
        return pooled, pooled.made_up_clients(len(clients))
    # In every round the server goes on in the sequence: by as much as its steps need, or by the whole pool.
    in_pool = int(federation.counts(clients, "train").sum())
    per_round = in_pool if local.steps is None else local.steps * local.batch_size
    pooled = PooledFederation(federation, clients, config.seed, per_round)
    return pooled, pooled.made_up_clients(config.rounds)


def _evaluation_clients(federation: Federation, config: RunConfig) -> IntArray:
    split: Part = config.evaluation.split
    clients = federation.clients("train" if split == "train" else "all")
    clients = clients[federation.counts(clients, split) > 0]
    if len(clients) == 0:
        raise BadInputError(
            f"The federation {federation.name!r} has no {split} samples to evaluate on; "
            "choose another evaluation.split, or fractions of the federation that leave some"
        )
    return _at_most(clients, config)


def _at_most(clients: IntArray, config: RunConfig) -> IntArray:
    """As many as are to be scored."""
    most = config.evaluation.max_clients
    if most is None or most >= len(clients):
        return clients
    chosen = streams.generator(0, "evaluation clients").choice(clients, most, replace=False)
    return np.sort(chosen)  # the same for all seeds, so that they can be compared


def start_run(config: RunConfig, runs_folder: Path, observer: Observer | None = None) -> RunData:
    """Runs a configuration in the new folder ``runs_folder/<name>`` and returns what it left there."""
    observer = observer or Observer()
    name = config.name or _free_name(config, runs_folder)
    folder = runs_folder / name
    check_new(folder)  # before building the experiment, which may take a while
    experiment = prepare(config.model_copy(update={"name": name}), observer)
    environment = describe_environment() | _identity(experiment)
    recorder = Recorder.create(
        folder,
        experiment.config.to_yaml(),
        environment,
        experiment.simulation.metrics,
        experiment.config.memories_ram_bytes,
        _describe_fleet(experiment),
        _attributes(experiment),
    )
    return _execute(experiment, recorder, None, observer)


def resume_run(folder: Path, observer: Observer | None = None) -> RunData:
    """Goes on with a run that stopped; the result is the same as if it never had. A finished run is only read."""
    observer = observer or Observer()
    if not (folder / CONFIG_FILE).exists():
        raise BadInputError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
    if is_finished(folder):
        return load_run(folder)
    experiment = prepare(resolve(read_settings(folder / CONFIG_FILE)), observer)
    _check_same_experiment(experiment, folder)
    recorder, snapshot = Recorder.reopen(folder, experiment.simulation.metrics, experiment.config.memories_ram_bytes)
    return _execute(experiment, recorder, snapshot, observer)


def _execute(experiment: Experiment, recorder: Recorder, snapshot: Snapshot | None, observer: Observer) -> RunData:
    simulation = experiment.simulation
    rounds_done = snapshot.round if snapshot else 0
    try:
        recorder.log(f"started after round {rounds_done} of {simulation.rounds}")
        for warning in experiment.warnings:
            recorder.log(f"warning: {warning}")
            observer.warned(warning)
        observer.started(experiment, recorder.folder, rounds_done)
        ids = np.array(experiment.federation.client_ids(simulation.evaluation_clients))
        for outcome in simulate(simulation, snapshot, recorder.feedback() if snapshot else ()):
            scored = simulation.evaluation_clients[:0] if outcome.scores is None else outcome.scores.clients
            recorder.record(outcome, ids[np.searchsorted(simulation.evaluation_clients, scored)].tolist())
            observer.finished_round(outcome)
    except KeyboardInterrupt:
        _close(experiment, recorder, "interrupted", "stopped by the user")
        observer.stopped(recorder.folder)
        raise
    except Exception as error:  # also of somebody's own algorithm: the rounds before it are worth keeping
        if recorder.writable:
            diverged = isinstance(error, DivergedError)
            _close(experiment, recorder, "diverged" if diverged else "failed", str(error) or repr(error))
        raise
    else:
        _close(experiment, recorder, "finished", None)
    finally:
        recorder.release()
    return load_run(recorder.folder)


def _close(experiment: Experiment, recorder: Recorder, status: str, message: str | None) -> None:
    recorder.log(status if message is None else f"{status}: {message}")
    invitable = len(experiment.simulation.training_clients)
    tables, attributes = recorder.read_tables(), _attributes(experiment)
    task, baseline = experiment.simulation.task, experiment.baseline
    summary = summarize(experiment.config, task, baseline, invitable, tables, status, message, attributes)
    recorder.close(summary)


def _attributes(experiment: Experiment) -> pa.Table | None:
    """What is known about the clients that are evaluated."""
    clients = experiment.simulation.evaluation_clients
    known = experiment.federation.attributes(clients)
    return pa.table({"client": experiment.federation.client_ids(clients), **known}) if known else None


def _free_name(config: RunConfig, runs_folder: Path) -> str:
    """A name that says what the run is, with a number if it is not the first."""
    federation, algorithm = (str(part["name"]).rpartition(":")[2] for part in (config.federation, config.algorithm))
    training = [] if config.training == "natural" else [config.training]
    name = "-".join([federation, *training, algorithm, f"seed{config.seed}"])
    number, candidate = 1, name
    while (runs_folder / candidate).exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    path = folder / "summary.json"
    if not path.exists():
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["status"] == "finished")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error!r}") from None


def _describe_fleet(experiment: Experiment) -> dict[str, Any] | None:
    """What the report shows of the clients' phones."""
    simulation = experiment.simulation
    if simulation.fleet is None:
        return None
    return describe_fleet(simulation.fleet, simulation.training_clients, simulation.seed)


def _identity(experiment: Experiment) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    settings = json.dumps(experiment.config.to_dict(), sort_keys=True)
    fleet = experiment.simulation.fleet
    return {
        "fleet_fingerprint": None if fleet is None else fleet.fleet.fingerprint,
        "seed": experiment.config.seed,
        "settings_fingerprint": hashlib.blake2b(settings.encode(), digest_size=8).hexdigest(),
        "federation_fingerprint": experiment.federation.fingerprint,
        "weights_fingerprint": experiment.weights_fingerprint,
    }


def _check_same_experiment(experiment: Experiment, folder: Path) -> None:
    path = folder / "environment.json"
    now = _identity(experiment)
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        committed = read_state(folder)
        if "fleet_fingerprint" not in recorded or (committed is not None and committed.format != FORMAT):
            raise BadInputError(
                f"The run {folder} was begun by an earlier version of FedArena; it can be read, but not go on"
            )
        before = {key: recorded[key] for key in now}
    except (OSError, ValueError, KeyError, TypeError) as error:
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
