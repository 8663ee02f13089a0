"""Inner-product manipulation. Xie, Koyejo, Gupta, "Fall of Empires", UAI 2019 (PMLR 2020).

If the inner product of what is aggregated with the true mean is negative, the server walks uphill. -ε times the mean of
the honest updates brings that about: the mean needs ε > (n - m) / m; some defences let a small ε pass.
"""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.updates import ColludingAttack, ColludingSight, ForgedGroups, Known


@ATTACKS.register("inner_product")
class InnerProduct(ColludingAttack):
    """All corrupted clients send ``-epsilon`` times the mean of the known updates.

    As in the paper they see the updates of all honest clients of a step; with ``sees: corrupted``, only what the
    corrupted ones would have sent.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        sees: ColludingSight = "all",
        epsilon: float = 0.5,
    ):
        super().__init__(share=share, from_round=from_round, groups=groups, sees=sees)
        if not epsilon > 0:
            raise BadInputError(f"attack.epsilon must be above 0, not {epsilon}")
        self.epsilon = epsilon

    def deed(self) -> str:
        """What corrupted clients do."""
        return f"all send -{self.epsilon:g} times the mean of the updates that they know"

    def craft(self, known: Known) -> Groups:
        """The opposite of the mean."""
        return known.map(lambda t: -self.epsilon * t.mean(0))
