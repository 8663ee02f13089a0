"""FedAdagrad. Reddi et al., "Adaptive Federated Optimization", ICLR 2021: v = v + u²."""

from __future__ import annotations

from torch import Tensor

from fedarena.algorithms.adaptive import AdaptiveServer
from fedarena.algorithms.registry import ALGORITHMS


@ALGORITHMS.register("fedadagrad")
class FedAdagrad(AdaptiveServer):
    """Adaptive server optimization with Adagrad; `tau` is the degree of adaptivity."""

    def __init__(self, *, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3):
        super().__init__(server_lr=server_lr, beta1=beta1, tau=tau)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The sum of squared updates."""
        return v + square
