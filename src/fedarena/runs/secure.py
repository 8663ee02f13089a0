"""Whether secure aggregation fits the rest of a run, what it is told about it, and what a run says of it afterwards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.client.secure_limits import LEAST_MEMBERS
from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.privacy import CentralGaussian, DistributedGaussian, Mechanism, RunFacts
from fedarena.privacy.dp_sgd import DPSGD
from fedarena.privacy.local import LocalMechanism
from fedarena.privacy.mechanism import NoPrivacy
from fedarena.runs.config import RunConfig
from fedarena.simulate.edges import Edges
from fedarena.simulate.policies import Policy
from fedarena.simulate.secure_aggregation import SECURE_COLUMNS, SecureAggregation
from fedarena.simulate.selectors import BySize, Cyclic, InTurn, LeavingSoon
from fedarena.train import COVERAGE, Algorithm, Engine, Work
from fedarena.train.batches import count_processed
from fedarena.train.engine import IntArray, steps_in_shares
from fedarena.transforms import Aggregator, Attack, Compressor, Transform
from fedarena.transforms.compressor import Uncompressed
from fedarena.transforms.fixed_point import SATURATED, FixedPoint
from fedarena.transforms.promises import vouches

# Mechanisms that hold when updates are rounded and the server gets sums of them.
_FITTING = (NoPrivacy, CentralGaussian, DistributedGaussian, LocalMechanism, DPSGD)


def prepare_secure(
    secure: SecureAggregation,
    config: RunConfig,
    engine: Engine,
    clients: IntArray,
    *,
    facts: RunFacts,
    mechanism: Mechanism,
    attack: Attack,
    policy: Policy | None,
    edges: Edges,
    download: Compressor,
    real_devices: bool = False,
) -> None:
    """Finds what was not given; refuses what cannot be done with sums of updates alone."""
    if not secure.exists:
        if isinstance(mechanism, DistributedGaussian):
            raise BadInputError(
                f"With privacy={config.privacy['name']} every client adds a part of the noise, which protects it only "
                "if the server gets nothing but sums; choose secure_aggregation=bonawitz, too"
            )
        return
    name = f"secure_aggregation={config.secure_aggregation['name']}"
    if (why := _obstacle(config, facts, mechanism, attack, policy, edges, download)) is not None:
        raise BadInputError(f"{name} does not fit: {why}")
    if facts.cohort < LEAST_MEMBERS:
        raise BadInputError(
            f"{name} needs a cohort of at least {LEAST_MEMBERS}, not {facts.cohort}: of two clients, each knows the "
            "other's update from the sum"
        )
    if secure.largest_weight is None:
        secure.largest_weight = _largest_weight(facts, mechanism, engine, clients, real_devices, config)
    if isinstance(mechanism, DistributedGaussian):
        mechanism.share_noise(secure)
    if isinstance(mechanism, CentralGaussian):
        mechanism.leave_room_for_rounding(_rounding_error(secure.fixed_point(), facts))


def _obstacle(
    config: RunConfig,
    facts: RunFacts,
    mechanism: Mechanism,
    attack: Attack,
    policy: Policy | None,
    edges: Edges,
    download: Compressor,
) -> str | None:
    """Why a run cannot be had with sums of updates alone; None: it can."""
    algorithm, aggregator = facts.algorithm, mechanism.aggregator(facts.aggregator)
    if config.training != "natural":
        return f"training={config.training} has no real clients whose updates it could hide; leave it out"
    if not vouches(aggregator, "needs_only_sums", "add_up") or type(aggregator).merge is not Aggregator.merge:
        return (
            f"the server gets sums of updates, and the aggregator {config.aggregator['name']} needs every client's; "
            "choose aggregator=mean"
        )
    if facts.protocol.overlaps:
        return (
            f"groups train at the same time, and jobs of protocol={config.protocol['name']} go on when a round ends; "
            "choose another protocol, such as synchronous"
        )
    if attack.forges_updates and attack.sees != "own":
        return f"nobody sees the updates of others, which the attack {config.attack['name']} needs; choose another one"
    if facts.selector.sampling is None and not facts.selector.chooses_as(Cyclic, InTurn, LeavingSoon, BySize):
        return (
            f"the selector {config.selector['name']} asks for what single clients have learned; choose another one, "
            "such as uniform"
        )
    if policy is not None:
        return (
            f"policy={config.policy['name']} judges what single clients have learned with which settings; leave it out"
        )
    if edges.exist:
        return f"edges={config.edges['name']} have sums of their own clients, which would be read; leave them out"
    if not isinstance(download, Uncompressed):
        return f"what download={config.download['name']} takes is not counted together with keys; leave it out"
    if mechanism.audit is not None:
        return "canaries of privacy.audit are in no group of clients; leave it out"
    if not isinstance(mechanism, _FITTING):
        return f"privacy={config.privacy['name']} has no proof for updates that are rounded; choose privacy=gaussian"
    if isinstance(mechanism, CentralGaussian | DistributedGaussian) and facts.selector.sampling == "poisson":
        return (
            "cohorts of selector=poisson may be too small for a secure sum, so that one client more or less decides "
            "about others' updates, which is not accounted for; choose selector=uniform or shuffled"
        )
    return _obstacle_of_updates(algorithm, facts)


def _obstacle_of_updates(algorithm: Algorithm, facts: RunFacts) -> str | None:
    name = type(algorithm).__name__
    if not any(facts.update.values()):
        return f"clients of {name} send nothing that could be added up"
    if algorithm.needs_start_loss:
        return (
            f"clients of {name} send powers of their losses, for which no bound is known before, as a sum without "
            "overflow needs it; choose another algorithm"
        )
    if COVERAGE in facts.update:
        return f"clients of {name} send only layers that they have trained, and masks cover all; choose another one"
    if type(algorithm).uploaded_bytes is not Algorithm.uploaded_bytes:
        return f"how much clients of {name} send depends on what they learned, and masks cover all; choose another one"
    packing = [type(t).__name__ for t in facts.transforms if _packs(t)]
    if packing:
        return f"what {packing[0]} leaves out would be masked and sent all the same; leave the transform out"
    return None


def _packs(transform: Transform) -> bool:
    return transform.depends_on_data or isinstance(transform, Compressor)


def _largest_weight(
    facts: RunFacts,
    mechanism: Mechanism,
    engine: Engine,
    clients: IntArray,
    real_devices: bool,
    config: RunConfig,
) -> float:
    """How much the client counts who counts most."""
    if any(transform.counts_clients_equally for transform in (*facts.transforms, *mechanism.transforms())):
        return 1.0
    samples = engine.data.counts(clients, "train")
    if real_devices:  # who have not told yet
        samples = np.array([1, config.deploy.max_samples or 2])
    steps = steps_in_shares(np.ones(len(samples)), samples, facts.algorithm, engine.local)
    work = Work(samples, steps, count_processed(samples, steps, engine.local.batch_size))
    weights = np.broadcast_to(facts.algorithm.client_weight(work), len(samples))
    if real_devices and config.deploy.max_samples is None and weights[0] != weights[1]:
        raise BadInputError(
            "Secure sums must have room for the client who counts most, and nobody knows before how many samples "
            "devices have; set deploy.max_samples, or secure_aggregation.largest_weight"
        )
    weight = float(np.max(weights))
    return weight if weight > 0 else 1.0


def _rounding_error(fixed_point: FixedPoint, facts: RunFacts) -> float:
    """How much longer an update may become by rounding, at most."""
    square = 0.0
    for group, tensors in facts.update.items():
        bound = fixed_point.bound if group in facts.algorithm.change_groups else fixed_point.other_bound
        square += sum(t.numel() for t in tensors.values()) / fixed_point.scale(bound) ** 2
    return math.sqrt(square) * (1.0 if fixed_point.rounding == "stochastic" else 0.5)


def describe_secure(config: RunConfig, rounds: pa.Table) -> dict[str, Any] | None:
    """What the summary of a run says about secure aggregation; None: there was none."""
    if config.secure_aggregation["name"] == "none":
        return None
    found = {column: int(pc.sum(rounds[column]).as_py() or 0) for column in SECURE_COLUMNS}
    return {**config.secure_aggregation, **found}


def secure_warning(secure: dict[str, Any]) -> str | None:
    """What the user should know about numbers that did not fit."""
    if not secure[SATURATED]:
        return None
    return (
        f"Secure aggregation cut off {counted(secure[SATURATED], 'number')} of updates that were beyond "
        "secure_aggregation.range or other_range; larger ones leave them as they are"
    )
