"""What attacks on updates share: which of the numbers that a client sends they forge, and what they know of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedarena.train import COVERAGE, Algorithm, Groups
from fedarena.transforms.attacks.base import Attack
from fedarena.transforms.rows import Rows

ForgedGroups = Literal["change", "all"]
ColludingSight = Literal["corrupted", "all"]


class UpdateAttack(Attack):
    """Forges what moves the model (``groups: change``), or everything that a client sends (``all``)."""

    def __init__(self, *, share: float = 0.1, from_round: int = 1, groups: ForgedGroups = "change"):
        super().__init__(share=share, from_round=from_round)
        self.groups = groups

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """There must be something to forge."""
        return None if any(self._names(update, algorithm.change_groups)) else "its clients send no update"

    def forged_part(self, rows: Rows) -> Groups:
        """The groups that are forged."""
        return {group: rows.update[group] for group in self._names(rows.update, rows.change_groups)}

    def replace_each(self, rows: Rows, forge: Callable[[str, Tensor], Tensor]) -> Groups:
        """The updates with every forged tensor as `forge` makes it of its name and rows."""
        part = self.forged_part(rows)
        forged = {
            group: {name: forge(f"{group}/{name}", t) for name, t in tensors.items()} for group, tensors in part.items()
        }
        return rows.update | forged

    def _names(self, update: Groups, change_groups: tuple[str, ...]) -> list[str]:
        # What tells which parameters were trained is divided by, and must stay as it is.
        names = [group for group in update if group != COVERAGE] if self.groups == "all" else change_groups
        return [group for group in names if update.get(group)]


@dataclass(frozen=True)
class Known:
    """The honest updates that an adversary knows, and how many come together in the step of the server."""

    groups: Groups  # tensors with a row per update, among them others
    rows: Tensor  # those that it knows
    updates: int  # of the step, corrupted ones included
    corrupted: int

    def __len__(self) -> int:
        return len(self.rows)

    def map(self, function: Callable[[Tensor], Tensor]) -> Groups:
        """The same groups with what `function` makes of the known rows of every tensor, one tensor at a time."""
        return {
            group: {name: function(t[self.rows.to(t.device)]) for name, t in tensors.items()}
            for group, tensors in self.groups.items()
        }


class ColludingAttack(UpdateAttack):
    """All corrupted clients of a step of the server send the same, made from the honest updates that they know.

    With ``sees: all`` these are the updates of all honest clients of the step; with ``corrupted`` those that the
    corrupted clients of the step would have sent. Under asynchronous protocols a step may be of a single update.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        sees: ColludingSight = "all",
    ):
        super().__init__(share=share, from_round=from_round, groups=groups)
        self.sees = sees

    def craft(self, known: Known) -> Groups:
        """What all of them send: tensors without rows, by the names of what is forged."""
        raise NotImplementedError

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """The crafted update, for every corrupted client."""
        honest = np.flatnonzero(~seen.jobs.corrupted)
        known = honest if self.sees == "all" and len(honest) else np.arange(len(seen))
        # Those who see only their own kind know how many are usual.
        updates = len(seen) if self.sees == "all" or self.run is None else max(self.run.updates_per_step, len(rows))
        crafted = self.craft(Known(self.forged_part(seen), torch.as_tensor(known), updates, len(rows)))
        return rows.update | {
            group: {name: t.expand(len(rows), *t.shape) for name, t in tensors.items()}
            for group, tensors in crafted.items()
        }


def mean_of(known: Known) -> Groups:
    """The mean of the known updates."""
    return known.map(lambda t: t.mean(0))
