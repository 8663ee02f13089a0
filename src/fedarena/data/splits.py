"""Dividing clients into groups, or the samples of every client into parts: train, validation and test.

All functions are pure: the same seed and the same numbers give the same split, whatever else was drawn
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import bits
from fedarena.data.store.schema import GROUPS, PARTS, AnyArray, Group, IntArray

# The options every source offers. by_client: some people are only tested on; within_client: everybody trains
# and is tested.
SplitKind = Literal["by_client", "within_client"]
# published: as those divided it who gave it out; the others divide everything anew.
PublishedSplit = Literal["published", "by_client", "within_client"]
TrainFraction = Annotated[float, Field(gt=0, le=1)]
ValidationFraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0)]

# Who cannot be tested does not show in any result, so testing comes before validation.
_MOST_NEEDED_FIRST = (PARTS.index("train"), PARTS.index("test"), PARTS.index("validation"))

SampleOrder = Literal["shuffled", "in_order"]


@dataclass(frozen=True)
class Split:
    """How a federation is divided; what train and validation leave over is test."""

    kind: SplitKind
    train_fraction: float
    validation_fraction: float
    seed: int

    def __post_init__(self) -> None:
        if self.train_fraction <= 0 or self.validation_fraction < 0 or self.fractions[2] < 0:
            raise BadInputError(
                "train_fraction must be above 0, validation_fraction at least 0, and both together at most 1; "
                f"they are {self.train_fraction} and {self.validation_fraction}."
            )

    @property
    def fractions(self) -> tuple[float, float, float]:
        """The fractions of train, validation and test, which add up to 1."""
        # Rounding keeps 1 - 0.8 - 0.2 from being a tiny negative number.
        test_fraction = round(1 - self.train_fraction - self.validation_fraction, 12) + 0.0
        return self.train_fraction, self.validation_fraction, test_fraction

    def groups(self, num_clients: int) -> list[Group]:
        """The group of every client; all are train clients if the split is within clients."""
        if self.kind == "within_client":
            return ["train"] * num_clients
        sizes = apportion(np.array([num_clients]), self.fractions)[0]
        shuffled = np.argsort(bits(self.seed, "split/clients", np.arange(num_clients)), kind="stable")
        codes = np.empty(num_clients, dtype=np.int64)
        codes[shuffled] = np.repeat(np.arange(len(GROUPS)), sizes)
        return [GROUPS[code] for code in codes]

    def divide(
        self,
        client: int,
        group: Group,
        columns: Mapping[str, AnyArray],
        order: SampleOrder = "shuffled",
        gap: int = 0,
    ) -> dict[str, dict[str, AnyArray]]:
        """One client's columns, divided into its train, validation and test samples as `split_samples` does.

        If the split is by client, all samples of a client are in the part that is called like its group.
        """
        if self.kind == "by_client":
            return {group: dict(columns)}
        num_samples = len(next(iter(columns.values())))
        rows = split_samples(num_samples, self.fractions, order=order, seed=self.seed, client=client, gap=gap)
        return {
            part: {name: values[chosen] for name, values in columns.items()}
            for part, chosen in zip(PARTS, rows, strict=True)
        }


def split_anew(
    kind: PublishedSplit, train_fraction: float | None, validation_fraction: float | None, seed: int | None
) -> Split | None:
    """How data is divided that was published with a division; None if that one is used, which leaves no choice."""
    given = {"train_fraction": train_fraction, "validation_fraction": validation_fraction, "split_seed": seed}
    if kind != "published":
        return Split(kind, 0.8 if train_fraction is None else train_fraction, validation_fraction or 0.0, seed or 0)
    for name, value in given.items():
        if value is not None:
            raise BadInputError(
                f"federation.{name} is {value}, but federation.split=published keeps the division that the files have; "
                "choose federation.split=by_client or within_client"
            )
    return None


def split_samples(
    num_samples: int,
    fractions: tuple[float, float, float],
    *,
    order: SampleOrder,
    seed: int = 0,
    client: int = 0,
    gap: int = 0,
) -> tuple[IntArray, IntArray, IntArray]:
    """The indexes of one client's train, validation and test samples.

    How many each part has is said by `apportion`. With ``in_order`` the earliest
    samples are for training, and `gap` samples are left out before validation and before test, so that
    samples which overlap in time do not leak from one part to the next.
    """
    sizes = apportion(np.array([num_samples]), fractions)[0]
    indexes = np.arange(num_samples, dtype=np.int64)
    if order == "shuffled":
        indexes = np.argsort(bits(seed, "split/samples", client, indexes), kind="stable")
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    train, validation, test = (
        indexes[start + (gap if start > 0 else 0) : stop] for start, stop in pairwise(bounds.tolist())
    )
    return train, validation, test


def apportion(totals: IntArray, fractions: tuple[float, float, float]) -> IntArray:
    """Divides every total into train, validation and test, each less than one away from its exact share.

    Largest remainders get what rounding down leaves over; the earlier part wins a tie. Small totals come first: whoever
    has two samples or more has one for training and one for testing, and of three one for validation, of the parts that
    have a fraction.
    """
    totals = np.asarray(totals, dtype=np.int64)
    exact = totals[:, None] * np.array(fractions)
    sizes: IntArray = np.floor(exact).astype(np.int64)
    remainders = exact - sizes
    left_over = totals - sizes.sum(axis=1)
    rank = np.argsort(np.argsort(-remainders, axis=1, kind="stable"), axis=1, kind="stable")
    sizes += rank < left_over[:, None]

    wanted = [part for part in _MOST_NEEDED_FIRST if fractions[part] > 0]
    least = np.zeros_like(sizes)
    for number, part in enumerate(wanted, start=1):
        lacking = np.flatnonzero((totals >= number) & (sizes[:, part] == 0))
        can_give = sizes[lacking] > least[lacking]
        donor = np.argmax(np.where(can_give, sizes[lacking] - exact[lacking], -np.inf), axis=1)
        sizes[lacking, donor] -= 1
        sizes[lacking, part] += 1
        least[totals >= number, part] = 1
    return sizes
