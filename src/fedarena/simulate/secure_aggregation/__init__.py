"""Ways in which a server gets the sums of groups of clients' updates, and no single one; one per file."""

from fedarena.simulate.secure_aggregation.base import (
    SECURE_AGGREGATIONS,
    SECURE_COLUMNS,
    NoSecureAggregation,
    SecureAggregation,
)
from fedarena.simulate.secure_aggregation.bonawitz import Bonawitz
from fedarena.simulate.secure_aggregation.rounds import SecureRounds

__all__ = [
    "SECURE_AGGREGATIONS",
    "SECURE_COLUMNS",
    "Bonawitz",
    "NoSecureAggregation",
    "SecureAggregation",
    "SecureRounds",
]
