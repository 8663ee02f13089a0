"""Who has which photos with which labels, from labels_and_metadata.json."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.flair.taxonomy import Taxonomy
from fedarena.data.many_users.json_stream import JsonStream
from fedarena.data.store.schema import GROUPS, AnyArray, Group, IntArray
from fedarena.data.store.stretches import rows_of

Labels = Literal["coarse", "fine", "structure"]
ONE_LABEL = "structure"  # of the binary task (Table 3 of the paper): the most common one
# The names of parts, as published and as others have them.
GROUP_OF_PARTITION: dict[str, Group] = {
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
}
KEYS = ("user_id", "image_id", "labels", "fine_grained_labels", "partition")

_ENTRIES_PER_REPORT = 4096


@dataclass(frozen=True)
class Photos:
    """All photos, user by user; those of a user in the order of the files."""

    users: list[str]  # ascending
    groups: IntArray  # [users], places in GROUPS
    counts: IntArray  # [users]
    images: list[str]
    label_names: tuple[str, ...]
    label_counts: IntArray  # [images]
    labels: AnyArray  # of one image after the other, places in `label_names`

    @property
    def starts(self) -> IntArray:
        """The first photo of each user."""
        return np.cumsum(self.counts) - self.counts

    def multi_hot(self, rows: IntArray) -> AnyArray:
        """A 0 or a 1 for every label of some photos: ``[photos, labels]``."""
        y = np.zeros((len(rows), len(self.label_names)), dtype=np.uint8)
        counts = self.label_counts[rows]
        begins = self._label_starts[rows]
        y[np.repeat(np.arange(len(rows)), counts), self.labels[rows_of(begins, counts)]] = 1
        return y

    @cached_property
    def _label_starts(self) -> IntArray:
        return np.cumsum(self.label_counts) - self.label_counts


class PhotoCollector:
    """Takes down photos one by one, and sorts them by user in the end."""

    def __init__(self, labels: Labels):
        self._wanted = labels
        self._users: dict[str, int] = {}
        self._groups: list[int] = []
        self._images: list[str] = []
        self._owners = array("q")
        self._codes: dict[str, int] = {}  # of labels, in the order in which they came
        self._labels = array("i")
        self._counts = array("q")

    def add(self, user: str, image: str, group: int, labels: Sequence[str]) -> None:
        """A photo with its labels of the taxonomy that is wanted."""
        owner = self._users.setdefault(user, len(self._users))
        if owner == len(self._groups):
            self._groups.append(group)
        elif self._groups[owner] != group:
            raise TwoPartitionsError(user, GROUPS[self._groups[owner]], GROUPS[group])
        self._images.append(image)
        self._owners.append(owner)
        codes = self._codes
        self._labels.extend([codes.setdefault(label, len(codes)) for label in labels])
        self._counts.append(len(labels))

    def finish(self, path: Path) -> Photos:
        """All photos; the labels are those that occur, in alphabetical order, as in the authors' code."""
        if not self._images:
            raise BadInputError(f"{path} lists no photos")
        names = sorted(self._codes)
        if self._wanted == ONE_LABEL:
            if ONE_LABEL not in self._codes:
                raise BadInputError(f"No photo in {path} has the label {ONE_LABEL}; choose federation.labels=coarse")
            names = [ONE_LABEL]
        place_of_code = np.full(len(self._codes), -1, dtype=np.int32)
        for place, name in enumerate(names):
            place_of_code[self._codes[name]] = place
        users = sorted(self._users)
        place_of_owner = np.empty(len(users), dtype=np.int64)
        place_of_owner[[self._users[user] for user in users]] = np.arange(len(users))
        owners = place_of_owner[np.frombuffer(self._owners, dtype=np.int64)]
        order = np.argsort(owners, kind="stable")
        counts = np.frombuffer(self._counts, dtype=np.int64)
        labels = np.frombuffer(self._labels, dtype=np.int32)[
            rows_of((np.cumsum(counts) - counts)[order], counts[order])
        ]
        places = place_of_code[labels]
        image = np.repeat(np.arange(len(order)), counts[order])[places >= 0]
        groups = np.empty(len(users), dtype=np.int64)
        groups[place_of_owner] = self._groups
        return Photos(
            users=users,
            groups=groups,
            counts=np.bincount(owners, minlength=len(users)),
            images=[self._images[row] for row in order.tolist()],
            label_names=tuple(names),
            label_counts=np.bincount(image, minlength=len(order)),
            labels=places[places >= 0],
        )


class TwoPartitionsError(Exception):
    """Somebody is in two parts of the data. Whoever knows the place in the files makes a sentence of it."""

    def __init__(self, user: str, first: Group, second: Group):
        super().__init__(
            f"user {quoted(user)} is in the {first} partition before and in the {second} one here, and must be in one"
        )


def read_photos(path: Path, taxonomy: Taxonomy, labels: Labels, progress: Callable[[float], None]) -> Photos:
    """The photos that labels_and_metadata.json lists; every label must be in the taxonomy."""
    collector = PhotoCollector(labels)
    size = max(path.stat().st_size, 1)
    seen: set[str] = set()
    with JsonStream(path, "FLAIR's list of photos") as stream:
        number = 0
        stream.mark("[")
        ended = stream.peek() == "]"
        while not ended:
            number += 1
            entry = stream.value()
            try:
                user, image, coarse, fine, partition = (entry[key] for key in KEYS)
                known = taxonomy.coarse.issuperset(coarse) and taxonomy.fine.issuperset(fine)
                group = GROUPS.index(GROUP_OF_PARTITION[partition])
                plain = type(user) is type(image) is str and type(coarse) is type(fine) is list
            except (TypeError, KeyError, IndexError):
                raise _misshapen(entry, path, number) from None
            if not plain or not _is_name(user) or not _is_name(image):
                raise _misshapen(entry, path, number)
            if not known:
                raise _outside(entry, taxonomy, path, number)
            if image in seen:
                raise BadInputError(f"{path}, entry {number:,}: there was an entry on photo {quoted(image)} before")
            seen.add(image)
            try:
                collector.add(user, image, group, fine if labels == "fine" else coarse)
            except TwoPartitionsError as error:
                raise BadInputError(f"{path}, entry {number:,}: {error}") from None
            if number % _ENTRIES_PER_REPORT == 0:
                progress(min(stream.byte / size, 1.0))
            ended = stream.mark(",", "]") == "]"
        if not number:
            stream.mark("]")
        stream.end()
    return collector.finish(path)


def _is_name(text: str) -> bool:
    """Whether it can be a part of a file's name."""
    return bool(text) and not {"/", "\\", "\0"} & set(text)


def _misshapen(entry: Any, path: Path, number: int) -> BadInputError:
    """What is wrong with an entry."""
    where = f"{path}, entry {number:,}"
    if not isinstance(entry, dict) or any(key not in entry for key in KEYS):
        lacking = [key for key in KEYS if not isinstance(entry, dict) or key not in entry]
        return BadInputError(
            f"{where} has no {', '.join(lacking)}: this is not the metadata of FLAIR, in which every photo has "
            f"{', '.join(KEYS)}"
        )
    partition = entry["partition"]
    if not isinstance(partition, str) or partition not in GROUP_OF_PARTITION:
        return BadInputError(f"{where}: partition is {quoted(partition)}; it must be train, val or test")
    for key in ("user_id", "image_id"):
        if not isinstance(entry[key], str) or not _is_name(entry[key]):
            return BadInputError(f"{where}: {key} is {quoted(entry[key])}; it must be text without slashes")
    return BadInputError(f"{where}: labels and fine_grained_labels must be lists of text")


def _outside(entry: dict[str, Any], taxonomy: Taxonomy, path: Path, number: int) -> BadInputError:
    where = f"{path}, entry {number:,} (photo {quoted(entry['image_id'])})"
    for label in entry["labels"]:
        if label not in taxonomy.coarse:
            return taxonomy.unknown(label, False, where)
    return next(
        taxonomy.unknown(label, True, where) for label in entry["fine_grained_labels"] if label not in taxonomy.fine
    )
