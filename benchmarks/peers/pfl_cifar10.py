"""pfl-research's own benchmark on CIFAR-10, with its settings and callbacks, on the clients in a file.

Its loop trains, evaluates the test photos every ten rounds and writes metrics to a file, as its benchmark does. Photos
are those of the file, for both tools: pfl's own script mixes up colours and places when it unpacks the archive.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.aggregate_metrics_to_disk import AggregateMetricsToDisk
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn
from torch.nn import functional as F

from protocol import answer, available_cores

EVERY = 10
COHORT, NOISE_COHORT, POPULATION = 50, 1000, 10**6
EPSILON, DELTA, CLIP_NORM = 2.0, 1e-6, 0.4


class Learner(nn.Module):
    """The network with the methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )
        for layer in self.network:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.train(not eval)
        scores = self.network(x)
        loss, right = F.cross_entropy(scores, y, reduction="sum"), (scores.argmax(-1) == y).sum()
        return {"loss": Weighted(loss.item(), len(y)), "accuracy": Weighted(right.item(), len(y))}


class Accuracies(TrainingProcessCallback):
    """Notes the accuracy after every evaluation, and how many seconds after the start of the process that was.

    Ends training at an evaluation if it has taken too long by then.
    """

    def __init__(self, began: float, most_seconds: float) -> None:
        self.began, self.most_seconds = began, most_seconds
        self.rounds = 0
        self.found: list[tuple[int, float, float]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.rounds = central_iteration + 1
        told = {str(name): value for name, value in aggregate_metrics.to_simple_dict().items()}
        accuracy = next((value for name, value in told.items() if name.endswith("| accuracy")), None)
        if accuracy is not None:
            seconds = time.monotonic() - self.began
            # What is told with the first round is of the model before it, all else of the one after.
            self.found.append((self.rounds if central_iteration else 0, seconds, float(accuracy)))
            return seconds > self.most_seconds, Metrics()
        return False, Metrics()


def read_clients(path: Path, device: torch.device) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Everybody's photos, and the test photos, normalized by colour."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    scaled = arrays["train_x"].astype(np.float32)
    mean, deviation = (f(scaled, axis=(0, 2, 3), dtype=np.float64) for f in (np.mean, np.std))

    def tensors(part: str) -> tuple[Tensor, Tensor]:
        x = (arrays[f"{part}_x"] - mean[:, None, None]) / deviation[:, None, None]
        return torch.from_numpy(x.astype(np.float32)).to(device), torch.from_numpy(arrays[f"{part}_y"]).to(device)

    x, y = tensors("train")
    sizes = np.diff(arrays["offsets"]).tolist()
    return list(zip(x.split(sizes), y.split(sizes), strict=True)), tensors("test")


def postprocessors(private: bool, rounds: int) -> list[Postprocessor]:
    if not private:
        return [WeightByUser()]
    accountant = PLDPrivacyAccountant(
        num_compositions=rounds,
        sampling_probability=NOISE_COHORT / POPULATION,
        mechanism="gaussian",
        epsilon=EPSILON,
        delta=DELTA,
        noise_scale=COHORT / NOISE_COHORT,
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant=accountant, clipping_bound=CLIP_NORM)
    return [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--only", type=int, help="end after so many of the rounds that the noise is for")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end at the first evaluation after so long")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--processes", type=int, default=1 if torch.cuda.is_available() else available_cores())
    arguments = parser.parse_args()
    if arguments.processes > 1 and "LOCAL_RANK" not in os.environ:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.processes}"]
        os.execv(sys.executable, [sys.executable, "-m", *launcher, __file__, *sys.argv[1:]])
    torch.set_num_threads(max(1, available_cores() // arguments.processes))
    torch.manual_seed(arguments.seed)
    np.random.seed(arguments.seed)
    began = float(os.environ.get("BEGAN", time.monotonic()))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    users, test = read_clients(arguments.clients, device)
    learner = Learner().to(device)
    model = PyTorchModel(
        learner,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )
    data = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
    backend = SimulatedBackend(data, data, postprocessors=postprocessors(arguments.private, arguments.rounds))
    accuracies = Accuracies(began, arguments.seconds)
    params = NNAlgorithmParams(
        central_num_iterations=arguments.only or arguments.rounds,
        evaluation_frequency=EVERY,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        FederatedAveraging().run(
            params,
            backend,
            model,
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=10),
            NNEvalHyperParams(local_batch_size=10_000),
            callbacks=[
                CentralEvaluationCallback(Dataset(raw_data=list(test)), NNEvalHyperParams(10_000), EVERY),
                AggregateMetricsToDisk(str(Path(folder) / "metrics.csv")),
                accuracies,
            ],
            send_metrics_to_platform=True,
        )
        last = learner.metrics(*test)["accuracy"].overall_value
    if os.environ.get("RANK", "0") == "0":
        answer({"accuracy": last, "curve": accuracies.found, "rounds": accuracies.rounds})


if __name__ == "__main__":
    main()
