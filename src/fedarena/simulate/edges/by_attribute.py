"""Edges for what clients have in common."""

from __future__ import annotations

import numpy as np

from fedarena.simulate.edges.base import EDGES, EdgeFacts, Edges
from fedarena.train.engine import IntArray


@EDGES.register("by_attribute")
class ByAttribute(Edges):
    """An edge server for every value of an `attribute` of clients, such as where they are.

    Other options are those of `by_chance`.
    """

    def __init__(self, *, attribute: str, rounds: int = 1, bits_per_second: float | None = None, seconds: float = 0.0):
        super().__init__(rounds=rounds, bits_per_second=bits_per_second, seconds=seconds)
        self.attribute = attribute

    def prepare(self, facts: EdgeFacts) -> None:
        """Which value every client has; the federation refuses what it has not."""
        super().prepare(facts)
        _, self._edges = np.unique(facts.attribute(self.attribute, facts.clients), return_inverse=True)

    def edge_of(self, clients: IntArray) -> IntArray:
        """The number of its value, in their order."""
        edges: IntArray = self._edges[np.searchsorted(self.facts.clients, clients)]
        return edges
