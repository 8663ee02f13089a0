"""FedArena from Python: the same settings as on the command line, and results as tables and plots.

Settings are those of the configuration, and are given alike everywhere: as the path of a YAML file, as a mapping
(nested or with dotted keys), as keywords, or as one of the former with keywords that override it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.core.console import Screen
from fedarena.core.errors import BadInputError
from fedarena.core.options import by_path
from fedarena.core.outside_text import quoted
from fedarena.core.user_warnings import warn_user
from fedarena.data import Federation
from fedarena.display.running import resume_with_report, run_suite_with_report, run_with_report
from fedarena.fleet import Fleet
from fedarena.results import Comparison, Result
from fedarena.runs.building import GivenParts
from fedarena.runs.callbacks import Callback, OnRound
from fedarena.runs.cluster import Elsewhere
from fedarena.runs.config import RunConfig, check_name, read_run_file, resolve_settings
from fedarena.runs.run import Run
from fedarena.runs.suite import make_suite, read_suite
from fedarena.runs.suite_plan import StalePolicy, plan_suite
from fedarena.storage.run_data import RunData, find_runs, load_run

if TYPE_CHECKING:
    from fedarena.hpo.tune.outcome import TunedStudy

__all__ = ["Comparison", "Result", "compare", "load", "open", "resume", "run", "suite", "tune"]
DEFAULT_RUNS_FOLDER = Path("runs")
AnyCallback = Callback | type[Callback] | OnRound | str | Mapping[str, Any]


def run(
    settings: Mapping[str, Any] | Path | str | None = None,
    /,
    *,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    progress: bool = True,
    callbacks: AnyCallback | Sequence[AnyCallback] = (),
    **more: Any,
) -> Result:
    """Runs one experiment in a new folder and returns its results.

    Settings are a YAML file, a mapping, keywords, or the former with keywords that override them; what is not set has
    its default. A federation or a fleet may be an object, which is then not loaded again. `callbacks` are told of every
    round; see `open`. Without `progress` nothing is shown, and warnings are Python's.

    >>> result = run(federation="digits", algorithm={"name": "fedprox", "mu": 0.1}, rounds=3)  # doctest: +SKIP
    >>> result.rounds.to_pandas()[result.summary["primary_metric"]]  # doctest: +SKIP
    """
    config, given, told = _resolve(settings, more, callbacks)
    return _result(run_with_report(config, Path(runs_folder), progress, given, told))


def open(
    settings: Mapping[str, Any] | Path | str | None = None,
    /,
    *,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    callbacks: AnyCallback | Sequence[AnyCallback] = (),
    **more: Any,
) -> Run:
    """Opens a run that is advanced piece by piece: a new one with these settings, or one in a folder that was stopped.

    Settings are given as in `run`. Of a run that is there, `rounds` alone can be given: that it shall have more; and of
    one with ``engine=ray``, an `engine` as in `resume`.

    A callback is a function ``on_round(run, row)`` that is called after every round and may return a `Stop`, an object
    with such a method, or the name of a built-in one with its options.

    >>> with open(federation="digits", rounds=30) as run:  # doctest: +SKIP
    ...     run.advance(10)
    ...     careful = run.fork({"local.lr": 0.01})
    ...     run.advance()
    """
    if isinstance(settings, Path | str) and Path(settings).is_dir():
        _check_changeable(more)
        named, told = _named_and_told(callbacks)
        if named:
            raise BadInputError("Callbacks of a run that is already there must be objects, not names or classes")
        return Run.reopen(Path(settings), callbacks=told, rounds=more.get("rounds"), elsewhere=more.get("engine"))
    if isinstance(settings, Path | str) and not Path(settings).exists():
        raise BadInputError(f"There is no run folder and no file {settings}")
    config, given, told = _resolve(settings, more, callbacks)
    return Run.create(config, Path(runs_folder), given=given, callbacks=told)


def resume(folder: Path | str, *, rounds: int | None = None, progress: bool = True, engine: Elsewhere = None) -> Result:
    """Goes on with a run that was stopped, and returns its results. A finished one is only read, unless it gets more.

    With `rounds` a run has so many in the end, with the same results as if it had had them from the start. A run with
    ``engine=ray`` may go on with another cluster or number of workers (``{"workers": 3}``), or in this process
    (``"cohort"``).
    """
    return _result(resume_with_report(Path(folder), progress, rounds, engine))


def load(folder: Path | str) -> Result:
    """The results of a run that is on disk, finished or not."""
    return _result(load_run(Path(folder)))


def suite(
    settings: Mapping[str, Any] | Path | str | None = None,
    /,
    *,
    name: str | None = None,
    base: Mapping[str, Any] | None = None,
    matrix: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    progress: bool = True,
    jobs: int | None = None,
    cluster: str | None = None,
    stale: StalePolicy = "refuse",
    **more: Any,
) -> Comparison:
    """Runs a matrix of settings and seeds in ``runs_folder/<name>``, and compares the results.

    It is a suite file, the name of a built-in suite, or a mapping or keywords with `name`, `base`, `matrix` and `seeds`
    as in a suite file; other keywords are settings for every run. What is finished is kept, what was stopped goes on.
    `jobs` runs go on at once; on the machines of a Ray `cluster` (``"auto"``, or the address of its head) as many as
    there is room for. Runs whose own source has changed are refused, or `stale` is ``"rerun"`` or ``"keep"``.
    A run that fails stops no other: it is among the `failures` of what is returned, and a warning.

    >>> found = suite(  # doctest: +SKIP
    ...     name="rates", base={"federation": "digits", "rounds": 5}, matrix={"local.lr": [0.1, 0.5]}, seeds=[0, 1]
    ... )
    >>> found.table().to_pandas()  # doctest: +SKIP
    """
    if jobs is not None and jobs < 1:
        raise BadInputError(f"jobs must be at least 1, not {jobs}")
    given = {"name": name, "base": base, "matrix": matrix, "seeds": None if seeds is None else list(seeds)}
    given = {key: value for key, value in given.items() if value is not None}
    overrides = _as_in_a_file(more)
    if isinstance(settings, Path | str):
        if "base" in given or "matrix" in given:
            raise BadInputError("A suite file has its own base and matrix; keywords such as rounds=5 override them")
        chosen = read_suite(str(settings), overrides | ({} if seeds is None else {"seeds": given["seeds"]}))
        chosen = chosen if name is None else replace(chosen, name=check_name(name, "name"))
    else:
        content: dict[str, Any] = {"name": "suite", **(settings or {}), **given}
        if isinstance(content.get("matrix"), Mapping):
            content["matrix"] = {key: _variants(key, values) for key, values in content["matrix"].items()}
        chosen = make_suite(_as_in_a_file(content), overrides)
    planned = plan_suite(chosen, Path(runs_folder))
    screen = Screen(stderr=True) if progress else None
    outcome = run_suite_with_report(chosen.name, planned, jobs, stale, screen, cluster=cluster)
    for failure in outcome.failures:
        warn_user(failure)
    return Comparison([_result(data) for data in outcome.results], outcome.failures)


def tune(
    settings: Mapping[str, Any] | Path | str | None = None,
    /,
    *,
    search: Mapping[str, Any] | None = None,
    name: str | None = None,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    progress: bool = True,
    tune: Mapping[str, Any] | None = None,
    trials: int | None = None,
    objective: str | Sequence[str] | None = None,
    constraints: str | Sequence[str] | None = None,
    sampler: str | None = None,
    pruner: str | None = None,
    seeds: int | Sequence[int] | None = None,
    hours: float | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    storage: str | None = None,
    **more: Any,
) -> TunedStudy:
    """Searches hyperparameters of a configuration in ``runs_folder/<name>``; a study that was stopped goes on.

    Settings are given as in `run`, with what to `search` in them under the names of settings: a list of values, or
    ``{"from": 0.01, "to": 1.0, "log": True}``. The other keywords, and `tune` with more of them, say how: see
    ``docs/tune.md``. Trials are judged on validation samples; what is returned has the best settings, which `run`
    takes, the table of trials, and Optuna's study.

    >>> found = tune(  # doctest: +SKIP
    ...     federation="digits", rounds=20, search={"local.lr": {"from": 0.01, "to": 1.0, "log": True}}, trials=20
    ... )
    >>> run(found.best)  # doctest: +SKIP
    """
    from fedarena.hpo.tune.library import require_optuna

    require_optuna()
    from fedarena.display.tuning.running import tune_with_report
    from fedarena.hpo.tune.checking import make_plan

    if isinstance(settings, Path | str):
        content = read_run_file(str(settings))
        name = name or content.get("name") or Path(settings).stem
    else:
        content = dict(settings or {})
    if search is not None:
        content["search"] = search
    given = {
        "trials": trials,
        "objective": objective,
        "constraints": constraints,
        "sampler": sampler,
        "pruner": pruner,
        "seeds": seeds,
        "hours": hours,
        "jobs": jobs,
        "storage": storage,
    }
    options = {**(tune or {}), **{key: value for key, value in given.items() if value is not None}}
    content, overrides = _as_in_a_file(content), _as_in_a_file(more)
    outcome = tune_with_report(
        lambda observer: make_plan(content, Path(runs_folder), observer, overrides, options, name),
        Screen(stderr=True) if progress else None,
        cluster,
    )
    return outcome.tuned


def compare(runs: Sequence[RunData | Run | Path | str] | Path | str) -> Comparison:
    """Puts runs beside each other: results, open runs, run folders, or folders of runs.

    >>> compare([fedavg, fedprox]).write_report("comparison.html")  # doctest: +SKIP
    """
    found: list[RunData] = []
    for one in [runs] if isinstance(runs, Path | str) else runs:
        if isinstance(one, Path | str):
            found += [load_run(folder) for folder in find_runs([Path(one)])]
        elif isinstance(one, Run | RunData):
            found.append(one.result() if isinstance(one, Run) else one)
        else:
            raise BadInputError(f"Runs are compared by results, open runs or folders, not by a {type(one).__name__}")
    return Comparison([_result(data) for data in found])


def _resolve(
    settings: Mapping[str, Any] | Path | str | None,
    more: Mapping[str, Any],
    callbacks: AnyCallback | Sequence[AnyCallback],
) -> tuple[RunConfig, GivenParts, list[Callback | OnRound]]:
    """The configuration, the parts that were handed in as objects, and the callbacks that were."""
    if isinstance(settings, Path | str):
        settings = read_run_file(str(settings))
    settings, more = None if settings is None else dict(settings), dict(more)
    objects: dict[str, Any] = {}
    for key, kind in (("federation", Federation), ("fleet", Fleet)):
        for place in (settings or {}, more):
            if isinstance(place.get(key), kind):
                objects[key] = place.pop(key)
                more[key] = "store" if key == "federation" else "ideal"  # until it is known where it lies
            elif not isinstance(place.get(key), str | os.PathLike | Mapping | None) and not callable(place[key]):
                made = "fedarena.from_table and its kin" if key == "federation" else "fedarena.load_fleet"
                raise BadInputError(
                    f"{key} must be a name, a mapping with a name or a {kind.__name__}, not a "
                    f"{type(place[key]).__name__}; {made} can make one"
                )
    if "federation" in objects:
        more["federation"] = _store_of(objects["federation"])
    named, told = _named_and_told(callbacks)
    if named:
        before = (settings or {}).get("callbacks", more.get("callbacks", []))
        more["callbacks"] = [*(before if isinstance(before, list) else [before]), *named]
    return resolve_settings(settings, more), GivenParts(**objects), told


def _named_and_told(
    callbacks: AnyCallback | Sequence[AnyCallback],
) -> tuple[list[Any], list[Callback | OnRound]]:
    """Those that the configuration names, as other parts, and those that are objects; one alone needs no list."""
    every = [callbacks] if isinstance(callbacks, str | Mapping | Callback) or callable(callbacks) else callbacks
    named = [callback for callback in every if isinstance(callback, str | Mapping | type)]
    told = [callback for callback in every if not isinstance(callback, str | Mapping | type)]
    return named, told


def _check_changeable(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in ("rounds", "engine"):
            raise BadInputError(
                f"{key} of a run that is already there cannot be changed, only rounds; fork it instead (Run.fork)"
            )


def _variants(key: str, values: Any) -> Any:
    """An axis of a matrix, on which classes and functions have their names as labels; where two are alike, paths."""
    if not isinstance(values, list | tuple) or not any(map(callable, values)):
        return values
    if not all(callable(value) or isinstance(value, str) for value in values):
        return values
    labels = [getattr(value, "__name__", value) for value in values]
    if len(set(labels)) < len(labels):
        labels = [by_path(value) for value in values]
    if len(set(labels)) < len(labels):
        twice = max(labels, key=labels.count)
        raise BadInputError(f"matrix.{key} has {quoted(twice)} twice; leave one out, or give it another name")
    return {label: {key: value} for label, value in zip(labels, values, strict=True)}


def _as_in_a_file(value: Any) -> Any:
    """Settings as a suite file has them: parts of one's own by their path, federations by their folder."""
    if isinstance(value, Mapping):
        return {key: _as_in_a_file(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_in_a_file(item) for item in value]
    if isinstance(value, Federation):
        return _store_of(value)
    if isinstance(value, Fleet):
        raise BadInputError("Runs of a suite find a fleet by its folder: save it, and give {'name': 'file', 'path': …}")
    if isinstance(value, Path):
        return str(value)
    return by_path(value)


def _store_of(federation: Federation) -> dict[str, str]:
    """Where it is found again; what is only in memory would be lost when a run is resumed, or in a suite."""
    has_own = type(federation) is not Federation or any(hasattr(Federation, name) for name in vars(federation))
    if has_own:
        raise BadInputError(
            f"The federation {federation.name!r} has methods of its own, but resumed runs and suites find only its "
            f"folder {federation.path}; write what it gives into a store (fedarena.data.FederationWriter), or name a "
            "function that makes it: federation='package.module:function'"
        )
    return {"name": "store", "path": str(federation.path)}


def _result(data: RunData) -> Result:
    return Result(**vars(data))
