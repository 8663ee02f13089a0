"""Rounds of edges: clients train several times from the model of their edge before the server hears of it.

Between two of them, an edge moves its model by the mean of its clients' updates. In the end every edge sends how far
its model has come, times the weight of its clients, and the server takes the mean of that for the mean of updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from fedarena.models import Tensors
from fedarena.simulate.client_states.store import ClientStates
from fedarena.simulate.server import Server
from fedarena.simulate.simulation import Simulation
from fedarena.train import Groups, JobArrays
from fedarena.transforms import Partial, ShardResult
from fedarena.transforms.aggregators.base import named
from fedarena.transforms.aggregators.mean import CHANGE

_TURN = 1 << 40  # more rounds than a run has: random numbers of another edge round are others


def train_by_edges(
    simulation: Simulation, server: Server, jobs: JobArrays, states: ClientStates, round: int
) -> Iterator[ShardResult]:
    """What shards find out in all rounds of the edges, without updates; and in the end what the edges send.

    Jobs are told apart by the version of the model they begin with, which here is the number of their edge.
    """
    path, sent = simulation.path, server.broadcasts[server.version]
    _, edge_of_job = np.unique(simulation.edge_of(jobs.clients), return_inverse=True)
    models = dict.fromkeys(range(int(edge_of_job.max()) + 1), sent)
    weights: dict[int, float] = {}
    clients = np.sort(jobs.clients)
    uploaded = np.zeros(len(clients), dtype=np.int64)  # in all rounds so far
    for turn in range(simulation.edges.rounds):
        of_turn = replace(jobs, rounds=jobs.rounds + turn * _TURN, versions=edge_of_job, server_steps=edge_of_job)
        shards = simulation.engine.divide(of_turn, models, states)
        totals: dict[int, Partial] = {}
        for result in simulation.train(shards, server.transform_states, round):
            for edge, partial in result.partials.items():
                totals[edge] = path.merge(totals[edge], partial) if edge in totals else partial
            if result.uploaded_bytes is not None:
                places = np.searchsorted(clients, result.clients)
                uploaded[places] += result.uploaded_bytes
                result = replace(result, uploaded_bytes=uploaded[places])
            yield replace(result, partials={})
        for edge, total in totals.items():
            weights[edge] = total.numbers["weight"]
            change = path.aggregator.finish(total)["params"]
            moved = {name: p + change[name] for name, p in models[edge]["params"].items()}
            models[edge] = {**models[edge], "params": moved}
    nobody, nothing = np.empty(0, dtype=np.int64), np.empty(0)
    yield ShardResult({0: _sum_of_edges(models, sent, weights, len(jobs))}, nobody, [], nothing, None, 0, {})


def _sum_of_edges(models: dict[int, Groups], sent: Groups, weights: dict[int, float], clients: int) -> Partial:
    """How far the models of all edges have come, weighted, as the aggregator adds up updates."""
    change: Tensors = {}
    for name, p in sent["params"].items():
        far = [weights[edge] * (model["params"][name] - p) for edge, model in models.items()]
        change[name] = torch.stack(far).sum(0)
    weight = sum(weights.values())
    numbers = {"weight": weight, "other_weight": weight, "clients": float(clients)}
    return Partial(named(CHANGE, {"params": change}), numbers)
