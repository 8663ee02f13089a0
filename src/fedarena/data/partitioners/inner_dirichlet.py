"""Clients of given sizes prefer different labels: each has a mix of labels drawn from a Dirichlet distribution.

Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), section 4; Flower's InnerDirichletPartitioner.
In `dirichlet` a label is shared among clients, so sizes follow from the draw; here sizes come first. Clients take
samples in a random order of turns, each of a label from its own mix, out of the labels that are not used up yet.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, MinSamples, check_enough
from fedarena.data.partitioners.sizes import proportional_sizes
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray

Floats = npt.NDArray[np.float64]
_TURNS_AT_ONCE = 4096


@PARTITIONERS.register("inner_dirichlet")
def inner_dirichlet(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5,
    sigma: Annotated[float, Field(ge=0, le=20)] = 0.0,
    min_samples: MinSamples = 1,
    seed: Seed = 0,
) -> IntArray:
    """The smaller `alpha`, the fewer labels a client has; sizes are equal, or log-normal with `sigma`."""
    check_enough(len(labels), clients, min_samples)
    present, class_of_sample = np.unique(labels, return_inverse=True)
    random = generator(seed, "partition/inner dirichlet")
    sizes = proportional_sizes(len(labels), random.lognormal(0, sigma, clients), min_samples)
    mixes = random.dirichlet(np.full(len(present), alpha), size=clients)
    turns = random.permutation(np.repeat(np.arange(clients), sizes))
    class_of_turn = take_classes(turns, mixes, np.bincount(class_of_sample), random.random(len(turns)))
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    for number in range(len(present)):
        rows = random.permutation(np.flatnonzero(class_of_sample == number))
        client_of_sample[rows] = turns[class_of_turn == number]
    return client_of_sample


def take_classes(turns: IntArray, mixes: Floats, available: IntArray, draws: Floats) -> IntArray:
    """The class that the client of every turn takes, by the draw of that turn (from 0 to 1) and the client's mix.

    Turns are dealt with many at once, up to the one that uses up a class; from there on nobody takes it any more.
    """
    left, mixes = available.copy(), mixes.copy()
    class_of_turn = np.empty(len(turns), dtype=np.int64)
    done = 0
    while done < len(turns):
        block = slice(done, done + _TURNS_AT_ONCE)
        taken = pick(_cumulated(mixes, left)[turns[block]], draws[block])
        ends = [
            places[left[number] - 1] + 1
            for number in np.unique(taken)
            if len(places := np.flatnonzero(taken == number)) >= left[number]
        ]
        valid = min(ends, default=len(taken))
        class_of_turn[done : done + valid] = taken[:valid]
        left -= np.bincount(taken[:valid], minlength=len(left))
        done += valid
    return class_of_turn


def _cumulated(mixes: Floats, left: IntArray) -> Floats:
    """Every client's mix of the classes that are left, added up; where it wants none of them, all alike."""
    wanted = np.where(left > 0, mixes, 0)
    wanted = np.where(wanted.sum(axis=1, keepdims=True) > 0, wanted, left > 0)
    return np.cumsum(wanted, axis=1)


def pick(cumulated: Floats, draws: Floats) -> IntArray:
    """For every row the first class whose cumulated share is above the draw."""
    above = cumulated > draws[:, None] * cumulated[:, -1:]
    classes: IntArray = np.argmax(above, axis=1)
    return classes
