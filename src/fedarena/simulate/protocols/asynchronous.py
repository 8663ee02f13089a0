"""Fully asynchronous optimization. Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019."""

from __future__ import annotations

from dataclasses import replace

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import PROTOCOLS, Clock, RoundPlan, check_share
from fedarena.simulate.protocols.concurrent import Concurrent
from fedarena.simulate.world import World


@PROTOCOLS.register("asynchronous")
class Asynchronous(Concurrent):
    """FedAsync: the cohort is always training, and the server moves towards every client's model as it arrives.

    It goes the share `mixing` of the way, times ``(1 + τ)^-staleness_exponent`` for a model that was trained from one
    τ steps old; beyond `max_staleness` (null: never) a model is dropped. A round of the run's tables is
    `updates_per_round` such steps.
    """

    size_option = "protocol.updates_per_round"
    mixes_models = True
    updates_per_step = 1

    def __init__(
        self,
        *,
        mixing: float = 0.6,
        staleness_exponent: float = 0.5,
        max_staleness: int | None = None,
        updates_per_round: int = 10,
    ):
        check_share("mixing", mixing)
        if updates_per_round < 1:
            raise BadInputError(f"protocol.updates_per_round must be at least 1, not {updates_per_round}")
        self.mixing, self.steps_per_round = mixing, updates_per_round
        self.staleness_exponent, self.max_staleness = staleness_exponent, max_staleness

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        plan = super().play(round, clock, world)
        return replace(plan, factors=self.mixing * plan.factors)
