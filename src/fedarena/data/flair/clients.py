"""Which users and which of their photos become clients: published groups, a split of one's own, or dealt at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.streams import bits
from fedarena.data.divided_clients import DividedClients
from fedarena.data.flair.photos import Photos
from fedarena.data.many_users.clients import divide_samples
from fedarena.data.sampling import Sampling
from fedarena.data.splits import Split
from fedarena.data.store.schema import GROUPS, PARTS, Group, IntArray
from fedarena.data.store.stretches import rows_of

Kept = Literal["random", "first"]
Sizes = Literal["users", "equal"]
_TRAIN = GROUPS.index("train")


@dataclass(frozen=True)
class Choice:
    """Which photos are taken: of some users, and of those who train at most `max_samples` of each.

    The paper draws them at random; pfl-research takes the first ones.
    """

    sampling: Sampling
    max_samples: int | None
    kept: Kept

    def clients(self, photos: Photos, split: Split | None) -> DividedClients:
        """Every user that is taken with their photos; `split` divides them anew, or None leaves it as published."""
        users = self.sampling.choose(photos.counts)
        codes = photos.groups[users]
        if split is not None:
            codes = np.array([GROUPS.index(group) for group in split.groups(len(users))], dtype=np.int64)
        groups = [GROUPS[code] for code in codes.tolist()]
        rows, sizes = self._limited(photos, users, codes == _TRAIN)
        counts = np.zeros((len(users), len(PARTS)), dtype=np.int64)
        if split is None:
            counts[np.arange(len(users)), codes] = sizes
        else:
            order, counts = divide_samples(split, groups, np.arange(len(users), dtype=np.int64), sizes, "shuffled")
            rows = rows[order]
        return DividedClients([photos.users[user] for user in users.tolist()], groups, counts, rows, users)

    def _limited(self, photos: Photos, users: IntArray, trains: IntArray) -> tuple[IntArray, IntArray]:
        """The photos of some users one after the other, and how many each has."""
        sizes = photos.counts[users]
        rows = rows_of(photos.starts[users], sizes)
        if self.max_samples is None:
            return rows, sizes
        owner = np.repeat(np.arange(len(users)), sizes)
        place = rows - photos.starts[users][owner]
        rank = place
        if self.kept == "random":
            drawn = bits(self.sampling.seed, "flair/photos of a user", users[owner], place)
            order = np.lexsort((drawn, owner))
            rank = np.empty(len(rows), dtype=np.int64)
            rank[order] = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = (rank < self.max_samples) | ~trains[owner]
        return rows[kept], np.bincount(owner[kept], minlength=len(users))


def deal(clients: DividedClients, number: int | None, sizes: Sizes, seed: int) -> DividedClients:
    """The same photos dealt at random to other clients of the same groups, who thereby differ by chance alone.

    There are as many clients in each group as there were, with as many photos; or of equal sizes, and then `number` for
    training and as many others in proportion.
    """
    if number is not None and sizes == "users":
        raise BadInputError(
            f"federation.clients is {number}, but federation.sizes=users has as many clients as there are users; "
            "choose federation.sizes=equal"
        )
    codes = np.array([GROUPS.index(group) for group in clients.groups])
    of_users = clients.counts.sum(axis=1)
    code_of_photo = np.repeat(codes, of_users)
    trained = max(int((codes == _TRAIN).sum()), 1)
    ids: list[str] = []
    groups: list[Group] = []
    counts: list[IntArray] = []
    dealt: list[IntArray] = []
    for code, group in enumerate(GROUPS):
        rows, new_sizes = clients.rows[code_of_photo == code], of_users[codes == code]
        if sizes == "equal" and len(rows):
            wanted = len(new_sizes) if number is None else max(round(number * len(new_sizes) / trained), 1)
            if code == _TRAIN and wanted > len(rows):
                raise BadInputError(
                    f"federation.clients is {number}, but there are {len(rows):,} photos for training; choose fewer"
                )
            wanted = min(wanted, len(rows))
            new_sizes = len(rows) // wanted + (np.arange(wanted) < len(rows) % wanted)
        ids += [f"{group}-{client:06d}" for client in range(len(new_sizes))]
        groups += [group] * len(new_sizes)
        counts.append(np.zeros((len(new_sizes), len(PARTS)), dtype=np.int64))
        counts[-1][:, code] = new_sizes
        dealt.append(rows[np.argsort(bits(seed, "flair_iid/dealing", rows), kind="stable")])
    return DividedClients(ids, groups, np.concatenate(counts), np.concatenate(dealt))
