"""Who becomes a client with which samples: as LEAF's files are divided, divided anew, or dealt out at random."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.streams import bits
from fedarena.data.divided_clients import DividedClients, group_of
from fedarena.data.leaf.staging import UNDIVIDED, Users
from fedarena.data.many_users.clients import divide_samples
from fedarena.data.sampling import Sampling
from fedarena.data.splits import Split
from fedarena.data.store.schema import PARTS, Group, IntArray
from fedarena.data.store.stretches import rows_of


def natural_clients(users: Users, sampling: Sampling, split: Split | None, gap: int) -> DividedClients:
    """The users that are taken, divided as their files are, or by `split`.

    `gap` is how many samples overlap with one; they are left out between those for training and those for testing.
    """
    sizes = users.counts.sum(axis=1)
    if users.description is None and sampling.minimum_samples == 0 and not sizes.all():
        nobody = users.ids[int(np.argmin(sizes))]
        raise BadInputError(
            f"User {nobody!r} has no samples, like {np.count_nonzero(sizes == 0):,} of {len(sizes):,} users; "
            "federation.minimum_samples=1 leaves them out"
        )
    kept = sampling.choose(sizes)
    if split is None:
        groups = [users.groups[user] if users.groups else group_of(users.counts[user]) for user in kept]
        counts = users.counts[kept, : len(PARTS)]
        rows = rows_of(users.starts[kept, : len(PARTS)].ravel(), counts.ravel())
    else:
        groups = split.groups(len(kept))
        whole = rows_of(users.starts[kept].ravel(), users.counts[kept].ravel())
        counts, rows = _divide(whole, sizes[kept], groups, split, gap)
    return DividedClients([users.ids[user] for user in kept], groups, counts, rows, kept)


def dealt_clients(num_rows: int, num_clients: int, sampling: Sampling, split: Split) -> DividedClients:
    """LEAF's iid sampling: a fraction of all samples, dealt out to new users as equally as possible."""
    dealt = max(int(sampling.fraction * num_rows), 1)
    if num_clients > dealt:
        raise BadInputError(f"federation.iid_users asks for {num_clients:,} users, but there are {dealt:,} samples")
    order = np.argsort(bits(sampling.seed, "leaf/iid", np.arange(num_rows)), kind="stable")[:dealt]
    bounds: IntArray = np.arange(num_clients + 1) * dealt // num_clients
    sizes = bounds[1:] - bounds[:-1]
    kept = Sampling(minimum_samples=sampling.minimum_samples).choose(sizes)
    groups = split.groups(len(kept))
    hands = rows_of(bounds[kept], sizes[kept])
    counts, rows = _divide(order[hands], sizes[kept], groups, split, gap=0)
    return DividedClients([str(place) for place in kept], groups, counts, rows, None)


def _divide(rows: IntArray, sizes: IntArray, groups: list[Group], split: Split, gap: int) -> tuple[IntArray, IntArray]:
    """The numbers of samples in each part, and rows sorted by part, of clients with so many rows each."""
    order, counts = divide_samples(split, groups, np.arange(len(sizes)), sizes, "in_order" if gap else "shuffled")
    if gap == 0 or split.kind == "by_client":
        return counts, rows[order]
    is_first = np.cumsum(counts, axis=1) == counts
    skipped = np.where(is_first, 0, np.minimum(gap, counts)).ravel()
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts.ravel(), counts.ravel())
    kept = place >= np.repeat(skipped, counts.ravel())
    return counts - skipped.reshape(counts.shape), rows[order[kept]]


def is_divided(users: Users) -> bool:
    """Whether the files say what is for training and what for testing."""
    return not users.counts[:, UNDIVIDED].any()
