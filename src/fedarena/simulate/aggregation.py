"""The weighted mean of the clients' updates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.train import Groups, map_groups


def weighted_sum(updates: Groups, weights: npt.NDArray[np.float64]) -> Groups:
    """The sum of the updates of several clients (a row each), each times its weight."""

    def add_up(rows: Tensor) -> Tensor:
        factors = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
        return (factors @ rows.reshape(len(weights), -1)).view(rows.shape[1:])

    return map_groups(add_up, updates)


class WeightedMean:
    """Adds sums in the order they are given, so the mean does not depend on who computed them."""

    def __init__(self) -> None:
        self._sum: Groups = {}
        self._weight = 0.0
        self._clients = 0

    def add(self, sums: Groups, weight: float, clients: int) -> None:
        """Counts the weighted sum of some clients' updates."""
        for group, tensors in sums.items():
            total = self._sum.setdefault(group, {})
            for name, t in tensors.items():
                total[name] = total[name].add_(t) if name in total else t.clone()
        self._weight += weight
        self._clients += clients

    def mean(self) -> Groups:
        """The mean so far, and how many clients it is of; there must have been an update of positive weight."""
        mean = map_groups(lambda t: t / self._weight, self._sum)
        return {**mean, "cohort": {"clients": torch.tensor(self._clients, dtype=torch.float64)}}
