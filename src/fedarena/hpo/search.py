"""One optimizer on one problem, until a budget of simulated seconds is spent.

A course that goes on pays for what it was not trained for before. What the optimizer itself takes is real time, which
is noted and never counts against the budget.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.core.outside_text import quoted
from fedarena.hpo.optimizers import OPTIMIZERS, Optimizer, Proposal, make_optimizer, replay
from fedarena.hpo.problem import Fidelity, Problem, Result
from fedarena.hpo.trajectory import Evaluation, Searched, Trajectory, read_trajectory, write_trajectory

_MOST_FOR_NOTHING: Final = 1_000  # evaluations in a row; a budget that nothing is taken from is never spent
_ONLY_WHERE: Final = ("table", "surrogate", "folder", "runs_folder")  # options that say where something lies
_SECONDS_BETWEEN_WRITES: Final = 1.0
_WRITING_SHARE: Final = 0.05  # of the time, at most


class SearchObserver:
    """Is told how far a search is; this one does not care."""

    def evaluated(self, spent_s: float, budget_s: float, incumbent: Evaluation | None) -> None:
        """Something was evaluated, after which this is the best."""


def run_search(
    problem: Problem,
    optimizer: str | type[Optimizer] | Mapping[str, Any],
    budget_s: float | None = None,
    *,
    seed: int = 0,
    client_sample_rate: float | None = None,
    problem_seed: int = 0,
    problem_options: Mapping[str, Any] | None = None,
    file: Path | str | None = None,
    observer: SearchObserver | None = None,
) -> Trajectory:
    """Searches until the budget is spent, in simulated seconds, and returns everything that was evaluated.

    `optimizer` is a name, a mapping with a name and options, or somebody's own class. Without a budget it is that of
    the problem. All training has the same `client_sample_rate`, by default the largest. With a `file` the search is
    kept there: one that was stopped, however it was, goes on where it was, and one that is complete is read. A larger
    budget goes on with what is there, too.

    >>> trajectory = run_search(problem, "hyperband", 21_600, seed=1)  # doctest: +SKIP
    >>> trajectory.best.configuration  # doctest: +SKIP
    """
    budget_s = budget_of(problem, budget_s)
    searched = _searched(problem, optimizer, seed, client_sample_rate, problem_seed, problem_options or {})
    path = None if file is None else Path(file)
    before = _kept(path, searched)
    if before is not None and before.budget_s >= budget_s:
        shorter = before.within(budget_s)
        if shorter.is_complete:
            return shorter
    search = _Search(problem, searched, budget_s, path, observer or SearchObserver())
    if before is not None:
        search.replay(before)
    return search.run()


class _Search:
    """A search under way."""

    def __init__(
        self, problem: Problem, searched: Searched, budget_s: float, path: Path | None, observer: SearchObserver
    ):
        self._problem, self._searched, self._budget_s = problem, searched, budget_s
        self._path, self._observer = path, observer
        self._optimizer = make_optimizer(
            searched.optimizer, problem.space, problem.max_rounds, searched.seed, problem.min_rounds
        )
        self._evaluations: list[Evaluation] = []
        self._paid_s: dict[int, float] = {}  # by course
        self._spent_s = 0.0
        self._best: Evaluation | None = None
        self._next_write_s = time.monotonic() + _SECONDS_BETWEEN_WRITES

    def replay(self, before: Trajectory) -> None:
        """Makes the optimizer know what it knew, by telling it everything again."""
        history = [(Proposal(one.course, one.configuration, one.rounds), one.value) for one in before]
        try:
            replay(self._optimizer, history)
        except BadInputError as error:
            raise BadInputError(f"{self._path}: {error}; remove the file to search again") from error
        for evaluation in before:
            self._note(evaluation)

    def run(self) -> Trajectory:
        """Goes on until the budget is spent; what was evaluated is on disk, whatever goes wrong."""
        try:
            self._go_on()
        except BaseException:
            if self._path is not None and self._evaluations:
                with suppress(OSError):  # what went wrong first is what counts
                    write_trajectory(self._trajectory(is_complete=False), self._path)
            raise
        trajectory = self._trajectory(is_complete=True)
        if self._path is not None:
            write_trajectory(trajectory, self._path)
        return trajectory

    def _go_on(self) -> None:
        for_nothing = 0
        while True:
            began = time.perf_counter()
            proposal = self._optimizer.ask()
            overhead_s = time.perf_counter() - began
            began = time.monotonic()
            result = self._ask_problem(proposal)
            took_long = time.monotonic() - began >= _SECONDS_BETWEEN_WRITES
            cost_s = self._price(proposal, result)
            if self._spent_s + cost_s > self._budget_s:
                return
            for_nothing = 0 if cost_s > 0 else for_nothing + 1
            if for_nothing > _MOST_FOR_NOTHING:
                raise BadInputError(
                    f"{self._problem.name} says that training costs no time, so no budget would ever be spent"
                )
            value = float(result.value) if math.isfinite(result.value) else math.inf
            began = time.perf_counter()
            self._optimizer.tell(proposal, value)
            overhead_s += time.perf_counter() - began
            self._note(
                Evaluation(
                    course=proposal.course,
                    configuration=dict(proposal.configuration),
                    rounds=proposal.rounds,
                    value=value,
                    metrics=dict(result.metrics),
                    cost_s=cost_s,
                    course_s=float(result.cost_s),
                    simulated_s=self._spent_s + cost_s,
                    overhead_s=overhead_s,
                )
            )
            self._observer.evaluated(self._spent_s, self._budget_s, self._best)
            self._write_now_and_then(took_long)

    def _ask_problem(self, proposal: Proposal) -> Result:
        fidelity = Fidelity(proposal.rounds, self._searched.client_sample_rate)
        return self._problem.query(proposal.configuration, fidelity, seed=self._searched.problem_seed)

    def _price(self, proposal: Proposal, result: Result) -> float:
        paid_s = self._paid_s.get(proposal.course, 0.0)
        if not math.isfinite(result.cost_s) or result.cost_s < paid_s:
            raise BadInputError(
                f"{self._problem.name} says that {proposal.rounds} rounds take {result.cost_s} s, which must be a "
                f"number of seconds and not less than {paid_s:g}, what fewer of them took"
            )
        return result.cost_s - paid_s

    def _note(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._paid_s[evaluation.course] = evaluation.course_s
        self._spent_s = evaluation.simulated_s
        best = self._best
        if math.isfinite(evaluation.value) and (
            best is None
            or evaluation.rounds > best.rounds
            or (evaluation.rounds == best.rounds and evaluation.value < best.value)
        ):
            self._best = evaluation

    def _trajectory(self, is_complete: bool) -> Trajectory:
        return Trajectory(self._searched, self._budget_s, self._evaluations, is_complete)

    def _write_now_and_then(self, took_long: bool) -> None:
        """Whatever takes long, such as real training, is on disk at once; answers of a table come too fast for that."""
        began = time.monotonic()
        if self._path is None or (began < self._next_write_s and not took_long):
            return
        write_trajectory(self._trajectory(is_complete=False), self._path)
        took = time.monotonic() - began
        self._next_write_s = time.monotonic() + max(_SECONDS_BETWEEN_WRITES, took / _WRITING_SHARE)


def budget_of(problem: Problem, budget_s: float | None) -> float:
    """The budget of a search in simulated seconds: what was given, or that of the problem."""
    if budget_s is None:
        budget_s = problem.budget_s
    if budget_s is None:
        raise BadInputError(f"{problem.name} has no budget of its own; say how many simulated seconds a search has")
    if isinstance(budget_s, bool) or not isinstance(budget_s, int | float) or not 0 < budget_s < math.inf:
        raise BadInputError(f"A budget must be a number of simulated seconds above 0, not {quoted(budget_s)}")
    return float(budget_s)


def _searched(
    problem: Problem,
    optimizer: str | type[Optimizer] | Mapping[str, Any],
    seed: int,
    client_sample_rate: float | None,
    problem_seed: int,
    problem_options: Mapping[str, Any],
) -> Searched:
    return Searched(
        problem=problem.name,
        mode=problem.mode,
        objective=problem.objective,
        maximize=problem.maximize,
        space=problem.space.described(),
        min_rounds=problem.min_rounds,
        max_rounds=problem.max_rounds,
        client_sample_rate=problem.full.client_sample_rate if client_sample_rate is None else client_sample_rate,
        optimizer=resolve_part(OPTIMIZERS, optimizer, "optimizer"),
        seed=seed,
        problem_seed=problem_seed,
        problem_options={key: value for key, value in problem_options.items() if key not in _ONLY_WHERE},
        fingerprint=problem.fingerprint,
    )


def _kept(path: Path | None, searched: Searched) -> Trajectory | None:
    """What a file holds of this very search."""
    if path is None or not path.exists():
        return None
    kept = read_trajectory(path)
    for name, value in vars(searched).items():
        if (other := getattr(kept.searched, name)) != value:
            if name == "fingerprint":
                raise BadInputError(
                    f"{path} holds a search of another {searched.problem}: its table, the settings of its runs, the "
                    "source, weights or fleet that they are made of, its costs or its objective changed since; name "
                    "another folder, or remove the file"
                )
            what = name.replace("_", " ")
            raise BadInputError(
                f"{path} holds another search: its {what} is {quoted(other)}, not {quoted(value)}; "
                "name another folder, or remove the file"
            )
    return kept
