"""Local models, nothing shared: what federated learning has to beat. LEAF (Caldas et al., 2018) calls it so, Table 2.

Every client trains models of its own from the same start, one for each learning rate, and uses the one that does best
on its validation samples (on its training samples where it has none). In a round the cohort's models train on; nobody
sends or receives anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.algorithms.checks import check_positive, check_sgd
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train import Algorithm, Client, Groups, LocalTraining, Work, flatten_groups, unflatten_groups


@ALGORITHMS.register("local_only")
class LocalOnly(Algorithm):
    """Every client for itself; `learning_rates` are tried side by side, in place of `local.lr`."""

    def __init__(self, *, learning_rates: tuple[float, ...] = (0.1, 0.01, 0.001, 0.0001)):
        for rate in learning_rates:
            check_positive(learning_rates=rate)
        # the name of a model is its rate
        self.learning_rates = {f"{rate:g}": rate for rate in learning_rates}
        if not learning_rates or len(self.learning_rates) < len(learning_rates):
            raise BadInputError(f"algorithm.learning_rates must be different numbers, not {list(learning_rates)}")

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs a local optimizer whose steps are proportional to the gradient."""
        super().prepare(population, local, horizon)
        check_sgd("local_only", local.optimizer)
        if local.clip_norm is not None:
            raise BadInputError(
                "local_only has steps of several learning rates, of which local.clip_norm would shorten some more than "
                "others; leave it out"
            )

    def download(self, broadcast: Groups) -> Groups:
        """Nothing: what clients start from came with the model."""
        return {}

    def client_init(self, broadcast: Groups) -> Groups:
        """A model for each learning rate."""
        return dict.fromkeys(self.learning_rates, broadcast["params"])

    def local_start(self, client: Client) -> Tensors:
        """All models."""
        return flatten_groups(client.state)

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The least loss of all models, with the gradients of each; a model may diverge without harm to the others."""
        losses = torch.stack([task.loss(model, batch) for model in unflatten_groups(params).values()])
        finite = torch.isfinite(losses)
        least = torch.where(finite, losses, torch.inf).detach().min()
        return least + torch.where(finite, losses - losses.detach(), 0).sum()

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Scales steps (also those of weight decay) from `local.lr` to each model's learning rate."""
        decay = self.local.weight_decay
        scaled: Tensors = {}
        for name, g in grad.items():
            scale = self.learning_rates[name.partition("/")[0]] / self.local.lr
            scaled[name] = scale * g + (scale - 1) * decay * params[name] if decay else scale * g
        return scaled

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """Nothing is uploaded, all models stay."""
        return {}, unflatten_groups(params)

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """There is nothing to do."""
        return state

    def personal_models(self, client: Client) -> list[Tensors]:
        """The models of all learning rates."""
        return list(client.state.values())
