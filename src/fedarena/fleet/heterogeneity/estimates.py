"""A number that was estimated several times: its mean, and an interval that probably holds the true one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.fleet.arrays import FloatArray


@dataclass(frozen=True)
class Estimate:
    """Mean of independent repetitions and Student's confidence interval around it, NaN where there is only one.

    A value of infinity means that the simulated training never ends; so does the mean, then.
    """

    values: tuple[float, ...]
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: FloatArray, confidence: float) -> Estimate:
        """Summarizes repetitions.

        >>> estimate = Estimate.of(np.array([1.0, 2.0, 3.0]), confidence=0.95)
        >>> f"{estimate.low:.3f} {estimate.mean:.3f} {estimate.high:.3f}"
        '-0.484 2.000 4.484'
        """
        mean = float(np.mean(values))
        half = math.nan
        if len(values) > 1 and math.isfinite(mean):
            from scipy.special import stdtrit  # not at the top, because nobody else among fleets needs it

            error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
            half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
        return cls(tuple(values.tolist()), mean, mean - half, mean + half)

    @property
    def never(self) -> bool:
        """Whether the simulated training never ends."""
        return math.isinf(self.mean)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, in which what is not finite is null."""
        return {
            "mean": _plain(self.mean),
            "low": _plain(self.low),
            "high": _plain(self.high),
            "never": self.never,
            "values": [_plain(value) for value in self.values],
        }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
