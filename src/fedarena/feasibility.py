"""Whether the phones of a fleet can do what a run asks of them, found out before it begins."""

from __future__ import annotations

import numpy as np

from fedarena import streams
from fedarena.errors import BadInputError
from fedarena.fleet import Availability
from fedarena.simulate import Simulation
from fedarena.simulate.jobs import FloatArray
from fedarena.train.engine import IntArray

_CLIENTS_LOOKED_AT = 10_000
_FEW = 0.5  # a share of the clients below which the user is warned


def check_feasible(simulation: Simulation) -> list[str]:
    """Refuses runs in which nobody could ever take part; warns of those in which many clients cannot."""
    fleet, protocol = simulation.fleet, simulation.protocol
    if fleet is None or protocol.ignores_availability:
        return []
    clients = simulation.training_clients
    availability = fleet.fleet.availability
    if not np.diff(availability.offsets)[fleet.availability_of[clients]].any():
        raise BadInputError(
            f"Nobody of the {len(clients):,} clients is ever available in the fleet {fleet.fleet.name!r}; "
            "choose another fleet, or protocol=ideal, which ignores availability"
        )
    if simulation.clock.leaving == "pause":
        return []
    looked_at = _sample(clients, simulation.seed)
    needed = _job_seconds(simulation, looked_at)
    possible = needed <= _longest_stays(availability.take(fleet.availability_of[looked_at]))
    if not possible.any() and len(looked_at) == len(clients):
        raise BadInputError(
            f"No client can ever finish a job: the fastest would take {needed.min():,.0f} seconds, "
            "longer than its phone ever stays. Give less local work, choose a faster fleet, or clock.leaving=pause"
        )
    share = float(possible.mean())
    if share < _FEW:
        return [
            f"Only {share:.0%} of the clients' phones ever stay long enough to finish a job "
            f"(it takes {np.median(needed):,.0f} seconds on the median phone); the others always fail"
        ]
    return []


def _sample(clients: IntArray, seed: int) -> IntArray:
    if len(clients) <= _CLIENTS_LOOKED_AT:
        return clients
    chosen = streams.generator(seed, "feasibility").choice(len(clients), _CLIENTS_LOOKED_AT, replace=False)
    return clients[np.sort(chosen)]


def _longest_stays(availability: Availability) -> FloatArray:
    """For how long every phone stays when it stays longest."""
    counts = np.diff(availability.offsets)
    rows, starts = np.repeat(np.arange(len(counts)), counts), availability.starts.astype(np.float64)
    longest = np.zeros(len(counts))
    np.maximum.at(longest, rows, availability.leaves_at(rows, starts) - starts)
    return longest


def _job_seconds(simulation: Simulation, clients: IntArray) -> FloatArray:
    """What a job takes on the phones of these clients, at the speeds of the first round."""
    phones = simulation.world(None).phones
    jobs = phones.plan(clients, np.zeros(len(clients), dtype=np.int64), np.zeros(len(clients)), 0)
    return jobs.download_seconds + jobs.compute_seconds + jobs.upload_seconds
