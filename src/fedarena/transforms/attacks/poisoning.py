"""What attacks on the data share: how many of a client's samples are poisoned, and updates that are scaled up."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.train import Algorithm, Groups
from fedarena.transforms.attacks.base import AttackedRun, OwnSamples
from fedarena.transforms.attacks.scaling import check_scale, replacing_scale
from fedarena.transforms.attacks.updates import UpdateAttack
from fedarena.transforms.rows import IntArray, Rows


class PoisoningAttack(UpdateAttack):
    """Corrupted clients train on samples of which the share `poisoned_share` is poisoned, always the same ones.

    What they learn they send as it is, or `scale` times (model replacement, Bagdasaryan et al. 2020); ``scale: null``
    is what replaces the model.
    """

    def __init__(
        self, *, share: float = 0.1, from_round: int = 1, poisoned_share: float = 1.0, scale: float | None = 1.0
    ):
        super().__init__(share=share, from_round=from_round)
        if not 0 < poisoned_share <= 1:
            raise BadInputError(f"attack.poisoned_share must be above 0 and at most 1, not {poisoned_share}")
        check_scale(scale)
        self.poisoned_share, self.scale = poisoned_share, scale

    @property
    def forges_updates(self) -> bool:
        """Whether updates are scaled."""
        return self.scale != 1.0

    def prepare(self, run: AttackedRun) -> None:
        """Finds the scale, if it is to be what replaces the model."""
        super().prepare(run)
        self.scale = replacing_scale(run) if self.scale is None else self.scale

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """To scale updates, there must be some."""
        return super().obstacle(algorithm, update) if self.forges_updates else None

    def deed(self) -> str:
        """What corrupted clients do."""
        scaled = f", and send {self.scale:g} times their updates" if self.forges_updates and self.scale else ""
        return f"{self.lesson()}{scaled}"

    def lesson(self) -> str:
        """What they train on, to go on after the word "they"."""
        raise NotImplementedError

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """The same, scaled up."""
        return self.replace_each(rows, lambda name, t: t * (self.scale or 1.0))

    def chosen(self, samples: OwnSamples) -> IntArray:
        """The rows of the samples that are poisoned, each by its own coin."""
        return np.flatnonzero(samples.uniform("poisoned") < self.poisoned_share)


def class_number(target: int | str, run: AttackedRun) -> int:
    """The class (or next token) of this number or name; refuses one that does not exist."""
    classes, names = run.spec.classes, run.label_names
    if isinstance(target, str):
        if names is None or target not in names:
            raise BadInputError(
                f"attack.target is {quoted(target)}, which is no label of this federation; give another one, or the "
                f"number of one, from 0 to {classes - 1}"
            )
        return list(names).index(target)
    if not 0 <= target < classes:
        raise BadInputError(f"attack.target must be a class from 0 to {classes - 1}, not {target}")
    return target
