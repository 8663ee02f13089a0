"""Clients who take the model and give nothing.

Fraboni, Vidal, Lorenzi, "Free-rider Attacks on Model Aggregation in Federated Learning", AISTATS 2021: the model comes
back unchanged, or with noise. Lin, Du, Liu, "Free-riders in Federated Learning", 2019: the change of the global model
since the last time comes back as if it were the client's own.
"""

from __future__ import annotations

from typing import Literal

from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups
from fedarena.transforms.attacks.base import ATTACKS
from fedarena.transforms.attacks.updates import ForgedGroups, UpdateAttack
from fedarena.transforms.rows import Rows


@ATTACKS.register("free_rider")
class FreeRider(UpdateAttack):
    """Every corrupted client sends something that took no training: it uses no data, and knows what it downloaded.

    ``sends: zero`` is no change at all, ``noise`` normal numbers of the standard deviation `std`, and ``previous`` what
    the server's model changed by since the client's last job, per step of the server (nothing in its first job).
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        sends: Literal["zero", "noise", "previous"] = "noise",
        std: float = 0.001,
    ):
        super().__init__(share=share, from_round=from_round, groups=groups)
        if not std > 0:
            raise BadInputError(f"attack.std must be above 0, not {std}")
        self.sends, self.std = sends, std
        self.remembers_downloads = sends == "previous"

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """A previous change of the model must be what clients send."""
        if self.sends == "previous" and (algorithm.change_groups != ("params",) or "params" not in update):
            return "its clients do not send changes of the model's parameters, of which there could be previous ones"
        return super().obstacle(algorithm, update)

    def deed(self) -> str:
        """What corrupted clients do."""
        return {
            "zero": "send no change of the model",
            "noise": f"send normal noise of standard deviation {self.std:g} instead of training",
            "previous": "send what the model changed by since their last time, per step of the server",
        }[self.sends]

    def sight(self) -> str:
        """What they see."""
        return "only the models that they download"

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """Nothing that was learned."""
        if self.sends == "noise":
            context = rows.context
            return self.replace_each(rows, lambda name, t: self.std * context.normal(name, t))
        nothing = self.replace_each(rows, lambda name, t: 0 * t)
        if self.sends == "zero":
            return nothing
        before, steps = rows.memory["params"], rows.memory["steps"]["since"]
        changes = {
            name: (now - before[name]) / steps.to(now).view(-1, *[1] * (now.dim() - 1)).clamp(min=1)
            for name, now in rows.downloaded.items()
        }
        return nothing | {"params": {name: changes[name] for name in rows.update["params"]}}
