"""Rounds on phones without any training: what inviting, planning and keeping the clock cost by themselves.

    python benchmarks/fleet_rounds.py [--clients 1000000] [--rounds 1000]

Runs the real loop with an engine that trains nothing and a task that measures nothing, on the fleet `fedscale`, for a
few clients and for many. Used by `benchmarks/fleet.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedarena.algorithms import FedAvg
from fedarena.fleet import load_fleet
from fedarena.metrics import MetricScores
from fedarena.metrics.metric import Loss
from fedarena.simulate import PROTOCOLS, Simulation, simulate
from fedarena.train import ClientScores, JobResults, LocalTraining, Shard, Work

CLIENTS = 1_000_000
FEW_CLIENTS = 10_000
ROUNDS = 1_000
COHORT = 100
PARAMETERS = 250_000  # a model of a megabyte
OPTIONS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "deadline": {"seconds": 600.0},
    "buffered": {"buffer_size": COHORT},
}


class Model(torch.nn.Module):
    """Has a size, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(PARAMETERS))


class NullAlgorithm(FedAvg):
    """Learns nothing."""

    def server_step(self, state: Any, mean_update: Any, round: int) -> Any:
        return state


class Samples:
    """How many samples clients have; there are none to be seen."""

    def __init__(self, clients: int):
        self._counts = np.random.default_rng(0).integers(1, 200, size=clients)

    def counts(self, clients: Any, part: str) -> Any:
        return self._counts[clients]


class NullEngine:
    """Says that clients have trained."""

    notes: list[str] = []  # noqa: RUF012
    plan: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, algorithm: FedAvg, data: Samples):
        self.algorithm, self.data, self.seed = algorithm, data, 0
        self.local = LocalTraining(epochs=1, batch_size=16, lr=0.1)

    def like_this(self, *_: Any) -> NullEngine:
        return self

    def place(self, groups: Any) -> Any:
        return groups

    def initial_params(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in Model().named_parameters()}

    def divide(self, jobs: Any, broadcasts: Any, states: Any) -> list[Shard]:
        return [Shard(jobs, broadcasts, states, 16)]

    def execute(self, shards: Any, work: Any) -> Iterator[Any]:
        return map(work, shards)

    def train(self, shard: Shard) -> Iterator[JobResults]:
        samples = self.data.counts(shard.jobs.clients, "train")
        work = Work(samples, -(-samples // 16), samples)
        yield JobResults(shard.jobs, {}, {}, work, np.ones(len(samples)))

    def evaluate(self, params: Any, clients: Any, part: str, other: Any = None) -> ClientScores:
        ones = np.ones(len(clients), dtype=np.int64)
        return ClientScores(clients, ones, ones, {"loss": MetricScores(Loss(), np.ones(len(clients)), 1.0)})


def measure(protocol: str, clients: int, rounds: int) -> dict[str, float]:
    """Seconds of so many rounds, and what happened in them."""
    algorithm = NullAlgorithm()
    everybody = np.arange(clients)
    fleet = load_fleet({"name": "fedscale"}, clients).match(everybody, None, seed=0)
    data = Samples(clients)
    algorithm.prepare(clients, LocalTraining(), rounds)
    simulation = Simulation(
        seed=0,
        rounds=rounds,
        cohort=COHORT,
        task=SimpleNamespace(metrics=(Loss(),), module=Model()),  # type: ignore[arg-type]
        algorithm=algorithm,
        engine=NullEngine(algorithm, data),  # type: ignore[arg-type]
        training_clients=everybody,
        evaluation_clients=everybody[:1],
        evaluation_part="test",
        evaluate_every=rounds,
        flops_per_sample=1e6,
        client_ids=lambda chosen: list(map(str, chosen)),
        protocol=PROTOCOLS.get(protocol)(**OPTIONS[protocol]),
        fleet=fleet,
    )
    outcomes = simulate(simulation)
    next(outcomes)
    next(outcomes)  # whatever is done once
    began = time.perf_counter()
    rows = [outcome.row for outcome in outcomes]
    return {
        "seconds": (time.perf_counter() - began) * rounds / len(rows),
        "virtual_hours": rows[-1]["end_seconds"] / 3600,
        "invited": float(np.mean([row["invited"] for row in rows])),
        "used": float(np.mean([row["clients"] for row in rows])),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--protocol", choices=sorted(OPTIONS), action="append")
    arguments = parser.parse_args()
    chosen = arguments.protocol or list(OPTIONS)
    print(json.dumps({name: measure(name, arguments.clients, arguments.rounds) for name in chosen}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
