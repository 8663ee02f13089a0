"""What FedAdagrad, FedAdam and FedYogi share. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

The server treats the mean update u as a (negative) gradient: m = beta1 m + (1 - beta1) u;  v by the method's own rule;
w = w + server_lr m / (sqrt(v) + tau). As in the paper, m starts at 0, v at tau², and there is no bias correction.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fedarena.algorithms.checks import check_fraction, check_positive
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Algorithm, Groups

_MOST_TAU = 1e9  # its square must be a number in every precision


class AdaptiveServer(Algorithm):
    """Server optimization with a step size per parameter; `tau` is the degree of adaptivity."""

    def __init__(self, *, server_lr: float, beta1: float, tau: float):
        check_positive(server_lr=server_lr, tau=tau)
        check_fraction(beta1=beta1)
        if tau > _MOST_TAU:
            raise BadInputError(f"algorithm.tau must be at most {_MOST_TAU:g}, not {tau}")
        self.server_lr, self.beta1, self.tau = server_lr, beta1, tau

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The method's rule for v, given the squared update."""

    def server_init(self, params: Tensors) -> Groups:
        """Parameters and the two moments."""
        return {
            "params": params,
            "first_moment": {name: torch.zeros_like(p) for name, p in params.items()},
            "second_moment": {name: torch.full_like(p, self.tau**2) for name, p in params.items()},
        }

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """An adaptive step along the mean update."""
        params: Tensors = {}
        first: Tensors = {}
        second: Tensors = {}
        for name, update in mean_update["params"].items():
            first[name] = self.beta1 * state["first_moment"][name] + (1 - self.beta1) * update
            second[name] = self.second_moment(state["second_moment"][name], update * update)
            step = first[name] / (second[name].sqrt() + self.tau)
            params[name] = state["params"][name] + self.server_lr * step
        return {**state, "params": params, "first_moment": first, "second_moment": second}
