"""Aggregators, one per file: how the updates of many clients become one."""

from fedarena.transforms.aggregators.base import AGGREGATORS, Aggregator, Partial
from fedarena.transforms.aggregators.by_age import ByAge
from fedarena.transforms.aggregators.fixed_mean import FixedMean
from fedarena.transforms.aggregators.mean import Mean
from fedarena.transforms.aggregators.mixing import Mixing

__all__ = ["AGGREGATORS", "Aggregator", "ByAge", "FixedMean", "Mean", "Mixing", "Partial"]
