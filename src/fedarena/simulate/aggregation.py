"""The weighted mean of the clients' updates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fedarena.train import Groups, map_groups


class WeightedMean:
    """Adds updates in the order they are given, so the sum does not depend on who computed them."""

    def __init__(self) -> None:
        self._sum: Groups = {}
        self._weight = 0.0
        self._clients = 0

    def add(self, updates: Groups, weights: npt.NDArray[np.float64]) -> None:
        """Counts the updates of several clients (a row each) with their weights."""
        for group, tensors in updates.items():
            for name, rows in tensors.items():
                factors = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
                weighted = torch.tensordot(factors, rows, dims=1)
                total = self._sum.setdefault(group, {})
                total[name] = total[name] + weighted if name in total else weighted
        self._weight += float(weights.sum())
        self._clients += len(weights)

    def mean(self) -> Groups:
        """The mean so far, and how many clients it is of; there must have been an update of positive weight."""
        mean = map_groups(lambda t: t / self._weight, self._sum)
        return {**mean, "cohort": {"clients": torch.tensor(self._clients, dtype=torch.float64)}}
