"""Whether two machines compute the same bits: a few steps of the run's own model, hashed."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from fedarena.simulate import Simulation
from fedarena.train import Job, JobArrays, flatten_groups

_CLIENTS = 2
_SHARE = 1e-6  # of the work of a whole job, which is at least one step


def fingerprint_of_bits(simulation: Simulation) -> str:
    """What the first steps of some clients come to on this machine."""
    engine, algorithm = simulation.engine, simulation.algorithm
    clients = simulation.training_clients[:_CLIENTS]
    hashed = hashlib.blake2b(digest_size=8)
    with torch.no_grad():
        snapshot = simulation.first_snapshot().placed(engine.place)
        broadcast = algorithm.broadcast(snapshot.state)
        jobs = JobArrays.of([Job(int(client), 1, _SHARE) for client in clients])
        for shard in engine.divide(jobs, {0: broadcast}, {}):
            for results in engine.train(shard):
                for name, t in sorted(flatten_groups(results.update).items()):
                    hashed.update(name.encode() + np.ascontiguousarray(t.float().cpu().numpy()).tobytes())
    return hashed.hexdigest()
