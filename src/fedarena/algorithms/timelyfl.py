"""TimelyFL. Zhang et al., "TimelyFL: Heterogeneity-aware Asynchronous Federated Learning with Adaptive Partial
Training", CVPR Workshops 2023; as FLHetBench (CVPR 2024) uses it.

A client that would be late trains only the last layers, as many as it has the time for: that saves their part of the
backward pass and of the upload. The server averages every layer over those who trained it. How fast phones are is taken
to be known when a round begins; when they leave is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.algorithms.checks import check_layers_can_rest
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.layers import layer_of
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import COVERAGE, Client, Groups, LocalTraining, PartialWork, Work
from fedarena.train.systems_hooks import SHARE_ROUNDING

_SINGLE_ROUNDING = 1e-6  # shares are numbers of single precision on their way to a client


@ALGORITHMS.register("timelyfl")
class TimelyFL(FedAvg):
    """Federated averaging in which clients train as many of the last layers as they have the time for.

    They have until the protocol's deadline. Where there is none, the `whole_jobs` fastest share of those invited
    together trains everything, and the others what takes no longer than that; in asynchronous protocols, everybody.
    """

    def __init__(self, *, whole_jobs: float = 0.5, server_lr: float = 1.0):
        super().__init__(server_lr=server_lr)
        if not 0 < whole_jobs <= 1:
            raise BadInputError(f"algorithm.whole_jobs must be above 0 and at most 1, not {whole_jobs}")
        self.partial_work = PartialWork("layers", whole_jobs)

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs layers that stay as they are where they have no gradient."""
        super().prepare(population, local, horizon)
        check_layers_can_rest("timelyfl", local)

    def notes(self, params: Tensors) -> list[str]:
        """Says so when there is nothing to leave out."""
        if len(set(map(layer_of, params))) > 1:
            return []
        return ["The model has a single layer, so with timelyfl everybody trains and sends all of it"]

    def possible_shares(self, wanted: Any, samples: Any, params: Tensors) -> Any:
        """The largest shares of the parameters, not above those wanted, that are whole layers; one layer at least."""
        possible = np.unique(list(_shares_from(params).values()))
        return possible[np.maximum(np.searchsorted(possible, wanted + SHARE_ROUNDING, side="right") - 1, 0)]

    def local_gradient(self, grad: Tensors, params: Tensors, client: Client) -> Tensors:
        """Nothing for layers that are not trained; what weight decay is going to add is taken away from them, too."""
        trained = _trained(params, client)
        decay = client.job.hyperparameter("local.weight_decay", self.local.weight_decay)
        return {name: trained[name] * g - (1 - trained[name]) * decay * params[name] for name, g in grad.items()}

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The change of the trained layers, and which these are."""
        change = {name: p - client.broadcast["params"][name] for name, p in params.items()}
        return {"params": change, COVERAGE: _trained(params, client)}, client.state


def _trained(params: Tensors, client: Client) -> Tensors:
    """1 for the parameters that a client trains, 0 for the others."""
    share, least = client.job.share, _shares_from(params)
    return {name: (share >= least[name] - _SINGLE_ROUNDING).to(p.dtype) for name, p in params.items()}


def _shares_from(params: Tensors) -> dict[str, float]:
    """For every parameter, how much of the whole model lies in its layer and those after it."""
    sizes: dict[str, int] = {}
    for name, p in params.items():
        sizes[layer_of(name)] = sizes.get(layer_of(name), 0) + p.numel()
    total, left, shares = sum(sizes.values()), 0, {}
    for layer in reversed(sizes):
        left += sizes[layer]
        shares[layer] = left / total
    return {name: shares[layer_of(name)] for name in params}
