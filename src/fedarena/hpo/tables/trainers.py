"""Who trains the configurations of a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.scores import PARTS, best_so_far, score_name
from fedarena.hpo.space import Configuration
from fedarena.hpo.tables.recipe import Recipe

FloatArray = npt.NDArray[np.float64]
Told = Callable[[int], None]  # how many trials of a block are done


class Trainer(Protocol):
    """Trains configurations with all sample rates and seeds of a recipe."""

    name: str
    scores: tuple[str, ...]

    def train(self, configurations: Sequence[Configuration], told: Told | None) -> FloatArray:
        """What each came to at the noted rounds, ``[configurations, rates, seeds, scores, rounds]``."""


class OneByOne:
    """Trains one trial after the other, each by a run."""

    name = "one_by_one"

    def __init__(self, problem: RawProblem, recipe: Recipe):
        self._problem, self._recipe = problem, recipe
        self.scores = table_scores(problem)

    def train(self, configurations: Sequence[Configuration], told: Told | None) -> FloatArray:
        """Runs are removed once the scores of a trial are known; one that was cut short goes on."""
        recipe = self._recipe
        last, noted = recipe.rounds[-1], np.array(recipe.rounds) - 1
        shape = (len(configurations), len(recipe.rates), len(recipe.seeds), len(self.scores), len(noted))
        found = np.full(shape, np.nan)
        done = 0
        for place, configuration in enumerate(configurations):
            for column, rate in enumerate(recipe.rates):
                for number, seed in enumerate(recipe.seeds):
                    course = self._problem.course(configuration, rate, seed)
                    course.advance(last)
                    best = best_so_far(course.scores(last))
                    found[place, column, number] = [best[name][noted] for name in self.scores]
                    self._problem.pause()
                    done += 1
                    if told is not None:
                        told(done)
        shutil.rmtree(self._problem.runs_folder, ignore_errors=True)
        return found


class TrialsAsLanes:
    """Trains many trials in one computation."""

    name = "lanes"

    def __init__(self, problem: RawProblem, recipe: Recipe, device: str):
        self._problem, self._recipe, self._device = problem, recipe, device
        self.scores = table_scores(problem)
        raise BadInputError("not yet")

    def train(self, configurations: Sequence[Configuration], told: Told | None) -> FloatArray:
        """All sample rates and seeds of these configurations together."""
        raise NotImplementedError


def table_scores(problem: RawProblem) -> tuple[str, ...]:
    """The scores that a table has: what the task measures, on all parts of the samples."""
    return tuple(score_name(part, metric) for part in PARTS for metric in problem.metrics)
