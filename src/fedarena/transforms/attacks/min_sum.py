"""Min-sum. Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021."""

from __future__ import annotations

from torch import Tensor

from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.distances import FarthestAttack, Spread


@ATTACKS.register("min_sum")
class MinSum(FarthestAttack):
    """All corrupted clients send an update whose sum of squared distances from the known ones is no larger than theirs.

    It is their mean, moved in a `direction` that harms: against the standard deviations (``std``), the mean (``unit``)
    or its signs (``sign``). As in the paper they see the updates of all honest clients of a step; with
    ``sees: corrupted``, only what the corrupted ones would have sent.
    """

    def deed(self) -> str:
        """What corrupted clients do."""
        return "all send an update as far off, in the sum of squared distances, as the outermost of those they know"

    def gamma(self, spread: Spread) -> Tensor:
        """The largest γ with Σ ‖μ + γp - u_i‖² ≤ max_i Σ_j ‖u_i - u_j‖²; Σ p·(μ - u_i) is 0."""
        room = (spread.between.sum(1).max() - spread.from_mean.sum()).clamp(min=0)
        return (room / (len(spread.along) * spread.squared_length)).sqrt()
