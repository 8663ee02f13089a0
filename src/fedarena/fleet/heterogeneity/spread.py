"""How much clients differ, apart from how slow or absent they are altogether."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedarena.fleet.arrays import FloatArray
from fedarena.fleet.heterogeneity.costs import DeviceCosts


@dataclass(frozen=True)
class DeviceSpread:
    """The time that clients need for a round if they never leave.

    `to_deadline` says how slow the fleet is, `variation` and `p90_to_p10` how much its devices differ from each other,
    `variation_within` how much one device differs from round to round. Variations are coefficients: the standard
    deviation relative to the mean.
    """

    mean_seconds: float
    to_deadline: float
    variation: float
    p10_seconds: float
    p90_seconds: float
    variation_within: float

    @classmethod
    def of(cls, costs: DeviceCosts, deadline_seconds: float) -> DeviceSpread:
        """From the exact means and variances of clients' times."""
        means, variances = costs.means_and_variances()
        mean = float(means.mean())
        low, high = (float(value) for value in np.percentile(means, (10, 90)))
        between, within = (_relative(spread, mean) for spread in (means.std(), np.sqrt(variances.mean())))
        return cls(mean, mean / deadline_seconds, between, low, high, within)

    @property
    def p90_to_p10(self) -> float:
        """How many times as long a slow client takes as a fast one; 1 if neither takes any time."""
        return self.p90_seconds / self.p10_seconds if self.p10_seconds else (math.inf if self.p90_seconds else 1.0)


@dataclass(frozen=True)
class StateSpread:
    """How often clients are available, and how unequally that is distributed among them.

    The Gini coefficient is 0 where all have the same, and near 1 where one has all.
    """

    mean_share: float
    gini_share: float
    never_share: float  # of clients that are never available
    mean_metric: float  # of the single-state metric
    gini_metric: float

    @classmethod
    def of(cls, shares: FloatArray, state_metric: FloatArray) -> StateSpread:
        """From clients' available shares of the time, and their single-state metrics."""
        return cls(
            float(shares.mean()),
            gini(shares),
            float((shares == 0).mean()),
            float(state_metric.mean()),
            gini(state_metric),
        )


def gini(values: FloatArray) -> float:
    """Half the mean difference of two of the values, relative to their mean; 0 where all are 0.

    >>> gini(np.array([1.0, 1.0, 1.0])), gini(np.array([0.0, 0.0, 0.0, 1.0]))
    (0.0, 0.75)
    """
    total = float(values.sum())
    if not total:
        return 0.0
    count = len(values)
    weights = 2 * np.arange(1, count + 1) - count - 1
    return float((weights * np.sort(values)).sum() / (count * total))


def _relative(spread: float, mean: float) -> float:
    return float(spread) / mean if mean else 0.0


def plain(spread: DeviceSpread | StateSpread) -> dict[str, Any]:
    """The numbers as plain JSON."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(spread).items()}
