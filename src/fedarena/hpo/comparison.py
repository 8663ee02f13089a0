"""Optimizers beside each other: every one on every problem, several times, and what comes of it.

The searches are files in a folder, ``searches/<problem>/<optimizer>-<repetition>.parquet``. What is there is kept: the
same call goes on with searches that were stopped and makes those that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedarena.core.errors import BadInputError, FedArenaError, RunFailedError
from fedarena.core.outside_text import as_file_name, quoted
from fedarena.hpo.analysis.finals import FinalResult, final
from fedarena.hpo.analysis.ranks import Contest, best_over_time, budget_shares, mean_ranks_over_time
from fedarena.hpo.analysis.regret import GridValues, grid_values, normalized_regret
from fedarena.hpo.analysis.signs import AGAINST_BASELINES, AGAINST_SINGLE_FIDELITY, SignTest, sign_test
from fedarena.hpo.chosen import ChosenOptimizer, OneOptimizer, choose_optimizers
from fedarena.hpo.opening import open_problem
from fedarena.hpo.problem import Fidelity, Problem
from fedarena.hpo.problems.making import DEFAULT_RUNS_FOLDER
from fedarena.hpo.search import budget_of
from fedarena.hpo.search_bars import SearchBars
from fedarena.hpo.searching import ComparisonObserver, PlannedSearch, search_at_once, search_one_by_one
from fedarena.hpo.space import Configuration
from fedarena.hpo.tables.tabular import TabularProblem
from fedarena.hpo.trajectory import Trajectory, read_trajectory

FloatArray = npt.NDArray[np.float64]
SEARCHES_FOLDER: Final = "searches"
MOST_GRID_CONFIGURATIONS: Final = 100_000  # of a table, to be asked for all of them
MOST_SURROGATE_CONFIGURATIONS: Final = 2_000
_GENEROUS, _TELLING = 0.5, 0.1  # shares of a table that a budget trains to the end


@dataclass(frozen=True)
class OptimizerComparison:
    """All searches, and what they tell."""

    problems: Mapping[str, Problem]
    optimizers: tuple[ChosenOptimizer, ...]
    repetitions: int
    searches: Mapping[tuple[str, str], tuple[Trajectory, ...]]  # by problem and optimizer; failed ones are left out
    failures: Mapping[str, str]  # a sentence for every search that failed, by its name
    folder: Path
    client_sample_rates: Mapping[str, float] = field(default_factory=dict)  # by problem
    refused: frozenset[str] = frozenset()  # of the failures, those that what was given is to blame for

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the optimizers."""
        return tuple(one.label for one in self.optimizers)

    @property
    def black_box(self) -> tuple[str, ...]:
        """The optimizers that train everything to the end."""
        return tuple(one.label for one in self.optimizers if not one.is_multi_fidelity)

    @property
    def multi_fidelity(self) -> tuple[str, ...]:
        """The others."""
        return tuple(one.label for one in self.optimizers if one.is_multi_fidelity)

    @cached_property
    def finals(self) -> dict[str, dict[str, FinalResult]]:
        """What each optimizer ended with, by problem and optimizer, as far as there are searches."""
        return {
            problem: {
                label: final(self.searches[problem, label])
                for label in self.labels
                if self.searches.get((problem, label))
            }
            for problem in self.problems
        }

    @cached_property
    def grids(self) -> dict[str, GridValues]:
        """The values of all configurations, of problems that answer fast enough: tables, and small surrogates."""
        limits = {"tabular": MOST_GRID_CONFIGURATIONS, "surrogate": MOST_SURROGATE_CONFIGURATIONS}
        found = {}
        for name, problem in self.problems.items():
            if _grid_size(problem) <= limits.get(problem.mode, 0):
                with suppress(BadInputError):  # a table with gaps, which searches may not have met
                    found[name] = grid_values(problem, Fidelity(problem.max_rounds, self.client_sample_rates[name]))
        return found

    def contests(self, problem: str, labels: Sequence[str] | None = None) -> list[Contest]:
        """Searches of all these optimizers with the same seed, of repetitions that all of them have finished."""
        labels = self.labels if labels is None else labels
        by_seed = [{one.searched.seed: one for one in self.searches.get((problem, label), ())} for label in labels]
        seeds = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        return [{label: found[seed] for label, found in zip(labels, by_seed, strict=True)} for seed in seeds]

    def mean_ranks(
        self,
        labels: Sequence[str] | None = None,
        problems: Sequence[str] | None = None,
        shares: Sequence[float] | FloatArray | None = None,
    ) -> FloatArray:
        """Mean ranks ``[optimizers, shares]`` among these optimizers, over these problems; by default all."""
        labels = self.labels if labels is None else labels
        moments = budget_shares() if shares is None else shares
        names = list(self.problems) if problems is None else problems
        return mean_ranks_over_time({name: self.contests(name, labels) for name in names}, labels, moments)

    def regrets(self, problem: str, label: str, shares: Sequence[float] | FloatArray) -> FloatArray:
        """Mean normalized regret over repetitions at these shares of the budget; 1 while nothing is known.

        It lies between the best and the worst of the table, or, where there is none, of what all searches found.
        """
        best, worst = self.extremes(problem)
        found = [best_over_time(one, shares) for one in self.searches.get((problem, label), ())]
        return np.mean([normalized_regret(one, best, worst) for one in found], axis=0) if found else np.array([])

    def extremes(self, problem: str) -> tuple[float, float]:
        """The best and the worst value of a problem's table, or else of all evaluations with the most rounds."""
        if problem in self.grids:
            return self.grids[problem].best, self.grids[problem].worst
        longest = self.problems[problem].max_rounds
        values = [
            one.values[(one.rounds == longest) & np.isfinite(one.values)]
            for (name, _), found in self.searches.items()
            for one in found
            if name == problem
        ]
        together = np.concatenate(values) if values else np.array([])
        return (float(together.min()), float(together.max())) if len(together) else (math.nan, math.nan)

    def sign_tests(self) -> list[SignTest]:
        """Those of the paper, of optimizers that are compared here."""
        means = {name: {label: one.mean for label, one in found.items()} for name, found in self.finals.items()}
        pairs = (*AGAINST_BASELINES, *AGAINST_SINGLE_FIDELITY)
        return [sign_test(one, other, means) for one, other in pairs if {one, other} <= set(self.labels)]

    def sign_test(self, first: str, second: str) -> SignTest:
        """Whether one optimizer surpasses another, over all problems."""
        means = {name: {label: one.mean for label, one in found.items()} for name, found in self.finals.items()}
        return sign_test(first, second, means)

    def table(self) -> pd.DataFrame:
        """A row for every problem and optimizer: the metric it ended with, its rank, what was evaluated, overhead."""
        rows = []
        for problem, found in self.finals.items():
            ranked = self.mean_ranks(tuple(found), [problem], [1.0])[:, 0] if found else ()
            for (label, one), rank in zip(found.items(), ranked, strict=True):
                searches = self.searches[problem, label]
                asked = self.problems[problem]
                rows.append(
                    {
                        "problem": problem,
                        "optimizer": label,
                        "metric": asked.objective,
                        "mean": -one.mean if asked.maximize else one.mean,
                        "std": one.std,
                        "mean_rank": float(rank),
                        "regret": float(self.regrets(problem, label, [1.0])[0]),
                        "repetitions": len(searches),
                        "evaluations": float(np.mean([len(search) for search in searches])),
                        "courses": float(np.mean([search.courses for search in searches])),
                        "overhead_seconds": float(np.mean([search.overhead_s for search in searches])),
                        **one.test_metrics,
                    }
                )
        return pd.DataFrame(rows)

    def notes(self) -> list[str]:
        """Sentences about budgets: for nothing, or for most of a table; the paper's suit larger tables than some."""
        found = []
        for name, problem in self.problems.items():
            searches = [one for label in self.labels for one in self.searches.get((name, label), ())]
            budgets = [one.budget_s for one in searches]
            if searches and not any(len(one) for one in searches):
                found.append(f"{budgets[0]:,.0f} simulated seconds are too few to train anything of {name}")
                continue
            if not budgets or not isinstance(problem, TabularProblem):
                continue
            whole_s = problem.whole_grid_s(self.client_sample_rates[name])
            if (share := min(budgets[0] / whole_s, 1)) > _GENEROUS:
                found.append(
                    f"{budgets[0]:,.0f} simulated seconds train {share:.0%} of the table of {name} to the end, so "
                    f"there is little to choose; a budget such as {_TELLING * whole_s:.0f} tells optimizers apart"
                )
        return found

    def best_configuration(self, problem: str) -> tuple[list[str], Configuration] | None:
        """The best that any search found, and which optimizers found it."""
        best = [
            (-one.best.rounds, one.best.value, label, one.best.configuration)
            for (name, label), found in self.searches.items()
            for one in found
            if name == problem and one.best is not None
        ]
        if not best:
            return None
        configuration = min(best, key=lambda one: one[:2])[3]
        return list(dict.fromkeys(label for _, _, label, other in best if other == configuration)), configuration


def compare(
    problems: str | Problem | Sequence[str | Problem],
    optimizers: OneOptimizer | Sequence[OneOptimizer] = "all",
    *,
    budget_s: float | None = None,
    repetitions: int = 5,
    mode: str = "tabular",
    folder: Path | str = "comparison",
    jobs: int = 1,
    client_sample_rate: float | None = None,
    progress: bool = True,
    **options: Any,
) -> OptimizerComparison:
    """Searches every problem with every optimizer, several times, and returns what came of it.

    Problems are names, files of runs with ``search:``, classes (``package.module:Name``) or objects; `options` are
    those of `fedarena.hpo.problem`, for all of them. Optimizers are names, mappings with a name and options, or
    classes; ``"all"`` are the ten of the paper. Every search has `budget_s` simulated seconds, by default those of the
    problem. Repetitions differ in the optimizer's seed. Searches are kept in `folder`; what is complete there is not
    made again.

    >>> found = compare("lr@31", "random,hyperband", budget_s=21_600)  # doctest: +SKIP
    >>> found.table()  # doctest: +SKIP
    """
    if isinstance(repetitions, bool) or not isinstance(repetitions, int) or repetitions < 1:
        raise BadInputError(f"repetitions must be a whole number from 1 on, not {quoted(repetitions)}")
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise BadInputError(f"jobs must be a whole number from 1 on, not {quoted(jobs)}")
    chosen = choose_optimizers(optimizers)
    given = [problems] if isinstance(problems, str | Problem) else list(problems)
    options = {key: _as_json(value) for key, value in options.items()}
    opened = _open(given, mode, options)
    rates = {name: _rate(problem, client_sample_rate) for name, problem in opened.items()}
    own = [one.name for one in given if isinstance(one, Problem)]
    if own and jobs > 1:
        raise BadInputError(f"Other processes cannot find the object {own[0]}; name it by its class, or leave out jobs")
    planned = _plan(opened, chosen, repetitions, budget_s, rates, mode, options, Path(folder))
    if mode == "raw" and jobs > 1:
        planned = [_with_runs_of_its_own(search) for search in planned]
    observer = SearchBars(planned) if progress else ComparisonObserver()
    with observer:
        if jobs == 1 or len(planned) == 1:
            failures = search_one_by_one(planned, opened, observer)
        else:
            failures = search_at_once(planned, jobs, observer)
    return _collect(planned, opened, chosen, repetitions, failures, Path(folder), rates)


def _open(given: Sequence[str | Problem], mode: str, options: Mapping[str, Any]) -> dict[str, Problem]:
    if not given:
        raise BadInputError("Name at least one problem, such as lr@31")
    opened: dict[str, Problem] = {}
    for one in given:
        problem = one if isinstance(one, Problem) else open_problem(one, mode, options)
        name = problem.name if isinstance(one, Problem) else one
        if name in opened:
            raise BadInputError(f"The problem {name} is named twice")
        opened[name] = problem
    return opened


def _as_json(value: Any) -> Any:
    """An option as it can be told to another process, and written to a file."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value) if isinstance(value, Path) else value


def _rate(problem: Problem, client_sample_rate: float | None) -> float:
    rate = problem.full.client_sample_rate if client_sample_rate is None else client_sample_rate
    return problem._check_fidelity(Fidelity(problem.max_rounds, rate)).client_sample_rate


def _plan(
    problems: Mapping[str, Problem],
    optimizers: Sequence[ChosenOptimizer],
    repetitions: int,
    budget_s: float | None,
    rates: Mapping[str, float],
    mode: str,
    options: Mapping[str, Any],
    folder: Path,
) -> list[PlannedSearch]:
    """All searches, a repetition of everything before the next one, so that there is something to see early."""
    return [
        PlannedSearch(
            name=f"{name} {one.label} {repetition}",
            label=one.label,
            problem=name,
            mode=mode,
            problem_options=dict(options),
            optimizer=dict(one.settings),
            seed=repetition,
            budget_s=budget_of(problem, budget_s),
            client_sample_rate=rates[name],
            file=str(folder / SEARCHES_FOLDER / as_file_name(name) / f"{as_file_name(one.label)}-{repetition}.parquet"),
        )
        for repetition in range(repetitions)
        for name, problem in problems.items()
        for one in optimizers
    ]


def _with_runs_of_its_own(search: PlannedSearch) -> PlannedSearch:
    """Searches one after the other share what they trained; at the same time, none may wait for another's run."""
    runs = Path(search.problem_options.get("runs_folder", DEFAULT_RUNS_FOLDER)) / Path(search.file).stem
    return replace(search, problem_options={**search.problem_options, "runs_folder": str(runs)})


def _collect(
    planned: Sequence[PlannedSearch],
    problems: Mapping[str, Problem],
    optimizers: Sequence[ChosenOptimizer],
    repetitions: int,
    failures: Mapping[str, FedArenaError],
    folder: Path,
    rates: Mapping[str, float],
) -> OptimizerComparison:
    searches: dict[tuple[str, str], list[Trajectory]] = {}
    for search in planned:
        made = searches.setdefault((search.problem, search.label), [])
        if search.name not in failures:
            made.append(read_trajectory(Path(search.file)).within(search.budget_s))
    if not any(searches.values()):
        name, error = next(iter(failures.items()))
        kind = BadInputError if isinstance(error, BadInputError) else RunFailedError
        raise kind(f"No search succeeded; {name}: {error}") from error
    found = {key: tuple(sorted(made, key=lambda one: one.searched.seed)) for key, made in searches.items()}
    refused = frozenset(name for name, error in failures.items() if isinstance(error, BadInputError))
    sentences = {name: str(error) for name, error in failures.items()}
    return OptimizerComparison(
        dict(problems), tuple(optimizers), repetitions, found, sentences, folder, dict(rates), refused
    )


def _grid_size(problem: Problem) -> float:
    try:
        return math.prod(len(one.grid()) for one in problem.space)
    except BadInputError:  # a range without bins has no grid
        return math.inf
