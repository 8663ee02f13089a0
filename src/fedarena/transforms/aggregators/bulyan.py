"""Krum again and again, then a trimmed mean. El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed
Learning in Byzantium", ICML 2018.

With f corrupted clients among n, Krum selects θ = n - 2f updates, one after the other, each among those that are left.
Of every coordinate of these, the mean of the θ - 2f values that are nearest to the median is taken. n ≥ 4f + 3 is
needed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, combine_columns, corrupted_among, too_few
from fedarena.transforms.aggregators.krum import best_first
from fedarena.transforms.rows import FloatArray, IntArray


@AGGREGATORS.register("bulyan")
class Bulyan(Defence):
    """Selects by Krum, and trims what it has selected, for a `share` of corrupted clients (rounded up)."""

    def __init__(self, *, share: float = 0.1, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        if not 0 <= share < 0.25:
            raise BadInputError(f"aggregator.share must be at least 0 and below 0.25 for bulyan, not {share}")
        self.share = share

    def shortage(self, updates: int) -> str | None:
        """The paper's condition."""
        corrupted = corrupted_among(self.share, updates)
        return too_few(updates, 4 * corrupted + 3, "4f + 3", corrupted)

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The trimmed means; who was not selected counts 0, and others by how many coordinates were near the median."""
        corrupted = corrupted_among(self.share, len(updates))
        chosen = select(updates.squared_distances(), corrupted)
        positions = torch.from_numpy(chosen)

        def combine(rows: Tensor) -> tuple[Tensor, Tensor]:
            places = positions.to(rows.device)
            some = rows[places]
            used = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
            values, of_chosen = near_median(some, len(some) - 2 * corrupted)
            return values, used.index_copy(0, places, of_chosen)

        return *combine_columns(updates, combine), kept


def select(squared_distances: FloatArray, corrupted: int) -> IntArray:
    """The positions of the n - 2f updates that Krum selects one after the other, sorted."""
    count = len(squared_distances)
    others = squared_distances.copy()
    np.fill_diagonal(others, -1.0)  # itself comes first
    neighbours = np.argsort(others, axis=1, kind="stable")[:, 1:]
    distances = np.take_along_axis(squared_distances, neighbours, axis=1)
    left = np.arange(count)
    while len(left) > 2 * corrupted:
        nearest = max(len(left) - corrupted - 2, 1)
        best = best_first(distances[:, :nearest].sum(1), distances.sum(1))[0]
        # Who is selected is nobody's neighbour any more.
        stay = np.delete(neighbours, best, axis=0) != left[best]
        shape = (len(left) - 1, max(len(left) - 2, 0))
        neighbours = np.delete(neighbours, best, axis=0)[stay].reshape(shape)
        distances = np.delete(distances, best, axis=0)[stay].reshape(shape)
        left = np.delete(left, best)
    return np.setdiff1d(np.arange(count), left)


def near_median(rows: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Every column's mean of the values that are nearest to its median, and how many of them each row has.

    Of two that are as near, one below and one above, the one below comes first.
    """
    ordered, order = rows.sort(dim=0, stable=True)
    values, count = ordered.double(), len(rows)
    median = (values[(count - 1) // 2] + values[count // 2]) / 2
    nearest = (values - median).abs().sort(dim=0, stable=True).indices[:number]
    used = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device).scatter_(0, order.gather(0, nearest), 1)
    return values.gather(0, nearest).mean(0), used.sum(1)
