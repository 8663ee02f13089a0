"""Which users of a text index become clients, and which of their texts are for training, validation and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.streams import bits
from fedarena.data.many_users.texts import TextIndex, UserTexts
from fedarena.data.sampling import Sampling
from fedarena.data.splits import SampleOrder, Split, apportion
from fedarena.data.store.schema import GROUPS, PARTS, AnyArray, Group, IntArray
from fedarena.data.store.stretches import rows_of
from fedarena.data.text.words import WordCounts


@dataclass(frozen=True)
class Published:
    """The division that came with the texts: a column has the part of each."""

    column: str


@dataclass(frozen=True)
class PublishedGroups:
    """The division that came with the samples: a column has the group of their client, whose samples are all in it."""

    where: Callable[[int, int], str]  # words for the line of a group's file
    column: str = "group"
    line_column: str = "line"

    def groups_of(self, ids: Sequence[str], sizes: IntArray, groups: AnyArray, lines: AnyArray) -> list[Group]:
        """The group of every client, from those of all their samples, one client after the other."""
        client = np.repeat(np.arange(len(ids)), sizes)
        first = (np.cumsum(sizes) - sizes)[client]
        wrong = np.flatnonzero(groups != groups[first])
        if len(wrong):
            row = int(wrong[0])
            places = " and ".join(self.where(int(groups[at]), int(lines[at])) for at in (int(first[row]), row))
            raise BadInputError(f"The client {quoted(ids[client[row]])} is in two groups, in {places}")
        return [GROUPS[code] for code in groups[np.cumsum(sizes) - sizes].tolist()]


@dataclass(frozen=True)
class ChosenTexts:
    """Some of the clients, and their texts by client and, within a client, by part."""

    texts: UserTexts
    users: IntArray  # their places among the users of `texts`
    groups: list[Group]
    rows: IntArray  # places in `texts`
    counts: IntArray  # [clients, parts] of texts

    @property
    def ids(self) -> list[str]:
        """The names of these users."""
        names: list[str] = self.texts.users.take(self.users).to_pylist()
        return names

    @property
    def training_rows(self) -> IntArray:
        """The texts that models are trained on."""
        part = np.repeat(np.tile(np.arange(len(PARTS)), len(self.counts)), self.counts.ravel())
        rows: IntArray = self.rows[part == PARTS.index("train")]
        return rows

    def attribute(self, name: str) -> list[str]:
        """What is known of these users."""
        values: list[str] = self.texts.attributes[name].take(self.users).to_pylist()
        return values

    def add_up(self, of_texts: IntArray) -> IntArray:
        """A number of every text in `rows`, added up by client and part."""
        place = np.repeat(np.arange(self.counts.size), self.counts.ravel())
        sums = np.bincount(place, weights=of_texts, minlength=self.counts.size)  # exact up to 2**53
        return sums.astype(np.int64).reshape(self.counts.shape)


class TextClients:
    """The clients that `sampling` takes out of an index, a bucket at a time."""

    def __init__(
        self,
        index: TextIndex,
        sampling: Sampling,
        division: Split | Published | PublishedGroups,
        order: SampleOrder = "shuffled",
    ):
        self._index, self._division, self._order = index, division, order
        self._sizes = index.sizes()
        self._kept = sampling.choose(self._sizes)
        self._groups: list[Group] = ["train"] * len(self._kept)
        if isinstance(division, Split):
            self._groups = division.groups(len(self._kept))

    def __iter__(self) -> Iterator[ChosenTexts]:
        first = 0
        for texts in self._index:
            start, stop = np.searchsorted(self._kept, [first, first + len(texts.users)]).tolist()
            if start < stop:
                yield self._choose(texts, self._kept[start:stop] - first, start)
            first += len(texts.users)

    def training_words(self, progress: Callable[[float], None]) -> WordCounts:
        """How often each word occurs in the texts that models are trained on."""

        def count() -> Iterator[WordCounts]:
            done = 0
            for chosen in self:
                yield chosen.texts.count_words(chosen.training_rows)
                done += len(chosen.users)
                progress(done / self.number)

        return WordCounts.total(count())

    @property
    def number(self) -> int:
        """How many clients there are."""
        return len(self._kept)

    def _choose(self, texts: UserTexts, users: IntArray, first_client: int) -> ChosenTexts:
        sizes = texts.counts[users]
        rows = rows_of((np.cumsum(texts.counts) - texts.counts)[users], sizes)
        groups = self._groups[first_client : first_client + len(users)]
        if isinstance(self._division, Published):
            user = np.repeat(np.arange(len(users)), sizes)
            part = texts.columns[self._division.column][rows]
            counts = np.bincount(user * len(PARTS) + part, minlength=len(users) * len(PARTS))
            return ChosenTexts(
                texts, users, groups, rows[np.lexsort((part, user))], counts.reshape(len(users), len(PARTS))
            )
        split = self._division
        if isinstance(split, PublishedGroups):
            columns = (texts.columns[name][rows] for name in (split.column, split.line_column))
            groups = split.groups_of(texts.users.take(users).to_pylist(), sizes, *columns)
            split = Split("by_client", 1.0, 0.0, 0)
        clients = first_client + np.arange(len(users), dtype=np.int64)
        order, counts = divide_samples(split, groups, clients, sizes, self._order)
        return ChosenTexts(texts, users, groups, rows[order], counts)


def divide_samples(
    split: Split, groups: list[Group], clients: IntArray, sizes: IntArray, order: SampleOrder
) -> tuple[IntArray, IntArray]:
    """`Split.divide` for many clients at once: the order of all their samples, and how many each has in each part.

    Samples come one client after the other, `sizes` of each.
    """
    samples = np.arange(sizes.sum(), dtype=np.int64)
    if split.kind == "by_client":
        counts = np.zeros((len(clients), len(PARTS)), dtype=np.int64)
        counts[np.arange(len(clients)), [GROUPS.index(group) for group in groups]] = sizes
        return samples, counts
    counts = apportion(sizes, split.fractions)
    if order == "in_order":
        return samples, counts
    client = np.repeat(np.arange(len(clients)), sizes)
    place = samples - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.lexsort((bits(split.seed, "split/samples", clients[client], place), client)), counts
