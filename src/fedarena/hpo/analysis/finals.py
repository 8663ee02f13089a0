"""What searches ended with: the mean and the spread over repetitions (Tables 13 to 15 of FedHPO-Bench)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.hpo.trajectory import Trajectory


@dataclass(frozen=True)
class FinalResult:
    """What an optimizer ended with on a problem, over repetitions."""

    values: tuple[float, ...]  # of the incumbents, in the order of repetitions; infinite where there is none
    test_metrics: Mapping[str, float]  # means over repetitions of what the incumbents scored on test samples

    @property
    def mean(self) -> float:
        """Infinite if one of the searches found nothing."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def std(self) -> float | None:
        """Of a sample; None with a single repetition."""
        if len(self.values) < 2 or not math.isfinite(self.mean):
            return None
        return float(np.std(self.values, ddof=1))


def final(trajectories: Sequence[Trajectory]) -> FinalResult:
    """Of the repetitions of one optimizer on one problem."""
    best = [one.best for one in trajectories]
    values = tuple(math.inf if one is None else one.value for one in best)
    names = dict.fromkeys(name for one in best if one is not None for name in one.metrics if name.startswith("test_"))
    metrics = {
        name: float(np.mean([one.metrics[name] for one in best if one is not None and name in one.metrics]))
        for name in names
    }
    return FinalResult(values, metrics)
