"""Who of the rows in buckets becomes a client, and which of their rows are for training, validation and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.by_client.rows import GROUP, LINE
from fedarena.data.many_users.buckets import USER, Buckets
from fedarena.data.many_users.clients import PublishedGroups, divide_samples
from fedarena.data.sampling import Sampling
from fedarena.data.splits import PublishedSplit, SampleOrder, Split, split_anew
from fedarena.data.store.schema import Group, IntArray
from fedarena.data.store.stretches import rows_of


@dataclass(frozen=True)
class Choices:
    """What all sources of this kind let one choose: who is taken, and how they are divided.

    Published groups are kept unless another `split` is asked for; where there are none, clients are divided.
    """

    sampling: Sampling
    split: PublishedSplit
    train_fraction: float | None
    validation_fraction: float | None
    split_seed: int | None

    def division(self, published: PublishedGroups | None) -> Split | PublishedGroups:
        """How clients are divided whose files may say it."""
        given = (self.train_fraction, self.validation_fraction, self.split_seed)
        if self.split == "published" and published is None:
            train, validation, seed = given
            return Split(
                "by_client", 0.8 if train is None else train, 0.1 if validation is None else validation, seed or 0
            )
        return split_anew(self.split, *given) or published  # type: ignore[return-value]  # one of both is there


def choices(
    minimum_samples: int,
    fraction: float,
    sampling_seed: int,
    split: PublishedSplit,
    train_fraction: float | None,
    validation_fraction: float | None,
    split_seed: int | None,
) -> Choices:
    """The choices that a source's options say."""
    sampling = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed)
    return Choices(sampling, split, train_fraction, validation_fraction, split_seed)


@dataclass(frozen=True)
class ChosenRows:
    """Some clients, and their rows by client and, within a client, by part."""

    ids: list[str]
    groups: list[Group]
    counts: IntArray  # [clients, parts]
    rows: pa.Table


class RowClients:
    """The clients out of some buckets, so many rows in memory at a time as a bucket has."""

    def __init__(
        self,
        buckets: Buckets,
        sampling: Sampling,
        division: Split | PublishedGroups,
        order: SampleOrder,
        where: Path,
    ):
        self._buckets, self._division, self._order, self._where = buckets, division, order, where
        self._kept = sampling.choose(self._sizes())
        self._groups = division.groups(len(self._kept)) if isinstance(division, Split) else None

    @property
    def number(self) -> int:
        """How many clients there are."""
        return len(self._kept)

    def pieces(self, rows_at_once: int) -> Iterator[ChosenRows]:
        """All clients, a few at a time: as many as have so many rows together, or one that has more."""
        first = 0
        for names, sizes, rows in self._users():
            start, stop = np.searchsorted(self._kept, [first, first + len(names)]).tolist()
            chosen = self._kept[start:stop] - first
            begins = np.cumsum(sizes) - sizes
            for some in _stretches(sizes[chosen], rows_at_once):
                users = chosen[some]
                yield self._choose(names, rows, begins[users], sizes[users], users, start + some.start)
            first += len(names)

    def _choose(
        self, names: list[str], rows: pa.Table, begins: IntArray, sizes: IntArray, users: IntArray, first: int
    ) -> ChosenRows:
        places = rows_of(begins, sizes)
        ids = [names[user] for user in users.tolist()]
        if isinstance(self._division, PublishedGroups):
            column, lines = (rows.column(name).to_numpy()[places] for name in (GROUP, LINE))
            groups = self._division.groups_of(ids, sizes, column, lines)
            split = Split("by_client", 1.0, 0.0, 0)
        else:
            assert self._groups is not None
            groups, split = self._groups[first : first + len(users)], self._division
        clients = first + np.arange(len(users), dtype=np.int64)
        order, counts = divide_samples(split, groups, clients, sizes, self._order)
        return ChosenRows(ids, groups, counts, rows.take(pa.array(places[order])))

    def _users(self) -> Iterator[tuple[list[str], IntArray, pa.Table]]:
        """The users of a bucket, how many rows each has, and the rows user by user."""
        for bucket in range(self._buckets.count):
            rows = self._buckets.rows(bucket)
            if rows is None:
                continue
            users = rows.column(USER).combine_chunks().dictionary_encode()
            of_row = users.indices.to_numpy()
            order = pa.array(np.argsort(of_row, kind="stable"))
            yield users.dictionary.to_pylist(), np.bincount(of_row, minlength=len(users.dictionary)), rows.take(order)

    def _sizes(self) -> IntArray:
        sizes = [found for _, found, _ in self._users()]
        if not sizes:
            raise BadInputError(f"{self._where} has no samples")
        return np.concatenate(sizes).astype(np.int64)


def look_through(buckets: Buckets, look: Callable[[pa.Table], None]) -> None:
    """Shows all rows, a bucket at a time, to somebody who must know them before the first is written."""
    for bucket in range(buckets.count):
        if (rows := buckets.rows(bucket)) is not None:
            look(rows)


def _stretches(sizes: IntArray, rows_at_once: int) -> Iterator[slice]:
    """Places of neighbours who have at most so many rows together, or of one who has more."""
    begin, total = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if total and total + size > rows_at_once:
            yield slice(begin, place)
            begin, total = place, 0
        total += size
    if begin < len(sizes):
        yield slice(begin, len(sizes))
