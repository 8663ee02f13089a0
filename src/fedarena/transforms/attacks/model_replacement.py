"""Model replacement by scaling. Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020."""

from __future__ import annotations

from fedarena.train import Groups
from fedarena.transforms.attacks.base import ATTACKS, AttackedRun
from fedarena.transforms.attacks.scaling import check_scale, replacing_scale
from fedarena.transforms.attacks.updates import ForgedGroups, UpdateAttack
from fedarena.transforms.rows import Rows


@ATTACKS.register("model_replacement")
class ModelReplacement(UpdateAttack):
    """Every corrupted client sends `scale` times its own update, so that the mean becomes its own model.

    Without a `scale` it is what that takes: the number of updates in a step of the server, divided by how many of them
    are expected to be corrupted. It sees nothing but its own data and update, and knows these numbers. To combine it
    with poisoned samples, give `backdoor` or `label_flip` a scale.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        scale: float | None = None,
    ):
        super().__init__(share=share, from_round=from_round, groups=groups)
        check_scale(scale)
        self.scale = scale

    def prepare(self, run: AttackedRun) -> None:
        """Finds the scale, if it is not given."""
        super().prepare(run)
        self.scale = replacing_scale(run) if self.scale is None else self.scale

    def deed(self) -> str:
        """What corrupted clients do."""
        return f"send {self.scale or 1:g} times their updates"

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """The same, scaled up."""
        return self.replace_each(rows, lambda name, t: t * (self.scale or 1.0))
