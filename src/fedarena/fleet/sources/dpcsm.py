"""Zhang et al., CVPR 2024: FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning. The sampler
DPCSM, a Dirichlet process for clients' states by a metric of single states.

Availabilities of a base (the paper calls them states) are put in order by the single-state metric, best first. A stick
is broken over the ranks from `start_rank` on: each takes a share b of what is left, with b from Beta(1, alpha), and
what is left in the end goes to the last rank. Every client draws its availability by these shares. So `start_rank`
dials how good the best availability is, and alpha how many worse ones come with it.

What the paper leaves open: many good states have the best possible metric, 1; among equal ones, those that are
available for a larger share of the time come first. A `start_rank` beyond the last state, which the code takes for the
last, is refused.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Choice
from fedarena.fleet.arrays import FloatArray, IntArray
from fedarena.fleet.availability import Availability
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.heterogeneity import PAPER_OPTIONS, HeterogeneityOptions, single_state_metric
from fedarena.fleet.registry import FLEETS, load_fleet

DEFAULT_BASE: dict[str, Any] = {"name": "flash"}


@FLEETS.register("dpcsm")
def dpcsm(
    phones: int,
    *,
    base: Annotated[dict[str, Any], Choice(FLEETS)] = DEFAULT_BASE,
    start_rank: Annotated[int, Field(ge=0)] = 0,
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0,
    base_phones: Annotated[int, Field(ge=1, le=10_000_000)] = 710,
    deadline_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = PAPER_OPTIONS.deadline_seconds,
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = PAPER_OPTIONS.rounds,
    cohort: Annotated[int, Field(ge=1)] = PAPER_OPTIONS.cohort,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Fleet:
    """FLHetBench's dial for availability: states of the fleet `base` from the best but `start_rank` on, `alpha` apart.

    There is an availability for every client, and the devices are those of the base; a client gets one of each. A base
    that makes phones up makes `base_phones`; FLHetBench has 710. `deadline_seconds`, `rounds` and `cohort` are of the
    rounds that are simulated for the single-state metric.
    """
    source = load_fleet(base, base_phones)
    states = len(source.availability)
    if start_rank >= states:
        raise BadInputError(
            f"fleet.start_rank must be below {states}, the number of availabilities in the base {source.name!r}, "
            f"not {start_rank}"
        )
    options = replace(
        PAPER_OPTIONS,
        deadline_seconds=deadline_seconds,
        rounds=rounds,
        cohort=min(cohort, states),
        repetitions=1,
    )
    best_first = np.lexsort((-source.availability.share(), -_metric_of(source.availability, options)))
    ranks = start_rank + draw_ranks(phones, states - start_rank, alpha, seed)
    return Fleet("dpcsm", source.devices, source.availability.take(best_first[ranks]), paired=False)


def _metric_of(availability: Availability, options: HeterogeneityOptions) -> FloatArray:
    """The single-state metric, remembered: a suite asks for that of the same base again and again."""
    arrays = (availability.offsets, availability.starts, availability.ends, availability.periods)
    return _remembered_metric(tuple((array.dtype.str, array.tobytes()) for array in arrays), options)


@lru_cache(maxsize=4)
def _remembered_metric(arrays: tuple[tuple[str, bytes], ...], options: HeterogeneityOptions) -> FloatArray:
    availability = Availability(*(np.frombuffer(content, dtype=kind) for kind, content in arrays))
    return single_state_metric(availability, options)


def draw_ranks(phones: int, ranks: int, alpha: float, seed: int) -> IntArray:
    """A rank for every phone, by the shares of a broken stick."""
    random = streams.generator(seed, "fleet/dpcsm")
    shares = break_stick(random.beta(1.0, alpha, size=ranks))
    return np.searchsorted(np.cumsum(shares)[:-1], random.random(phones), side="right")


def break_stick(breaks: FloatArray) -> FloatArray:
    """The piece of each rank: that part of what the ranks before left over; the last one gets all of it.

    >>> break_stick(np.array([0.5, 0.5, 0.1])).tolist()
    [0.5, 0.25, 0.25]
    """
    left = np.cumprod(1 - breaks)
    before = np.concatenate(([1.0], left[:-1]))
    return np.append(before[:-1] * breaks[:-1], before[-1])
