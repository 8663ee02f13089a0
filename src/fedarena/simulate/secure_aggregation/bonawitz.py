"""Secure aggregation with masks that cancel. Bonawitz et al., CCS 2017; see `fedarena.client.secure_sum`."""

from __future__ import annotations

import math
from typing import Any, Literal

from fedarena.client.secure_limits import LEAST_MEMBERS, MOST_MEMBERS
from fedarena.client.secure_messages import Traffic
from fedarena.core.errors import BadInputError
from fedarena.simulate.secure_aggregation.base import SECURE_AGGREGATIONS, SecureAggregation, SecureTraffic
from fedarena.transforms.fixed_point import FixedPoint, Rounding, bits_for_weights


@SECURE_AGGREGATIONS.register("bonawitz")
class Bonawitz(SecureAggregation):
    """Groups of clients mask their updates so that the server can read nothing but their sum.

    - `group`: clients of a group, at most; those who have trained in a round form groups of about equal size.
    - `threshold`: a group's sum is lost unless more than this share of it stays to the end.
    - `range`: changes of a parameter are cut off beyond it; `other_range`: other numbers that clients send.
    - `largest_weight`: with which a client may count so that its changes have the whole `range`; it changes nothing
      about how much anybody counts. By default that of the client who counts most.
    - `bits`: of a word, 32 or 64; `rounding`: ``nearest``, or ``stochastic``, which is right in the mean.
    - `trip_seconds`: of virtual time until a short message and its answer have gone between server and phones.
    """

    exists = True
    trips_before = 2  # keys, and sealed shares of secrets
    trips_after = 2  # who is still there, and shares of what takes the masks off

    def __init__(
        self,
        *,
        group: int = 64,
        threshold: float = 2 / 3,
        range: float = 8.0,
        other_range: float = 1024.0,
        largest_weight: float | None = None,
        bits: Literal[32, 64] = 32,
        rounding: Rounding = "nearest",
        trip_seconds: float = 0.1,
    ):
        if not LEAST_MEMBERS <= group <= MOST_MEMBERS:
            raise BadInputError(
                f"secure_aggregation.group must be from {LEAST_MEMBERS} to {MOST_MEMBERS}, not {group}: of two, each "
                "knows the other's update from the sum, and a client's work grows with its group"
            )
        if not 0.5 <= threshold < 1:
            raise BadInputError(
                f"secure_aggregation.threshold must be at least 0.5 and below 1, not {threshold:g}: with less, two "
                "halves of a group could be told different things, and a client's update be read"
            )
        for name, value in (("range", range), ("other_range", other_range), ("largest_weight", largest_weight)):
            if value is not None and not 0 < value < math.inf:
                raise BadInputError(f"secure_aggregation.{name} must be above 0, not {value:g}")
        if not 0 <= trip_seconds < math.inf:
            raise BadInputError(f"secure_aggregation.trip_seconds must not be negative, but is {trip_seconds:g}")
        self.group, self._share = group, threshold
        self.range, self.other_range, self.largest_weight = range, other_range, largest_weight
        self.bits, self.rounding, self.trip_seconds = bits, rounding, trip_seconds

    def fixed_point(self) -> FixedPoint:
        """Bounds are those of an update times its client's weight."""
        assert self.largest_weight is not None
        bound, other = self.range * self.largest_weight, self.other_range * self.largest_weight
        point = bits_for_weights(self.largest_weight)
        return FixedPoint(self.group, bound, other, self.bits, self.rounding, self.noise_deviation, point)

    def threshold(self, members: int) -> int:
        """More than a share of the members."""
        return max(min(math.floor(self._share * members + 1e-9) + 1, members), self.least_survivors)

    def traffic(self, members: int) -> SecureTraffic:
        """By the real encodings of all messages."""
        sizes = Traffic(members)
        return SecureTraffic(sizes.keys_down, sizes.keys_up, sizes.unmasking_down, sizes.unmasking_up)

    def choices(self) -> dict[str, Any]:
        """The largest weight, also where it was found."""
        return {"largest_weight": self.largest_weight}
