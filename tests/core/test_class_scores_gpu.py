"""Metrics of classes on a GPU, where there is one: the numbers of the CPU, of one model and of personal ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedarena.models import DataSpec
from fedarena.models.tasks.multi_label import MultiLabel
from fedarena.train.evaluation import evaluate_clients
from fedarena.train.personal import score_each, score_stacked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")

CLASSES, FEATURES = 6, 5
METRICS = (
    *("average_precision", "micro_average_precision", "auc", "macro_precision", "macro_recall", "f1_of_averages"),
    *("micro_precision", "micro_recall", "micro_f1", "balanced_accuracy", "tail_average_precision", "head_recall"),
)


class Data:
    """A few clients with labels."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.sizes = np.array([3, 1, 40, 7, 90])
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        total = int(self.sizes.sum())
        y = (random.random((total, CLASSES)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0]).astype(np.uint8)
        self.columns = {"x": random.normal(size=(total, FEATURES)).round(1), "y": y}

    def counts(self, clients: np.ndarray, part: str) -> np.ndarray:
        return self.sizes[clients]

    def samples(self, clients: np.ndarray, part: str) -> Data:
        assert clients.tolist() == list(range(len(self.sizes)))
        return self


def test_all_metrics_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(FEATURES, CLASSES).double()
    spec = DataSpec("multi_label", CLASSES, (FEATURES,), class_counts=(90, 60, 40, 20, 10, 1))
    task, data = MultiLabel(module, spec, metrics=METRICS), Data()
    found = {}
    for device in ("cpu", "cuda"):
        params = {name: p.detach().to(device) for name, p in module.named_parameters()}
        found[device] = evaluate_clients(task, params, data, np.arange(5), "test", batch_size=16)
        models = {name: torch.stack([p * (1 + client) for client in range(5)]) for name, p in params.items()}
        placed = MultiLabel(module.to(device), spec, metrics=METRICS)
        with torch.no_grad():
            stacked, each = (score(placed, models, data, placed.metrics) for score in (score_stacked, score_each))
        for name, states in stacked.states.items():
            np.testing.assert_allclose(states, each.states[name], atol=1e-9, err_msg=name)
        module.cpu()
    for name, scores in found["cpu"].metrics.items():
        np.testing.assert_allclose(scores.total, found["cuda"].metrics[name].total, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(scores.values, found["cuda"].metrics[name].values, atol=1e-9, err_msg=name)
    ours, theirs = (found[device].classes for device in ("cuda", "cpu"))
    assert ours.samples.tolist() == theirs.samples.tolist()
    assert ours.clients.tolist() == theirs.clients.tolist()
    for name, values in ours.values.items():
        np.testing.assert_allclose(values, theirs.values[name], atol=1e-9, err_msg=name)
