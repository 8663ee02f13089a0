"""Putting a run together: every part is built from the configuration, and must fit the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from typing import Protocol as TypingProtocol

import torch

from fedarena.algorithms import ALGORITHMS
from fedarena.algorithms.layers import PERSONAL_PART, matching
from fedarena.core.errors import BadInputError
from fedarena.core.own import check_hooks_are_in_class, is_own
from fedarena.core.registry import make_part, make_parts
from fedarena.core.words import counted
from fedarena.data import Federation, PooledFederation
from fedarena.data.registry import cache_folder
from fedarena.fleet import Fleet
from fedarena.models import (
    Task,
)
from fedarena.models.assembling import assemble_task
from fedarena.privacy import MECHANISMS, Mechanism, RunFacts
from fedarena.privacy.audit import plant_canaries
from fedarena.runs.attacked import check_attackable, prepare_attack
from fedarena.runs.baseline import baseline_of
from fedarena.runs.callbacks import CALLBACKS, Callback, check_reachable
from fedarena.runs.config import USUAL_COHORT, RunConfig
from fedarena.runs.deciding import check_rounds, prepare_policy
from fedarena.runs.edges import prepare_edges
from fedarena.runs.notes import (
    adaptation_notes,
    last_layer_notes,
    local_notes,
    partial_work_notes,
    policy_notes,
    schedule_notes,
    selector_notes,
    size_notes,
    staleness_notes,
    timeless_notes,
)
from fedarena.runs.observer import Observer
from fedarena.runs.opening import (
    at_most_scored,
    check_digits,
    clients_to_score,
    clients_to_train,
    data_spec,
    open_federation,
    samples_to_train_on,
)
from fedarena.runs.own_source import own_source
from fedarena.runs.plain_torch import plain_torch
from fedarena.runs.secure import prepare_secure
from fedarena.runs.virtual_time import check_feasible, match_fleet
from fedarena.runs.weights import start_from
from fedarena.simulate import (
    PROTOCOLS,
    SELECTORS,
    Protocol,
    Selector,
    Simulation,
)
from fedarena.simulate.edges import EDGES, Edges
from fedarena.simulate.policies import POLICIES, POLICY_GROUP, Policy
from fedarena.simulate.schedules import SCHEDULES, Schedule, check_schedule, prepare_schedule
from fedarena.simulate.scoring import scores_in_jobs
from fedarena.simulate.secure_aggregation import SECURE_AGGREGATIONS, SecureAggregation
from fedarena.simulate.trusted import TrustedTraining
from fedarena.train import (
    ENGINES,
    Algorithm,
    ClientData,
    CohortEngine,
    Engine,
    count_scoring_flops,
    count_training_flops,
    personal_notes,
)
from fedarena.train.captured import HELPERS
from fedarena.train.engine import IntArray
from fedarena.train.examples import example_update
from fedarena.train.own_code import prepare_algorithm, seeded_if_own
from fedarena.train.own_hooks import misspelt_hooks, untrained_notes
from fedarena.transforms import (
    AGGREGATORS,
    ATTACKS,
    DOWNLOADS,
    TRANSFORMS,
    Aggregator,
    Attack,
    Compressor,
    Transform,
)
from fedarena.transforms.poisoned_data import PoisonedData

P = TypeVar("P")
_FLEET_FOLDER = "fleet"  # of a run, where a fleet lies that was handed in


@dataclass(frozen=True)
class Experiment:
    """A run that is ready to start: every part is built and fits the others."""

    config: RunConfig  # complete: the model is named, too
    federation: Federation
    simulation: Simulation
    baseline: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)
    weights_fingerprint: str | None = None  # of those in a file that the model starts from
    callbacks: tuple[Callback, ...] = ()  # those of the configuration
    mechanism: Mechanism = field(default_factory=Mechanism)  # of differential privacy

    @property
    def fleet(self) -> Fleet | None:
        """The fleet that clients' devices are from; None if devices are ideal."""
        return None if self.simulation.fleet is None else self.simulation.fleet.fleet


class RealClients(ClientData, TypingProtocol):
    """Clients that train where they are. How many samples they have is known; evaluation reads a federation."""

    @property
    def clients(self) -> IntArray:
        """All who may take part, sorted."""

    def client_ids(self, clients: Sequence[int]) -> list[str]:
        """Their names."""

    def evaluate_on(self, federation: ClientData | None) -> None:
        """Told where samples are that the server can read; None: there are none, and they evaluate, too."""


@dataclass(frozen=True)
class GivenParts:
    """Parts that were handed in as objects, and are not loaded again."""

    federation: Federation | None = None
    fleet: Fleet | None = None
    devices: RealClients | None = None  # that train, instead of clients of the federation; on them nothing is read

    def named_in(self, config: RunConfig, folder: Path) -> RunConfig:
        """A configuration that finds the same parts when the run in this folder is resumed."""
        found: dict[str, Any] = {}
        if self.federation is not None:
            found["federation"] = {"name": "store", "path": str(self.federation.path.absolute())}
        if self.fleet is not None:
            found["fleet"] = {"name": "file", "path": str((folder / _FLEET_FOLDER).absolute())}
        return config.model_copy(update=found)

    def save(self, folder: Path) -> None:
        """Puts what lies nowhere else into the folder of the run."""
        if self.fleet is not None:
            self.fleet.save(folder / _FLEET_FOLDER)


@plain_torch()
def prepare(config: RunConfig, observer: Observer, given: GivenParts | None = None) -> Experiment:
    """Builds every part of a run. Whatever does not fit is refused here, before anything is written."""
    given = given or GivenParts()
    federation, config = open_federation(config, observer, given.federation)
    warnings: list[str] = []
    local = config.local
    data: Federation | PooledFederation | RealClients
    if given.devices is None:
        training_clients = clients_to_train(federation, warnings)
        fit_clients = at_most_scored(training_clients, config) if config.evaluation.training_set else None
        data, training_clients = samples_to_train_on(federation, training_clients, local, config)
    else:
        given.devices.evaluate_on(None if federation.num_samples == 0 else federation)
        data, training_clients, fit_clients = given.devices, given.devices.clients, None
    attack = make_part(ATTACKS, config.attack, Attack, "an attack", config.seed)
    check_attackable(attack, config.training)
    trained_on = PoisonedData(data, attack, config.seed) if attack.poisons_data else data
    cohort = config.cohort or USUAL_COHORT  # it is known since the federation is open
    if cohort > len(training_clients):
        raise BadInputError(
            f"cohort is {cohort}, but the federation {federation.name!r} has only "
            f"{counted(len(training_clients), 'client')} to train on; choose a cohort of at most that many"
        )
    scored_by_devices = given.devices is not None and federation.num_samples == 0
    evaluation_clients = training_clients if scored_by_devices else clients_to_score(federation, config)
    task = build_task(config, federation)
    if given.devices is None:
        warnings += check_digits(federation, clients_to_train(federation, []), config)
    weights = None if config.weights is None else start_from(task.module, Path(config.weights))
    warnings += [*getattr(task.module, "notes", ()), *(weights.notes if weights else ())]
    if weights is None and getattr(task.module, "expects_weights", False):
        warnings.append(
            f"The model {config.model['name']} starts from scratch, not from pretrained weights; weights=… names a file"
        )
    warnings += [*adaptation_notes(config, task), *last_layer_notes(config, task)]
    mechanism = make_part(MECHANISMS, config.privacy, Mechanism, "a privacy mechanism", config.seed)
    algorithm = mechanism.wrapped(make_part(ALGORITHMS, config.algorithm, Algorithm, "an algorithm", config.seed))
    centralized = config.training == "centralized"
    horizon = config.horizon or config.rounds
    prepare_algorithm(algorithm, config.seed, 1 if centralized else len(training_clients), local, horizon)
    options = dict(config.engine)
    if algorithm.predicts is not None and task.predicts not in algorithm.predicts:
        raise BadInputError(
            f"{config.algorithm['name']} is for tasks that predict {' or '.join(algorithm.predicts)}, and this one "
            f"predicts {task.predicts}; choose another algorithm"
        )
    if algorithm.trains_freely and task.augmentation is not None:
        raise BadInputError(
            f"{config.algorithm['name']} has a training loop of its own, which augmentation cannot reach; leave it "
            "out, or augment there"
        )
    _keep_compiled_programs()
    engine = ENGINES.get(options.pop("name"))(task, algorithm, local, trained_on, config.seed, **options)
    selector: Selector = (
        SELECTORS.get("in_turn")()
        if centralized
        else make_part(SELECTORS, config.selector, Selector, "a selector", config.seed)
    )
    check_hooks_are_in_class(selector)
    if selector.varies and isinstance(engine, CohortEngine):
        engine.expect_varying_cohorts(cohort)
    params = engine.initial_params()
    kept = algorithm.client_init(algorithm.broadcast(algorithm.server_init(params)))
    if centralized and kept:
        raise BadInputError(
            f"{config.algorithm['name']} needs clients that keep something between their rounds, "
            "and training=centralized has none; choose another algorithm, such as fedavg"
        )
    warnings += [*engine.notes, *algorithm.notes(params), *misspelt_hooks(algorithm), *untrained_notes(algorithm, task)]
    warnings += local_notes(config, algorithm)
    if matching(params, [f"{PERSONAL_PART}.*"]) and not algorithm.personalizes:
        warnings.append(
            f"The model has a part of one client alone, {PERSONAL_PART}, which {config.algorithm['name']} averages "
            "like all others; with algorithm=fedbn it stays with the clients"
        )
    if algorithm.expects_weights and config.weights is None:
        warnings.append(
            f"{config.algorithm['name']} is for pretrained models, and this one starts from scratch, "
            "so there is little to learn; weights=… names a file or a run to start from"
        )
    if given.devices is None:
        warnings += personal_notes(algorithm, params, federation, evaluation_clients, config.evaluation.part)
    if config.training == "iid" and algorithm.personalizes and kept:
        warnings.append("Made-up clients train, so the personal models of real ones are what a newcomer begins with")
    config = config.model_copy(update={"engine": config.engine | engine.choices})
    fleet, notes = match_fleet(config, data, training_clients, given.fleet)
    protocol = make_part(PROTOCOLS, config.protocol, Protocol, "a protocol", config.seed)
    with seeded_if_own(protocol, config.seed, "own protocol"):
        protocol.prepare(cohort, len(training_clients))
    if protocol.overlaps and not algorithm.tolerates_stale_updates:
        raise BadInputError(
            f"{config.algorithm['name']} adds up what clients keep, which updates to older models would break; "
            f"choose another protocol than {config.protocol['name']}, or another algorithm"
        )
    if protocol.overlaps and selector.varies:
        raise BadInputError(
            f"selector={config.selector['name']} draws whole cohorts, and protocol={config.protocol['name']} invites "
            "clients one by one; choose another selector, such as uniform"
        )
    transforms = tuple(make_parts(TRANSFORMS, config.transforms, Transform, "a transform", config.seed))
    aggregator = make_part(AGGREGATORS, config.aggregator, Aggregator, "an aggregator", config.seed)
    update = example_update(algorithm, params)
    policy, decided = prepare_policy(
        make_part(POLICIES, config.policy, Policy, "a policy", config.seed),
        *(config, algorithm, engine, task, data, data_spec(federation), training_clients, aggregator, mechanism),
    )
    warnings += decided
    check_rounds(policy, config, protocol)
    of_policy = () if policy is None else (policy,)
    facts = RunFacts(
        population=len(training_clients),
        cohort=cohort,
        rounds=config.rounds,
        training=config.training,
        algorithm=algorithm,
        update=update,
        protocol=protocol,
        selector=selector,
        transforms=(*of_policy, *transforms),
        aggregator=aggregator,
        attack=attack,
        keeps_states=bool(kept),
        phones_leave=(fleet is not None or given.devices is not None) and not protocol.ignores_availability,
        samples=data.counts(training_clients, "train"),
        ends_by_clock=config.clock.hours is not None,
    )
    with seeded_if_own(mechanism, config.seed, "own mechanism"):
        mechanism.prepare(facts)
    config = config.model_copy(update={"privacy": config.privacy | mechanism.choices()})
    is_private = mechanism.epsilon(0) is not None
    if is_private and aggregator.trusted_samples and given.devices is None:  # else they are the server's own
        raise BadInputError(
            f"Privacy would be broken: with aggregator={config.aggregator['name']} the server trains on clients' "
            "samples as they are, which ε does not count; choose another aggregator"
        )
    warnings += [*mechanism.notes(), *selector_notes(config, facts)]
    takes_time = fleet is not None or given.devices is not None
    warnings += staleness_notes(config, aggregator, protocol, takes_time)
    warnings += policy_notes(config, policy)
    warnings += timeless_notes(config, selector, policy, takes_time)
    warnings += partial_work_notes(config, algorithm, protocol, takes_time)
    all_count_the_same = any(one.counts_clients_equally for one in (*transforms, *mechanism.transforms()))
    if all_count_the_same and is_own(type(algorithm).client_weight):
        warnings.append(
            f"client_weight of {type(algorithm).__name__} is not asked: under this privacy every client counts the same"
        )
    if not all_count_the_same:
        warnings += size_notes(config, facts)
    canaries = plant_canaries(mechanism, facts, config.seed)
    if canaries is not None:
        warnings.append(
            f"{canaries.number:,} canaries are planted for an audit, so this is another training than without them"
        )
    edges = make_part(EDGES, config.edges, Edges, "edges", config.seed)
    prepare_edges(
        *(edges, config, federation, training_clients),
        algorithm=algorithm,
        protocol=protocol,
        aggregator=aggregator,
        attack=attack,
        transforms=transforms,
        policy=policy,
        update=update,
        keeps_states=bool(kept),
    )
    secure = make_part(
        SECURE_AGGREGATIONS, config.secure_aggregation, SecureAggregation, "secure aggregation", config.seed
    )
    download = make_part(DOWNLOADS, config.download, Compressor, "a compressor", config.seed)
    prepare_secure(
        *(secure, config, engine, training_clients),
        facts=facts,
        mechanism=mechanism,
        attack=attack,
        policy=policy,
        edges=edges,
        download=download,
        real_devices=given.devices is not None,
    )
    config = config.model_copy(update={"secure_aggregation": config.secure_aggregation | secure.choices()})
    flops, plain_flops = count_training_flops(task, algorithm), count_training_flops(task, whole=True)
    has_phones = fleet is not None or given.devices is not None
    if has_phones and config.adaptation["name"] != "all":  # they are timed at training the model without it
        plain = build_task(config.model_copy(update={"adaptation": {"name": "all"}}), federation)
        plain_flops = count_training_flops(plain, whole=True)
    simulation = Simulation(
        seed=config.seed,
        rounds=config.rounds,
        cohort=cohort,
        task=task,
        algorithm=algorithm,
        engine=engine,
        training_clients=training_clients,
        evaluation_clients=evaluation_clients,
        evaluation_part=config.evaluation.part,
        evaluate_every=config.evaluation.every,
        flops_per_sample=flops,
        scoring_flops_per_sample=count_scoring_flops(task) if scores_in_jobs(algorithm, policy) else 0.0,
        compute_factor=flops / plain_flops if flops and plain_flops else 1.0,
        client_ids=data.client_ids,
        selector=selector,
        protocol=protocol,
        fleet=fleet,
        clock=config.clock,
        fit_clients=fit_clients,
        sends=not centralized,
        transforms=(*([canaries] if canaries else []), *of_policy, *transforms, *mechanism.transforms()),
        policy=policy,
        edges=edges,
        secure_aggregation=secure,
        aggregator=mechanism.aggregator(aggregator),
        epsilon_after=mechanism.epsilon if is_private else None,
        epsilon_budget=mechanism.budget,
        canaries=canaries,
        participation=mechanism.participation,
        always_steps=mechanism.always_steps,
        attack=attack,
        trusted=_trusted_training(aggregator, engine, federation, config.seed),
        download=download,
        client_lr_schedule=_make_schedule(config.client_lr_schedule, horizon, config.seed),
        server_lr_schedule=_make_schedule(config.server_lr_schedule, horizon, config.seed),
        class_names=federation.task.label_names,
        real_devices=given.devices is not None,
    )
    warnings += prepare_attack(simulation, data_spec(federation), federation)
    if policy is not None and fleet is not None:
        policy.speeds = simulation.world(None).phones.speeds
    said = {} if policy is None or not policy.judges else {POLICY_GROUP: policy.empty_message()}
    simulation.path.check(update | said, protocol.updates_per_step, cohort)
    if simulation.downlink is not None:
        if centralized:
            raise BadInputError("training=centralized downloads nothing; leave download out")
        simulation.downlink.check(algorithm.server_init(params))
    if algorithm.trains_freely and simulation.client_lr_schedule is not None:
        raise BadInputError(
            f"{config.algorithm['name']} has a training loop of its own, which client_lr_schedule cannot reach; "
            "leave it out"
        )
    warnings += [*notes, *schedule_notes(config, simulation)]
    if given.devices is None:
        warnings += [*check_feasible(simulation), *config.deploy.notes_without_network()]
    warnings += own_source(config).notes
    callbacks = tuple(make_parts(CALLBACKS, config.callbacks, Callback, "a callback", config.seed))
    check_reachable(callbacks, simulation.leading_metric)
    baseline = None
    if not scored_by_devices:
        baseline, without_value = baseline_of(task, federation, evaluation_clients, config.evaluation.part)
        warnings += without_value
    return Experiment(
        config,
        federation,
        simulation,
        baseline,
        warnings,
        weights.fingerprint if weights else None,
        callbacks,
        mechanism,
    )


def _keep_compiled_programs() -> None:
    """Has torch keep what it compiles for a GPU with our other files, not where a reboot may clear it.

    Processes that help to compile are started when there is something to compile.
    """
    if torch.cuda.is_available():
        os.environ.setdefault(HELPERS, "0")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "programs"))


def build_task(config: RunConfig, federation: Federation) -> Task:
    """The task of a run with its freshly built model, of which as much is frozen as the adaptation wants."""
    return assemble_task(
        data_spec(federation),
        model=config.model,
        task=config.task,
        augmentation=config.augmentation,
        adaptation=config.adaptation,
        seed=config.seed,
        dtype=torch.float64 if config.engine.get("dtype") == "float64" else torch.float32,
    )


def _make_schedule(settings: dict[str, Any], horizon: int, seed: int) -> Schedule | None:
    if settings["name"] == "constant":
        return None
    schedule = make_part(SCHEDULES, settings, Schedule, "a schedule", seed)
    prepare_schedule(schedule, horizon, seed)
    check_schedule(schedule)
    return schedule


def _trusted_training(
    aggregator: Aggregator, engine: Engine, federation: Federation, seed: int
) -> TrustedTraining | None:
    """The server's own training, if the aggregator asks for it: on samples drawn from those of all training clients."""
    wanted = aggregator.trusted_samples
    if not wanted:
        return None
    pooled = PooledFederation(federation, clients_to_train(federation, []), seed, wanted)
    if wanted > pooled.pool_size:
        raise BadInputError(
            f"aggregator.trusted_samples is {wanted}, but the federation {federation.name!r} has only "
            f"{counted(pooled.pool_size, 'training sample')}; choose fewer"
        )
    own = engine.like_this(engine.algorithm, engine.local, pooled, seed)
    return TrustedTraining(own, int(pooled.made_up_clients(1)[0]))
