"""The weighted mean of the clients' updates."""

from __future__ import annotations

import numpy as np
import torch

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.train import COVERAGE, Groups, map_groups
from fedarena.transforms.aggregators.base import AGGREGATORS, Aggregator, Partial, cohort_of, named, unnamed
from fedarena.transforms.rows import FloatArray, IntArray, Rows, weighted_sum

CHANGE, OTHER = "change:", "other:"


@AGGREGATORS.register("mean")
class Mean(Aggregator):
    """The mean, in which clients count as the algorithm says.

    A change of the model that began τ steps of the server ago is shrunk to ``(1 + τ)^-staleness_exponent``. That makes
    the server's step shorter, as in FedBuff; with `rescale` stale updates only count less beside fresh ones. Age takes
    away from how far the model moves, not from what else clients and server know of each other.
    """

    adds_scaled_rows = True
    adds_products = True
    needs_only_sums = True

    def __init__(self, *, staleness_exponent: float = 0.5, rescale: bool = False):
        check_exponent(staleness_exponent)
        self.staleness_exponent, self.rescale = staleness_exponent, rescale

    def factors(self, staleness: IntArray) -> FloatArray:
        """They get smaller with age."""
        return shrinking(staleness, self.staleness_exponent)

    def add_up(self, rows: Rows) -> Partial:
        """Weighted sums, and the sums of the weights."""
        scaled = rows.weights * self.factors(rows.jobs.staleness)
        counted = scaled if self.rescale else rows.weights
        changes = weighted_sum(rows.changes, scaled, rows.factors) | weighted_sum(rows.coverage, counted)
        others = sum_of_others(rows)
        return Partial(
            named(CHANGE, changes) | others.tensors,
            {"weight": float(counted.sum()), **others.numbers},
        )

    def finish(self, total: Partial) -> Groups:
        """The means, and how many clients they are of."""
        weight = total.numbers["weight"]
        if weight == 0:
            raise RunFailedError(
                "The algorithm's client_weight is 0 for every client of a round, so that there is no mean of their "
                "updates; let some of them count"
            )
        change = map_groups(lambda t: t / weight, unnamed(CHANGE, total.tensors))
        return mean_of_others(total) | over_those_who_trained(change)


def check_exponent(exponent: float) -> None:
    """Old updates must not count more than fresh ones."""
    if exponent < 0:
        raise BadInputError(f"aggregator.staleness_exponent must not be negative, but is {exponent}")


def shrinking(staleness: IntArray, exponent: float) -> FloatArray:
    """``(1 + τ)^-exponent``."""
    factors: FloatArray = np.power(1.0 + staleness, -exponent, dtype=np.float64)
    return factors


def sum_of_others(rows: Rows) -> Partial:
    """What clients send besides changes of the model, weighted."""
    numbers = {"other_weight": float(rows.weights.sum()), "clients": float(len(rows))}
    return Partial(named(OTHER, weighted_sum(rows.others, rows.weights, rows.factors, rows.dtype)), numbers)


def mean_of_others(total: Partial) -> Groups:
    """The mean of what clients send besides changes of the model, and how many they are."""
    mean = map_groups(lambda t: t / total.numbers["other_weight"], unnamed(OTHER, total.tensors))
    return mean | cohort_of(total.numbers["clients"])


def over_those_who_trained(change: Groups) -> Groups:
    """A mean change of the model, in which every parameter's is the mean over the clients who trained it."""
    if COVERAGE not in change:
        return change
    covered = change[COVERAGE]
    tiny = torch.finfo(torch.float32).tiny  # where nobody did, the change is 0
    return {
        group: {name: t / covered[name].clamp(min=tiny) for name, t in tensors.items()}
        for group, tensors in change.items()
        if group != COVERAGE
    }
