"""How many images each user has, and in which group the user is.

Both depend on the seed and the number of the user alone, so the first users are the same however many there are. Yet
any first users have FLAIR's shape: sizes are quantiles at places that are spread evenly (a van der Corput sequence,
scrambled as by Owen, "Randomly Permuted (t, m, s)-Nets", 1995), and of every ten users eight are in train.
"""

from __future__ import annotations

import numpy as np

from fedarena.core.streams import bits, uniform
from fedarena.data.flair_like.arrays import Floats
from fedarena.data.flair_like.published import published
from fedarena.data.store.schema import GROUPS, IntArray

# The share of users that have at least so many images, between which its logarithm is linear in that of the number of
# images. It was fitted to the published mean, deviation and quartiles, and to the 2.3 % of users that have half of all
# images; beyond the largest published user there is nobody.
_AT_LEAST = (1, 2, 3, 6, 20, 100, 500)
_SHARE = (1.0, 0.6, 0.42, 0.225, 0.0627882, 0.00768078, 0.00264166)

_TEN = 10  # users among whom the groups are shared out
_PLACES_IN_TEN = np.repeat(np.arange(len(GROUPS)), (8, 1, 1))  # FLAIR's proportions, to the nearest percent

_LEVELS = 32


def sizes(seed: int, users: IntArray) -> IntArray:
    """How many images these users have."""
    log_shares, log_sizes = _survival()
    # Descending shares, as np.interp wants its places in ascending order.
    continuous = np.exp(np.interp(np.log1p(-_spread_evenly(seed, users)), log_shares[::-1], log_sizes[::-1]))
    found: IntArray = np.minimum(np.floor(continuous + 1e-9), published()["images_per_user"]["max"]).astype(np.int64)
    return found


def size_quantiles(places: Floats) -> Floats:
    """The number of images of the users of whom these shares of all *images* belong to users with fewer images."""
    log_shares, log_sizes = _survival()
    every = np.arange(1, int(published()["images_per_user"]["max"]) + 1)
    at_least = np.exp(np.interp(np.log(every), log_sizes, log_shares))
    images = (at_least - np.append(at_least[1:], 0)) * every
    return every[np.searchsorted(np.cumsum(images) / images.sum(), places)].astype(np.float64)


def groups(seed: int, users: IntArray) -> IntArray:
    """The position in `GROUPS` of the group of each of these users."""
    ten, place = np.divmod(users, _TEN)
    keys = bits(seed, "flair_like/group", (ten[:, None] * _TEN + np.arange(_TEN)))
    rank = (keys < keys[np.arange(len(users)), place][:, None]).sum(axis=1)
    found: IntArray = _PLACES_IN_TEN[rank].astype(np.int64)
    return found


def _survival() -> tuple[Floats, Floats]:
    """Knots: logarithms of shares of users, and of how many images these have at least."""
    figures = published()
    beyond = int(figures["images_per_user"]["max"]) + 1
    # Of all of FLAIR's users, about one is the largest.
    return np.log([*_SHARE, 0.6 / figures["users"]]), np.log([*_AT_LEAST, beyond])


def _spread_evenly(seed: int, numbers: IntArray) -> Floats:
    """A place in [0, 1) for every number, such that the first of them, however many, lie everywhere equally densely."""
    result = np.zeros(len(numbers), dtype=np.int64)
    for level in range(_LEVELS):
        lower = numbers & ((1 << level) - 1)
        flip = (bits(seed, "flair_like/size", level, lower) & np.uint64(1)).astype(np.int64)
        result = (result << 1) | (((numbers >> level) & 1) ^ flip)
    return (result + uniform(seed, "flair_like/size/rest", numbers)) / float(1 << _LEVELS)
