"""Adding updates to older models to those of the current one, so that the old ones do not undo the fresh ones.

Where two changes of the model point in opposite directions, the part of the one that lies along the other is taken out
before they are added (gradient surgery; Yu et al., NeurIPS 2020). FLHetBench (CVPR 2024) does so with the updates of
clients that missed a deadline, and calls that staleness-aware aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedarena.train import Groups, map_groups

# What a server does with updates to older models: shrink them by age, or take out what contradicts fresher ones.
Merging = Literal["shrink", "surgery", "sum"]


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
    return add_to_fresh(map_groups(lambda t: t / len(ages), total), changes.get(0))


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
