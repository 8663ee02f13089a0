"""The model of BOHB: densities of good and of bad configurations. Falkner et al., "BOHB: Robust and Efficient
Hyperparameter Optimization at Scale", ICML 2018.

Candidates are drawn around good configurations, and the one that is most likely among the good ones compared with the
bad ones is proposed: that maximizes expected improvement (Bergstra et al., 2011).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from fedarena.hpo.optimizers.axes import Axes, FloatArray, Tried
from fedarena.hpo.optimizers.checks import check_at_least, check_between
from fedarena.hpo.space import Configuration, Space

_LEAST_LOG_DENSITY = float(np.log(1e-32))  # so that a ratio of two that vanish is no surprise
# Values of an axis with few of them are this share of a step wide at least, so that neighbours stay within reach.
_SHARE_OF_STEP = 1 / 6


class KernelDensity:
    """A product of kernels around each point: normal on ordered axes, Aitchison and Aitken's on the others.

    Bandwidths follow the normal reference rule, 1.06 σ n^(-1/(4+d)), with the spread of categories in place of σ where
    there is no order; no axis is narrower than `min_bandwidth`.
    """

    def __init__(self, points: FloatArray, axes: Axes, min_bandwidth: float):
        self.points, self._axes = points, axes
        shrinking = len(points) ** (-1 / (4 + len(axes)))
        least = np.maximum(min_bandwidth, np.where(axes.ordered, axes.steps * _SHARE_OF_STEP, 0.0))
        self.bandwidths = np.maximum(1.06 * points.std(axis=0) * shrinking, least)
        for axis, categories in enumerate(axes.categories):
            if categories:
                shares = np.bincount(axes.category(points, axis), minlength=categories) / len(points)
                spread = np.sqrt(max(1.0 - float((shares**2).sum()), 0.0))
                self.bandwidths[axis] = min(max(spread * shrinking, min_bandwidth), 1 - 1 / categories)

    def log_density(self, at: FloatArray) -> FloatArray:
        """The logarithm of the density at some points."""
        logs = np.zeros((len(at), len(self.points)))
        for axis, (width, categories) in enumerate(zip(self.bandwidths, self._axes.categories, strict=True)):
            if categories:
                same = self._axes.category(at, axis)[:, None] == self._axes.category(self.points, axis)[None, :]
                others = np.log(width / (categories - 1)) if categories > 1 else 0.0
                logs += np.where(same, np.log1p(-width), others)
            else:
                distances = (at[:, None, axis] - self.points[None, :, axis]) / width
                logs -= 0.5 * distances**2 + np.log(width * np.sqrt(2 * np.pi))
        density: FloatArray = logsumexp(logs, axis=1) - np.log(len(self.points))
        return density

    def draw(self, number: int, bandwidth_factor: float, generator: np.random.Generator) -> FloatArray:
        """Points near those it was made of, with ordered axes `bandwidth_factor` times as wide, inside of the cube."""
        drawn = self.points[generator.integers(len(self.points), size=number)].copy()
        for axis, (width, categories) in enumerate(zip(self.bandwidths, self._axes.categories, strict=True)):
            if categories:
                changes = generator.random(number) < width
                others = (generator.integers(categories, size=number) + 0.5) / categories
                drawn[:, axis] = np.where(changes, others, drawn[:, axis])
            else:
                wide = width * bandwidth_factor
                below, above = ndtr(-drawn[:, axis] / wide), ndtr((1.0 - drawn[:, axis]) / wide)  # a normal, truncated
                drawn[:, axis] += wide * ndtri(below + generator.random(number) * (above - below))
        return self._axes.snap(drawn)


class KernelDensityModel:
    """Proposes configurations from what it was shown, the same as `bo_kde` and `bohb` do.

    Values of different numbers of rounds are kept apart; the model is that of the most rounds with enough of them.
    """

    def __init__(
        self,
        space: Space,
        generator: np.random.Generator,
        *,
        candidates: int,
        random_fraction: float,
        bandwidth_factor: float,
        min_bandwidth: float,
        good_fraction: float,
    ):
        check_at_least(1, candidates=candidates)
        check_between(0, 1, random_fraction=random_fraction)
        check_between(0.01, 0.99, good_fraction=good_fraction)
        check_between(1e-3, 1e3, bandwidth_factor=bandwidth_factor)
        check_between(1e-9, 1, min_bandwidth=min_bandwidth)
        self.axes = Axes(space)
        self._generator = generator
        self._candidates, self._random_fraction = candidates, random_fraction
        self._bandwidth_factor, self._min_bandwidth = bandwidth_factor, min_bandwidth
        self._good_fraction = good_fraction
        self._least = len(space) + 1  # points in each density
        self._seen: dict[int, list[tuple[FloatArray, float]]] = {}  # by rounds
        self._tried = Tried(self.axes)

    def observe(self, configuration: Mapping[str, Any], rounds: int, value: float) -> None:
        """Learns how good a configuration is after so many rounds; only its rank matters."""
        self._seen.setdefault(rounds, []).append((self.axes.space.places(configuration), value))

    def propose(self) -> Configuration:
        """A configuration that is likely to be good and was not proposed before, if there is one."""
        point = self._from_densities()
        configuration = self.axes.space.at(self._tried.draw_new(self._generator) if point is None else point)
        self._tried.add(configuration)
        return configuration

    def densities(self) -> tuple[KernelDensity, KernelDensity] | None:
        """Those of good and of bad configurations, as soon as there are enough."""
        enough = [rounds for rounds, seen in self._seen.items() if len(seen) >= self._least + 2]
        if not enough:
            return None
        seen = self._seen[max(enough)]
        order = np.argsort([value for _, value in seen], kind="stable")
        points = np.array([point for point, _ in seen])[order]
        good = max(self._least, int(self._good_fraction * len(points)))
        bad = max(self._least, len(points) - good)
        return (
            KernelDensity(points[:good], self.axes, self._min_bandwidth),
            KernelDensity(points[-bad:], self.axes, self._min_bandwidth),
        )

    def _from_densities(self) -> FloatArray | None:
        if self._generator.random() < self._random_fraction:
            return None
        densities = self.densities()
        if densities is None:
            return None
        drawn = densities[0].draw(self._candidates, self._bandwidth_factor, self._generator)
        log_good, log_bad = (np.maximum(one.log_density(drawn), _LEAST_LOG_DENSITY) for one in densities)
        return self._tried.first_new(drawn[np.argsort(log_bad - log_good, kind="stable")])
