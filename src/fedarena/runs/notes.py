"""What a user should know about settings that fit together, but may not do what he thinks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedarena.algorithms import LocalOnly, MinibatchSGD, TimelyFL
from fedarena.core.own import is_own
from fedarena.core.words import counted
from fedarena.models import ADAPTATIONS, MODELS, Task, trainable_parameters
from fedarena.models.adaptation import called_instead_of_last
from fedarena.privacy import RunFacts
from fedarena.runs.config import RunConfig
from fedarena.simulate import Protocol, Simulation
from fedarena.simulate.policies import BySpeed, FedEx, PersonalizedFedEx, Policy
from fedarena.simulate.selectors import BySize, LeavingSoon, Oort, PowerOfChoice, Selector
from fedarena.train import Algorithm, LocalTraining, Work
from fedarena.transforms import Aggregator
from fedarena.transforms.aggregators import ByAge

_ABOUT_AGE = ("staleness_exponent", "rescale")  # options of aggregators
_OF_PRIVATE = ("bound", "scale")  # options of `fedex`
_OF_DURATIONS = ("alpha", "pacer_percentile", "pacer_step", "pacer_window")  # options of `oort`


def adaptation_notes(config: RunConfig, task: Task) -> list[str]:
    """How much of the model is trained, where that is not all, and whether the rest knows anything."""
    name = config.adaptation["name"]
    kind = ADAPTATIONS.get(name)
    trained, all_ = (
        sum(p.numel() for p in ps) for ps in (trainable_parameters(task.module).values(), task.module.parameters())
    )
    notes = (
        []
        if name == "all"
        else [f"adaptation={name} trains {trained:,} of the model's {all_:,} parameters, and only these are sent"]
    )
    if kind.expects_weights and config.weights is None:
        notes.append(
            f"adaptation={name} is for pretrained models, and this one starts from scratch, so what is not trained "
            "knows nothing; weights=… names a file or a run to start from"
        )
    return notes


def last_layer_notes(config: RunConfig, task: Task) -> list[str]:
    """Says so where a model of somebody's own may have another last layer than the one that is taken for it."""
    if not is_own(MODELS.get(config.model["name"])):
        return []
    asked = {}
    if config.adaptation["name"] != "all" and not is_own(ADAPTATIONS.get(config.adaptation["name"])):
        asked[f"adaptation={config.adaptation['name']}"] = [name for name, _ in task.module.named_parameters()]
    if config.algorithm["name"] == "local_head" and config.algorithm.get("head_layers") is None:
        asked["local_head"] = list(trainable_parameters(task.module))
    found = {part: called_instead_of_last(task, names) for part, names in asked.items()}
    return [
        f"{part} takes {layers[0]} for the last layer, as the model declares it last, but it calls {layers[1]} after "
        "it; if that makes its outputs, declare it last in the model"
        for part, layers in found.items()
        if layers is not None
    ]


def size_notes(config: RunConfig, facts: RunFacts) -> list[str]:
    """Says so where large clients are drawn more often and then count more, too."""
    aggregator = facts.aggregator
    weighs = not aggregator.takes_one_update and (not aggregator.needs_rows or getattr(aggregator, "weighted", False))
    if not (weighs and facts.selector.chooses_as(BySize, PowerOfChoice)):
        return []
    some = np.arange(1, 3)
    few, many = np.broadcast_to(facts.algorithm.client_weight(Work(some, some, some, some)), 2)
    if not many > few:
        return []
    return [
        f"selector={config.selector['name']} draws clients by how many samples they have, and updates of "
        f"{config.algorithm['name']} are weighted by that once more; the selector's paper has the plain mean of those "
        "who are drawn, as algorithms do whose client_weight is 1"
    ]


def schedule_notes(config: RunConfig, simulation: Simulation) -> list[str]:
    """Says so where a schedule leaves its learning rate as it is, or never lets it come to what was set."""
    rounds = max(config.rounds, config.horizon or 0)
    notes = []
    for key, of_what in (("client_lr_schedule", "local.lr"), ("server_lr_schedule", "the server's steps")):
        schedule = getattr(simulation, key)
        factors = [] if schedule is None else [schedule.scale(round) for round in range(1, rounds + 1)]
        name = f"{key}={getattr(config, key)['name']}"
        if factors and set(factors) == {1.0}:
            notes.append(f"{name} changes nothing in {counted(rounds, 'round')}")
        elif factors and max(factors) < 1:
            notes.append(f"With {name} no round of {rounds:,} has more than {max(factors):.2g} of {of_what}")
    return notes


def selector_notes(config: RunConfig, facts: RunFacts) -> list[str]:
    """Says so where clients are chosen by when they leave, and nobody leaves; and what is asked of them for nothing."""
    selector, name = facts.selector, config.selector["name"]
    if selector.chooses_as(LeavingSoon) and not facts.phones_leave:
        return [
            f"selector={name} asks who leaves first, and with fleet={config.fleet['name']} and "
            f"protocol={config.protocol['name']} nobody leaves, so that it invites by chance"
        ]
    if isinstance(selector, PowerOfChoice) and selector.losses == "current" and selector.oversample > 1:
        return [
            f"selector={name} asks candidates for the loss of the current model, {selector.oversample:g} times as many "
            "as it invites, which is counted neither as time nor as bytes or operations; with selector.losses=latest "
            "nobody is asked"
        ]
    return []


def staleness_notes(config: RunConfig, aggregator: Aggregator, protocol: Protocol, takes_time: bool) -> list[str]:
    """Says so where it is set how much stale updates count, and none is stale or their age is not asked for."""
    if is_own(type(aggregator)):
        return []
    changed = _changed(aggregator, type(aggregator)(), _ABOUT_AGE)
    if protocol.oldest_useful(1) == 1 or (math.isfinite(protocol.deadline_seconds) and not takes_time):
        why = f"with fleet={config.fleet['name']} and protocol={config.protocol['name']} no update is stale"
    elif isinstance(aggregator, ByAge) and aggregator.merging == "surgery":
        why = "merging=surgery leaves updates their length"
    else:
        return []
    return [f"aggregator.{name} changes nothing: {why}" for name in changed]


def _changed(part: object, usual: object, options: Sequence[str]) -> list[str]:
    """Which of these options, as far as there are such, are not as they usually are."""
    return [name for name in options if getattr(part, name, None) != getattr(usual, name, None)]


def policy_notes(config: RunConfig, policy: Policy | None) -> list[str]:
    """Says so where options of a policy are set that are for private runs, or for other codes of clients."""
    if not isinstance(policy, FedEx | PersonalizedFedEx) or is_own(type(policy)):
        return []
    usual, notes = type(policy)(), []
    if config.privacy["name"] == "none":
        notes += [
            f"policy.{name} changes nothing: it is for private runs" for name in _changed(policy, usual, _OF_PRIVATE)
        ]
    if isinstance(policy, PersonalizedFedEx) and policy.code == "labels" and _changed(policy, usual, ["code_size"]):
        notes.append("policy.code_size changes nothing: with code=labels a code has a number for every label")
    return notes


def timeless_notes(config: RunConfig, selector: Selector, policy: Policy | None, takes_time: bool) -> list[str]:
    """Says so where it is asked how fast phones are, and no time passes."""
    if takes_time:
        return []
    fleet, notes = config.fleet["name"], []
    if selector.chooses_as(Oort):
        notes += [
            f"selector.{name} changes nothing: with fleet={fleet} no job takes longer than another"
            for name in _changed(selector, Oort(), _OF_DURATIONS)
        ]
    if isinstance(policy, BySpeed) and type(policy).decide is BySpeed.decide:
        notes.append(
            f"policy={config.policy['name']} asks how fast phones are, and with fleet={fleet} no time passes, so that "
            f"everybody takes policy.usual={policy.usual} steps"
        )
    return notes


def partial_work_notes(config: RunConfig, algorithm: Algorithm, protocol: Protocol, takes_time: bool) -> list[str]:
    """Says so where clients could do less than whole jobs, and nobody ever does."""
    partial = algorithm.partial_work
    if partial is None:
        return []
    paced = partial.whole_jobs is not None and not protocol.overlaps
    if not takes_time:
        why = f"fleet={config.fleet['name']} nobody is ever late"
    elif math.isinf(protocol.deadline_seconds) and not paced:
        why = f"protocol={config.protocol['name']} there is no deadline"
    elif isinstance(algorithm, TimelyFL) and math.isfinite(protocol.deadline_seconds):
        changed = partial != TimelyFL().partial_work
        return ["algorithm.whole_jobs changes nothing: clients aim at the protocol's deadline"] * changed
    else:
        return []
    return [f"Clients of {config.algorithm['name']} that would be late do less, but with {why}: all do whole jobs"]


def local_notes(config: RunConfig, algorithm: Algorithm) -> list[str]:
    """Says so where local training is set to something that the algorithm does not ask for."""
    local, usual = config.local, LocalTraining()
    unused = []
    if isinstance(algorithm, MinibatchSGD):
        unused = ["epochs"] * (local.epochs not in (None, usual.epochs)) + ["steps"] * (local.steps is not None)
        instead = "a round is one step of the server, on algorithm.fraction of the clients' samples"
    if isinstance(algorithm, LocalOnly) and local.lr != usual.lr:
        unused = ["lr"]
        instead = "algorithm.learning_rates are tried"
    return [f"{config.algorithm['name']} does not ask for local.{key}: {instead}" for key in unused]
