"""What is known about a metric apart from how it is computed: its name, how people read it, and which way is up.

A run keeps this with its results (``summary.json``, under ``metrics``), so that tables and figures of a run need to
know nothing about the task it was for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

_MOST_DECIMALS: Final = 9  # smaller values are zeros to people


@dataclass(frozen=True)
class MetricInfo:
    """A metric as those see it who only show and compare numbers."""

    name: str  # of its columns
    label: str  # as people read it, in the middle of a sentence
    higher_is_better: bool = True
    low: float | None = None  # what no value is below; None: there is no such bound
    high: float | None = None
    decimals: int = 4

    def text(self, value: float | None) -> str:
        """A value as it is printed.

        >>> MetricInfo("accuracy", "accuracy", low=0, high=1).text(0.75)
        '0.7500'
        """
        if value is None or value != value:
            return "–"
        return f"{value:.{self.decimals_for(value, self.decimals)}f}"

    def decimals_for(self, value: float, usual: int) -> int:
        """As many decimals as usual; more for a small value of a metric of any size, which would look like zero.

        >>> LOSS.decimals_for(0.3, 3), LOSS.decimals_for(0.00042, 3), ACCURACY.decimals_for(0.00042, 3)
        (3, 5, 3)
        """
        if self.high is not None or not 10.0**-_MOST_DECIMALS <= abs(value) < 1:
            return usual
        return max(usual, min(_MOST_DECIMALS, 1 - math.floor(math.log10(abs(value)))))

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is strictly better than another."""
        return value > than if self.higher_is_better else value < than

    def to_json(self) -> dict[str, Any]:
        """Plain values, for files."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MetricInfo:
        """The inverse of `to_json`."""
        return cls(**values)


LOSS = MetricInfo("loss", "loss", higher_is_better=False, low=0.0)
ACCURACY = MetricInfo("accuracy", "accuracy", low=0.0, high=1.0)
# What every run had before runs said what they measure.
FORMER_METRICS = (LOSS, ACCURACY)
