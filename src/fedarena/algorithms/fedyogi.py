"""FedYogi. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

The server treats the mean update as a (negative) gradient and takes a Yogi step with it:
m = beta1 m + (1 - beta1) u;  v = v - (1 - beta2) u² sign(v - u²);  w = w + server_lr m / (sqrt(v) + tau).
As in the paper, m starts at 0 and v at tau², and there is no bias correction.
"""

from __future__ import annotations

import torch

from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Groups


@ALGORITHMS.register("fedyogi")
class FedYogi(Algorithm):
    """Adaptive server optimization with Yogi; `tau` is the degree of adaptivity."""

    def __init__(self, *, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3):
        self.server_lr, self.beta1, self.beta2, self.tau = server_lr, beta1, beta2, tau

    def server_init(self, params: Tensors) -> Groups:
        """Parameters and the two moments."""
        return {
            "params": params,
            "first_moment": {name: torch.zeros_like(p) for name, p in params.items()},
            "second_moment": {name: torch.full_like(p, self.tau**2) for name, p in params.items()},
        }

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """A Yogi step along the mean update."""
        params: Tensors = {}
        first: Tensors = {}
        second: Tensors = {}
        for name, update in mean_update["params"].items():
            square = update * update
            v = state["second_moment"][name]
            first[name] = self.beta1 * state["first_moment"][name] + (1 - self.beta1) * update
            second[name] = v - (1 - self.beta2) * square * torch.sign(v - square)
            step = first[name] / (second[name].sqrt() + self.tau)
            params[name] = state["params"][name] + self.server_lr * step
        return {"params": params, "first_moment": first, "second_moment": second}
