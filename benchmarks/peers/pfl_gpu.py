"""pfl-research's federated averaging on a GPU, with the clients' samples there already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F


class Learner(nn.Module):
    """A classifier with the methods that pfl asks for."""

    def __init__(self, network: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy):
        super().__init__()
        self.network, self.criterion = network, criterion

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean over the samples."""
        return self.criterion(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """The loss, for evaluation, which is not measured."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


def make_run(network: nn.Module, columns: dict[str, Any], case: Any, cohort: int) -> Callable[[int], None]:
    """A function that does so many rounds of users who all have as many samples."""
    tensors = [torch.from_numpy(columns[name][: cohort * case.samples]).cuda() for name in ("x", "y")]
    users = list(zip(*(t.split(case.samples) for t in tensors), strict=True))
    return make_run_of_users(network, users, case, F.cross_entropy)


def make_run_of_users(
    network: nn.Module,
    users: list[tuple[Tensor, ...]],
    local: Any,
    criterion: Callable[[Tensor, Tensor], Tensor],
    clip_norm: float | None = None,
) -> Callable[[int], None]:
    """A function that does so many rounds of all these users, who have their samples on the GPU already."""
    learner = Learner(network, criterion).cuda()
    model = PyTorchModel(
        learner,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    datasets = {number: Dataset(samples, user_id=str(number)) for number, samples in enumerate(users)}
    data = FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", list(datasets)))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    epochs = getattr(local, "epochs", None) or 1
    training = NNTrainHyperParams(
        local_num_epochs=epochs,
        local_learning_rate=0.01,
        local_batch_size=local.batch_size,
        local_max_grad_norm=clip_norm,
    )

    def run(rounds: int) -> None:
        params = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=len(users),
            val_cohort_size=None,
        )
        with contextlib.redirect_stdout(None):
            FederatedAveraging().run(params, backend, model, training, send_metrics_to_platform=False)

    return run
