"""Ratings of films, each user a client: MovieLens (Harper and Konstan, 2015) and the Netflix Prize.

The latter (Bennett and Lanning, 2007) is what FedHPO-Bench calls FedNetflix. Ratings are sorted into buckets by user on
disk, and dealt with a bucket at a time, so memory does not grow with their number. A sample is an item and how it was
rated; whose rating it is, is known from whose sample it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.many_users.buckets import USER, Buckets, Piece, Position
from fedarena.data.many_users.clients import divide_samples
from fedarena.data.many_users.ratings import HIGHEST, ITEM, LOWEST, RATING, RatingFile, Way
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec
from fedarena.data.store.stretches import rows_of

Form = Literal["movielens", "netflix"]
_WAYS: dict[str, Way] = {"ratings.csv": "csv", "u.data": "tabs", "ratings.dat": "colons"}
_ARCHIVES = {  # of MovieLens, and what is in them
    "ml-100k": "u.data",
    "ml-1m": "ratings.dat",
    "ml-latest-small": "ratings.csv",
    "ml-latest": "ratings.csv",
    "ml-25m": "ratings.csv",
    "ml-32m": "ratings.csv",
}
_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
NETFLIX = tuple(f"combined_data_{number}.txt" for number in (1, 2, 3, 4))
_KAGGLE = "https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data"


class RatingFiles(RawFiles):
    """MovieLens in one of its ways, or Netflix's four files."""

    def of_form(self, given: str | None, form: Form) -> list[RatingFile]:
        """The tables of a form."""
        found = self.find(given)
        place = self.folder(given)
        if form == "netflix":
            missing = [name for name in NETFLIX if name not in found]
            if missing:
                raise BadInputError(f"{place} lacks {', '.join(missing)} of the Netflix Prize; {_KAGGLE} has it")
            return [RatingFile(place, name, "netflix") for name in NETFLIX]
        for name, way in _WAYS.items():
            if name in found and found[name].name == name:
                return [RatingFile(place, name, way)]
        for archive, name in _ARCHIVES.items():
            if archive in found:
                path = found[archive]
                return [RatingFile(path, name if path.is_dir() else f"{archive}/{name}", _WAYS[name])]
        raise BadInputError(
            f"{place} lacks MovieLens: {', '.join(_WAYS)}, or an archive such as ml-100k.zip; "
            "https://grouplens.org/datasets/movielens has it"
        )


FILES = RatingFiles(
    "ratings",
    "MovieLens or the Netflix Prize",
    {name: RawFile(name) for name in _WAYS}
    | {name: RawFile(f"{name}.zip", None, f"{_GROUPLENS}/{name}.zip", unpacked=name) for name in _ARCHIVES}
    | {name: RawFile(name) for name in NETFLIX},
    f"https://grouplens.org/datasets/movielens has MovieLens, {_KAGGLE} all four files of the Netflix Prize",
    one_is_enough=True,
)


@FEDERATIONS.register("ratings")
@cached_source(version=1, reads=FILES)
def ratings(
    build: StoreBuild,
    *,
    form: Form = "movielens",
    folder: PathOption | None = None,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.1,
    split_seed: Seed = 0,
) -> None:
    """Ratings of films on a scale up to 5, from the published files in `folder`; a client is a user.

    The `form` is movielens (ratings.csv, u.data or ratings.dat, or an archive such as ml-100k.zip) or netflix
    (combined_data_1.txt to combined_data_4.txt, 100 million ratings of 480,189 users). Items are numbered by their
    numbers in the files.
    """
    division = Split(split, train_fraction, validation_fraction, split_seed)
    reader = _Reader(FILES.of_form(folder, form))
    with work_folder(build) as work:
        buckets = Buckets(work, reader.total_bytes)
        buckets.fill(reader.read, lambda done: build.progress(0.6 * done, "Reading ratings"))
        sizes, items, lowest = _look(build, buckets)
        kept = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed).choose(sizes)
        groups = division.groups(len(kept))
        task = TaskSpec(kind="rating", classes=1, inputs={ITEM: len(items)}, value_range=(lowest, HIGHEST))
        columns = {ITEM: ColumnSpec(dtype="int32"), "y": ColumnSpec(dtype="float32")}
        before = 0
        with build.writer(task=task, columns=columns) as writer:
            for number, users in enumerate(_users(buckets)):
                first, last = np.searchsorted(kept, [before, before + len(users.sizes)]).tolist()
                if first < last:
                    chosen, own = kept[first:last] - before, groups[first:last]
                    order, counts = divide_samples(
                        division, own, np.arange(first, last, dtype=np.int64), users.sizes[chosen], "shuffled"
                    )
                    rows = rows_of((np.cumsum(users.sizes) - users.sizes)[chosen], users.sizes[chosen])[order]
                    item = np.searchsorted(items, users.items[rows]).astype(np.int32)
                    names = [users.ids[user] for user in chosen.tolist()]
                    samples = {ITEM: item, "y": users.ratings[rows]}
                    writer.add_clients(names, counts=counts, columns=samples, groups=own)
                before += len(users.sizes)
                build.progress(0.8 + 0.2 * (number + 1) / buckets.count, "Writing")


@dataclass(frozen=True)
class _Users:
    """The ratings of some users, user by user, in the order of the files."""

    ids: Sequence[str]
    sizes: IntArray
    items: AnyArray
    ratings: AnyArray


def _users(buckets: Buckets) -> Iterator[_Users]:
    for bucket in range(buckets.count):
        rows = buckets.rows(bucket)
        if rows is None:
            continue
        users = rows.column(USER).combine_chunks().dictionary_encode()
        of_row = users.indices.to_numpy()
        order = np.argsort(of_row, kind="stable")
        yield _Users(
            users.dictionary.to_pylist(),
            np.bincount(of_row, minlength=len(users.dictionary)),
            rows.column(ITEM).to_numpy()[order],
            rows.column(RATING).to_numpy()[order],
        )


def _look(build: StoreBuild, buckets: Buckets) -> tuple[IntArray, AnyArray, float]:
    """How many ratings each user has, which items there are, and where the scale begins."""
    sizes: list[IntArray] = []
    items = np.zeros(0, dtype=np.int32)
    lowest = 1.0
    for number, users in enumerate(_users(buckets)):
        sizes.append(users.sizes)
        items = np.union1d(items, users.items)
        if (users.ratings != np.floor(users.ratings)).any():
            lowest = LOWEST  # there are half stars, and half a star is the least
        build.progress(0.6 + 0.2 * (number + 1) / buckets.count, "Grouping by user")
    if not sizes:
        raise BadInputError("The files have no ratings")
    return np.concatenate(sizes), items, lowest


class _Reader:
    """Reads tables one after the other, from anywhere."""

    def __init__(self, tables: Sequence[RatingFile]):
        self._tables = tables
        self._sizes = [table.size_bytes() for table in tables]
        self.total_bytes = sum(self._sizes)

    def read(self, position: Position | None) -> Iterator[Piece]:
        start = {"table": 0, "byte": 0, "line": 0, "item": -1}
        at = position or start
        for number in range(at["table"], len(self._tables)):
            here = at if number == at["table"] else start
            for found in self._tables[number].read(here["byte"], here["line"], here["item"]):
                done = sum(self._sizes[:number]) + found.next_byte
                next_position = {
                    "table": number,
                    "byte": found.next_byte,
                    "line": found.next_line,
                    "item": found.item,
                }
                yield Piece(found.rows, next_position, done / self.total_bytes)
