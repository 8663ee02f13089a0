"""Policies, one per file: which hyperparameters every job trains with, learned while training goes on."""

from fedarena.simulate.policies.base import POLICIES, POLICY_GROUP, NoPolicy, Policy, PolicyFacts, RoundSettings
from fedarena.simulate.policies.by_speed import BySpeed
from fedarena.simulate.policies.fedex import FedEx
from fedarena.simulate.policies.fts import FTS
from fedarena.simulate.policies.personalized_fedex import PersonalizedFedEx

__all__ = [
    "FTS",
    "POLICIES",
    "POLICY_GROUP",
    "BySpeed",
    "FedEx",
    "NoPolicy",
    "PersonalizedFedEx",
    "Policy",
    "PolicyFacts",
    "RoundSettings",
]
