"""What a model is given of a table's columns: numbers, an input for every category, and what replaces missing values.

Whatever is learned from values (means, deviations, which categories there are) is learned from training samples alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.rounding import changed_by_rounding
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray
from fedarena.data.tables.values import NOTHING, Floats, Mask, Numbers, Where, Words

Missing = Literal["refuse", "drop", "mean", "median", "zero"]
Normalize = Literal["global", "per_client", "none"]
Categories = Literal["one_hot", "embedded"]
CODES = "codes"  # the column of categories that are embedded
MOST_CATEGORIES = 1_000


@dataclass(frozen=True)
class Training:
    """Which rows are learned from, and whose every row is: `clients` are places from 0."""

    rows: IntArray  # the training samples of training clients
    own_rows: IntArray  # the training samples of all clients
    clients: IntArray  # of every row of the table; meaningless where a row is left out
    num_clients: int


class Feature(Protocol):
    """A column of the table as one or more inputs of a model."""

    names: tuple[str, ...]
    notes: tuple[str, ...]

    def take(self, rows: IntArray) -> AnyArray:
        """The inputs ``[rows, names]`` of some rows."""


class NumberFeature:
    """A number, normalized; in place of missing ones what `missing` says."""

    def __init__(
        self, name: str, values: Numbers, missing: Missing, normalize: Normalize, training: Training, where: Where
    ):
        self.names: tuple[str, ...] = (name,)
        self._values = values.values.copy()
        self._clients = training.clients
        if missing == "zero":
            self._values[values.missing] = 0.0
        # Booleans stay 0 and 1, like categories.
        scaled = normalize if not values.are_booleans else "none"
        self._mean, self._deviation = _statistics(self._values, scaled, training)
        self._check_statistics(name, training, where)
        known = self._values[training.rows]
        known = known[~np.isnan(known)]
        self.notes: tuple[str, ...] = ()
        if scaled != "none" and len(known) and (known == known[0]).all():
            self.notes = (f"{name} is the same in all training samples: where it differs, it is not scaled.",)
        elif scaled == "none":
            self.notes = _lost_digits(name, known)
        self._fill = self._filling(name, missing, training)

    def _check_statistics(self, name: str, training: Training, where: Where) -> None:
        """Raises if a number is so large that all others would be 0 beside it."""
        overflown = np.isinf(self._mean) | ~np.isfinite(self._deviation)
        if not overflown.any():
            return
        rows = training.own_rows[overflown[training.clients[training.own_rows]]]
        rows = rows if len(rows) else training.rows
        row = int(rows[np.nanargmax(np.abs(self._values[rows]))])
        raise BadInputError(
            f"Column {quoted(name)} holds {self._values[row]:g} in {where(row)}, which is too large for a mean and a "
            "standard deviation to be found; name it among na_values if it means a missing value."
        )

    def _filling(self, name: str, missing: Missing, training: Training) -> Floats:
        """What stands for a missing value of each client: the mean or the median of training samples."""
        if missing not in ("mean", "median") or not np.isnan(self._values).any():
            return np.zeros(training.num_clients)
        known = self._values[training.rows]
        known = known[~np.isnan(known)]
        if len(known) == 0:
            raise BadInputError(
                f"Column {quoted(name)} has no value in any training sample, so that there is no {missing} to put in "
                "place of missing ones; leave it out with drop."
            )
        if missing == "median":
            return np.full(training.num_clients, np.median(known))
        return np.where(np.isnan(self._mean), known.mean(), self._mean)

    def take(self, rows: IntArray) -> AnyArray:
        """One number for every row."""
        clients = self._clients[rows]
        values = self._values[rows]
        values = np.where(np.isnan(values), self._fill[clients], values)
        mean = self._mean[clients]
        return ((values - np.where(np.isnan(mean), 0.0, mean)) / self._deviation[clients])[:, None]


def _lost_digits(name: str, known: Floats) -> tuple[str, ...]:
    """A sentence if numbers that differ are the same as samples have them, which is in float32.

    Among many that are spread widely, some are always so close to each other, which does no harm.
    """
    if changed_by_rounding(known) is None:
        return ()
    with np.errstate(over="ignore"):  # what is too large for it is refused elsewhere
        different, left = (len(np.unique(values)) for values in (known, known.astype(np.float32)))
    if left == different:
        return ()
    return (
        f"{name} has {different:,} different numbers in training samples, of which {left:,} are left when seven digits "
        "of each are kept, as inputs of models do; normalize them, or subtract what they have in common.",
    )


def _statistics(values: Floats, normalize: Normalize, training: Training) -> tuple[Floats, Floats]:
    """The mean and the standard deviation that each client's values are normalized by; NaN and 1 if they are not.

    A client whose values are all equal, or who has but one, does not know how much they differ: all clients do.
    """
    num_clients = training.num_clients
    if normalize == "none":
        return np.full(num_clients, np.nan), np.ones(num_clients)
    together = np.zeros(len(training.rows), dtype=np.int64)
    _, mean, deviation = _moments(values[training.rows], together)
    means = np.full(num_clients, mean[0] if len(mean) else np.nan)
    deviations = np.full(num_clients, deviation[0] if len(mean) and deviation[0] != 0 else 1.0)
    if normalize == "per_client":
        clients, mean, deviation = _moments(values[training.own_rows], training.clients[training.own_rows])
        means[clients] = mean
        deviations[clients] = np.where(deviation == 0, deviations[clients], deviation)
    return means, deviations


def _moments(values: Floats, owners: IntArray) -> tuple[IntArray, Floats, Floats]:
    """Who has values, and the mean and standard deviation of each, which is 0 of equal values."""
    owners, values = owners[~np.isnan(values)], values[~np.isnan(values)]
    order = np.argsort(owners, kind="stable")
    owners, values = owners[order], values[order]
    who, starts, counts = np.unique(owners, return_index=True, return_counts=True)
    if len(who) == 0:
        return who, np.empty(0), np.empty(0)
    smallest, largest = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    are_equal = smallest == largest  # then rounding must not make a deviation of nothing
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused where it is used
        mean = np.where(are_equal, smallest, np.add.reduceat(values, starts) / counts)
        deviation = np.sqrt(np.add.reduceat(np.square(values - np.repeat(mean, counts)), starts) / counts)
    return who, mean, np.where(are_equal, 0.0, deviation)


class CategoryFeature:
    """A category: an input for each that a training sample has, which is 1 where a sample has it."""

    def __init__(self, name: str, values: Words, missing: Missing, training: Training):
        known = values.codes[training.rows]
        counts = np.bincount(known[known != NOTHING], minlength=len(values.words))
        seen = np.flatnonzero(counts)
        if len(seen) == 0:
            raise BadInputError(f"Column {quoted(name)} has no value in any training sample; leave it out with drop.")
        place = np.full(len(values.words) + 1, NOTHING, dtype=np.int64)
        place[seen] = np.arange(len(seen))
        codes = place[values.codes]
        if missing in ("mean", "median"):  # the nearest thing that categories have
            codes = np.where(values.missing, int(np.argmax(counts[seen])), codes)
        self._codes = codes
        self.name = name
        self.names: tuple[str, ...] = tuple(f"{name}={values.words[category]}" for category in seen)
        unseen = [word for word, count in zip(values.words, counts.tolist(), strict=True) if count == 0]
        self.notes: tuple[str, ...] = ()
        if unseen:
            listed = ", ".join(unseen[:5]) + (", …" if len(unseen) > 5 else "")
            self.notes = (f"Of {name}, no training sample has {listed}: there its inputs are all 0.",)

    def codes(self, rows: IntArray) -> IntArray:
        """A number for the category of every row, from 1; 0 for none, and for those that no training sample has."""
        return self._codes[rows] + 1

    def take(self, rows: IntArray) -> AnyArray:
        """Zeros, and a 1 for the category of every row."""
        codes = self._codes[rows]
        return np.asarray(codes[:, None] == np.arange(len(self.names)), dtype=np.float64)


class Indicator:
    """1 where a column has no value."""

    notes: tuple[str, ...] = ()

    def __init__(self, name: str, missing: Mask):
        self.names: tuple[str, ...] = (f"{name} is missing",)
        self._missing = missing

    def take(self, rows: IntArray) -> AnyArray:
        """A 0 or a 1 for every row."""
        return self._missing[rows, None].astype(np.float64)


class FeatureTable:
    """All features side by side: the column ``x``, and ``codes`` if categories are embedded.

    All codes are in one range, one category's after the other's, so that a single table of vectors holds them.
    """

    def __init__(self, features: Sequence[Feature], categories: Categories, where: Where):
        self._where = where
        is_coded = [categories == "embedded" and isinstance(feature, CategoryFeature) for feature in features]
        self._numbers = [feature for feature, coded in zip(features, is_coded, strict=True) if not coded]
        self._coded = [feature for feature in features if isinstance(feature, CategoryFeature) and any(is_coded)]
        sizes = np.array([len(feature.names) + 1 for feature in self._coded], dtype=np.int64)
        self._first_codes = np.cumsum(sizes) - sizes
        self.notes = tuple(note for feature in features for note in feature.notes)
        self.columns: dict[str, ColumnSpec] = {}
        self.inputs: dict[str, int | None] | None = None  # as a task names them
        if self._numbers:
            self._names = tuple(name for feature in self._numbers for name in feature.names)
            self.columns["x"] = ColumnSpec(dtype="float32", shape=(len(self._names),), names=self._names)
        if self._coded:
            names = tuple(feature.name for feature in self._coded)
            self.columns[CODES] = ColumnSpec(dtype="int32", shape=(len(names),), names=names)
            self.inputs = {name: int(sizes.sum()) if name == CODES else None for name in self.columns}

    @property
    def bytes_per_sample(self) -> int:
        """How much memory a sample takes while it is made."""
        return 2 * sum(spec.bytes_per_sample for spec in self.columns.values())

    def take(self, rows: IntArray) -> dict[str, AnyArray]:
        """The columns of some rows; raises if a number is too large for 32 bits."""
        found: dict[str, AnyArray] = {}
        if self._numbers:
            found["x"] = self._take_numbers(rows)
        if self._coded:
            codes = np.stack([feature.codes(rows) for feature in self._coded], axis=1)
            found[CODES] = (codes + self._first_codes).astype(np.int32)
        return found

    def _take_numbers(self, rows: IntArray) -> AnyArray:
        with np.errstate(over="ignore", invalid="ignore"):
            columns = [feature.take(rows) for feature in self._numbers]
            x: AnyArray = np.concatenate(columns, axis=1).astype(np.float32)
        if not np.isfinite(x).all():
            row, place = np.argwhere(~np.isfinite(x))[0].tolist()
            raise BadInputError(
                f"Column {quoted(self._names[place])} holds a number in {self._where(int(rows[row]))} that is too "
                "large for 32 bits."
            )
        return x
