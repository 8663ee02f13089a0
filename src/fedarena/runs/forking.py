"""The configuration of a fork: what may differ from that of its run, and sentences about what may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.runs.building import Experiment
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.simulate.selectors import Cyclic

# Settings in which a fork may differ from its run: all that is not about what has been trained, and by whom.
_FORKABLE = frozenset(
    {
        *("name", "seed", "rounds", "horizon", "cohort", "algorithm", "local", "evaluation", "selector", "aggregator"),
        *("client_lr_schedule", "server_lr_schedule", "callbacks", "track", "engine"),
        "client_states_ram_bytes",
    }
)
# Of the evaluation, what does not change the meaning of a score: one curve must be of the same clients' same samples.
_FORKABLE_EVALUATION = frozenset({"every", "predictions"})


def forked_config(experiment: Experiment, settings: Mapping[str, Any], name: str | None) -> RunConfig:
    """The configuration of a run that goes on from another one with other settings."""
    former = experiment.config
    if not isinstance(settings, Mapping):
        raise BadInputError(f"A fork takes settings, such as {{'local.lr': 0.1}}, and name='…', not {quoted(settings)}")
    changes = merge({}, dict(settings))
    for key in changes:
        if key not in _FORKABLE and key != "keep":
            raise BadInputError(f"A fork cannot change {key}; what may differ: {', '.join(sorted(_FORKABLE))}")
    wanted = merge({**former.to_dict(), "name": name or changes.get("name")}, changes)
    config = resolve({**wanted, "name": name or wanted.get("name")})
    if config.algorithm["name"] != former.algorithm["name"]:
        raise BadInputError(f"A fork goes on with {former.algorithm['name']}; only its options may differ")
    if config.privacy["name"] != "none":
        for key in ("cohort", "selector"):
            if getattr(config, key) != getattr(former, key):
                raise BadInputError(f"A fork of a private run cannot change {key}: its ε counts on what it was")
    if config.seed != former.seed:
        _check_other_seed(experiment)
    for key, value in asdict(config.evaluation).items():
        if key not in _FORKABLE_EVALUATION and value != getattr(former.evaluation, key):
            raise BadInputError(
                f"A fork cannot change evaluation.{key}: its rounds before and after would be scored on different "
                f"samples; what may differ: {', '.join(sorted(_FORKABLE_EVALUATION))}"
            )
    if config.keep != former.keep:
        raise BadInputError(
            "A fork cannot change keep: the best model so far is kept from the start or not at all, and this run "
            f"has keep={former.keep}"
        )
    return config


def _check_other_seed(experiment: Experiment) -> None:
    """Refuses a fork with another seed where what the run has done so far must fit what it does next."""
    config, simulation = experiment.config, experiment.simulation
    selector = simulation.selector
    if config.training != "natural":
        raise BadInputError(
            f"A fork with training={config.training} cannot change the seed: made-up clients follow from it"
        )
    if len(simulation.corrupted_clients):
        raise BadInputError("A fork of a run under attack cannot change the seed: who is corrupted follows from it")
    if config.privacy["name"] != "none" and (selector.sampling == "shuffled" or isinstance(selector, Cyclic)):
        raise BadInputError(
            f"A fork of a private run with selector={config.selector['name']} cannot change the seed: whose turn it is "
            "follows from it, and ε counts on nobody's coming sooner"
        )
