"""Min-max. Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021."""

from __future__ import annotations

from torch import Tensor

from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.distances import FarthestAttack, Spread


@ATTACKS.register("min_max")
class MinMax(FarthestAttack):
    """All corrupted clients send an update no further from any known one than these are from each other at most.

    It is their mean, moved in a `direction` that harms: against the standard deviations (``std``), the mean (``unit``)
    or its signs (``sign``). As in the paper they see the updates of all honest clients of a step; with
    ``sees: corrupted``, only what the corrupted ones would have sent.
    """

    def deed(self) -> str:
        """What corrupted clients do."""
        return "all send an update as far off as the most distant pair of those that they know"

    def gamma(self, spread: Spread) -> Tensor:
        """The largest γ with ‖μ + γp - u_i‖ ≤ max ‖u_j - u_k‖ for all i."""
        a, b = spread.squared_length, spread.along
        room = (spread.between.max() - spread.from_mean).clamp(min=0)
        return ((-b + (b.square() + a * room).sqrt()) / a).min()
