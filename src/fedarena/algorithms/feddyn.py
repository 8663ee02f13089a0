"""FedDyn. Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.

A client minimizes its loss - <l_i, w> + alpha/2 ||w - w_global||² and then sets l_i = l_i - alpha (w - w_global). The
server, with some of m clients: h = h - alpha/m sum(w_i - w_global);  w_global = mean(w_i) - h / alpha. Means are plain.
"""

from __future__ import annotations

from typing import Any

import torch

from fedarena.algorithms.checks import check_positive
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, Work


@ALGORITHMS.register("feddyn")
class FedDyn(Algorithm):
    """Dynamic regularization of strength `alpha`, which makes local optima agree with the global one."""

    tolerates_stale_updates = False

    def __init__(self, *, alpha: float = 0.01):
        check_positive(alpha=alpha)
        self.alpha = alpha

    def server_init(self, params: Tensors) -> Groups:
        """Parameters and the server's correction h, zero at first."""
        return {"params": params, "correction": {name: torch.zeros_like(p) for name, p in params.items()}}

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's linear term, zero at first."""
        return {"linear": {name: torch.zeros_like(p) for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Adds the gradient of the linear and of the quadratic term."""
        start, linear = client.broadcast["params"], client.state["linear"]
        return {name: g - linear[name] + self.alpha * (params[name] - start[name]) for name, g in grad.items()}

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change of the model; the linear term follows it."""
        change = {name: p - client.broadcast["params"][name] for name, p in params.items()}
        linear = {name: client.state["linear"][name] - self.alpha * c for name, c in change.items()}
        return {"params": change}, {"linear": linear}

    def client_weight(self, work: Work) -> Any:
        """Every client counts the same."""
        return 0 * work.samples + 1

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """The mean model, corrected by what all clients' linear terms have become."""
        share = mean_update["cohort"]["clients"] / self.population
        change = mean_update["params"]
        correction = {name: h - self.alpha * share * change[name] for name, h in state["correction"].items()}
        params = {name: p + change[name] - correction[name] / self.alpha for name, p in state["params"].items()}
        return {**state, "params": params, "correction": correction}
