"""Differential evolution, one step of it: rand/1/bin. Storn and Price, Journal of Global Optimization, 1997.

Individuals are points of the unit cube, whatever the hyperparameters are; who asks how good one is asks for the
configuration at that point (Awad et al., 2020).
"""

from __future__ import annotations

import numpy as np

from fedarena.hpo.optimizers.axes import FloatArray


def mutant(parents: FloatArray, factor: float) -> FloatArray:
    """The first of three parents, moved by `factor` times the difference of the others."""
    moved: FloatArray = parents[0] + factor * (parents[1] - parents[2])
    return moved


def crossed(target: FloatArray, mutated: FloatArray, chance: float, generator: np.random.Generator) -> FloatArray:
    """Coordinates of the mutant with this chance, and of at least one axis; the others are the target's."""
    taken = generator.random(len(target)) < chance
    taken[generator.integers(len(target))] = True
    return np.where(taken, mutated, target)


def inside(point: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Coordinates that left the cube drawn anew, uniformly, so that nothing gathers at its faces."""
    drawn = generator.random(len(point))
    return np.where((point < 0.0) | (point > 1.0), drawn, point)


def offspring(
    target: FloatArray, parents: FloatArray, factor: float, chance: float, generator: np.random.Generator
) -> FloatArray:
    """What a target is compared with: itself, crossed with a mutant of three different `parents` drawn from these."""
    three = parents[generator.choice(len(parents), size=3, replace=False)]
    return inside(crossed(target, mutant(three, factor), chance, generator), generator)
