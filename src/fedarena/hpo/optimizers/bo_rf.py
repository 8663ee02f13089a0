"""Bayesian optimization with a random forest. Hutter et al., "Sequential Model-Based Optimization for General Algorithm
Configuration", LION 2011 (SMAC).

The forest is scikit-learn's. The package smac would fit its own, but what it proposes depends on Python's hash seed and
not on the seed alone, it writes files, and a proposal takes more than ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fedarena.hpo.optimizers.axes import FloatArray
from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.improvement import ImprovementSearch
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS
from fedarena.hpo.optimizers.values import tamed
from fedarena.hpo.space import Space

_LOCAL_SEARCHES, _NEIGHBOURS, _STEPS = 10, 24, 5
_NEIGHBOUR_DISTANCE = 0.2  # of the range of an ordered hyperparameter, as in SMAC
_FEATURES = 5 / 6  # a split looks at this share of the features, as in SMAC


@OPTIMIZERS.register("bo_rf")
class RandomForestSearch(ImprovementSearch):
    """Expected improvement by a random forest, each configuration trained for all rounds (BO_RF in FedHPO-Bench).

    The forest has so many `trees`, no deeper than `max_depth`, with `min_samples_split` points where one branches. The
    search begins with `initial` configurations that are evenly spread; later a `random_fraction` of all is drawn
    without the model. Expected improvement is maximized over so many random `candidates` and by local search from the
    best of them. Configurations that were tried are not proposed again as long as there are others.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        trees: int = 10,
        max_depth: int = 20,
        min_samples_split: int = 3,
        initial: int = 10,
        random_fraction: float = 0.2,
        candidates: int = 1000,
    ):
        super().__init__(space, max_rounds, seed, min_rounds, initial=initial, random_fraction=random_fraction)
        check_at_least(1, trees=trees, max_depth=max_depth, candidates=candidates)
        check_at_least(2, min_samples_split=min_samples_split)
        self._trees, self._max_depth, self._min_samples_split = trees, max_depth, min_samples_split
        self._candidates = candidates

    def _most_promising(self) -> FloatArray:
        values = tamed(self._values)
        told = np.array(self._points)
        forest = _Forest(
            self._features(told),
            values,
            trees=self._trees,
            max_depth=self._max_depth,
            min_samples_split=self._min_samples_split,
            seed=int(self.generator.integers(2**31)),
        )
        best = float(forest.predict(self._features(told))[0].min())  # as the model has it, so that noise does not count

        def improvement(points: FloatArray) -> FloatArray:
            return expected_improvement(*forest.predict(self._features(points)), best)

        points = np.concatenate([self._axes.draw(self._candidates, self.generator), told])
        points, gains = self._climb(points, improvement(points), improvement)
        new = self._tried.first_new(points[np.argsort(-gains, kind="stable")])
        return self._tried.draw_new(self.generator) if new is None else new

    def _climb(
        self, points: FloatArray, gains: FloatArray, improvement: Callable[[FloatArray], FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """These points and all that local searches from the best of them looked at, with their improvements."""
        seen, seen_gains = [points], [gains]
        starts = np.argsort(-gains, kind="stable")[:_LOCAL_SEARCHES]
        at, gain = points[starts], gains[starts]
        for _ in range(_STEPS):
            near = self._neighbours(at)
            near_gains = improvement(near)
            seen.append(near)
            seen_gains.append(near_gains)
            of_start = near_gains.reshape(len(at), _NEIGHBOURS)
            better = of_start.max(axis=1) > gain
            if not better.any():
                break
            best = near.reshape(len(at), _NEIGHBOURS, -1)[np.arange(len(at)), of_start.argmax(axis=1)]
            at, gain = np.where(better[:, None], best, at), np.maximum(gain, of_start.max(axis=1))
        return np.concatenate(seen), np.concatenate(seen_gains)

    def _neighbours(self, points: FloatArray) -> FloatArray:
        """Points that differ from each of these in one coordinate."""
        near = np.repeat(points, _NEIGHBOURS, axis=0)
        rows = np.arange(len(near))
        axis = self.generator.integers(len(self._axes), size=len(near))
        moved = near[rows, axis] + _NEIGHBOUR_DISTANCE * self.generator.standard_normal(len(near))
        drawn = self.generator.random(len(near))
        outside = (moved < 0) | (moved > 1) | ~self._axes.ordered[axis]
        near[rows, axis] = np.where(outside, drawn, moved)
        return self._axes.snap(near)

    def _features(self, points: FloatArray) -> npt.NDArray[np.float32]:
        """Ordered hyperparameters as they are, the others with a column for each of their values."""
        columns = [
            np.eye(categories)[self._axes.category(points, axis)] if categories else points[:, axis : axis + 1]
            for axis, categories in enumerate(self._axes.categories)
        ]
        return np.concatenate(columns, axis=1).astype(np.float32)


class _Forest:
    """A forest that knows how sure it is: by how far its trees disagree, and how far values in a leaf do."""

    def __init__(
        self,
        features: npt.NDArray[np.float32],
        values: FloatArray,
        *,
        trees: int,
        max_depth: int,
        min_samples_split: int,
        seed: int,
    ):
        from sklearn.ensemble import RandomForestRegressor

        forest = RandomForestRegressor(
            n_estimators=trees,
            max_depth=max_depth,
            min_samples_split=min_samples_split,
            max_features=_FEATURES,
            random_state=seed,
            n_jobs=1,
        ).fit(features, values)
        self._trees = [one.tree_ for one in forest.estimators_]

    def predict(self, features: npt.NDArray[np.float32]) -> tuple[FloatArray, FloatArray]:
        """Means and standard deviations."""
        leaves = [tree.apply(features) for tree in self._trees]
        means = np.array([tree.value[leaf, 0, 0] for tree, leaf in zip(self._trees, leaves, strict=True)])
        within = np.array([tree.impurity[leaf] for tree, leaf in zip(self._trees, leaves, strict=True)])
        return means.mean(axis=0), np.sqrt(np.maximum(within.mean(axis=0) + means.var(axis=0), 0.0))


def expected_improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """How much smaller than `best` a normal value is on average, where one that is not smaller counts as nothing."""
    gain = best - mean
    sure = deviation <= 1e-12
    scaled = gain / np.where(sure, 1.0, deviation)
    improvement: FloatArray = np.where(
        sure,
        np.maximum(gain, 0.0),
        deviation * (scaled * ndtr(scaled) + np.exp(-0.5 * scaled**2) / np.sqrt(2 * np.pi)),
    )
    return improvement
