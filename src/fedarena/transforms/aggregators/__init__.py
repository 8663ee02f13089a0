"""Aggregators, one per file: how the updates of many clients become one."""

from fedarena.transforms.aggregators.base import AGGREGATORS, Aggregator, Partial, ServerStep
from fedarena.transforms.aggregators.bulyan import Bulyan
from fedarena.transforms.aggregators.by_age import ByAge
from fedarena.transforms.aggregators.centered_clipping import CenteredClipping
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence
from fedarena.transforms.aggregators.fixed_mean import FixedMean
from fedarena.transforms.aggregators.fl_trust import FLTrust
from fedarena.transforms.aggregators.fools_gold import FoolsGold
from fedarena.transforms.aggregators.geometric_median import GeometricMedian
from fedarena.transforms.aggregators.krum import Krum
from fedarena.transforms.aggregators.mean import Mean
from fedarena.transforms.aggregators.median import Median
from fedarena.transforms.aggregators.mixing import Mixing
from fedarena.transforms.aggregators.multi_krum import MultiKrum
from fedarena.transforms.aggregators.norm_bound import NormBound
from fedarena.transforms.aggregators.sign_majority import SignMajority
from fedarena.transforms.aggregators.trimmed_mean import TrimmedMean

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Bulyan",
    "ByAge",
    "CenteredClipping",
    "Collected",
    "Defence",
    "FLTrust",
    "FixedMean",
    "FoolsGold",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "Mixing",
    "MultiKrum",
    "NormBound",
    "Partial",
    "ServerStep",
    "SignMajority",
    "TrimmedMean",
]
