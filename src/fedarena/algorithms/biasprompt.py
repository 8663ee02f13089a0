"""BiasPrompt. Zhang et al., "FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning", CVPR 2024.

Federated averaging of a few fast weights of a pretrained model: its biases (Ben Zaken et al., "BitFit", ACL 2022), deep
prompts (Jia et al., "Visual Prompt Tuning", ECCV 2022) and the head. Everything else is frozen: clients have it from
the beginning, so it is neither trained nor sent. With late updates that are used by gradient surgery (the protocol
`staleness_aware`) this is BiasPrompt+.
"""

from __future__ import annotations

from torch import Tensor

from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.layers import check_patterns, last_layer, matching
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train import Client, Groups

# Biases as torch's layers call them, such as in_proj_bias and bias_ih_l0.
_BIASES = ["*bias", "bias_*", "*.bias_*"]
_PROMPTS = ["prompts", "*.prompts"]


@ALGORITHMS.register("biasprompt")
class BiasPrompt(FedAvg):
    """Trains and sends `trained_layers` alone, patterns of parameter names such as ``["*.bias", "head.*"]``.

    By default they are the biases, the prompts (if the model has any) and the last layer.
    """

    expects_weights = True

    def __init__(self, *, trained_layers: list[str] | None = None, server_lr: float = 1.0):
        super().__init__(server_lr=server_lr)
        if trained_layers is not None and not trained_layers:
            raise BadInputError("algorithm.trained_layers must name at least one layer, or else there is no training")
        self.trained_layers = trained_layers

    def notes(self, params: Tensors) -> list[str]:
        """Says what is trained."""
        trained = self._trained(params)
        numbers, of = sum(p.numel() for p in trained.values()), sum(p.numel() for p in params.values())
        what = f"the layers {', '.join(self.trained_layers)}" if self.trained_layers else self._default(params)
        return [f"biasprompt trains and sends {numbers:,} of the model's {of:,} numbers: {what}; the others are frozen"]

    def server_init(self, params: Tensors) -> Groups:
        """All parameters; frozen ones never change."""
        check_patterns(params, "trained_layers", self.trained_layers or [])
        return super().server_init(params)

    def download(self, broadcast: Groups) -> Groups:
        """What is trained; the frozen part came with the model."""
        return {"params": self._trained(broadcast["params"])}

    def local_start(self, client: Client) -> Tensors:
        """What is trained."""
        return self._trained(client.broadcast["params"])

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The loss of the whole model."""
        return task.loss(client.broadcast["params"] | params, batch)

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Federated averaging of what is trained."""
        params, update = state["params"], mean_update["params"]
        return {**state, "params": params | {name: params[name] + self.server_lr * u for name, u in update.items()}}

    def _trained(self, params: Tensors) -> Tensors:
        if self.trained_layers is None:
            chosen = {*matching(params, _BIASES + _PROMPTS), *last_layer(params)}
        else:
            chosen = set(matching(params, self.trained_layers))
        return {name: p for name, p in params.items() if name in chosen}

    def _default(self, params: Tensors) -> str:
        prompts = "prompts" if matching(params, _PROMPTS) else "no prompts (the model has none)"
        return f"biases, {prompts}, and the last layer ({', '.join(last_layer(params))})"
