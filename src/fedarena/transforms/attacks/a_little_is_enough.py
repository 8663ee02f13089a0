"""Small lies that stay within the spread. Baruch, Baruch, Goldberg, "A Little Is Enough", NeurIPS 2019.

Corrupted clients estimate mean μ and standard deviation σ of every coordinate and send μ - zσ. With n updates, m of
them corrupted, s = floor(n/2 + 1) - m honest ones are needed for a majority, and z is the largest for which so many are
expected to lie further from the mean: Φ(z) = (n - m - s) / (n - m).
"""

from __future__ import annotations

from statistics import NormalDist

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.updates import ColludingAttack, ColludingSight, ForgedGroups, Known


@ATTACKS.register("a_little_is_enough")
class ALittleIsEnough(ColludingAttack):
    """All corrupted clients send the mean minus `z` standard deviations, of every coordinate of the known updates.

    Without a `z` it follows from the numbers of clients; where the corrupted ones are so few that it would be below 0,
    it is 0. As in the paper they see what all corrupted clients of a step would have sent; with ``sees: all``, the
    updates of all honest clients of the step.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        sees: ColludingSight = "corrupted",
        z: float | None = None,
    ):
        super().__init__(share=share, from_round=from_round, groups=groups, sees=sees)
        if z is not None and not z >= 0:
            raise BadInputError(f"attack.z must be 0 or more, not {z}")
        self.z = z

    def deed(self) -> str:
        """What corrupted clients do."""
        many = "a few" if self.z is None else f"{self.z:g}"
        return f"all send the mean minus {many} standard deviations of the updates that they know"

    def craft(self, known: Known) -> Groups:
        """μ - zσ."""
        z = largest_z(known.updates, known.corrupted) if self.z is None else self.z
        return known.map(lambda t: t.mean(0) - z * t.std(0, correction=0))


def largest_z(updates: int, corrupted: int) -> float:
    """How many standard deviations are safe with so many updates, of which so many are corrupted; at least 0."""
    honest = updates - corrupted
    supporters = max(1, updates // 2 + 1 - corrupted)
    if honest <= supporters:
        return 0.0
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest))
