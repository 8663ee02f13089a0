"""Parts of optimizers in the plainest way, to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def density(points: np.ndarray, bandwidths: np.ndarray, categories: list[int], at: np.ndarray) -> float:
    """A product of kernels, averaged over points: normal, or Aitchison and Aitken's for categories."""
    total = 0.0
    for point in points:
        product = 1.0
        for width, count, here, there in zip(bandwidths, categories, at, point, strict=True):
            if count:
                same = math.floor(here * count) == math.floor(there * count)
                product *= 1 - width if same else width / (count - 1)
            else:
                product *= math.exp(-0.5 * ((here - there) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        total += product
    return total / len(points)


def evolve(
    function: Callable[[np.ndarray], float], population: int, dimensions: int, evaluations: int, seed: int
) -> list[np.ndarray]:
    """Differential evolution, rand/1/bin with F = CR = 0.5: every point that it evaluates."""
    generator = np.random.default_rng(seed)
    people = [list(row) for row in generator.random((population, dimensions))]
    values = [function(np.array(one)) for one in people]
    evaluated = [np.array(one) for one in people]
    while len(evaluated) < evaluations:
        children = []
        for number in range(population):
            others = people[:number] + people[number + 1 :]
            a, b, c = (others[index] for index in generator.choice(len(others), size=3, replace=False))
            chances = generator.random(dimensions)
            certain = generator.integers(dimensions)
            child = []
            for axis in range(dimensions):
                taken = chances[axis] < 0.5 or axis == certain
                child.append(a[axis] + 0.5 * (b[axis] - c[axis]) if taken else people[number][axis])
            anywhere = generator.random(dimensions)
            child = [value if 0 <= value <= 1 else anywhere[axis] for axis, value in enumerate(child)]
            children.append(child)
            evaluated.append(np.array(child))
        for number, child in enumerate(children):
            if (value := function(np.array(child))) <= values[number]:
                people[number], values[number] = child, value
    return evaluated[:evaluations]


def median_rule(values: list[list[float]], startup: int) -> list[int]:
    """How many rungs each course climbs if it ends as soon as its best is worse than the median of complete ones."""
    complete: list[list[float]] = []
    climbed = []
    for course in values:
        rungs = 0
        for rung in range(len(course)):
            rungs = rung + 1
            is_last = rungs == len(course)
            if is_last:
                complete.append(course)
                break
            if len(complete) >= max(startup, 1) and min(course[:rungs]) > np.median([one[rung] for one in complete]):
                break
        climbed.append(rungs)
    return climbed
