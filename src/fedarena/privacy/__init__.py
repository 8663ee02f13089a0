"""Differential privacy: mechanisms, one per file, and the accountant that says what they guarantee."""

from fedarena.privacy.accounting import Sampled
from fedarena.privacy.correlated import CorrelatedGaussian
from fedarena.privacy.distributed import DistributedGaussian
from fedarena.privacy.dp_sgd import DPSGD
from fedarena.privacy.gaussian import CentralGaussian
from fedarena.privacy.local import LocalGaussianMechanism, LocalLaplaceMechanism, PrivUnitMechanism
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, NoPrivacy, RunFacts
from fedarena.privacy.nbafl import NbAFL
from fedarena.privacy.solving import PrivacyPlan, plan_privacy

__all__ = [
    "DPSGD",
    "MECHANISMS",
    "CentralGaussian",
    "CorrelatedGaussian",
    "DistributedGaussian",
    "LocalGaussianMechanism",
    "LocalLaplaceMechanism",
    "Mechanism",
    "NbAFL",
    "NoPrivacy",
    "PrivUnitMechanism",
    "PrivacyPlan",
    "RunFacts",
    "Sampled",
    "plan_privacy",
]
