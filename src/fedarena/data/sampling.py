"""Taking a part of a dataset's users: those with enough samples, and of these a fraction of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import bits
from fedarena.data.store.schema import IntArray

# The options of sources with many users, as LEAF has them: -k, --sf and --smplseed.
MinimumSamples = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Sampling:
    """Which users are taken.

    Users are taken in random order until they have `fraction` of all samples, those with fewer than `minimum_samples`
    are left out then. As in LEAF, the fraction is one of all data, not of what has enough samples.
    """

    fraction: float = 1.0
    minimum_samples: int = 1
    seed: int = 0

    def choose(self, sizes: IntArray) -> IntArray:
        """The indexes of the users that are taken, ascending, from everybody's number of samples."""
        users = np.arange(len(sizes), dtype=np.int64)
        if self.fraction < 1:
            order = np.argsort(bits(self.seed, "sampling/users", users), kind="stable")
            before = np.cumsum(sizes[order]) - sizes[order]
            users = np.sort(order[before < self.fraction * sizes.sum()])
        kept: IntArray = users[sizes[users] >= self.minimum_samples]
        if not len(kept):
            most = int(sizes[users].max(initial=0))
            raise BadInputError(
                f"federation.minimum_samples is {self.minimum_samples}, but nobody has more than {most:,} samples"
            )
        return kept
