"""Whether two machines compute the same bits: steps of a run's own model, or what all models do, hashed."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch

from fedarena.simulate import Simulation
from fedarena.train import Job, JobArrays, flatten_groups
from fedarena.train.wide_products import product

_CLIENTS = 2
_SHARE = 1e-6  # of the work of a whole job, which is at least one step


@functools.cache
def fingerprint_of_arithmetic(device: str) -> str:
    """What products, convolutions and the like come to on this machine, whatever the run."""
    values = torch.arange(6 * 32 * 32, dtype=torch.float32).reshape(6, 1, 32, 32).mul(0.7).sin().to(device)
    with torch.no_grad():
        pictures = torch.nn.functional.conv2d(values, values[:, :, :5, :5], padding=2).tanh()
        rows = pictures.flatten(1)
        square = rows.reshape(-1, 256)
        found = [rows @ rows.T, square.T @ square, square.softmax(1).log().sum(0), pictures.std((0, 2, 3))]
        found.append(_large_product(device))
    hashed = hashlib.blake2b(digest_size=8)
    for t in found:
        hashed.update(t.cpu().numpy().tobytes())
    return hashed.hexdigest()


def _large_product(device: str) -> torch.Tensor:
    """So large that it is made by the library that is faster here; products of a run's first steps may all be small."""
    values = torch.arange(128 * 256, dtype=torch.float32).reshape(128, 256).sin().to(device)
    return product(values.T, values)


def fingerprint_of_bits(simulation: Simulation) -> str:
    """What the first steps of some clients come to on this machine."""
    engine, algorithm = simulation.engine, simulation.algorithm
    clients = simulation.training_clients[:_CLIENTS]
    hashed = hashlib.blake2b(digest_size=8)
    with torch.no_grad():
        hashed.update(_large_product(engine.choices["device"]).cpu().numpy().tobytes())
        snapshot = simulation.first_snapshot().placed(engine.place)
        broadcast = algorithm.broadcast(snapshot.state)
        jobs = JobArrays.of([Job(int(client), 1, _SHARE) for client in clients])
        for shard in engine.divide(jobs, {0: broadcast}, {}):
            for results in engine.train(shard):
                for name, t in sorted(flatten_groups(results.update).items()):
                    hashed.update(name.encode() + np.ascontiguousarray(t.float().cpu().numpy()).tobytes())
    return hashed.hexdigest()
