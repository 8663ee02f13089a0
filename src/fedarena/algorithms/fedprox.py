"""FedProx. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

FedAvg whose clients minimize their loss plus mu/2 ||w - w_global||², which keeps them near the global model. The
gradient of that term, mu (w - w_global), is added to the gradient of the loss. The paper's second half is that clients
without the time for all of their local steps take as many as they have the time for, instead of being dropped.
"""

from __future__ import annotations

from fedarena.algorithms.checks import check_not_negative
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.models import Tensors
from fedarena.train import Client, PartialWork


@ALGORITHMS.register("fedprox")
class FedProx(FedAvg):
    """Federated averaging with a proximal term of strength `mu`.

    With `partial_work`, clients that would miss the protocol's deadline take fewer local steps, at least one.
    """

    client_options = ("mu",)

    def __init__(self, *, mu: float = 0.01, partial_work: bool = False, server_lr: float = 1.0):
        super().__init__(server_lr=server_lr)
        check_not_negative(mu=mu)
        self.mu = mu
        self.partial_work = PartialWork("steps") if partial_work else None

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Pulls the parameters towards the global model."""
        start, mu = client.broadcast["params"], client.job.hyperparameter("algorithm.mu", self.mu)
        return {name: g + mu * (params[name] - start[name]) for name, g in grad.items()}
