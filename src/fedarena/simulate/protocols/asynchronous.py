"""Fully asynchronous optimization. Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import PROTOCOLS
from fedarena.simulate.protocols.concurrent import Concurrent


@PROTOCOLS.register("asynchronous")
class Asynchronous(Concurrent):
    """FedAsync: the cohort is always training, and the server makes a step with every update as it arrives.

    An update that began more than `max_staleness` steps ago is dropped (null: never). By default the server moves
    towards the client's model (the aggregator ``mixing``). A round of the run's tables is `updates_per_round` steps.
    """

    size_option = "protocol.updates_per_round"
    aggregator = "mixing"
    updates_per_step = 1

    def __init__(self, *, max_staleness: int | None = None, updates_per_round: int = 10):
        if updates_per_round < 1:
            raise BadInputError(f"protocol.updates_per_round must be at least 1, not {updates_per_round}")
        self.steps_per_round, self.max_staleness = updates_per_round, max_staleness
