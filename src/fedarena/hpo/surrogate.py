"""Surrogate mode: random forests that were fitted to a table answer for all configurations (FedHPO-Bench, H.2).

Forests of 10 and 20 trees with depths of 10, 15 and 20 are compared by their mean absolute errors of the objective in
10-fold cross-validation; rows of one curve are always in the same fold, so a forest is tested on configurations that it
has not seen. The best is fitted to the whole table. What it is asked is put together by names of columns.

A hyperparameter is seen as its place in its range (by the logarithm where it is on a log scale) and a round by its
logarithm, so that a forest cuts half-way between two values of the grid in the scale that they are searched in.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.array_archives import read_arrays
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import replacing
from fedarena.core.outside_text import quoted
from fedarena.core.sealed_json import checksum_of
from fedarena.hpo.cost import RoundWork, SystemModel
from fedarena.hpo.forest import Forest, flatten, grow
from fedarena.hpo.problem import Curve, Fidelity, Problem, Result
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.scores import GUIDE, info_of
from fedarena.hpo.space import Space
from fedarena.hpo.tables.table import RATE, ROUND, WORK, Table
from fedarena.hpo.tables.tabular import checked_by_table

FOLDS = 10
TREES = (10, 20)
DEPTHS = (10, 15, 20)
FORMAT = 1
_MOST_ROUNDS = 20  # of a curve that are rows; neighbouring ones say nearly the same
_STEPS = "local.steps"
_CEILING = 10.0  # losses beyond so many times the usual first one are all the same: diverged
FloatArray = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]  # fits that are done, of how many


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors of one kind of forest, as in Table 12."""

    trees: int
    depth: int
    train: float
    test: float


@dataclass(frozen=True)
class Surrogate:
    """A forest with all that asking it takes."""

    problem: str
    space: Space
    columns: tuple[str, ...]  # of the forest's features, by name
    scores: tuple[str, ...]
    rates: tuple[float, ...]
    rounds: tuple[int, ...]
    forest: Forest
    errors: tuple[Errors, ...]  # of all forests that were compared, the chosen one first
    grid: dict[str, tuple[Any, ...]]
    work: dict[str, npt.NDArray[Any]]  # of the table, [configurations, rates]
    about: dict[str, Any]

    def features(self, configuration: Mapping[str, Any], rate: float, round: int) -> FloatArray:
        """A row of features, in the order of the columns."""
        named = {one.name: _feature(self.space, one.name, configuration[one.name]) for one in self.space}
        named |= {RATE: rate, ROUND: float(np.log2(round))}
        # The forest has seen numbers of single precision.
        return np.array([named[column] for column in self.columns], dtype=np.float32).astype(np.float64)

    def round_work(self, configuration: Mapping[str, Any], rate: float) -> RoundWork:
        """What a round asks of the system: as at the nearest point of the grid; steps as between those beside it."""
        nearest = {}
        for name, values in self.grid.items():
            here = _feature(self.space, name, configuration[name])
            nearest[name] = int(np.argmin([abs(_feature(self.space, name, value) - here) for value in values]))
        asked = self._work_at(nearest, rate)
        if _STEPS in configuration:
            grid = sorted((value, place) for place, value in enumerate(self.grid[_STEPS]))
            steps = [self._work_at(nearest | {_STEPS: place}, rate)["steps"] for _, place in grid]
            asked["steps"] = float(np.interp(configuration[_STEPS], [value for value, _ in grid], steps))
        return RoundWork(**asked)

    def _work_at(self, places: Mapping[str, int], rate: float) -> dict[str, Any]:
        """What it asks at a point of the grid."""
        place = np.ravel_multi_index([places[name] for name in self.grid], [len(one) for one in self.grid.values()])
        return {name: self.work[name][place, self.rates.index(rate)].item() for name in WORK}


class SurrogateProblem(Problem):
    """A problem whose answers are a forest's; its space is not only the grid of the table, but all that lies between.

    Where a table has a part of the problem's ranges, a forest knows nothing of the rest, and is not asked for it.
    """

    mode = "surrogate"

    def __init__(
        self,
        surrogate: Surrogate,
        source: Path,
        objective: Objective,
        system: SystemModel,
        budget_s: float | None = None,
        rounds: int | None = None,
    ):
        objective.check_known(dict.fromkeys(surrogate.scores), f"The surrogate {source}")
        self.surrogate, self.source, self.system, self._objective = surrogate, source, system, objective
        self.name, self.budget_s = surrogate.problem, budget_s
        self.space = surrogate.space.between(surrogate.grid)
        self.fingerprint = f"{checksum_of(source.read_bytes())} {system} {objective}"
        self.sample_rates = surrogate.rates
        self.min_rounds, self.max_rounds = surrogate.rounds[0], surrogate.rounds[-1]
        if rounds is not None:
            if not self.min_rounds <= rounds <= self.max_rounds:
                raise BadInputError(
                    f"The surrogate {source} knows {self.min_rounds} to {self.max_rounds} rounds, not {rounds}"
                )
            self.max_rounds = rounds
        self.objective, self.maximize = objective.score, objective.maximize

    def check(self, configuration: Mapping[str, Any], fidelity: Fidelity) -> tuple[dict[str, Any], Fidelity]:
        """A question as it is meant; says so where it is beyond the table alone that it cannot be asked."""
        return checked_by_table(self, self.surrogate.space, "surrogate", self.source, configuration, fidelity)

    def curve(self, configuration: Mapping[str, Any], fidelity: Fidelity) -> Curve:
        """What a course comes to at the rounds that the table has; a query has no curve, as that takes longer."""
        checked, fidelity = self.check(configuration, fidelity)
        rounds = np.array([one for one in self.surrogate.rounds if one <= fidelity.rounds])
        rate = fidelity.client_sample_rate
        rows = np.stack([self.surrogate.features(checked, rate, int(one)) for one in rounds])
        found = self.surrogate.forest.predict_rows(rows)
        cost_s = rounds * float(self.system.round_s(self.surrogate.round_work(checked, rate)))
        return Curve(rounds, dict(zip(self.surrogate.scores, found.T, strict=True)), cost_s)

    def _answer(self, configuration: dict[str, Any], fidelity: Fidelity, seed: int) -> Result:
        surrogate, rate = self.surrogate, fidelity.client_sample_rate
        found = surrogate.forest.predict(surrogate.features(configuration, rate, fidelity.rounds))
        metrics = dict(zip(surrogate.scores, found.tolist(), strict=True))
        cost_s = fidelity.rounds * float(self.system.round_s(surrogate.round_work(configuration, rate)))
        return Result(self._objective.value(metrics), metrics, cost_s, fidelity)


def fit_surrogate(
    table: Table,
    *,
    objective: str = GUIDE,
    seed: int = 0,
    progress: Progress | None = None,
) -> Surrogate:
    """Compares forests by cross-validation and fits the best to the table."""
    if objective not in table.scores:
        raise BadInputError(f"The table of {table.problem} has no score {quoted(objective)}: {', '.join(table.scores)}")
    columns, rows, targets, curves = training_rows(table)
    number = len(np.unique(curves))
    if number < FOLDS:
        raise BadInputError(
            f"The table of {table.problem} has {number} curves, and {FOLDS} folds need at least as many"
        )
    lead = table.scores.index(objective)
    total = len(DEPTHS) * FOLDS + 1
    errors: list[Errors] = []
    done = 0
    for depth in DEPTHS:
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in TREES}
        for seen, unseen in split_by_curve(curves, FOLDS, seed):
            grown = grow(rows[seen], targets[seen], max(TREES), depth, seed)
            for count in TREES:  # the first trees of a forest are those of a smaller one
                forest = flatten(grown[:count])
                found[count].append(
                    (
                        float(np.abs(forest.predict_rows(rows[seen])[:, lead] - targets[seen][:, lead]).mean()),
                        float(np.abs(forest.predict_rows(rows[unseen])[:, lead] - targets[unseen][:, lead]).mean()),
                    )
                )
            done += 1
            if progress is not None:
                progress(done, total)
        errors += [Errors(count, depth, *map(float, np.mean(found[count], axis=0))) for count in TREES]
    errors.sort(key=lambda one: (one.test, one.trees, one.depth))
    best = errors[0]
    forest = flatten(grow(rows, targets, best.trees, best.depth, seed))
    if progress is not None:
        progress(total, total)
    about = {"objective": objective, "folds": FOLDS, "seed": seed, "table": table.about}
    return Surrogate(
        problem=table.problem,
        space=table.space,
        columns=columns,
        scores=table.scores,
        rates=table.rates,
        rounds=table.rounds,
        forest=forest,
        errors=tuple(errors),
        grid=table.grid,
        work=table.work,
        about=about,
    )


def training_rows(table: Table) -> tuple[tuple[str, ...], FloatArray, FloatArray, npt.NDArray[np.int64]]:
    """Names of features, a row for every noted round of every curve, its scores, and which curve it is of.

    A curve is a configuration with a sample rate. What is not finite, or too large, is replaced by the worst there is:
    a forest averages, and one diverged course would be all that it sees.
    """
    space, grid = table.space, table.grid
    columns = (*grid, RATE, ROUND)
    chosen = np.unique(np.linspace(0, len(table.rounds) - 1, min(len(table.rounds), _MOST_ROUNDS)).round().astype(int))
    sizes = [len(values) for values in grid.values()]
    places = np.unravel_index(np.arange(len(table.values)), sizes)
    shape = (len(table.values), len(table.rates), len(chosen))
    features: list[FloatArray] = []
    for name, place in zip(grid, places, strict=True):
        seen = np.array([_feature(space, name, value) for value in grid[name]])
        features.append(np.broadcast_to(seen[place][:, None, None], shape))
    features.append(np.broadcast_to(np.array(table.rates)[None, :, None], shape))
    features.append(np.broadcast_to(np.log2(np.array(table.rounds, dtype=np.float64)[chosen]), shape))
    rows = np.stack(features, -1).reshape(-1, len(columns)).astype(np.float32).astype(np.float64)
    curves = np.broadcast_to(np.arange(shape[0] * shape[1]).reshape(shape[:2])[:, :, None], shape).reshape(-1)
    present = np.broadcast_to(table.present[:, :, None], shape).reshape(-1)
    targets = np.stack([_finite(table, name)[:, :, chosen].reshape(-1) for name in table.scores], -1)
    return columns, rows[present], targets[present], curves[present]


def split_by_curve(
    curves: npt.NDArray[np.int64], folds: int, seed: int
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Rows to fit and rows to test, for every fold; all rows of a curve are on the same side."""
    from sklearn.model_selection import GroupKFold

    known, numbers = np.unique(curves, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(len(known))[numbers]
    splitter = GroupKFold(n_splits=folds)
    return list(splitter.split(np.zeros((len(curves), 1)), groups=shuffled))


def write_surrogate(surrogate: Surrogate, path: Path) -> None:
    """Writes the file: arrays, and what they mean as JSON."""
    about = {
        "format": FORMAT,
        "problem": surrogate.problem,
        "space": surrogate.space.described(),
        "columns": surrogate.columns,
        "scores": surrogate.scores,
        "rates": surrogate.rates,
        "rounds": surrogate.rounds,
        "depth": surrogate.forest.depth,
        "errors": [vars(one) for one in surrogate.errors],
        "grid": surrogate.grid,
        "about": surrogate.about,
    }
    forest = surrogate.forest
    arrays: dict[str, Any] = {
        "feature": forest.feature.astype(np.int16),
        "threshold": forest.threshold,
        "children": forest.children.astype(np.int32),
        "values": forest.values,
        "roots": forest.roots,
        **{f"work.{name}": surrogate.work[name] for name in WORK},
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays, checksum=np.frombuffer(_checksum(arrays), dtype=np.uint8))


def read_surrogate(path: Path) -> Surrogate:
    """Reads a surrogate and makes sure that it is what was written."""
    if not path.is_file():
        raise BadInputError(f"There is no surrogate {path}")
    if not zipfile.is_zipfile(path):
        raise DamagedFileError(f"{path} is no surrogate, or damaged: it is no archive of arrays")
    arrays = read_arrays(path)
    if "checksum" not in arrays:
        raise DamagedFileError(f"{path} is no surrogate, or damaged: it has no checksum")
    if arrays.pop("checksum").tobytes() != _checksum(arrays):
        raise DamagedFileError(f"The surrogate {path} is damaged: its numbers do not match its checksum")
    about = json.loads(arrays["about"].tobytes())
    if about["format"] != FORMAT:
        raise BadInputError(f"The surrogate {path} has format {about['format']}; this version reads {FORMAT}")
    forest = Forest(
        feature=arrays["feature"].astype(np.int64),
        threshold=arrays["threshold"],
        children=arrays["children"].astype(np.int64),
        values=arrays["values"],
        roots=arrays["roots"],
        depth=about["depth"],
    )
    return Surrogate(
        problem=about["problem"],
        space=Space.parse(about["space"]),
        columns=tuple(about["columns"]),
        scores=tuple(about["scores"]),
        rates=tuple(about["rates"]),
        rounds=tuple(about["rounds"]),
        forest=forest,
        errors=tuple(Errors(**one) for one in about["errors"]),
        grid={name: tuple(values) for name, values in about["grid"].items()},
        work={name: arrays[f"work.{name}"] for name in WORK},
        about=about["about"],
    )


def _feature(space: Space, name: str, value: Any) -> float:
    """A value as the forest sees it: its place in its range."""
    return float(space[name].place_of(value))


def _finite(table: Table, name: str) -> FloatArray:
    """A score in which everything that is too bad, or not there, is equally bad."""
    values = table.score(name).astype(np.float64)
    if info_of(name).higher_is_better:
        finite = values[np.isfinite(values)]
        return np.where(np.isfinite(values), values, finite.min() if len(finite) else 0.0)
    first = values[:, :, 0]
    usual = np.median(first[np.isfinite(first)]) if np.isfinite(first).any() else 1.0
    return np.where(np.isfinite(values), np.minimum(values, _CEILING * usual), _CEILING * usual)


def _checksum(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.digest()
