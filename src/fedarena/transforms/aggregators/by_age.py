"""Adding updates to older models to those of the current one, so that the old ones do not undo the fresh ones.

Where two changes of the model point in opposite directions, the part of the one that lies along the other is taken out
before they are added (gradient surgery; Yu et al., NeurIPS 2020). FLHetBench (CVPR 2024) does so with the updates of
clients that missed a deadline, and calls that staleness-aware aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups, map_groups
from fedarena.transforms.aggregators.base import AGGREGATORS, Aggregator, Partial, named, unnamed
from fedarena.transforms.aggregators.mean import (
    CHANGE,
    check_exponent,
    mean_of_others,
    over_those_who_trained,
    shrinking,
    sum_of_others,
)
from fedarena.transforms.rows import FloatArray, IntArray, Rows, weighted_sum

Merging = Literal["surgery", "sum"]


@AGGREGATORS.register("by_age")
class ByAge(Aggregator):
    """Means of the updates of every age, which are then merged without contradicting each other.

    By ``merging: surgery`` old updates come to the fresh ones age by age, without the parts that contradict fresher
    ones; by ``sum`` all at once, each shrunk to ``(1 + τ)^-staleness_exponent``, without what contradicts the fresh
    ones.
    """

    def __init__(self, *, merging: Merging = "surgery", staleness_exponent: float = 0.5):
        check_exponent(staleness_exponent)
        self.merging, self.staleness_exponent = merging, staleness_exponent

    def factors(self, staleness: IntArray) -> FloatArray:
        """Surgery leaves updates their length."""
        return shrinking(staleness, 0.0 if self.merging == "surgery" else self.staleness_exponent)

    def add_up(self, rows: Rows) -> Partial:
        """Weighted sums for every age."""
        staleness = rows.jobs.staleness
        ages = staleness if self.merging == "surgery" else np.minimum(staleness, 1)
        scaled = rows.weights * self.factors(staleness)
        total = sum_of_others(rows)
        for age in np.unique(ages).tolist():
            of_age = ages == age
            changes = weighted_sum(rows.changes, np.where(of_age, scaled, 0.0))
            coverage = weighted_sum(rows.coverage, np.where(of_age, rows.weights, 0.0))
            total.tensors.update(named(f"{CHANGE}{age}:", changes | coverage))
            total.numbers[f"weight:{age}"] = float(rows.weights[of_age].sum())
        return total

    def finish(self, total: Partial) -> Groups:
        """The merged change of the model, and the means of all else."""
        means: dict[int, Groups] = {}
        for name, weight in total.numbers.items():
            if name.startswith("weight:"):
                age = name.removeprefix("weight:")
                means[int(age)] = over_those_who_trained(_divided(unnamed(f"{CHANGE}{age}:", total.tensors), weight))
        return mean_of_others(total) | merge_by_age(means)


def merge_by_age(changes: Mapping[int, Groups]) -> Groups:
    """One change of the model from those of every age (in steps of the server; 0 is fresh).

    From the oldest on, each is added to the sum so far, of which the part that contradicts it is taken out. The mean
    of the old ones comes to the fresh change after what contradicts that is taken out, too.
    """
    ages = sorted((age for age in changes if age > 0), reverse=True)
    if not ages:
        return changes[0]
    total = changes[ages[0]]
    for age in ages[1:]:
        total = _sum_of(without_contradiction(total, changes[age]), changes[age])
    return add_to_fresh(_divided(total, len(ages)), changes.get(0))


def add_to_fresh(old: Groups, fresh: Groups | None) -> Groups:
    """The fresh change, if any, plus what does not contradict it of the old one."""
    return old if fresh is None else _sum_of(without_contradiction(old, fresh), fresh)


def without_contradiction(change: Groups, other: Groups) -> Groups:
    """`change` without its part against the direction of `other`; the same if it has none."""
    along = _product(change, other)
    length = _product(other, other)
    factor = torch.where((along < 0) & (length > 0), along / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0)
    return {
        group: {name: t - factor.to(t.dtype) * other[group][name] for name, t in tensors.items()}
        for group, tensors in change.items()
    }


def _divided(groups: Groups, by: float) -> Groups:
    return map_groups(lambda t: t / by, groups)


def _sum_of(first: Groups, second: Groups) -> Groups:
    """The sum of two groups of the same names."""
    return {group: {name: t + second[group][name] for name, t in tensors.items()} for group, tensors in first.items()}


def _product(first: Groups, second: Groups) -> Tensor:
    """The scalar product of all numbers."""
    product = torch.zeros((), dtype=torch.float64)
    for group, tensors in first.items():
        for name, t in tensors.items():
            product = product + (t.double() * second[group][name].double()).sum()
    return product
