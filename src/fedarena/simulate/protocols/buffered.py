"""Buffered asynchronous aggregation. Nguyen et al., "FedBuff", AISTATS 2022."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import PROTOCOLS
from fedarena.simulate.protocols.concurrent import Concurrent


@PROTOCOLS.register("buffered")
class Buffered(Concurrent):
    """FedBuff: the cohort is always training, and the server makes a step with every `buffer_size` updates.

    An update that began more than `max_staleness` steps ago is dropped (null: never). How much others count is the
    aggregator's business; by default it shrinks them with age, as in the paper. The paper's server momentum is the
    algorithm ``fedavgm``.
    """

    size_option = "protocol.buffer_size"
    steps_per_round = 1

    def __init__(
        self,
        *,
        buffer_size: int = 10,
        max_staleness: int | None = 20,
    ):
        if buffer_size < 1:
            raise BadInputError(f"protocol.buffer_size must be at least 1, not {buffer_size}")
        self.updates_per_step, self.max_staleness = buffer_size, max_staleness
