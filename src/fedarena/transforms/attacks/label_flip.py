"""Training on wrong labels. Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020.

FedScale's security example (ICML 2022, Fig. 14 and 19) permutes the labels of corrupted clients.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.transforms.attacks.base import ATTACKS, AttackedRun, Columns, OwnSamples
from fedarena.transforms.attacks.poisoning import PoisoningAttack, class_number
from fedarena.transforms.rows import IntArray


@ATTACKS.register("label_flip")
class LabelFlip(PoisoningAttack):
    """Corrupted clients train on their own samples with wrong labels; they see nothing else.

    ``to: next`` makes y of C classes (y + 1) mod C, ``class`` makes all labels the `target` (its number or name), and
    ``permutation`` sends every label to another one, by a `permutation` (the new label of every class) or by one that
    follows from the seed and leaves no label as it is. Where a sample has any number of labels, all of them are renamed
    that way.
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        poisoned_share: float = 1.0,
        scale: float | None = 1.0,
        to: Literal["next", "class", "permutation"] = "next",
        target: int | str = 0,
        permutation: tuple[int, ...] | None = None,
    ):
        super().__init__(share=share, from_round=from_round, poisoned_share=poisoned_share, scale=scale)
        if permutation is not None and to != "permutation":
            raise BadInputError(f"attack.permutation is for attack.to=permutation, not for {to}")
        if target != 0 and to != "class":
            raise BadInputError(f"attack.target is for attack.to=class, not for {to}")
        self.to, self.target, self.permutation = to, target, permutation
        self._new_labels: IntArray | None = None

    def prepare(self, run: AttackedRun) -> None:
        """Finds the new label of every class."""
        super().prepare(run)
        classes = run.spec.classes
        if run.spec.kind not in ("classification", "multi_label"):
            raise BadInputError(
                f"The attack label_flip needs samples with labels, and this federation has {run.spec}; "
                "choose another attack, such as sign_flip"
            )
        if self.to == "class":
            self._new_labels = np.full(classes, class_number(self.target, run))
        elif self.to == "next":
            self._new_labels = (np.arange(classes) + 1) % classes
        elif self.permutation is None:
            self._new_labels = cycle(classes, run.seed)
        else:
            if sorted(self.permutation) != list(range(classes)):
                raise BadInputError(
                    f"attack.permutation must hold every class from 0 to {classes - 1} once, not {self.permutation}"
                )
            self._new_labels = np.array(self.permutation)

    def lesson(self) -> str:
        """What they train on."""
        new = {
            "class": f"all labels turned into {self.target}",
            "next": "every label turned into the next one",
            "permutation": "labels permuted",
        }[self.to]
        some = "" if self.poisoned_share == 1 else f" on {self.poisoned_share:.0%} of their samples"
        return f"train with {new}{some}"

    def poison(self, samples: OwnSamples) -> Columns:
        """The new labels."""
        assert self._new_labels is not None
        y, rows = samples.columns["y"].copy(), self.chosen(samples)
        if y.ndim == 1:
            y[rows] = self._new_labels[y[rows].astype(np.int64)]
            return {"y": y}
        has = y[rows] > 0
        renamed = np.zeros_like(y[rows])
        for old, new in enumerate(self._new_labels.tolist()):
            renamed[has[:, old], new] = 1
        y[rows] = renamed
        return {"y": y}


def cycle(classes: int, seed: int) -> IntArray:
    """A permutation of ``0..classes-1`` that goes through all of them before it comes back, so that none stays."""
    order = np.argsort(np.asarray(streams.bits(seed, "attack: labels", np.arange(classes))), kind="stable")
    new = np.empty(classes, dtype=np.int64)
    new[order] = np.roll(order, -1)
    return new
