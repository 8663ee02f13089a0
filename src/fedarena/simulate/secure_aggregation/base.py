"""The interface of secure aggregation: what it costs clients, and how their updates become words that are masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedarena.core.registry import Registry
from fedarena.transforms.fixed_point import NOTES, SATURATED, FixedPoint

# Of the table of rounds, in runs with secure aggregation.
SECURE_COLUMNS = ("secure_groups", "lost_groups", SATURATED)


@dataclass(frozen=True)
class SecureTraffic:
    """What one client of a group sends and gets beside the model and its masked update, in bytes."""

    keys_down: int = 0  # before it masks its update
    keys_up: int = 0
    unmasking_down: int = 0  # when updates have arrived
    unmasking_up: int = 0


class SecureAggregation:
    """None: the server gets every client's update. Keyword-only constructor arguments are the settings of others."""

    exists = False
    group = 1  # clients of a group, at most
    largest_weight: float | None = None  # that a client counts in a mean; known once it is prepared
    range = other_range = 0.0  # of changes of the model, and of what else clients send, at most
    least_survivors = 1  # without whom nothing is unmasked, however small the group, where privacy rests on them
    trip_seconds = 0.0  # until a message and its answer have gone between server and clients, however short they are
    trips_before = trips_after = 0  # before clients send their masked updates, and when these have arrived
    noise_deviation = 0.0  # of the noise that every client adds, where a privacy mechanism wants that
    notes: tuple[str, ...] = NOTES  # that are added up beside updates

    def fixed_point(self) -> FixedPoint:
        """How updates become whole numbers."""
        raise NotImplementedError

    def threshold(self, members: int) -> int:
        """How many of a group it takes to the end."""
        raise NotImplementedError

    def traffic(self, members: int) -> SecureTraffic:
        """What a client of a group of so many sends and gets."""
        return SecureTraffic()

    def choices(self) -> dict[str, Any]:
        """Settings that were found when the run was prepared; they are written into its configuration."""
        return {}


SECURE_AGGREGATIONS: Registry[type[SecureAggregation]] = Registry(
    "secure aggregation", base=SecureAggregation, takes=()
)


@SECURE_AGGREGATIONS.register("none")
class NoSecureAggregation(SecureAggregation):
    """The server gets every client's update."""
