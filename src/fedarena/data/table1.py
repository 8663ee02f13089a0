"""Table 1 of LEAF (Caldas et al., 2019): what its authors counted, to stand beside what is counted here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSizes:
    """A row of the table, which has no skewness."""

    clients: int
    samples: int
    mean: float
    std: float


# By the federations here that are made from the same data.
LEAF_TABLE_1 = {
    "femnist": PublishedSizes(3_550, 805_263, 226.83, 88.94),
    "sent140": PublishedSizes(660_120, 1_600_498, 2.42, 4.71),
    "shakespeare": PublishedSizes(1_129, 4_226_158, 3_743.28, 6_212.26),
    "celeba": PublishedSizes(9_343, 200_288, 21.44, 7.63),
    "reddit": PublishedSizes(1_660_820, 56_587_343, 34.07, 62.95),
}
