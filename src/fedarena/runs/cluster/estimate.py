"""How long a round would take with many workers: measured here, and played through.

Some shards of a run's first round are trained in this process, and what the driver does with a result is done once.
From these seconds, and the bytes that would travel, a round's schedule is played with any number of workers, in the way
that the pool works: whoever is free takes the largest shard that is left, and results are taken in their order.

In a first round nobody keeps anything yet. What clients keep after it goes down with their jobs in all further ones, so
it is counted as if everybody had been there before.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.metrics.totals import MetricStates
from fedarena.models import Tensors
from fedarena.runs.building import Experiment, prepare
from fedarena.runs.cluster.messages import pack_groups, pack_result, pack_shard, unpack_result
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.observer import Observer
from fedarena.simulate import ClientStateChanges, ClientStates, simulate
from fedarena.train import Groups, OtherTest, RayEngine, Shard
from fedarena.train.crew import GPU_SHARDS
from fedarena.train.engine import IntArray, Part

_CALL_SECONDS = 0.003  # of the driver for every shard, beside the bytes: what Ray takes to hand it out and to tell
_ROUND_TRIP_SECONDS = 0.002
_MEASURED_SECONDS = 10.0  # are enough for shards; one at least is trained twice
# What a round waits for, and what helps.
WAITS = {
    "training": "more workers help",
    "largest shard": "one worker trains it alone; smaller engine.lanes (on GPUs, more engine.shards) give smaller ones",
    "link": "the model goes out to machines, and for every shard a sum comes back, and what its clients keep goes both "
    "ways; fewer and larger shards help against sums",
    "driver": "it adds up the results; fewer and larger shards (engine.lanes, or engine.shards on GPUs) help",
}


@dataclass(frozen=True)
class RoundCost:
    """What a round is made of, measured on one worker."""

    steps: IntArray  # of every shard, in the order of the plan
    seconds_per_step: float  # of a worker
    planning_seconds: float  # of the driver, before shards are handed out
    merging_seconds: float  # of the driver, for every result
    down_bytes: int  # to every machine, what is broadcast
    message_bytes: int  # to a worker, for a shard, with what its clients keep
    up_bytes: int  # from a worker, for a shard, with what its clients keep
    kept_bytes: int = 0  # of either: what the clients of a shard keep between their rounds
    device: str = "cpu"  # that it was measured on


@dataclass(frozen=True)
class RoundEstimate:
    """How a round would go with so many workers."""

    workers: int
    seconds: float
    speedup: float  # beside one worker on this machine's link
    busy: float  # share of the time that workers train
    waits_for: str  # what holds it up most, one of `WAITS`


def estimate_round(
    cost: RoundCost,
    workers: int,
    machines: int = 1,
    gigabits_per_second: float = 10.0,
    speed: float = 1.0,
) -> RoundEstimate:
    """Plays a round with so many workers on some machines; each is `speed` times as fast as the measured one.

    With one machine nothing goes through a link. Machines beyond the number of shards have nothing to do.
    """
    machines = min(machines, max(1, len(cost.steps)))
    alone = _play(cost, 1, 1, np.inf, speed)
    link = np.inf if machines == 1 else gigabits_per_second * 1e9 / 8
    seconds = _play(cost, workers, machines, link, speed)
    each = cost.steps * cost.seconds_per_step / speed
    bounds = {
        "training": float(each.sum()) / workers,
        "largest shard": float(each.max(initial=0.0)),
        "link": (machines * cost.down_bytes + len(each) * (cost.up_bytes + cost.message_bytes)) / link,
        "driver": cost.planning_seconds + len(each) * (cost.merging_seconds + _CALL_SECONDS),
    }
    waits_for = max(bounds, key=lambda name: bounds[name])
    return RoundEstimate(workers, seconds, alone / seconds, float(each.sum()) / (workers * seconds), waits_for)


def _play(cost: RoundCost, workers: int, machines: int, link: float, speed: float) -> float:
    """The seconds of a round."""
    began = cost.planning_seconds + machines * cost.down_bytes / link
    free = [began] * workers
    link_free, driver_free = began, began
    arrived = np.empty(len(cost.steps))
    ends: list[tuple[float, int]] = []
    for place in np.argsort(-cost.steps, kind="stable").tolist():
        begin = heapq.heappop(free)
        end = begin + cost.message_bytes / link + float(cost.steps[place]) * cost.seconds_per_step / speed
        heapq.heappush(free, end)
        ends.append((end, place))
    for end, place in sorted(ends):
        link_free = max(link_free, end) + cost.up_bytes / link
        arrived[place] = link_free + _ROUND_TRIP_SECONDS
    for at in arrived.tolist():
        driver_free = max(driver_free, at) + cost.merging_seconds + _CALL_SECONDS
    return driver_free


def measure_round(config: RunConfig, observer: Observer, for_gpus: bool = False) -> RoundCost:
    """Builds a run, plans its first round, and trains some of its shards here; with `for_gpus`, as GPUs have them."""
    experiment = prepare(_on_one_worker(config, for_gpus), observer)
    stopwatch = _Stopwatch(experiment)
    simulation = experiment.simulation
    engine = simulation.engine
    assert isinstance(engine, RayEngine)
    engine.crew = stopwatch
    try:
        for _ in simulate(simulation, simulation.first_snapshot()):
            if stopwatch.cost is None:
                raise BadInputError("Nobody trains in the first round of this run, so there is nothing to measure")
    except _MeasuredError:
        pass
    finally:
        engine.crew = None
    if stopwatch.cost is None:
        raise BadInputError("This run has no round to measure")
    return stopwatch.cost


def _on_one_worker(config: RunConfig, for_gpus: bool) -> RunConfig:
    """The same run with a plan for many workers."""
    name = config.engine["name"]
    if name not in ("cohort", "ray"):
        raise BadInputError(f"engine={name} has no shards for many workers; choose engine=ray")
    options = {key: value for key, value in config.engine.items() if key not in ("name", "workers", "address")}
    if for_gpus and options.get("shards") is None:
        options["shards"] = GPU_SHARDS
    return resolve({**config.to_dict(), "engine": {"name": "ray", "workers": 0, **options}})


class _MeasuredError(Exception):
    """All that is to be known is known."""


class _Stopwatch:
    """A crew of one who looks at the clock, and goes home when it knows enough."""

    def __init__(self, experiment: Experiment):
        self._experiment, self._began = experiment, time.perf_counter()
        self.cost: RoundCost | None = None

    def collect(self, shards: Sequence[Shard], kept: Sequence[Groups]) -> Iterator[Any]:
        planned = time.perf_counter() - self._began
        simulation = self._experiment.simulation
        engine, path = simulation.engine, simulation.path
        assert isinstance(engine, RayEngine)
        steps = np.array([max(1, engine.count_steps(shard)) for shard in shards])

        def train(shard: Shard) -> Any:
            with torch.no_grad():
                return next(
                    iter(engine.execute([shard], lambda one: path.collect(path.results_of(engine, one), one, kept)))
                )

        train(shards[0])  # the first time, programs are made
        done, seconds, place = 0, 0.0, 0
        while place < len(shards) and (done == 0 or seconds < _MEASURED_SECONDS):
            began = time.perf_counter()
            result = train(shards[place])
            seconds += time.perf_counter() - began
            done += int(steps[place])
            place += 1
        packed, shard = pack_result(result), shards[place - 1]
        began = time.perf_counter()
        first, second = unpack_result(packed), unpack_result(packed)
        for step, partial in first.partials.items():
            path.merge(partial, second.partials[step])
        merging = (time.perf_counter() - began) / 2
        began = time.perf_counter()
        changes = ClientStateChanges(ClientStates())
        for clients, kept_by_them in first.client_states:
            changes.add(clients, kept_by_them)
        message = pack_shard(replace(shard, states=changes.client_states(), prepared=None))  # of a later round
        merging += time.perf_counter() - began
        kept_bytes, usual = _bytes_of(packed["client_states"]), np.mean([len(one.jobs) for one in shards])
        scale = float(usual) / len(shard.jobs)  # shards differ in how many clients they have
        broadcasts = {version: groups for shard in shards for version, groups in shard.broadcasts.items()}
        self.cost = RoundCost(
            steps=steps,
            seconds_per_step=seconds / done,
            planning_seconds=planned,
            merging_seconds=merging,
            down_bytes=sum(_bytes_of(pack_groups(groups)) for groups in broadcasts.values()),
            message_bytes=round(scale * _bytes_of(message)),
            up_bytes=_bytes_of(packed) + round((scale - 1) * kept_bytes),
            kept_bytes=round(scale * kept_bytes),
            device=engine.hardware.device.type,
        )
        raise _MeasuredError
        yield  # so that it is a generator like that of other crews

    def measures(self, other: OtherTest | None) -> bool:
        """Evaluations are not of interest."""
        return False

    def measure(
        self, params: Tensors, clients: IntArray, part: Part, blocks: Sequence[Sequence[tuple[int, int]]], other: bool
    ) -> Iterator[list[MetricStates]]:
        """Is not asked."""
        raise NotImplementedError

    def score_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], chunks: Sequence[IntArray], part: Part, round: int
    ) -> Iterator[MetricStates]:
        """Is not asked."""
        raise NotImplementedError

    def describe(self) -> str:
        """Of itself."""
        return "1 worker"


def _bytes_of(message: Any) -> int:
    """What of a message are arrays."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, Mapping):
        return sum(map(_bytes_of, message.values()))
    return sum(map(_bytes_of, message)) if isinstance(message, list | tuple) else 0
