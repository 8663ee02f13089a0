"""Differential privacy: mechanisms, one per file, and the accountant that says what they guarantee."""

from fedarena.privacy.accounting import Sampled
from fedarena.privacy.gaussian import CentralGaussian
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, NoPrivacy, RunFacts
from fedarena.privacy.solving import PrivacyPlan, plan_privacy

__all__ = [
    "MECHANISMS",
    "CentralGaussian",
    "Mechanism",
    "NoPrivacy",
    "PrivacyPlan",
    "RunFacts",
    "Sampled",
    "plan_privacy",
]
