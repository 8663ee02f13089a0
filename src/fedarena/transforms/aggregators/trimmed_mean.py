"""The mean without extremes. Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018."""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.train import Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import (
    Defence,
    check_share,
    combine_columns,
    corrupted_among,
    count_between,
    sorted_columns,
    too_few,
)
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("trimmed_mean")
class TrimmedMean(Defence):
    """Every coordinate's mean without the `share` of the clients with the largest values, and that with the smallest.

    Shares of clients are rounded up.
    """

    def __init__(self, *, share: float = 0.1, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        check_share(share)
        self.share = share

    def shortage(self, updates: int) -> str | None:
        """Somebody must be left."""
        trimmed = corrupted_among(self.share, updates)
        return super().shortage(updates) or too_few(updates, 2 * trimmed + 1, "2f + 1", trimmed)

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The means, and for how many of its coordinates each client was kept."""
        trimmed = corrupted_among(self.share, len(updates))

        def combine(rows: Tensor) -> tuple[Tensor, Tensor]:
            left = sorted_columns(rows)[:, trimmed : len(rows) - trimmed]
            return left.mean(1, dtype=torch.float64), count_between(rows, left[:, 0], left[:, -1])

        return *combine_columns(updates, combine), kept
