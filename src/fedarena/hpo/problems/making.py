"""Problems by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name, quoted
from fedarena.data.registry import cache_folder
from fedarena.hpo.cost import SystemModel, system_model
from fedarena.hpo.problem import Mode, Problem
from fedarena.hpo.problems.declared import Declared, find_declared, settings_digest
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.tables.finding import check_made_for, find_table
from fedarena.hpo.tables.table import Table, table_checksum
from fedarena.hpo.tables.tabular import TabularProblem

DEFAULT_RUNS_FOLDER = Path("runs")
FLEET = "fleet"  # as the system: the virtual clock of the runs
MODES = ("tabular", "surrogate", "raw")


def problem(
    name: str | Path | Mapping[str, Any],
    mode: Mode = "tabular",
    *,
    algorithm: str | None = None,
    objective: str = "validation_loss",
    penalties: Mapping[str, float] | None = None,
    system: SystemModel | dict[str, Any] | str | None = None,
    epsilon: float | None = None,
    folder: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    table: Path | str | None = None,
    surrogate: Path | str | None = None,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
) -> Problem:
    """A problem of hyperparameter search, by its name in the catalogue or by a configuration file with ``search:``.

    `mode` says where answers come from: a table, a surrogate that was fitted to one, or training (``"raw"``), whose
    runs lie in `runs_folder`. `objective` is the score that is to be good, in the direction of its metric; `penalties`
    are weights of further ones. `system` has parameters of the cost model, or is ``"fleet"`` for the virtual clock of
    the runs. `epsilon` trains with NbAFL under that privacy budget. `folder` is where the data lies, `settings` are
    further settings of the runs, and `rounds` is the largest fidelity. `table` and `surrogate` are files of one's own.

    >>> asked = problem("lr@31", mode="raw", folder="data/openml")  # doctest: +SKIP
    >>> asked.query(asked.space.sample(np.random.default_rng(0)), Fidelity(rounds=9))  # doctest: +SKIP
    """
    if mode not in MODES:
        raise BadInputError(f"A problem has the modes {', '.join(MODES)}, not {quoted(mode)}")
    declared = declare(name, algorithm=algorithm, epsilon=epsilon, folder=folder, settings=settings)
    wanted = Objective(objective, dict(penalties or {}))
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise BadInputError(f"rounds must be a whole number from 1 on, not {quoted(rounds)}")
    if isinstance(system, str) and (system != FLEET or mode != "raw"):
        raise BadInputError(
            f"The system of a problem has parameters such as client_s, or is 'fleet' in mode raw, not {quoted(system)}"
        )
    costs = None if isinstance(system, str) else system_model(system)
    if mode == "raw":
        from fedarena.hpo.problems.raw import RawProblem

        for given, what in ((table, "table"), (surrogate, "surrogate")):
            if given is not None:
                raise BadInputError(f"A problem in mode raw needs no {what}; leave it out, or choose mode={what}")
        return RawProblem(declared, Path(runs_folder), wanted, costs, rounds)
    assert costs is not None
    if mode == "surrogate" and surrogate is not None:
        return _surrogate_problem(declared, Path(surrogate), wanted, costs, rounds)
    if surrogate is not None:
        raise BadInputError("A problem in mode tabular needs no surrogate; leave it out, or choose mode=surrogate")
    found, path = find_table(declared, None if table is None else Path(table))
    if mode == "surrogate":
        return _surrogate_problem(declared, fitted_surrogate(found), wanted, costs, rounds)
    return TabularProblem(found, path, wanted, costs, declared.budget_s, rounds)


def fitted_surrogate(table: Table) -> Path:
    """The surrogate of a table in the cache, where it is put when it is first asked for; that takes a while."""
    from fedarena.hpo.surrogate import FORMAT, fit_surrogate, write_surrogate

    digest = settings_digest([FORMAT, table_checksum(table)])
    path = cache_folder() / "surrogates" / f"{as_file_name(table.problem)}-{digest}.npz"
    if not path.exists():
        write_surrogate(fit_surrogate(table), path)
    return path


def _surrogate_problem(
    declared: Declared, path: Path, objective: Objective, system: SystemModel, rounds: int | None
) -> Problem:
    from fedarena.hpo.surrogate import SurrogateProblem, read_surrogate

    found = read_surrogate(path)
    check_made_for(declared, found.problem, found.about["table"], path, "surrogate")
    return SurrogateProblem(found, path, objective, system, declared.budget_s, rounds)


def declare(
    name: str | Path | Mapping[str, Any],
    *,
    algorithm: str | None = None,
    epsilon: float | None = None,
    folder: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Declared:
    """A problem of the catalogue, or one's own, with what is to be different about it."""
    declared = find_declared(name, algorithm)
    changes = dict(settings or {})
    if epsilon is not None:
        changes["privacy"] = {"name": "nbafl", "epsilon": epsilon, "formula": "fedhpo"}
    declared = declared.with_settings(changes) if changes else declared
    if folder is None:
        return declared
    kept = declared.options
    return replace(declared.with_settings({"federation.folder": str(Path(folder).absolute())}), options=kept)
