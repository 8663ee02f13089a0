"""What a run needs for virtual time: phones for its clients, a clock, and whether they can do what is asked of them."""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet import Availability, ClientFleet, Fleet, load_fleet_with_notes
from fedarena.runs.config import RunConfig
from fedarena.simulate import ClockOptions, Simulation
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.protocols.concurrent import Concurrent
from fedarena.train import ClientData
from fedarena.train.engine import IntArray

_CLIENTS_LOOKED_AT = 10_000
_FEW = 0.5  # a share of the clients below which the user is warned


def match_fleet(
    config: RunConfig, data: ClientData, clients: IntArray, given: Fleet | None = None
) -> tuple[ClientFleet | None, list[str]]:
    """A phone for every client, or None if phones are ideal; and what its source has to say."""
    if config.training == "centralized":
        for part in ("fleet", "protocol"):
            if getattr(config, part)["name"] != "ideal":
                raise BadInputError(
                    f"training=centralized trains at the server, where there are no phones; leave {part} out"
                )
    if config.fleet["name"] == "ideal":
        return None, []
    fleet, notes = (given, []) if given is not None else load_fleet_with_notes(config.fleet, len(clients))
    sizes = data.counts(clients, "train") if config.clock.correlation else None
    return fleet.match(clients, sizes, config.seed, config.clock.correlation), notes


def check_feasible(simulation: Simulation) -> list[str]:
    """Refuses runs in which nobody could ever take part; warns of those in which many clients cannot."""
    fleet, protocol, clock = simulation.fleet, simulation.protocol, simulation.clock
    if fleet is None:
        expects_time = not protocol.ignores_availability or clock != ClockOptions()
        note = (
            "With fleet=ideal devices take no time and never leave: of a protocol it only matters how many it invites "
            "and how many updates it uses, and no time passes but clock.overhead_seconds; fleet=fedscale has phones"
        )
        return [note] if expects_time else []
    leaves = bool((fleet.fleet.availability.share() < 1).any())
    if protocol.ignores_availability:
        return ["protocol=ideal ignores that phones leave; the others do not"] if leaves else []
    ignored = isinstance(protocol, Concurrent) and clock.overhead_seconds > 0
    warnings = ["Asynchronous protocols have no pause between rounds: clock.overhead_seconds is ignored"] * ignored
    clients = simulation.training_clients
    if isinstance(protocol, Concurrent) and len(clients) < simulation.cohort + protocol.updates_per_round:
        warnings.append(
            f"Nobody has two jobs that end in the same round, and there are only {len(clients):,} clients: "
            "rounds wait for slow ones; choose a smaller cohort, or fewer updates a round"
        )
    if not leaves and clock.leaving != "abort":
        warnings.append(f"clock.leaving={clock.leaving} changes nothing: no phone of {fleet.fleet.name!r} ever leaves")
    availability = fleet.fleet.availability
    if not np.diff(availability.offsets)[fleet.availability_of[clients]].any():
        raise BadInputError(
            f"Nobody of the {len(clients):,} clients is ever available in the fleet {fleet.fleet.name!r}; "
            "choose another fleet, or protocol=ideal, which ignores availability"
        )
    looked_at = _sample(clients, simulation.seed)
    stays = availability.take(fleet.availability_of[looked_at])
    there = float(stays.share().mean()) * len(clients)
    if there < simulation.cohort:
        warnings.append(
            f"On average {there:.3g} of the {len(clients):,} clients are available at a time, "
            f"fewer than the cohort of {simulation.cohort}; rounds go on with those who are there"
        )
    if simulation.policy is not None and simulation.policy.changes_work:
        return warnings  # what a job takes is decided when it is planned
    needed = _job_seconds(simulation, looked_at)
    possible = needed <= protocol.patience_seconds
    if clock.leaving == "abort":
        possible &= needed <= _longest_stays(stays)
    if not possible.any() and len(looked_at) == len(clients):
        raise BadInputError(
            f"No client can ever finish a job: the fastest would take {needed.min():.3g} seconds, "
            "longer than its phone ever stays or the server waits. Give less local work, choose a faster fleet, "
            "another protocol, or clock.leaving=pause"
        )
    share = float(possible.mean())
    if share < _FEW:
        warnings.append(
            f"Only {share:.0%} of the clients' phones can finish a job in one stay and in time "
            f"(it takes {np.median(needed):.3g} seconds on the median phone); the others always fail"
        )
    return warnings


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
