"""The part of a sample as files call it, and the division of a federation that options or files say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.many_users.clients import divide_samples
from fedarena.data.sampling import Sampling
from fedarena.data.splits import SampleOrder, Split, SplitKind
from fedarena.data.store.schema import GROUPS, PARTS, Group, IntArray

Missing = Literal["refuse", "drop"]
_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation"),
}
PART_CODES = {name: PARTS.index(part) for part, names in _NAMES.items() for name in names}


def part_code(name: str, where: str) -> int:
    """The code of a part by the name that a file has for it."""
    if name.strip().lower() not in PART_CODES:
        raise BadInputError(f"{where}: {quoted(name)} is not a part; valid: train, validation and test.")
    return PART_CODES[name.strip().lower()]


@dataclass(frozen=True)
class DivisionOptions:
    """How a federation is divided, unless the files say it."""

    split: SplitKind | None = None
    train_fraction: float | None = None
    validation_fraction: float | None = None
    split_seed: int | None = None

    def __post_init__(self) -> None:
        if self.split not in (None, "by_client", "within_client"):
            raise BadInputError(f"split must be 'within_client' or 'by_client', not {quoted(self.split)}.")
        for name, kind in (("train_fraction", float), ("validation_fraction", float), ("split_seed", int)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | kind) or not value >= 0):
                raise BadInputError(f"{name} must be a {'whole ' * (kind is int)}number from 0, not {quoted(value)}.")

    def division(self, has_parts: bool) -> Split | None:
        """The split, or None if every sample comes with its part."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if has_parts:
            if given:
                name, value = next(iter(given.items()))
                raise BadInputError(
                    f"{name} is {value!r}, but every sample comes with its part; leave out one or the other."
                )
            return None
        return Split(
            self.split or "within_client",
            0.8 if self.train_fraction is None else self.train_fraction,
            self.validation_fraction or 0.0,
            self.split_seed or 0,
        )


@dataclass(frozen=True)
class Samples:
    """Everything but the inputs of some samples: whose each is, its label, and its part if that is known."""

    ids: tuple[str, ...]  # of clients
    clients: IntArray  # of every sample, its place in `ids`
    labels: IntArray
    label_names: tuple[str, ...]
    parts: IntArray | None = None


@dataclass(frozen=True)
class Arranged:
    """The clients of a federation, and their samples by client and, within a client, by part."""

    ids: list[str]
    groups: list[Group]
    rows: IntArray
    counts: IntArray  # [clients, parts]

    def require_training(self) -> Arranged:
        """Itself, or a sentence if there is nothing to train on."""
        if not self.counts[:, PARTS.index("train")].any():
            raise BadInputError("No sample is for training; say so with another part, or train_fraction.")
        return self


def arrange(samples: Samples, division: Split | None, minimum_samples: int, order: SampleOrder) -> Arranged:
    """Who becomes a client, and which of its samples are for what."""
    sizes = np.bincount(samples.clients, minlength=len(samples.ids))
    kept = Sampling(minimum_samples=minimum_samples).choose(sizes)
    place = np.full(len(samples.ids), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    rows = np.argsort(samples.clients, kind="stable")
    rows = rows[place[samples.clients[rows]] >= 0]
    ids = [samples.ids[client] for client in kept]
    if division is None:
        assert samples.parts is not None
        client, part = place[samples.clients[rows]], samples.parts[rows]
        counts = np.bincount(client * len(PARTS) + part, minlength=len(kept) * len(PARTS)).reshape(-1, len(PARTS))
        return Arranged(ids, groups_of(counts), rows[np.lexsort((part, client))], counts).require_training()
    groups = division.groups(len(kept))
    clients = np.arange(len(kept), dtype=np.int64)
    places, counts = divide_samples(division, groups, clients, sizes[kept], order)
    return Arranged(ids, groups, rows[places], counts).require_training()


def with_classes_of(samples: Samples, rows: IntArray) -> Samples:
    """The samples with the classes alone that some of `rows` have; the labels of all others mean nothing then."""
    number_of, names = renumbered(np.unique(samples.labels[rows]), samples.label_names)
    return replace(samples, labels=number_of[samples.labels], label_names=names)


def renumbered(kept: IntArray, names: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    """A new number for every class, -1 for those that are not kept, and the names of those that are."""
    if len(kept) < 2:
        raise BadInputError(
            f"The label is {names[kept[0]]} in every sample that is left, so there is nothing to learn."
        )
    number_of = np.full(len(names), -1, dtype=np.int64)
    number_of[kept] = np.arange(len(kept))
    return number_of, tuple(names[number] for number in kept.tolist())


def groups_of(counts: IntArray) -> list[Group]:
    """The group of every client, from its samples in each part: the first part that it has any in."""
    return [next((name for name in GROUPS if row[GROUPS.index(name)]), "train") for row in counts.tolist()]


def part_codes(names: Iterable[str | None], where: str) -> IntArray:
    """The codes of parts by their names in files."""
    known: dict[str, int] = {}
    codes = []
    for name in names:
        if name is None:
            raise BadInputError(f"{where}: a sample has no part; valid: train, validation and test.")
        if name not in known:
            known[name] = part_code(name, where)
        codes.append(known[name])
    return np.array(codes, dtype=np.int64)
