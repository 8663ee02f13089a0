"""Attacks, one per file: what corrupted clients do."""

from fedarena.transforms.attacks import (  # noqa: F401  (importing registers the attacks)
    a_little_is_enough,
    free_rider,
    gaussian,
    inner_product,
    label_flip,
    min_max,
    min_sum,
    model_replacement,
    sign_flip,
)
from fedarena.transforms.attacks.backdoor import ATTACK_SUCCESS
from fedarena.transforms.attacks.base import ATTACKS, Attack, AttackedRun, OwnSamples
from fedarena.transforms.attacks.none import NoAttack

__all__ = ["ATTACKS", "ATTACK_SUCCESS", "Attack", "AttackedRun", "NoAttack", "OwnSamples"]
