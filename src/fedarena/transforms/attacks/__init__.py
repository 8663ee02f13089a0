"""Attacks, one per file: what corrupted clients do."""

from fedarena.transforms.attacks.base import ATTACKS, Attack
from fedarena.transforms.attacks.none import NoAttack

__all__ = ["ATTACKS", "Attack", "NoAttack"]
