"""No attack."""

from __future__ import annotations

from fedarena.transforms.attacks.base import ATTACKS, Attack


@ATTACKS.register("none")
class NoAttack(Attack):
    """Everybody is honest."""

    def __init__(self) -> None:
        super().__init__(share=0.0)
