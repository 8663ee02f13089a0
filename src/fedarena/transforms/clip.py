"""Clipping: an update that is longer than a bound is shortened to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import COVERAGE, Algorithm, Groups
from fedarena.transforms.rows import Rows, ScaledRows, norms_of, whole_number
from fedarena.transforms.transform import TRANSFORMS, Transform


@TRANSFORMS.register("clip")
class Clip(Transform):
    """Scales an update down to the Euclidean norm `bound` where it is longer.

    The norm is that of what moves the model (``groups: change``), or of everything a client sends (``all``).
    """

    enforced = True
    takes_products = True

    def __init__(self, *, bound: float = 1.0, groups: Literal["change", "all"] = "change"):
        if not bound > 0:
            raise BadInputError(f"transforms.clip.bound must be above 0, not {bound}")
        self.bound, self.groups = bound, groups

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """There must be something to clip, and all of it must be numbers that can be shortened."""
        clipped = self._clipped(update, algorithm.change_groups)
        if not any(clipped):
            return "its clients send no update"
        whole = whole_number(clipped)
        return f"its clients send {whole} as whole numbers, which cannot be shortened" if whole else None

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """The shortened updates."""
        return self.scaled(rows, server).rows(), kept

    def scaled(self, rows: Rows, server: Groups) -> ScaledRows:
        """The same as numbers to multiply tensors of clients by."""
        clipped = self._clipped(rows.update, rows.change_groups)
        factor = self.bound / norms_of(clipped).clamp(min=self.bound)
        of_types = {t.dtype: factor.to(t.dtype) for tensors in clipped.values() for t in tensors.values()}
        factors = {g: {name: of_types[t.dtype] for name, t in tensors.items()} for g, tensors in clipped.items()}
        return ScaledRows(rows.update, factors)

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """How many clients were longer than the bound."""
        norms = norms_of(self._clipped(before.update, before.change_groups))
        return {"clients": float(len(before)), "clipped": (norms > self.bound).sum()}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """The bound, and the share of the clients that were longer."""
        if not observed.get("clients"):
            return {}
        return {"clip_norm": self.bound, "clipped_share": observed["clipped"] / observed["clients"]}

    def _clipped(self, update: Groups, change_groups: tuple[str, ...]) -> Groups:
        # What tells which parameters were trained is divided by, and must stay as it is.
        names = [group for group in update if group != COVERAGE] if self.groups == "all" else change_groups
        return {group: update[group] for group in names if group in update}


class ClipForSum(Clip):
    """Shortens all that a client sends to a norm, for a sum to which every client adds noise of its own.

    It is what a privacy mechanism uses, and not a setting.
    """

    counts_clients_equally = True

    def __init__(self, bound: float):
        super().__init__(bound=bound, groups="all")
