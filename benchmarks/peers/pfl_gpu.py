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

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """The loss, for evaluation, which is not measured."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


def make_run(network: nn.Module, columns: dict[str, Any], case: Any, cohort: int) -> Callable[[int], None]:
    """A function that does so many rounds."""
    learner = Learner(network).cuda()
    model = PyTorchModel(
        learner,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    tensors = [torch.from_numpy(columns[name][: cohort * case.samples]).cuda() for name in ("x", "y")]
    pieces = zip(*(t.split(case.samples) for t in tensors), strict=True)
    users = {number: Dataset(piece, user_id=str(number)) for number, piece in enumerate(pieces)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.01, local_batch_size=case.batch_size)

    def run(rounds: int) -> None:
        params = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=cohort,
            val_cohort_size=None,
        )
        with contextlib.redirect_stdout(None):
            FederatedAveraging().run(params, backend, model, local, send_metrics_to_platform=False)

    return run
