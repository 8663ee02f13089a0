"""Who trains the configurations of a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.user_warnings import warn_user
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.scores import PARTS, best_so_far, marked_where_failed, score_name
from fedarena.hpo.space import Configuration
from fedarena.hpo.tables.recipe import Recipe
from fedarena.train.hardware import DeviceName

FloatArray = npt.NDArray[np.float64]
Told = Callable[[int], None]  # how many trials of a block are done


class Trainer(Protocol):
    """Trains configurations with all sample rates and seeds of a recipe."""

    scores: tuple[str, ...]

    @property
    def name(self) -> str:
        """How trials are trained."""

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

    def __init__(self, problem: RawProblem, recipe: Recipe, device: DeviceName):
        self._problem, self._recipe, self._device = problem, recipe, device
        self.scores = table_scores(problem)

    def train(self, configurations: Sequence[Configuration], told: Told | None) -> FloatArray:
        """All sample rates and seeds of these configurations together."""
        from fedarena.hpo.lanes import train_trials

        recipe = self._recipe
        trials = table_trials(self._problem, recipe, configurations)
        curves = train_trials(
            self._problem.settings,
            trials,
            rounds=recipe.rounds[-1],
            note_rounds=recipe.rounds,
            best=True,
            device=self._device,
            progress=None if told is None else lambda done, total: told(len(trials) * done // max(total, 1)),
        )
        found = marked_where_failed({name: curves.metrics[name] for name in self.scores})
        values = np.stack([found[name] for name in self.scores], axis=1)
        return values.reshape(len(configurations), len(recipe.rates), len(recipe.seeds), *values.shape[1:])


class LanesIfPossible:
    """Trials as lanes; one by one from the first block on, if lanes refuse what the problem asks for."""

    def __init__(self, problem: RawProblem, recipe: Recipe, device: DeviceName):
        self._trainer: Trainer = TrialsAsLanes(problem, recipe, device)
        self._instead = OneByOne(problem, recipe)
        self.scores = self._trainer.scores
        self._succeeded = False

    @property
    def name(self) -> str:
        """How trials are trained in fact."""
        return self._trainer.name

    def train(self, configurations: Sequence[Configuration], told: Told | None) -> FloatArray:
        """In one way or the other."""
        try:
            found = self._trainer.train(configurations, told)
        except BadInputError as error:
            if self._trainer is self._instead or self._succeeded:
                raise
            warn_user(f"Trials are trained one by one: {error}")
            self._trainer = self._instead
            found = self._trainer.train(configurations, told)
        self._succeeded = True
        return found


def table_trials(problem: RawProblem, recipe: Recipe, configurations: Sequence[Configuration]) -> list[dict[str, Any]]:
    """What is trained of some configurations: with every sample rate, and those of a rate with every seed."""
    return [
        {**configuration, "cohort": problem.cohort(rate), "seed": seed}
        for configuration in configurations
        for rate in recipe.rates
        for seed in recipe.seeds
    ]


def table_scores(problem: RawProblem) -> tuple[str, ...]:
    """The scores that a table has: what the task measures, on all parts of the samples."""
    return tuple(score_name(part, metric) for part in PARTS for metric in problem.metrics)
