"""SCAFFOLD. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.

Clients correct every gradient by c - c_i, an estimate of how their drift differs from everybody's. After K steps of
size lr from x to y_i a client sets (the paper's option II) c_i+ = c_i - c + (x - y_i) / (K lr), a mean of gradients.
With local momentum, so that it still is one, K counts as many steps without it as go as far (see `fednova`). The server
takes plain means over the cohort S of N clients: x = x + server_lr mean(y_i - x);  c = c + |S|/N mean(c_i+ - c_i).
"""

from __future__ import annotations

from typing import Any

import torch

from fedarena.algorithms.checks import check_positive, check_sgd
from fedarena.algorithms.fednova import effective_steps
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, LocalTraining, Work


@ALGORITHMS.register("scaffold")
class Scaffold(Algorithm):
    """Variance reduction by control variates that clients keep between their rounds."""

    def __init__(self, *, server_lr: float = 1.0):
        check_positive(server_lr=server_lr)
        self.server_lr = server_lr

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs a local optimizer from whose steps gradients can be told."""
        super().prepare(population, local, horizon)
        check_sgd("scaffold", local.optimizer)

    def server_init(self, params: Tensors) -> Groups:
        """Parameters and the server's control variate, zero at first."""
        return {"params": params, "control": {name: torch.zeros_like(p) for name, p in params.items()}}

    def broadcast(self, state: Groups) -> Groups:
        """Clients need the server's control variate, too."""
        return {"params": state["params"], "control": state["control"]}

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's control variate, zero at first."""
        return {"control": {name: torch.zeros_like(p) for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Corrects for the client's drift."""
        own, server = client.state["control"], client.broadcast["control"]
        return {name: g - own[name] + server[name] for name, g in grad.items()}

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change of the model and of the control variate, which becomes the client's memory."""
        own, server = client.state["control"], client.broadcast["control"]
        steps = effective_steps(work.steps, client.job.hyperparameter("local.momentum", self.local.momentum))
        way = steps * client.job.hyperparameter("local.lr", self.local.lr) * client.job.lr_scale
        change = {name: p - client.broadcast["params"][name] for name, p in params.items()}
        control = {name: own[name] - server[name] - change[name] / way for name in params}
        control_change = {name: c - own[name] for name, c in control.items()}
        return {"params": change, "control": control_change}, {"control": control}

    def client_weight(self, work: Work) -> Any:
        """Every client counts the same."""
        return 0 * work.samples + 1

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Moves the model by the mean change, and the control variate by the cohort's share of it."""
        share = mean_update["cohort"]["clients"] / self.population
        change, control_change = mean_update["params"], mean_update["control"]
        return {
            **state,
            "params": {name: p + self.server_lr * change[name] for name, p in state["params"].items()},
            "control": {name: c + share * control_change[name] for name, c in state["control"].items()},
        }
