"""A shared encoder and a head of one's own.

FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019. Clients train everything together,
and send all but the head, which stays with them.

FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021, Algorithm 1.
First a client trains its head alone on the encoder that it downloaded, for a number of steps; then it trains the
encoder alone, with that head. Only the encoder is sent.
"""

from __future__ import annotations

import torch

from fedarena.algorithms.checks import check_layers_can_rest
from fedarena.algorithms.fedbn import FedBN
from fedarena.algorithms.layers import check_patterns, last_layer, matching
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Client, Groups, LocalTraining
from fedarena.train.batches import IntArray


@ALGORITHMS.register("local_head")
class LocalHead(FedBN):
    """The last layer stays on the clients, or those that `head_layers` names as in ``["layer4.*", "fc.*"]``.

    With `head_steps` above 0 it is FedRep: so many steps train the head alone, before as many as `local` says train
    the rest alone. With 0 it is FedPer: all is trained together. The server has momentum `beta`, as that of `fedavgm`.
    """

    def __init__(
        self,
        *,
        head_layers: list[str] | None = None,
        head_steps: int = 0,
        server_lr: float = 1.0,
        beta: float = 0.0,
    ):
        super().__init__(server_lr=server_lr, beta=beta)
        if head_steps < 0:
            raise BadInputError(f"algorithm.head_steps must be at least 0, not {head_steps}")
        self.head_layers, self.head_steps = head_layers, head_steps

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs a local optimizer that leaves alone what has no gradient, if parts are trained in turn."""
        super().prepare(population, local, horizon)
        if self.head_steps and (local.optimizer != "sgd" or local.momentum):
            raise BadInputError(
                "local_head with algorithm.head_steps is defined for local.optimizer=sgd without momentum, which would "
                "go on moving the head while the rest is trained"
            )
        if self.head_steps:
            check_layers_can_rest("local_head with algorithm.head_steps", local)

    def notes(self, params: Tensors) -> list[str]:
        """Says so when clients share nothing."""
        return self._sharing_notes(params)

    def server_init(self, params: Tensors) -> Groups:
        """All parameters; those of the head never change here."""
        check_patterns(params, "head_layers", self.head_layers or [])
        return super().server_init(params)

    def local_steps(self, samples: IntArray, local: LocalTraining) -> IntArray:
        """Those of the head first, for everybody who has a sample."""
        return super().local_steps(samples, local) + self.head_steps * (samples > 0)

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Nothing for what is not its turn; what weight decay is going to add is taken away from it, too."""
        if not self.head_steps:
            return grad
        is_turn_of_head = torch.as_tensor(client.job.step) <= self.head_steps
        decay = client.job.hyperparameter("local.weight_decay", self.local.weight_decay)
        head = self._local(params)
        corrected: Tensors = {}
        for name, g in grad.items():
            is_trained = (is_turn_of_head if name in head else ~is_turn_of_head).to(g)
            corrected[name] = is_trained * g - (1 - is_trained) * decay * params[name]
        return corrected

    def _local(self, params: Tensors) -> list[str]:
        return last_layer(params) if self.head_layers is None else matching(params, self.head_layers)
