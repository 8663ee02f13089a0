"""pfl-research in the speed benchmark: its federated averaging on a simulated backend, without evaluation.

Clients are shared out among one process per core, each with one thread, which is how pfl uses several cores. The script
starts these processes itself; `--processes 1` keeps everything in one, with all cores for one client at a time.
`--privacy gaussian` or `adaptive` adds its central Gaussian mechanism, with a fixed or an adapted clipping bound.
"""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn
from torch_models import build_module, cross_entropy, module_loss

from protocol import answer, available_cores, measure, read_arguments, workload_of
from workloads import Workload

CORES = available_cores()
CLIP_NORM, NOISE, QUANTILE = 1.0, 0.01, 0.1  # so little noise that training goes on as without


def postprocessors(privacy: str, clients: int) -> list[Postprocessor]:
    """What happens to updates on their way."""
    if privacy == "none":
        return [WeightByDatapoints()]
    if privacy == "gaussian":
        return [WeightByUser(), CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP_NORM, NOISE))]
    return [
        WeightByUser(),
        AdaptiveClippingGaussianMechanism(
            lambda bound: GaussianMechanism(bound, NOISE), CLIP_NORM, 0.1 * clients, QUANTILE
        ),
    ]


class Learner(nn.Module):
    """A module with the methods that pfl asks for."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Run:
    """Federated averaging that goes on as far as it is told."""

    def __init__(self, workload: Workload, privacy: str = "none"):
        self.workload = workload
        np.random.seed(0)  # of all processes: pfl lets every one draw the same cohort
        self.learner = Learner(build_module(workload.model))
        self.model = PyTorchModel(
            self.learner,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.learner.parameters(), lr=1.0),
        )
        users = {
            number: Dataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=str(number))
            for number, (x, y) in enumerate(workload.clients)
        }
        # Telling pfl the sizes would balance the processes, but the sampler that it starts for that costs more.
        data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
        self.backend = SimulatedBackend(data, data, postprocessors=postprocessors(privacy, len(users)))
        self.local = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch_size
        )

    def run_rounds(self, rounds: int) -> None:
        params = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=len(self.workload.clients),
            val_cohort_size=None,
        )
        with contextlib.redirect_stdout(None):
            FederatedAveraging().run(params, self.backend, self.model, self.local, send_metrics_to_platform=False)

    def loss(self) -> float:
        return module_loss(self.learner.network, self.workload)


def first_decides(rounds: int) -> int:
    """The number of rounds that the first process found right."""
    if not torch.distributed.is_initialized():
        return rounds
    decided = torch.tensor(rounds)
    torch.distributed.broadcast(decided, src=0)
    return int(decided)


def main() -> None:
    arguments = read_arguments(__doc__, processes=str(CORES), privacy="none")
    processes = int(arguments.processes)
    if processes > 1 and "LOCAL_RANK" not in os.environ:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        os.execv(sys.executable, [sys.executable, "-m", *launcher, __file__, *sys.argv[1:]])
    torch.set_num_threads(CORES // processes)
    workload = workload_of(arguments)
    run = Run(workload, arguments.privacy)
    result = measure("pfl", "pfl", workload, arguments.seconds, run.run_rounds, run.loss, first_decides)
    if os.environ.get("RANK", "0") == "0":
        answer({**result, "setting": f"{processes} processes, torch {torch.__version__}"})


if __name__ == "__main__":
    main()
