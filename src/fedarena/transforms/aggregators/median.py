"""The median of every coordinate. Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, combine_columns, count_between, sorted_columns
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("median")
class Median(Defence):
    """Every coordinate's median; of an even number of clients, the mean of the two in the middle.

    With `weighted` clients count as the algorithm says: the value with half of the weight on either side.
    """

    def __init__(self, *, weighted: bool = False, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        self.weighted = weighted

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The medians, and how often each client's value was one (or one of two in the middle)."""

        def combine(rows: Tensor) -> tuple[Tensor, Tensor]:
            below, above = weighted_middle(rows, updates.weights) if self.weighted else middle(rows)
            return (below.double() + above.double()) / 2, count_between(rows, below, above)

        return *combine_columns(updates, combine), kept


def middle(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The two values in the middle of every column, or twice the only one."""
    ordered = sorted_columns(rows)
    count = len(rows)
    return ordered[:, (count - 1) // 2], ordered[:, count // 2]


def weighted_middle(rows: Tensor, weights: FloatArray) -> tuple[Tensor, Tensor]:
    """The values of every column at which the weights so far reach half of all, and exceed it."""
    ordered, order = rows.sort(dim=0, stable=True)
    so_far = torch.from_numpy(np.asarray(weights)).to(rows.device)[order].cumsum(0)
    half = so_far[-1] / 2
    close = 1e-12 * half  # sums of weights round
    lower, upper = ((so_far < half + shift).sum(0, keepdim=True) for shift in (-close, close))
    last = len(rows) - 1
    return ordered.gather(0, lower.clamp(max=last))[0], ordered.gather(0, upper.clamp(max=last))[0]
