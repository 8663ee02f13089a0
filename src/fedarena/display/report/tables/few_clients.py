"""Few clients, such as four hospitals: each by its name, and who fares worst under every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedarena.analysis.leading_metric import runs_with
from fedarena.display.report.methods import methods_of, samples_by_client, scores_by_client
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

MOST_NAMED: Final = 12


@dataclass(frozen=True)
class NamedClient:
    """One client after the last evaluation of each method."""

    name: str
    samples: int  # that it is evaluated on
    scores: Mapping[str, Spread | None]  # by method


@dataclass(frozen=True)
class NamedClients:
    """All evaluated clients, the one with the worst mean over methods first."""

    metric: MetricInfo
    labels: tuple[str, ...]
    clients: tuple[NamedClient, ...]

    def worst(self, label: str) -> NamedClient | None:
        """The client with the worst mean under a method; None where the method has no scores."""
        known = [(score.mean, client) for client in self.clients if (score := client.scores[label]) is not None]
        if not known:
            return None
        return (min if self.metric.higher_is_better else max)(known, key=lambda pair: pair[0])[1]


def named_clients(runs: Sequence[RunData], metric: MetricInfo) -> NamedClients | None:
    """The scores of all clients by their names; None where they are too many, or a single one."""
    having = runs_with(runs, metric)
    if any(run.clients.num_rows > MOST_NAMED * max(run.rounds.num_rows, 1) for run in having):
        return None  # not even to be listed
    methods = methods_of(having) if having else ()
    scores: dict[str, dict[str, list[float]]] = {}  # by client and method
    samples: dict[str, int] = {}
    for method in methods:
        for run in method.counted:
            samples |= samples_by_client(run)
            for client, score in scores_by_client(run, metric).items():
                scores.setdefault(client, {}).setdefault(method.label, []).append(score)
    if not 2 <= len(scores) <= MOST_NAMED:
        return None
    labels = tuple(method.label for method in methods)
    clients = [
        NamedClient(name, samples[name], {label: Spread.of(found.get(label, [])) for label in labels})
        for name, found in scores.items()
    ]
    sign = 1 if metric.higher_is_better else -1
    return NamedClients(metric, labels, tuple(sorted(clients, key=lambda client: (sign * _mean(client), client.name))))


def _mean(client: NamedClient) -> float:
    return float(np.mean([score.mean for score in client.scores.values() if score is not None]))
