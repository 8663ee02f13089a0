"""How often every client was asked to take part, for guarantees that are about the client who was asked most."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedarena.train.engine import IntArray


class Participation:
    """Counts invitations: who was late or left may have sent something, too. A resumed run is shown them again."""

    def __init__(self) -> None:
        self.limit: Callable[[int], int] | None = None  # how often a client can be invited in so many rounds
        self.prepare(np.empty(0, dtype=np.int64))

    def prepare(self, clients: IntArray) -> None:
        """`clients` are all who could ever be invited, sorted."""
        self._clients = clients
        self.counts = np.zeros(max(1, len(clients)), dtype=np.int64)
        self.version = self.rounds = 0  # steps that the server has made in the rounds that were counted, and how many

    def observe(self, clients: IntArray, version: int) -> None:
        """The jobs that ended in a round, after which the server has made so many steps; a client may have several."""
        self.version, self.rounds = version, self.rounds + 1
        np.add.at(self.counts, np.searchsorted(self._clients, clients), 1)

    def most(self, version: int, weights: npt.NDArray[np.float64] | float = 1.0) -> float:
        """How often a client can have taken part by this step of the server, at most, each time with its weight."""
        later = max(0, version - self.version)  # nobody knows yet who will be invited for these
        counts = self.counts + later
        if self.limit is not None:
            counts = np.maximum(self.counts, np.minimum(counts, self.limit(self.rounds + later)))
        return float((counts * weights).max())
