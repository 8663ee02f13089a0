"""Client training of one's own, as FedScale's Fig. 9: first as a hook that all clients go through at once, then a loop.

python examples/plugins/own_training.py
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

import fedarena
from fedarena.algorithms import FedAvg


class ClippedSteps(FedAvg):
    """No local step is longer than the learning rate; many clients train at once."""

    def local_gradient(self, grad, params, client):
        norm = torch.stack([g.square().sum() for g in grad.values()]).sum().sqrt()
        return {name: g / norm.clamp(min=1.0) for name, g in grad.items()}


class OwnLoop(FedAvg):
    """The same as a loop over batches, one client at a time, in which anything goes."""

    def train(self, client, model, data):
        for batch in data:
            model.zero_grad()
            F.cross_entropy(model(batch["x"]), batch["y"]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad


SETTINGS = {"algorithm": ClippedSteps, "local.lr": 0.1}

if __name__ == "__main__":
    for algorithm in (ClippedSteps, OwnLoop):
        result = fedarena.run(SETTINGS, federation="digits", algorithm=algorithm, rounds=20, cohort=10)
        print(algorithm.__name__, result.summary["final"]["accuracy"])
