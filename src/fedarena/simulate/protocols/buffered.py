"""Buffered asynchronous aggregation. Nguyen et al., "FedBuff", AISTATS 2022."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import PROTOCOLS
from fedarena.simulate.protocols.concurrent import Concurrent


@PROTOCOLS.register("buffered")
class Buffered(Concurrent):
    """FedBuff: the cohort is always training, and the server makes a step with every `buffer_size` updates.

    An update that began τ steps ago counts ``(1 + τ)^-staleness_exponent``, and not at all beyond `max_staleness`
    (null: never too old). As in the paper that makes the server's step shorter; with `rescale` it only makes stale
    updates count less beside fresh ones. The paper's server momentum is the algorithm ``fedavgm``.
    """

    size_option = "protocol.buffer_size"
    steps_per_round = 1

    def __init__(
        self,
        *,
        buffer_size: int = 10,
        staleness_exponent: float = 0.5,
        max_staleness: int | None = 20,
        rescale: bool = False,
    ):
        if buffer_size < 1:
            raise BadInputError(f"protocol.buffer_size must be at least 1, not {buffer_size}")
        self.updates_per_step = buffer_size
        self.staleness_exponent, self.max_staleness = staleness_exponent, max_staleness
        self.rescales = rescale
