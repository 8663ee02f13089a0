"""Whether edge servers fit the rest of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data import Federation
from fedarena.runs.config import RunConfig
from fedarena.simulate import Protocol
from fedarena.simulate.edges import EdgeFacts, Edges
from fedarena.simulate.policies import Policy
from fedarena.train import Algorithm, Groups
from fedarena.train.engine import IntArray
from fedarena.train.own_code import seeded_if_own
from fedarena.transforms import Aggregator, Attack, Transform
from fedarena.transforms.aggregators import Mean


def prepare_edges(
    edges: Edges,
    config: RunConfig,
    federation: Federation,
    clients: IntArray,
    *,
    algorithm: Algorithm,
    protocol: Protocol,
    aggregator: Aggregator,
    attack: Attack,
    transforms: tuple[Transform, ...],
    policy: Policy | None,
    update: Groups,
    keeps_states: bool,
) -> None:
    """Tells edges about the run; refuses what sums of groups of clients cannot be used for."""
    if not edges.exist:
        return
    name = config.edges["name"]
    if config.training != "natural":
        raise BadInputError(f"edges={name} is for real clients, and training={config.training} has none; leave it out")
    if protocol.overlaps:
        raise BadInputError(
            f"edges={name} adds up the updates of a round, and jobs of protocol={config.protocol['name']} go on when a "
            "round ends; choose another protocol, such as synchronous"
        )
    if aggregator.needs_rows or aggregator.takes_one_update:
        raise BadInputError(
            f"With edges={name} the server gets sums of updates, and the aggregator {config.aggregator['name']} needs "
            "every client's; choose aggregator=mean, or leave edges out"
        )
    if attack.forges_updates and attack.sees != "own":
        raise BadInputError(
            f"With edges={name} nobody sees the updates of all clients, which the attack {config.attack['name']} "
            "needs; choose another one, or leave edges out"
        )
    if edges.rounds > 1:
        _check_rounds(config, algorithm, aggregator, transforms, policy, update, keeps_states)

    def attribute(wanted: str, of: IntArray) -> Any:
        known = federation.manifest.attributes
        if wanted not in known:
            raise BadInputError(
                f"edges.attribute is {quoted(wanted)}, which clients of the federation {federation.name!r} have not; "
                f"{nearest(wanted, known)}"
            )
        return np.asarray(federation.attributes(of)[wanted])

    with seeded_if_own(edges, config.seed, "own edges' beginning"):
        edges.prepare(EdgeFacts(config.seed, clients, attribute))


def _check_rounds(
    config: RunConfig,
    algorithm: Algorithm,
    aggregator: Aggregator,
    transforms: tuple[Transform, ...],
    policy: Policy | None,
    update: Groups,
    keeps_states: bool,
) -> None:
    """Refuses what cannot be done with models of edges."""
    name = config.algorithm["name"]
    if type(aggregator) is not Mean:
        reason = f"an edge moves its model by a mean, and the aggregator is {config.aggregator['name']}"
    elif keeps_states or set(update) != {"params"} or algorithm.partial_work is not None:
        reason = f"clients of {name} keep or send more than how far a model has come, or may do less than others"
    elif any(transform.client_init(update) for transform in transforms):
        reason = "a transform keeps something at the clients from round to round of the server"
    elif config.privacy["name"] != "none":
        reason = f"privacy={config.privacy['name']} counts one update of a client in a round"
    elif policy is not None:
        reason = f"policy={config.policy['name']} decides about one job of a client in a round"
    elif config.download["name"] != "none":
        reason = f"download={config.download['name']} compresses what the server sends, not what edges do"
    else:
        return
    raise BadInputError(f"edges.rounds is {config.edges['rounds']}, but {reason}; choose edges.rounds=1")
