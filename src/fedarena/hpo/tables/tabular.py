"""Tabular mode: every answer is looked up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.problem import Curve, Fidelity, Problem, Result
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.space import Space
from fedarena.hpo.tables.table import Table, table_checksum


class TabularProblem(Problem):
    """A problem whose answers are in a table: the means over the seeds that it was made with, whatever seed is asked.

    Its space is that of the grid. Rounds that are not noted are answered by the last noted ones before them.
    """

    mode = "tabular"

    def __init__(
        self,
        table: Table,
        source: Path,
        objective: Objective,
        system: SystemModel,
        budget_s: float | None = None,
        rounds: int | None = None,
    ):
        objective.check_known(dict.fromkeys(table.scores), f"The table {source}")
        self.table, self.source, self.system, self._objective = table, source, system, objective
        self.name, self.budget_s = table.problem, budget_s
        self.fingerprint = f"{table_checksum(table)} {system} {objective}"
        self.space = table.grid_space
        self.sample_rates = table.rates
        self.min_rounds, self.max_rounds = table.rounds[0], table.rounds[-1]
        if rounds is not None:
            if not self.min_rounds <= rounds <= self.max_rounds:
                raise BadInputError(
                    f"The table {source} has {self.min_rounds} to {self.max_rounds} rounds, so it cannot have {rounds}"
                )
            self.max_rounds = rounds
        self.objective, self.maximize = objective.score, objective.maximize
        self._round_s = np.asarray(system.round_s(table.round_work), dtype=np.float64)
        self._rounds = list(table.rounds)
        self._noted = np.array(table.rounds, dtype=np.int64)
        self._values = self._minimized()
        sizes = [len(values) for values in table.grid.values()]
        strides = [int(np.prod(sizes[place + 1 :])) for place in range(len(sizes))]
        self._places = [
            (name, {_key(value): place * stride for place, value in enumerate(values)})
            for (name, values), stride in zip(table.grid.items(), strides, strict=True)
        ]
        self._rates = {rate: place for place, rate in enumerate(table.rates)}

    def check(self, configuration: Mapping[str, Any], fidelity: Fidelity) -> tuple[dict[str, Any], Fidelity]:
        """A question as it is meant; says so where it is the table alone that lacks it."""
        return checked_by_table(self, self.table.space, "table", self.source, configuration, fidelity)

    def place(self, configuration: dict[str, Any]) -> int:
        """Where a configuration of the grid is in the table."""
        return sum(places[_key(configuration[name])] for name, places in self._places)

    def whole_grid_s(self, client_sample_rate: float) -> float:
        """What it costs to train all configurations to the end."""
        return float(self._round_s[:, self._rates[client_sample_rate]].sum()) * self.max_rounds

    def _minimized(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What is minimized, ``[configurations, rates, rounds]``; infinity where a score is not finite."""
        values: Any = sum(
            sign * self.table.score(name).astype(np.float64) for name, sign in self._objective.signs().items()
        )
        return np.where(np.isfinite(values), values, np.inf)

    def _answer(self, configuration: dict[str, Any], fidelity: Fidelity, seed: int) -> Result:
        place, rate = self.place(configuration), self._rates[fidelity.client_sample_rate]
        if not self.table.present[place, rate]:
            raise BadInputError(self._lacks(configuration, fidelity.client_sample_rate))
        until = bisect_right(self._rounds, fidelity.rounds)
        cell = self.table.values[place, rate, :, :until]
        metrics = dict(zip(self.table.scores, cell[:, -1].tolist(), strict=True))
        round_s = float(self._round_s[place, rate])
        noted = self._noted[:until]
        curve = Curve(
            noted, dict(zip(self.table.scores, cell, strict=True)), np.asarray(noted * round_s, dtype=np.float64)
        )
        value = float(self._values[place, rate, until - 1])
        return Result(value, metrics, fidelity.rounds * round_s, fidelity, curve)

    def _lacks(self, configuration: dict[str, Any], rate: float) -> str:
        cell = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in configuration.items()
        )
        missing = int((~self.table.present).sum())
        return (
            f"The table {self.source} lacks the cell {cell} at client_sample_rate={rate:g} and has "
            f"{counted(missing, 'such gap')}; make it whole: fedarena hpo table {self.name} -o FILE"
        )


def checked_by_table(
    problem: Problem, whole: Space, what: str, source: Path, configuration: Mapping[str, Any], fidelity: Fidelity
) -> tuple[dict[str, Any], Fidelity]:
    """A question to a problem that knows a part of the `whole` space; who asks for the rest is told who knows that."""
    try:
        checked = problem.space.check(configuration)
    except BadInputError as error:
        try:
            whole.check(configuration)
        except BadInputError:
            raise error from None
        raise BadInputError(f"{error}: the {what} {source} knows no more; have it trained (mode=raw)") from None
    return checked, problem._check_fidelity(fidelity)


def _key(value: Any) -> Any:
    """What a value is found by; lists cannot be looked up."""
    return tuple(value) if isinstance(value, list) else value
