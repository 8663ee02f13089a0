"""Mocha. Smith et al., "Federated Multi-Task Learning", NeurIPS 2017, with mean-regularized tasks, in primal form.

Every client t of all m has a model w_t of its own; together they minimize sum_t F_t(w_t) + lam/2 sum_t ||w_t - mean||²
+ ridge/2 sum_t ||w_t||², where mean = sum_t w_t / m. This is the paper's problem with the relationship between tasks
fixed to Omega = I - 11'/m. Two things differ from the paper:
- Clients minimize it by gradient steps on the primal problem, which any model allows. The paper solves the dual, which
  needs a convex model, by stochastic coordinate ascent.
- The relationship is not learned, since that needs a matrix of clients by clients at the server.

A client in the cohort lowers its own terms with the mean held fixed, and uploads by how much w_t has changed. So the
server knows the mean over all clients exactly, those who never took part (w_t is the initial model) included. Who takes
part for the first time begins its steps at the mean.
"""

from __future__ import annotations

from typing import Any

import torch

from fedarena.algorithms.checks import check_not_negative
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, Work


@ALGORITHMS.register("mocha")
class Mocha(Algorithm):
    """Multi-task learning: a model per client, drawn to the mean of all by `lam` and to zero by `ridge`."""

    tolerates_stale_updates = False

    def __init__(self, *, lam: float = 0.1, ridge: float = 0.0):
        check_not_negative(lam=lam, ridge=ridge)
        self.lam, self.ridge = lam, ridge

    def server_init(self, params: Tensors) -> Groups:
        """The mean of all clients' models, and what every one of them is at first."""
        return {"params": params, "initial": params}

    def broadcast(self, state: Groups) -> Groups:
        """Both."""
        return {"params": state["params"], "initial": state["initial"]}

    def download(self, broadcast: Groups) -> Groups:
        """The mean; the initial model is known to everybody."""
        return {"params": broadcast["params"]}

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's own model, and in how many rounds it took part."""
        some = next(iter(broadcast["params"].values()))
        return {"model": broadcast["initial"], "rounds": {"taken_part": some.new_zeros(())}}

    def local_start(self, client: Client) -> Tensors:
        """The client's own model; the mean where it never took part."""
        took_part = client.state["rounds"]["taken_part"] > 0
        mean = client.broadcast["params"]
        return {name: torch.where(took_part, w, mean[name]) for name, w in client.state["model"].items()}

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Adds the gradients of both penalties."""
        mean = client.broadcast["params"]
        return {
            name: g + self.lam * (params[name] - mean[name]) + self.ridge * params[name] for name, g in grad.items()
        }

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """By how much the client's model has changed; the model stays."""
        change = {name: p - client.state["model"][name] for name, p in params.items()}
        taken_part = client.state["rounds"]["taken_part"] + 1
        return {"params": change}, {"model": params, "rounds": {"taken_part": taken_part}}

    def client_weight(self, work: Work) -> Any:
        """Every client counts the same."""
        return 0 * work.samples + 1

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Moves the mean of all clients by the cohort's share of it."""
        share = mean_update["cohort"]["clients"] / self.population
        change = mean_update["params"]
        return {**state, "params": {name: p + share * change[name] for name, p in state["params"].items()}}

    def personal_models(self, client: Client) -> list[Tensors]:
        """The client's own model; the mean where it never took part."""
        return [self.local_start(client)]
