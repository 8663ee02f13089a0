"""FedNova. Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020.

(NeurIPS.) Clients that take more steps would pull the model towards their own optimum. Each client's change is divided
by its number of effective steps a_i, and the server multiplies the weighted mean by the weighted mean of the a_i. With
local momentum rho, tau steps count as a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho); without, as tau.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedarena.algorithms.checks import check_positive, check_sgd
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, LocalTraining, Work


@ALGORITHMS.register("fednova")
class FedNova(Algorithm):
    """Normalized averaging: clients count by their data, not by how many steps they took."""

    def __init__(self, *, server_lr: float = 1.0):
        check_positive(server_lr=server_lr)
        self.server_lr = server_lr

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs a local optimizer whose steps can be counted."""
        super().prepare(population, local, horizon)
        check_sgd("fednova", local.optimizer)

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change per effective step, and how many those were."""
        steps = effective_steps(work.steps, client.job.hyperparameter("local.momentum", self.local.momentum))
        change = {name: (p - client.broadcast["params"][name]) / steps for name, p in params.items()}
        some = next(iter(params.values()))
        return {"params": change, "steps": {"effective": some.new_zeros(()) + steps}}, client.state

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """The mean direction, as far as the cohort went on average."""
        scale = self.server_lr * mean_update["steps"]["effective"]
        change = mean_update["params"]
        return {**state, "params": {name: p + scale * change[name] for name, p in state["params"].items()}}


def effective_steps(steps: Any, rho: Any) -> Any:
    """How many steps without momentum go as far; `rho` may be a tensor, 0 for some clients."""
    if not isinstance(rho, Tensor) and not rho:
        return steps
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
