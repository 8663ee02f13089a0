"""Zhang et al., CVPR 2024: FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning.

Six numbers say how hard a fleet makes training, all from simulated rounds. Metrics ending in -R (between 0 and 1, lower
is harder) count how often clients meet a deadline: with S_i the times of client i, and c = cohort / clients * rounds,
what it would be if all were equal and always there, they are ln(1 + sum_i min(S_i, c)) / ln(1 + clients * c). Metrics
ending in -T (higher is harder) say how long it takes until so many updates have arrived, in multiples of the breaks in
between. DevMC has real devices that never leave, StatMC real availability and the same time for everybody, InterMC both
as they are.

Paper and published code differ in these points, all of which are options: which times everybody takes in StatMC (drawn
between 0 and the deadline, or on a grid that for -T reaches 240 seconds), whether the last client is waited for or 80 %
of them, whether computing one sample counts or transfers alone, whether a client that takes exactly as long as the
deadline is in time, whether work is rounded up to whole seconds, and whether a kilobyte has 1,000 bytes.

Eq. 3 of the paper counts the break as part of a client's time, and its algorithms add it to every round once more; here
it passes once, before the round, as in the code. Algorithm S2 counts trips of all clients that are available; the text,
the code and this file, of those invited.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import FloatArray, IntArray
from fedarena.fleet.availability import Availability
from fedarena.fleet.fleet import ClientFleet, Fleet
from fedarena.fleet.heterogeneity.availability_index import AvailabilityIndex
from fedarena.fleet.heterogeneity.costs import DeviceCosts
from fedarena.fleet.heterogeneity.estimates import Estimate
from fedarena.fleet.heterogeneity.monte_carlo import (
    MonteCarloRounds,
    SimulationOutcome,
    SimulationPlan,
    simulate_always_available,
)
from fedarena.fleet.heterogeneity.options import PAPER_OPTIONS, HeterogeneityOptions
from fedarena.fleet.heterogeneity.random_choices import STREAMS_PER_REPETITION
from fedarena.fleet.heterogeneity.spread import DeviceSpread, StateSpread, plain

METRICS: Final = ("DevMC-R", "DevMC-T", "StatMC-R", "StatMC-T", "InterMC-R", "InterMC-T")


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """How hard a fleet is: the six metrics, what they are made of, and how much clients differ."""

    clients: int
    options: HeterogeneityOptions
    metrics: dict[str, Estimate]
    devices: DeviceSpread
    states: StateSpread
    # For every client: how often it was in time under the metric of that name, relative to the ideal.
    participation: dict[str, FloatArray]
    cost_seconds: FloatArray  # the mean time of every client
    available_shares: FloatArray  # of the time, for every client
    state_metric: FloatArray  # the single-state metric of every client

    @property
    def ideal_participation(self) -> float:
        """c, how often a client is invited on average if all are always there."""
        return _ideal(self.clients, self.options)

    def as_dict(self) -> dict[str, Any]:
        """All numbers but those of single clients, as plain JSON."""
        return {
            "clients": self.clients,
            "options": self.options.as_dict(),
            "metrics": {name: estimate.as_dict() for name, estimate in self.metrics.items()},
            "devices": plain(self.devices),
            "states": plain(self.states),
        }


def measure_heterogeneity(
    client_fleet: ClientFleet,
    clients: IntArray,
    options: HeterogeneityOptions = PAPER_OPTIONS,
    progress: Callable[[float], None] | None = None,
) -> Heterogeneity:
    """Measures how hard a fleet is for `clients`; `progress` is told the share that is done.

    >>> from fedarena.fleet import load_fleet
    >>> everybody = np.arange(50)
    >>> matched = load_fleet("ideal", 50).match(everybody, None, seed=0)
    >>> found = measure_heterogeneity(matched, everybody, HeterogeneityOptions(rounds=100, trips=200, repetitions=2))
    >>> f"{found.metrics['StatMC-R'].mean:.2f} {found.metrics['DevMC-T'].mean:.2f}"
    '0.99 1.00'
    """
    clients = np.asarray(clients, dtype=np.int64)
    _check_cohort(len(clients), options)
    availability = client_fleet.fleet.availability.take(client_fleet.availability_of[clients])
    costs = DeviceCosts(client_fleet.fleet.devices.take(client_fleet.device_of[clients]), options)
    index = AvailabilityIndex(availability, options.whole_seconds)
    everyone = len(clients)
    always_on = _MetricSimulations("DevMC-R", "DevMC-T", options=options, first_stream=0)
    intermittent = _MetricSimulations(
        "StatMC-R", "InterMC-R", "StatMC-T", "InterMC-T", options=options, first_stream=len(always_on.names)
    )
    outcomes = (
        simulate_always_available(always_on.plan, costs, everyone, options),
        MonteCarloRounds(intermittent.plan, index, costs, options).run(progress),
    )
    metrics: dict[str, Estimate] = {}
    participation: dict[str, FloatArray] = {}
    for name in METRICS:
        simulations, outcome = (always_on, outcomes[0]) if name.startswith("Dev") else (intermittent, outcomes[1])
        metrics[name] = simulations.estimate(name, outcome, everyone)
        if name.endswith("-R"):
            chosen = simulations.of(name)
            participation[name] = outcome.in_time[chosen].mean(axis=0) / _ideal(everyone, options)
    state_metric = _state_metric(outcomes[1].in_time[intermittent.of("StatMC-R")], options)
    return Heterogeneity(
        everyone,
        options,
        metrics,
        DeviceSpread.of(costs, options.deadline_seconds),
        StateSpread.of(index.shares, state_metric),
        participation,
        costs.means_and_variances()[0],
        index.shares,
        state_metric,
    )


def single_state_metric(availability: Availability, options: HeterogeneityOptions = PAPER_OPTIONS) -> FloatArray:
    """One number between 0 and 1 for every row, also called ST-Client-Ratio (Eq. 18): how well it can take part.

    All rows take part in simulated rounds with a deadline. For every time that clients may need, it is counted how
    often a row is in time, relative to c and at most 1; the metric is the mean over times and repetitions.
    """
    _check_cohort(len(availability), options)
    simulations = _MetricSimulations("StatMC-R", options=options, first_stream=0)
    index = AvailabilityIndex(availability, options.whole_seconds)
    outcome = MonteCarloRounds(simulations.plan, index, None, options).run()
    return _state_metric(outcome.in_time, options)


def in_order(fleet: Fleet) -> ClientFleet:
    """Client i has the phone i of a fleet in which devices and availabilities belong together."""
    if not fleet.paired:
        raise BadInputError(
            f"Phones of the fleet {fleet.name!r} have no order, because a client gets a device and an availability "
            "of it; match it to clients instead"
        )
    rows = np.arange(len(fleet.devices), dtype=np.int32)
    return ClientFleet(fleet, rows, rows)


class _MetricSimulations:
    """The simulations of some metrics in all repetitions."""

    def __init__(self, *names: str, options: HeterogeneityOptions, first_stream: int):
        self.names = names
        self._options = options
        whose: list[tuple[int, int, float]] = []
        for repetition in range(options.repetitions):
            for number, name in enumerate(names):
                whose += [(repetition, number, cost) for cost in self._costs(name, repetition)]
        self._repetitions = np.array([repetition for repetition, _, _ in whose])
        self._numbers = np.array([number for _, number, _ in whose])
        begins = np.searchsorted(self._repetitions, self._repetitions)
        streams_of = self._repetitions * STREAMS_PER_REPETITION + first_stream + np.arange(len(whose)) - begins
        ends_with_rounds = np.array([name.endswith("-R") for name in names])
        costs = np.array([cost for _, _, cost in whose])
        self.plan = SimulationPlan(streams_of, costs, ends_with_rounds[self._numbers])

    def of(self, name: str) -> IntArray:
        """The positions of a metric's simulations."""
        return np.flatnonzero(self._numbers == self.names.index(name))

    def estimate(self, name: str, outcome: SimulationOutcome, clients: int) -> Estimate:
        """The metric `name`: the mean over the times that clients may take, once for every repetition."""
        chosen = self.of(name)
        options = self._options
        if name.endswith("-R"):
            ideal = _ideal(clients, options)
            sums = np.minimum(outcome.in_time[chosen], ideal).sum(axis=1)
            values = np.log1p(sums) / math.log1p(clients * ideal)
        else:
            values = outcome.seconds[chosen] / (options.trips / options.cohort * options.break_seconds)
        return Estimate.of(values.reshape(options.repetitions, -1).mean(axis=1), options.confidence)

    def _costs(self, name: str, repetition: int) -> list[float]:
        if not name.startswith("Stat"):
            return [math.nan]
        if name.endswith("-R"):
            return list(self._options.deadline_costs(repetition))
        return list(self._options.readiness_costs(repetition))


def _state_metric(in_time: IntArray, options: HeterogeneityOptions) -> FloatArray:
    ideal = _ideal(in_time.shape[1], options)
    return np.asarray(np.minimum(in_time, ideal).mean(axis=0) / ideal)


def _ideal(clients: int, options: HeterogeneityOptions) -> float:
    return options.cohort / clients * options.rounds


def _check_cohort(clients: int, options: HeterogeneityOptions) -> None:
    if not clients:
        raise BadInputError("The heterogeneity of a fleet cannot be measured without clients; it needs at least one")
    if options.cohort > clients:
        raise BadInputError(
            f"cohort is {options.cohort}, but there are only {clients} clients to invite; choose a smaller one"
        )
