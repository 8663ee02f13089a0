"""What metrics of classes take at FLAIR's size: 1,628 classes, 44,000 pictures of 5,142 users.

    python benchmarks/class_metrics.py
    python benchmarks/class_metrics.py --classes 17
    python benchmarks/class_metrics.py --device cuda --batch-size 1024

Evaluates a linear model by the code that runs use, with all metrics of FLAIR's Table 1 and those of frequent and rare
classes, and says how long that took, beside the model alone, and how much memory, beside what all scores would take.
A few classes are compared with scikit-learn.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from fedarena.models import DataSpec
from fedarena.models.tasks.multi_label import MultiLabel
from fedarena.train.evaluation import evaluate_clients

METRICS = (
    *("average_precision", "micro_average_precision", "macro_precision", "macro_recall", "f1_of_averages"),
    *("micro_precision", "micro_recall", "micro_f1", "macro_f1"),
    *("head_average_precision", "middle_average_precision", "tail_average_precision"),
)
FEATURES = 64
LABELS_A_PICTURE = 6


@dataclass(frozen=True)
class Samples:
    """What an engine reads."""

    columns: dict[str, np.ndarray]
    offsets: np.ndarray


class Users:
    """Users whose pictures are drawn again whenever somebody asks: features, and labels of which most are rare."""

    def __init__(self, users: int, pictures: int, classes: int):
        random = np.random.default_rng(0)
        shares = random.lognormal(0, 1.5, users)
        self.sizes = np.maximum(1, np.round(shares / shares.sum() * pictures)).astype(np.int64)
        self.sizes[0] = max(1, self.sizes[0] + pictures - self.sizes.sum())
        frequency = 1 / np.arange(1, classes + 1) ** 1.1
        self.chance = np.minimum(0.6, frequency / frequency.sum() * min(LABELS_A_PICTURE, classes / 4))
        self.direction = random.normal(size=(classes, FEATURES)).astype(np.float32)

    def counts(self, clients: np.ndarray, part: str) -> np.ndarray:
        return self.sizes[clients]

    def samples(self, clients: np.ndarray, part: str) -> Samples:
        rows = [self._of(int(client)) for client in clients]
        offsets = np.concatenate([[0], np.cumsum(self.sizes[clients])])
        return Samples({name: np.concatenate([row[name] for row in rows]) for name in ("x", "y")}, offsets)

    def _of(self, client: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(client)
        y = (random.random((self.sizes[client], len(self.chance)), dtype=np.float32) < self.chance).astype(np.uint8)
        x = y @ self.direction + random.normal(0, 2, (len(y), FEATURES))
        return {"x": x.astype(np.float32), "y": y}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1628)
    parser.add_argument("--pictures", type=int, default=44_000)
    parser.add_argument("--users", type=int, default=5142)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=64, help="pictures that are scored at once")
    options = parser.parse_args()
    users = Users(options.users, options.pictures, options.classes)
    clients = np.arange(options.users)
    module = nn.Linear(FEATURES, options.classes)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(users.direction) / FEATURES)
        module.bias.fill_(-2.0)
    counts = tuple((users.chance * 345_879).astype(int).tolist())
    spec = DataSpec("multi_label", options.classes, (FEATURES,), class_counts=counts)
    task = MultiLabel(module, spec, metrics=METRICS)
    params = {name: parameter.detach().to(options.device) for name, parameter in module.named_parameters()}

    def seconds_of(number: int) -> tuple[float, object]:
        began = time.perf_counter()
        wanted = task.metrics[:number]
        found = evaluate_clients(task, params, users, clients, "test", options.batch_size, metrics=wanted)
        return time.perf_counter() - began, found

    plain, _ = seconds_of(1)
    before = _megabytes()
    whole, found = seconds_of(len(task.metrics))
    peak = _megabytes()
    pictures = int(users.sizes.sum())
    print(f"{options.classes:,} classes, {pictures:,} pictures of {options.users:,} users, {len(METRICS)} metrics")
    print(f"the loss alone          {plain:8.1f} s, peak memory {before:7,.0f} MB")
    print(f"all metrics             {whole:8.1f} s, peak memory {peak:7,.0f} MB")
    print(f"scores alone would take {'':10} {pictures * options.classes * 4 / 1e6:18,.0f} MB")
    for name in METRICS:
        print(f"  {name:26} {found.metrics[name].total:.4f}")
    _compare(users, clients, module, found.classes)


def _compare(users: Users, clients: np.ndarray, module: nn.Linear, found: object) -> None:
    chosen = np.unique(np.linspace(0, len(users.chance) - 1, 9).astype(int))
    scores, right = [], []
    for client in clients:
        columns = users.samples(np.array([client]), "test").columns
        with torch.no_grad():
            scores.append(module(torch.from_numpy(columns["x"])).numpy()[:, chosen])
        right.append(columns["y"][:, chosen])
    scores, right = np.concatenate(scores), np.concatenate(right)
    largest = 0.0
    for place, label in enumerate(chosen):
        if right[:, place].any():
            wanted = average_precision_score(right[:, place], scores[:, place])
            largest = max(largest, abs(wanted - found.values["average_precision"][label]))
    print(
        f"largest difference to scikit-learn's average precision, of {len(chosen)} classes whose scores are computed "
        f"again, in other batches: {largest:.1e}"
    )


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    main()
