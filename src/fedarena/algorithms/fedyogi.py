"""FedYogi. Reddi et al., "Adaptive Federated Optimization", ICLR 2021: v = v - (1 - beta2) u² sign(v - u²)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.algorithms.adaptive import AdaptiveServer
from fedarena.algorithms.checks import check_fraction
from fedarena.algorithms.registry import ALGORITHMS


@ALGORITHMS.register("fedyogi")
class FedYogi(AdaptiveServer):
    """Adaptive server optimization with Yogi; `tau` is the degree of adaptivity."""

    def __init__(self, *, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3):
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau)
        check_fraction(beta2=beta2)
        self.beta2 = beta2

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Moves towards the squared update by a step of its size, not of the difference."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)
