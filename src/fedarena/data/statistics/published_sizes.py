"""How many clients and samples authors counted in their data, to stand beside what is counted here."""

from __future__ import annotations

from dataclasses import dataclass

SCOPE = "all of the data, before it was sampled or divided"


@dataclass(frozen=True)
class PublishedSizes:
    """A row of a paper's table; none has the skewness, and not all have mean and standard deviation."""

    clients: int
    samples: int
    mean: float | None
    std: float | None
    counted: str  # what a sample is there
    scope: str = SCOPE
    paper: str = "LEAF"
    table: str = "Table 1"
