"""q-FedAvg. Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2.

Clients with a large loss F_i (of the global model on their data) count more: with L = 1/lr and d_i = L (w - w_i),
w = w - sum(F_i^q d_i) / sum(q F_i^(q-1) ||d_i||² + L F_i^q). With q = 0 this is the plain mean of the models.
"""

from __future__ import annotations

from typing import Any

from fedarena.algorithms.checks import check_not_negative
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, Work


@ALGORITHMS.register("qfedavg")
class QFedAvg(Algorithm):
    """Fair federated averaging; the larger `q`, the more it cares for those who fare badly."""

    needs_start_loss = True

    def __init__(self, *, q: float = 1.0):
        check_not_negative(q=q)
        self.q = q

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The numerator and the denominator of the server's step."""
        smoothness = 1 / (client.job.hyperparameter("local.lr", self.local.lr) * client.job.lr_scale)
        some = next(iter(params.values()))
        loss = work.start_loss.to(some.dtype).clamp(min=1e-10)  # 0 would have no negative power
        direction = {name: smoothness * (client.broadcast["params"][name] - p) for name, p in params.items()}
        norm_squared = sum((d.square().sum() for d in direction.values()), some.new_zeros(()))
        weight = loss**self.q
        normalizer = self.q * loss ** (self.q - 1) * norm_squared + smoothness * weight
        numerator = {name: weight * d for name, d in direction.items()}
        return {"params": numerator, "normalizer": {"sum": normalizer}}, client.state

    def client_weight(self, work: Work) -> Any:
        """The weights are in the update already."""
        return 0 * work.samples + 1

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Sum of numerators over sum of denominators."""
        direction, normalizer = mean_update["params"], mean_update["normalizer"]["sum"]
        return {**state, "params": {name: p - direction[name] / normalizer for name, p in state["params"].items()}}
