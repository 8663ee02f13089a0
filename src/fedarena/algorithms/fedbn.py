"""FedBN. Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

FedAvg, except that the normalization layers never leave the clients: each keeps its own, and only the other layers are
sent and averaged. Here any layers may stay, by the names of their parameters; with the last one this is FedPer
(Arivazhagan et al., "Federated Learning with Personalization Layers", 2019). Unlike the paper's BatchNorm, the
normalization of our models (GroupNorm, LayerNorm) has parameters but no running statistics.
"""

from __future__ import annotations

import torch

from fedarena.algorithms.checks import check_fraction
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.layers import PERSONAL_PART, check_patterns, last_layer, layer_of, matching
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Client, Groups, Work


@ALGORITHMS.register("fedbn")
class FedBN(FedAvg):
    """Layers that stay on the clients: `local_layers`, patterns of parameter names such as ``["12.*"]``.

    By default they are the part that a model calls `personal`, as `matrix_factorization` does for a client that is a
    user; without one, the normalization layers; in a model that has none, the last layer. The server has momentum
    `beta`, as that of `fedavgm`.
    """

    def __init__(self, *, local_layers: list[str] | None = None, server_lr: float = 1.0, beta: float = 0.0):
        super().__init__(server_lr=server_lr)
        check_fraction(beta=beta)
        self.local_layers, self.beta = local_layers, beta

    def notes(self, params: Tensors) -> list[str]:
        """Says so when nothing that FedBN is named after is trained, and when clients share nothing."""
        if self.local_layers is not None or _personal(params) or _normalization(params):
            return self._sharing_notes(params)
        return [
            "No normalization layers are trained, so with fedbn the last layer stays on the clients "
            f"({', '.join(last_layer(params))}); algorithm.local_layers names others",
            *self._sharing_notes(params),
        ]

    def _sharing_notes(self, params: Tensors) -> list[str]:
        if len(self._local(params)) < len(params):
            return []
        return ["All that is trained stays on the clients, so they share nothing and train alone"]

    def server_init(self, params: Tensors) -> Groups:
        """All parameters; those of local layers never change here."""
        check_patterns(params, "local_layers", self.local_layers or [])
        state = super().server_init(params)
        local = self._local(params)
        shared = {name: p for name, p in params.items() if name not in local}
        if self.beta and shared:
            state = {**state, "velocity": {name: torch.zeros_like(p) for name, p in shared.items()}}
        return state

    def download(self, broadcast: Groups) -> Groups:
        """The shared layers; what local ones start from came with the model."""
        local = self._local(broadcast["params"])
        return {"params": {name: p for name, p in broadcast["params"].items() if name not in local}}

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's own layers."""
        local = self._local(broadcast["params"])
        return {"local": {name: broadcast["params"][name] for name in local}} if local else {}

    def local_start(self, client: Client) -> Tensors:
        """The shared layers of the server and the client's own."""
        return client.broadcast["params"] | client.state.get("local", {})

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change of the shared layers; the others stay."""
        local = client.state.get("local", {})
        change = {name: p - client.broadcast["params"][name] for name, p in params.items() if name not in local}
        return {"params": change}, {"local": {name: params[name] for name in local}} if local else {}

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Federated averaging of the shared layers."""
        update = mean_update.get("params", {})
        params = state["params"]
        if "velocity" in state:
            update = {name: self.beta * state["velocity"][name] + u for name, u in update.items()}
            state = {**state, "velocity": update}
        return {**state, "params": params | {name: params[name] + self.server_lr * u for name, u in update.items()}}

    def trained_model(self, params: Tensors) -> Tensors:
        """With the client's own layers."""
        return params

    def personal_models(self, client: Client) -> list[Tensors]:
        """The shared layers and the client's own."""
        return [self.local_start(client)]

    def _local(self, params: Tensors) -> list[str]:
        if self.local_layers is None:
            return _personal(params) or _normalization(params) or last_layer(params)
        return matching(params, self.local_layers)


def _personal(params: Tensors) -> list[str]:
    """Parameters of the part that a model is meant to keep with its client."""
    return matching(params, [f"{PERSONAL_PART}.*"])


def _normalization(params: Tensors) -> list[str]:
    """Parameters of layers whose weight is a vector, which only normalization layers have."""
    layers = {layer_of(name) for name, p in params.items() if name.endswith("weight") and p.ndim == 1}
    return [name for name in params if layer_of(name) in layers]
