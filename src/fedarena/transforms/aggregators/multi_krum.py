"""The mean of several updates that are near to their neighbours. Blanchard et al., NeurIPS 2017 (see krum.py)."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.transforms.aggregators.base import AGGREGATORS
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import corrupted_among
from fedarena.transforms.aggregators.krum import Krum
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("multi_krum")
class MultiKrum(Krum):
    """The mean of the `selected` updates with the smallest scores of Krum; if null, of all but the `share`."""

    def __init__(self, *, share: float = 0.1, selected: int | None = None, staleness_exponent: float = 0.5):
        super().__init__(share=share, staleness_exponent=staleness_exponent)
        if selected is not None and selected < 1:
            raise BadInputError(f"aggregator.selected must be at least 1, not {selected}")
        self.selected = selected

    def shortage(self, updates: int) -> str | None:
        """Krum's condition, and enough to choose from."""
        if self.selected is not None and updates < self.selected:
            return f"is to select {self.selected} of them (aggregator.selected)"
        return super().shortage(updates)

    def weigh(self, updates: Collected) -> FloatArray:
        """1 for those who are chosen."""
        chosen = len(updates) - corrupted_among(self.share, len(updates)) if self.selected is None else self.selected
        weights = np.zeros(len(updates))
        weights[self.order(updates)[:chosen]] = 1.0
        return weights
