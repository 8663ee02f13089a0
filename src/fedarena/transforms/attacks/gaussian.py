"""Updates that are noise. Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017, section 5."""

from __future__ import annotations

from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.updates import ForgedGroups, UpdateAttack
from fedarena.transforms.rows import Rows


@ATTACKS.register("gaussian")
class Gaussian(UpdateAttack):
    """Every corrupted client sends independent normal numbers of the standard deviation `std`.

    With `add` it adds them to its own update. It sees nothing but its own data and update.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        std: float = 1.0,
        add: bool = False,
    ):
        super().__init__(share=share, from_round=from_round, groups=groups)
        if not std > 0:
            raise BadInputError(f"attack.std must be above 0, not {std}")
        self.std, self.add = std, add

    def deed(self) -> str:
        """What corrupted clients do."""
        noise = f"normal noise of standard deviation {self.std:g}"
        return f"add {noise} to their updates" if self.add else f"send {noise}"

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """The noise, other numbers for every client and round."""
        context = rows.context

        def noise(name: str, t: Tensor) -> Tensor:
            drawn = self.std * context.normal(name, t)
            return t + drawn if self.add else drawn

        return self.replace_each(rows, noise)
