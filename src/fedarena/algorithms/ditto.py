"""Ditto. Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

FedAvg trains a global model w as ever. Beside it every client keeps a model v of its own, which minimizes the client's
loss plus lam/2 ||v - w||², where w is what the client downloaded: on every batch, v = v - lr (grad(v) + lam (v - w)).
A client's v starts at the first w that it downloads; only the change of w is uploaded.
"""

from __future__ import annotations

from torch import Tensor

from fedarena.algorithms.checks import check_not_negative
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Task, Tensors
from fedarena.train import Client, Groups, Work, flatten_groups, unflatten_groups


@ALGORITHMS.register("ditto")
class Ditto(FedAvg):
    """A global model, and personal ones that stay near it by a proximal term of strength `lam`."""

    client_options = ("lam",)

    def __init__(self, *, lam: float = 0.1, server_lr: float = 1.0):
        super().__init__(server_lr=server_lr)
        check_not_negative(lam=lam)
        self.lam = lam

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's own model."""
        return {"personal": broadcast["params"]}

    def local_start(self, client: Client) -> Tensors:
        """Both models."""
        return flatten_groups({"global": client.broadcast["params"], "personal": client.state["personal"]})

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The global model's loss, with the gradients of both."""
        models = unflatten_groups(params)
        personal = task.loss(models["personal"], batch)
        return task.loss(models["global"], batch) + (personal - personal.detach())

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Pulls the personal model towards the global one."""
        models, grads = unflatten_groups(params), unflatten_groups(grad)
        lam = client.job.hyperparameter("algorithm.lam", self.lam)
        pulled = {
            name: g + lam * (models["personal"][name] - client.broadcast["params"][name])
            for name, g in grads["personal"].items()
        }
        return flatten_groups({"global": grads["global"], "personal": pulled})

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change of the global model; the personal one stays."""
        models = unflatten_groups(params)
        change = {name: p - client.broadcast["params"][name] for name, p in models["global"].items()}
        return {"params": change}, {"personal": models["personal"]}

    def trained_model(self, params: Tensors) -> Tensors:
        """The global one, which is uploaded."""
        return unflatten_groups(params)["global"]

    def personal_models(self, client: Client) -> list[Tensors]:
        """The client's own model."""
        return [client.state["personal"]]
