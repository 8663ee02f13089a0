"""What a run says about its policy, which decides about the hyperparameters of jobs, and whether that fits the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, Task
from fedarena.models.dropout import KeyedDropout
from fedarena.privacy import Mechanism
from fedarena.runs.config import RunConfig
from fedarena.simulate import Protocol, Simulation, Snapshot
from fedarena.simulate.policies import Policy, PolicyFacts
from fedarena.simulate.policies.columns import policy_job_columns
from fedarena.train import Algorithm, ClientData, Engine
from fedarena.train.engine import IntArray
from fedarena.train.own_code import seeded_if_own
from fedarena.transforms import Aggregator
from fedarena.transforms.aggregators.defence import Defence
from fedarena.transforms.rows import FloatArray

_DROPOUT = "model.dropout"


def prepare_policy(
    policy: Policy,
    config: RunConfig,
    algorithm: Algorithm,
    engine: Engine,
    task: Task,
    data: ClientData,
    spec: DataSpec,
    clients: IntArray,
    aggregator: Aggregator,
    mechanism: Mechanism,
) -> tuple[Policy | None, list[str]]:
    """Tells a policy what it is about; None if nothing is decided. Also what the user should know."""
    if not policy.learns:
        return None, []
    name = config.policy["name"]
    _check_parts(name, config, algorithm, aggregator, mechanism)
    is_private = config.privacy["name"] != "none"
    facts = PolicyFacts(
        seed=config.seed,
        clients=clients,
        algorithm=algorithm,
        local=config.local,
        settings=_settings(config),
        samples=lambda of: data.counts(of, "train"),
        labels=_labels(data, spec),
        is_private=is_private,
        counts_equally=aggregator.needs_rows,
    )
    with seeded_if_own(policy, config.seed, "own policy's beginning"):
        policy.prepare(facts)
    if is_private and (why := policy.private_obstacle()) is not None:
        raise BadInputError(f"Privacy would be broken: with policy={name}, {why}")
    drops = any(isinstance(layer, KeyedDropout) for layer in task.module.modules())
    if _DROPOUT in policy.space.names and not drops:
        raise BadInputError(
            f"policy.search: {_DROPOUT} is how much dropout layers drop, and the model has none; give {_DROPOUT} a "
            "value above 0 if the model has that option, or leave it out"
        )
    if not policy.judges:
        return policy, []
    notes = _check_judges(config, policy, data, clients)
    engine.validate_on(policy.judged_on, compare=policy.judgement == "difference")
    return policy, notes


def check_rounds(policy: Policy | None, config: RunConfig, protocol: Protocol) -> None:
    """Refuses a policy that changes rounds where there are none, or where privacy depends on their size."""
    if policy is None or not policy.changes_rounds:
        return
    name = config.policy["name"]
    if protocol.overlaps:
        raise BadInputError(
            f"policy={name} decides about every round, and jobs of protocol={config.protocol['name']} go on when a "
            "round ends; choose another protocol, such as deadline"
        )
    if config.privacy["name"] != "none":
        raise BadInputError(
            f"Privacy would be broken: policy={name} changes how many take part, on which privacy="
            f"{config.privacy['name']} depends; leave policy out"
        )
    if config.training == "centralized":
        raise BadInputError(f"policy={name} decides about rounds of clients, and training=centralized has none")


def _check_parts(
    name: str, config: RunConfig, algorithm: Algorithm, aggregator: Aggregator, mechanism: Mechanism
) -> None:
    if config.training != "natural":
        raise BadInputError(
            f"policy={name} learns from real clients, and training={config.training} has none; choose training=natural"
        )
    if not algorithm.trains_a_model:
        raise BadInputError(
            f"policy={name} judges hyperparameters by the model that a client has trained, and a client of "
            f"{config.algorithm['name']} has something else; choose another algorithm, such as fedavg"
        )
    if isinstance(aggregator, Defence) and not aggregator.weighs_whole_updates:
        raise BadInputError(
            f"policy={name} adds up what clients say about hyperparameters, and the aggregator "
            f"{config.aggregator['name']} does not add up; choose one that weighs whole updates, such as mean or "
            "multi_krum"
        )
    if config.privacy["name"] != "none" and not mechanism.covers_all_that_is_sent:
        raise BadInputError(
            f"Privacy would be broken: with policy={name}, clients send how well their hyperparameters did, to which "
            f"privacy={config.privacy['name']} adds no noise; choose privacy=gaussian, or leave policy out"
        )


def _check_judges(config: RunConfig, policy: Policy, data: ClientData, clients: IntArray) -> list[str]:
    """Whether there are samples to judge by."""
    name = config.policy["name"]
    without = int((data.counts(clients, policy.judged_on) == 0).sum())
    if without == len(clients):
        divided_here = "validation_fraction" in config.federation
        advice = "give federation.validation_fraction=0.1, say," if divided_here else "make the federation with some,"
        raise BadInputError(
            f"policy={name} judges hyperparameters on clients' validation samples, and they have none; {advice} or "
            "policy.judged_on=train"
        )
    if not without:
        return []
    return [
        f"{without:,} of {len(clients):,} clients have no {policy.judged_on} samples, so policy={name} learns nothing "
        "from their jobs"
    ]


def _settings(config: RunConfig) -> Mapping[str, Any]:
    """The options of named parts that a policy may decide about."""
    parts = {"algorithm": config.algorithm, "model": config.model}
    return {f"{part}.{option}": value for part, options in parts.items() for option, value in options.items()}


def _labels(data: ClientData, spec: DataSpec) -> Any:
    """How often clients have each label, where samples have such."""
    if spec.kind not in ("classification", "multi_label"):
        return None

    def shares(clients: IntArray) -> FloatArray:
        samples = data.samples(clients, "train")
        labels, counts = np.asarray(samples.columns["y"]), np.diff(samples.offsets)
        owner = np.repeat(np.arange(len(clients)), counts)
        found = np.zeros((len(clients), spec.classes))
        if labels.ndim == 1:
            np.add.at(found, (owner, labels.astype(np.int64)), 1.0)
        else:
            np.add.at(found, owner, labels.astype(np.float64))
        return found / np.maximum(counts, 1)[:, None]

    return shares


def policy_columns(simulation: Simulation) -> dict[str, list[str]] | None:
    """The columns that the tables of a run have because of its policy."""
    policy = simulation.policy
    return None if policy is None else {"rounds": list(policy.columns), "jobs": list(policy_job_columns(policy))}


def describe_policy(simulation: Simulation) -> dict[str, Any] | None:
    """What the policy chooses from; None where nothing is decided."""
    return None if simulation.policy is None else simulation.policy.described()


def summarize_policy(config: RunConfig, simulation: Simulation, snapshot: Snapshot | None) -> dict[str, Any] | None:
    """What the policy has found so far."""
    policy = simulation.policy
    if policy is None or snapshot is None:
        return None
    return {"name": config.policy["name"], **policy.described(), **policy.summary(simulation.policy_state(snapshot))}
