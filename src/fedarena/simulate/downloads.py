"""Who holds which version of the model, and what the next one costs them, where downloads are compressed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedarena.simulate.jobs import FloatArray, Jobs
from fedarena.simulate.selectors import Feedback
from fedarena.simulate.selectors.ledger import Ledger
from fedarena.simulate.simulation import Simulation, Snapshot
from fedarena.simulate.world import World
from fedarena.train import Groups
from fedarena.train.engine import IntArray

_NEVER = -1


class Downloads:
    """What jobs download. It is told about the jobs of every round; a resumed run tells it again."""

    def __init__(self, simulation: Simulation):
        self._simulation, self._downlink = simulation, simulation.downlink
        self._clients = Ledger(version=_NEVER)  # the last one that each has downloaded
        if self._downlink is not None:
            state = simulation.algorithm.server_init(simulation.engine.initial_params())
            self._whole, self._beside = self._downlink.whole_bytes(state)
            self._planned = self._downlink.planned_bytes(state)

    def observe(self, feedback: Feedback) -> None:
        """Learns who has downloaded what."""
        if self._downlink is not None and feedback.held_versions is not None:
            complete = feedback.held_versions != _NEVER
            rows = self._clients.add(feedback.clients[complete])
            self._clients["version"][rows] = feedback.held_versions[complete]

    def planned(self, world: World, before: Snapshot) -> World:
        """The world as it is after a snapshot. Differences that the server will send in a round are not known yet."""
        downlink = self._downlink
        if downlink is None or not self._simulation.sends:
            return world
        so_far = downlink.sizes_so_far(before.download_state)

        def sizes(clients: IntArray, version: int) -> IntArray:
            return self._sizes(clients, version, so_far)

        load = replace(world.phones.load, download_bytes_of=sizes)
        return replace(world, phones=replace(world.phones, load=load))

    def real(self, jobs: Jobs, download_state: Groups) -> FloatArray | None:
        """What complete downloads of these jobs really took, NaN for others; None if that is what was planned."""
        if self._downlink is None:
            return None
        so_far = self._downlink.sizes_so_far(download_state)
        return np.where(np.isfinite(jobs.downloaded), self._sizes(jobs.clients, jobs.versions, so_far), np.nan)

    def _sizes(self, clients: IntArray, versions: Any, so_far: IntArray) -> IntArray:
        """What these download to get to these versions."""
        held = np.full(len(clients), _NEVER)
        known = self._clients.knows(clients)
        held[known] = self._clients["version"][self._clients.rows(clients[known])]
        missed = self._up_to(versions, so_far) - self._up_to(held, so_far)
        params = np.where(held == _NEVER, self._whole, np.minimum(missed, self._whole))
        return self._simulation.sent_sizes(params + self._beside)

    def _up_to(self, versions: Any, so_far: IntArray) -> IntArray:
        """The bytes of all differences up to these versions, planned ones among them."""
        last = len(so_far) - 1
        versions = np.asarray(versions)
        sizes: IntArray = so_far[np.clip(versions, 0, last)] + self._planned * np.maximum(versions - last, 0)
        return sizes
