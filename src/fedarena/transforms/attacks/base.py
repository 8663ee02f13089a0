"""The interface of an attack: what clients do that an adversary has in its hands."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.train import Groups
from fedarena.transforms.rows import IntArray, Rows

Sight = Literal["own", "corrupted", "all"]


class Attack:
    """A `share` of the clients is corrupted, drawn once by the run's seed, and attacks from round `from_round` on.

    Keyword-only constructor arguments are its settings; every attack has these two. What corrupted clients send instead
    of their updates is what `forge` says. They send it after the transforms of updates, so they keep to none of these,
    except to what a server can make sure of by itself (`Transform.enforced`).
    """

    sees: Sight = "own"  # a client's own data and update; those of all corrupted clients; or everybody's updates
    forges_updates = False  # whether `forge` is used

    def __init__(self, *, share: float = 0.1, from_round: int = 1):
        if not 0 <= share < 1:
            raise BadInputError(f"attack.share must be at least 0 and below 1, not {share}")
        if from_round < 1:
            raise BadInputError(f"attack.from_round must be at least 1, not {from_round}")
        self.share, self.from_round = share, from_round

    def corrupted_clients(self, clients: IntArray, seed: int) -> IntArray:
        """Who of these (all who could ever be invited, sorted) is corrupted: the share, to the nearest client."""
        number = round(self.share * len(clients))
        order = np.argsort(np.asarray(streams.bits(seed, "corrupted", clients)), kind="stable")
        return np.sort(clients[order[:number]])

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """What corrupted clients (`rows`) send instead of their updates; `seen` are the rows that they see.

        With ``sees = "own"`` these are the same, and a client may use nothing but its own row.
        """
        return rows.update


ATTACKS: Registry[type[Attack]] = Registry("attack", base=Attack)
