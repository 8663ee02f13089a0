"""Edge servers between clients and the server: clusters of clients whose updates are added up near them.

Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning", ICC 2020. An edge sends the sum of its clients' updates
on, so that the server adds up sums, and what it comes to is the mean over all clients as without edges. With more than
one of its own `rounds`, an edge has a model of its own meanwhile (see `fedarena.simulate.edges.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.protocols import RoundPlan
from fedarena.train.engine import IntArray

# Of the table of rounds, in runs with edges.
EDGE_COLUMNS = ("edges", "edge_bytes_down", "edge_bytes_up")


@dataclass(frozen=True)
class EdgeFacts:
    """What edges are told about the run that they are part of."""

    seed: int
    clients: IntArray  # who may take part, sorted
    attribute: Callable[[str, IntArray], npt.NDArray[np.generic]]  # of the federation's clients, by its name


class Edges:
    """Groups of clients, each with an edge server. Keyword-only constructor arguments are its settings.

    The link of an edge to the server carries `bits_per_second` each way (None: any number of them), after `seconds` in
    which nothing arrives. One of your own overrides `edge_of`, and `link_seconds` where links differ.
    """

    exist = True
    facts: EdgeFacts

    def __init__(self, *, rounds: int = 1, bits_per_second: float | None = None, seconds: float = 0.0):
        if rounds < 1:
            raise BadInputError(f"edges.rounds must be at least 1, not {rounds}")
        if bits_per_second is not None and not bits_per_second > 0:
            raise BadInputError(f"edges.bits_per_second must be above 0, not {bits_per_second:g}")
        if not 0 <= seconds < np.inf:
            raise BadInputError(f"edges.seconds must not be negative, but is {seconds:g}")
        self.rounds, self.bits_per_second, self.seconds = rounds, bits_per_second, seconds

    def prepare(self, facts: EdgeFacts) -> None:
        """Told once, before the run; refuses what does not fit it."""
        self.facts = facts

    def edge_of(self, clients: IntArray) -> IntArray:
        """The number of the edge that each of these clients belongs to."""
        raise NotImplementedError

    def link_seconds(self, edges: IntArray, size_bytes: int) -> FloatArray:
        """How long so many bytes take between each of these edges and the server."""
        sending = 0.0 if self.bits_per_second is None else 8 * size_bytes / self.bits_per_second
        return np.full(len(edges), self.seconds + sending)


EDGES: Registry[type[Edges]] = Registry("edges", base=Edges, takes=())


@EDGES.register("none")
class NoEdges(Edges):
    """Clients send their updates to the server itself."""

    exist = False

    def __init__(self) -> None:
        super().__init__()

    def edge_of(self, clients: IntArray) -> IntArray:
        """All the same."""
        return np.zeros(len(clients), dtype=np.int64)


@dataclass(frozen=True)
class EdgeLinks:
    """What travels between edges and the server in a round, and how long that takes."""

    edges: Edges
    edge_of: Callable[[IntArray], IntArray]
    download_bytes: int  # of a model
    upload_bytes: int  # of a sum of updates

    def begin(self, clients: IntArray, times: FloatArray) -> FloatArray:
        """When these clients can begin to download from their edges that the server sends the model to at `times`."""
        return times + self.edges.link_seconds(self.edge_of(clients), self.download_bytes)

    def closed(self, plan: RoundPlan) -> RoundPlan:
        """The round with what comes behind it: every edge that has updates sends their sum."""
        used = plan.ended.clients[plan.steps >= 0]
        if not len(used):
            return plan
        seconds = self.edges.link_seconds(np.unique(self.edge_of(used)), self.upload_bytes)
        return replace(plan, clock=replace(plan.clock, time=plan.clock.time + float(seconds.max())))

    def row(self, plan: RoundPlan) -> dict[str, float]:
        """What the table of rounds says: how many edges took part, and what travelled between them and the server."""
        invited = len(np.unique(self.edge_of(plan.ended.clients)))
        sending = len(np.unique(self.edge_of(plan.ended.clients[plan.steps >= 0])))
        amounts = sending, invited * self.download_bytes, sending * self.upload_bytes
        return dict(zip(EDGE_COLUMNS, map(float, amounts), strict=True))
