"""Edges to which clients are assigned by chance."""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.simulate.edges.base import EDGES, EdgeFacts, Edges
from fedarena.train.engine import IntArray


@EDGES.register("by_chance")
class ByChance(Edges):
    """`number` edge servers, of which every client has one by chance, the same in all rounds.

    The link of an edge carries `bits_per_second` each way, after `seconds`. With several `rounds`, an edge has its
    clients train so often from a model of its own before the server hears of it.
    """

    def __init__(
        self, *, number: int = 10, rounds: int = 1, bits_per_second: float | None = None, seconds: float = 0.0
    ):
        super().__init__(rounds=rounds, bits_per_second=bits_per_second, seconds=seconds)
        if number < 1:
            raise BadInputError(f"edges.number must be at least 1, not {number}")
        self.number = number

    def prepare(self, facts: EdgeFacts) -> None:
        """There must be as many clients."""
        super().prepare(facts)
        if self.number > len(facts.clients):
            raise BadInputError(
                f"edges.number is {self.number}, but there are only {len(facts.clients)} clients to train on"
            )

    def edge_of(self, clients: IntArray) -> IntArray:
        """A hash of the client."""
        edges: IntArray = (streams.uniform(self.facts.seed, "edge", clients) * self.number).astype(np.int64)
        return edges
