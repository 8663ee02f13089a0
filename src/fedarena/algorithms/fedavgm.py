"""FedAvgM. Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution …", arXiv 1909.06335, 2019.

FedAvg with momentum at the server: v = beta v + u;  w = w + server_lr v, where u is the mean update.
"""

from __future__ import annotations

import torch

from fedarena.algorithms.checks import check_fraction, check_positive
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Groups


@ALGORITHMS.register("fedavgm")
class FedAvgM(Algorithm):
    """Federated averaging with server momentum `beta`."""

    def __init__(self, *, server_lr: float = 1.0, beta: float = 0.9):
        check_positive(server_lr=server_lr)
        check_fraction(beta=beta)
        self.server_lr, self.beta = server_lr, beta

    def server_init(self, params: Tensors) -> Groups:
        """Parameters and their velocity."""
        return {"params": params, "velocity": {name: torch.zeros_like(p) for name, p in params.items()}}

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Adds the mean update to the velocity and the velocity to the parameters."""
        update = mean_update["params"]
        velocity = {name: self.beta * v + update[name] for name, v in state["velocity"].items()}
        params = {name: p + self.server_lr * velocity[name] for name, p in state["params"].items()}
        return {**state, "params": params, "velocity": velocity}
