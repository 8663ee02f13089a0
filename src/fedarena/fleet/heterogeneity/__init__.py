"""How hard a fleet makes training: six metrics of FLHetBench, how they are made, and what they do not tell apart."""

from fedarena.fleet.heterogeneity.estimates import Estimate
from fedarena.fleet.heterogeneity.measure import (
    METRICS,
    Heterogeneity,
    in_order,
    measure_heterogeneity,
    single_state_metric,
)
from fedarena.fleet.heterogeneity.options import CODE_OPTIONS, PAPER_OPTIONS, HeterogeneityOptions
from fedarena.fleet.heterogeneity.spread import DeviceSpread, StateSpread

__all__ = [
    "CODE_OPTIONS",
    "METRICS",
    "PAPER_OPTIONS",
    "DeviceSpread",
    "Estimate",
    "Heterogeneity",
    "HeterogeneityOptions",
    "StateSpread",
    "in_order",
    "measure_heterogeneity",
    "single_state_metric",
]
