"""Clipping: an update that is longer than a bound is shortened to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import COVERAGE, Algorithm, Groups, map_groups
from fedarena.transforms.rows import Rows, flat
from fedarena.transforms.transform import TRANSFORMS, Transform


@TRANSFORMS.register("clip")
class Clip(Transform):
    """Scales an update down to the Euclidean norm `bound` where it is longer.

    The norm is that of what moves the model (``groups: change``), or of everything a client sends (``all``).
    """

    enforced = True

    def __init__(self, *, bound: float = 1.0, groups: Literal["change", "all"] = "change"):
        if not bound > 0:
            raise BadInputError(f"transforms.clip.bound must be above 0, not {bound}")
        self.bound, self.groups = bound, groups

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """There must be something to clip."""
        return None if any(self._clipped(update, algorithm.change_groups)) else "its clients send no update"

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """The shortened updates."""
        clipped = self._clipped(rows.update, rows.change_groups)
        norms = torch.linalg.vector_norm(flat(clipped), dim=1)
        factors = (self.bound / norms.clamp(min=self.bound)).to(norms.dtype)
        shortened = map_groups(lambda t: t * factors.view(-1, *[1] * (t.dim() - 1)).to(t.dtype), clipped)
        return rows.update | shortened, kept

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """How many clients were longer than the bound."""
        norms = torch.linalg.vector_norm(flat(self._clipped(before.update, before.change_groups)), dim=1)
        return {"clients": float(len(before)), "clipped": float((norms > self.bound).sum())}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """The bound, and the share of the clients that were longer."""
        if not observed.get("clients"):
            return {}
        return {"clip_norm": self.bound, "clipped_share": observed["clipped"] / observed["clients"]}

    def _clipped(self, update: Groups, change_groups: tuple[str, ...]) -> Groups:
        # What tells which parameters were trained is divided by, and must stay as it is.
        names = [group for group in update if group != COVERAGE] if self.groups == "all" else change_groups
        return {group: update[group] for group in names if group in update}
