"""Differential privacy: mechanisms, one per file, and the accountant that says what they guarantee."""

from fedarena.privacy.mechanism import MECHANISMS, Mechanism, NoPrivacy, RunFacts

__all__ = ["MECHANISMS", "Mechanism", "NoPrivacy", "RunFacts"]
