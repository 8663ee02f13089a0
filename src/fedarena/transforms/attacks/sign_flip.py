"""Updates that lead away from where they should. Used as a baseline by Li et al., "RSA", AAAI 2019, and many others."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.updates import ForgedGroups, UpdateAttack
from fedarena.transforms.rows import Rows


@ATTACKS.register("sign_flip")
class SignFlip(UpdateAttack):
    """Every corrupted client sends ``-scale`` times its own update. It sees nothing but its own data and update."""

    def __init__(self, *, share: float = 0.1, from_round: int = 1, groups: ForgedGroups = "change", scale: float = 1.0):
        super().__init__(share=share, from_round=from_round, groups=groups)
        if not scale > 0:
            raise BadInputError(f"attack.scale must be above 0, not {scale}")
        self.scale = scale

    def deed(self) -> str:
        """What corrupted clients do."""
        return f"send -{self.scale:g} times their updates"

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """The opposite."""
        return self.replace_each(rows, lambda name, t: -self.scale * t)
