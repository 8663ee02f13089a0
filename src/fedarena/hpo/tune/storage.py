"""A study on disk: what it is, its trials in Optuna's storage, and who works on which of them.

Whoever works on a trial holds a lock on a file of it. The operating system lets go of a lock when a process ends,
however it ends, so a running trial without a lock is one whose process is gone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import optuna
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import fingerprint_of, reading, write_text
from fedarena.core.options import explain
from fedarena.core.outside_text import quoted
from fedarena.core.own_source import OwnSource
from fedarena.core.words import some
from fedarena.core.yaml_files import read_yaml
from fedarena.hpo.space import Space
from fedarena.hpo.tune.journal import Journal
from fedarena.hpo.tune.objectives import Objective, parse_constraint
from fedarena.hpo.tune.options import parse_options, usual_population
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.runs.config import resolve, to_yaml
from fedarena.storage.run_data import DATA, flatten_settings

STUDY_FILE = "study.yaml"
JOURNAL_FILE = "journal.log"  # of Optuna; optuna-dashboard opens it
_STUDY_ID = "fedarena_study"  # an attribute of Optuna's study
_SEAL, _SEALED = "fedarena_seal", ("excesses", "rounds", "runs")  # attributes of a complete trial
_LOCKS_FOLDER = ".locks"
_SEAL_OF_STUDY = "seal: "  # begins the last line of its file, which is about all lines before it
_ABOUT = "# What is searched, by fedarena tune. Trials depend on it, so it stays as it is.\n"


class _OwnSourceThen(BaseModel):
    """What `OwnSource.to_json` gave."""

    model_config = ConfigDict(strict=True, extra="forbid")

    files: dict[str, str]
    fingerprints: dict[str, str]
    unknown: list[str]


class _StudyFile(BaseModel):
    """What a study's file holds."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    study_id: str
    settings: dict[str, Any]
    search: dict[str, Any]
    tune: dict[str, Any]
    held_out: dict[str, Any]
    seeds: Annotated[list[int], Field(min_length=1)]
    judged_by: Annotated[list[str], Field(min_length=1)]
    constraints: list[str]
    objectives: list[dict[str, Any]]
    own_source: _OwnSourceThen
    data: dict[str, str | None] = {}  # none in studies of earlier versions
    seal: Any = None  # none in studies of earlier versions


def begin_study(plan: TuningPlan) -> TuningPlan:
    """Writes down what a new study is, or makes sure that it is this one that is there; its options count then."""
    path = plan.folder / STUDY_FILE
    there_already = [one.name for one in plan.folder.glob("[!.]*")]
    if there_already and not path.exists():
        raise BadInputError(
            f"The folder {plan.folder} is no study and is not empty; give the study another name (--name)"
        )
    with _locked(plan.folder, "study"):
        if not path.exists():
            population = plan.options.population or usual_population(plan.options)
            options = plan.options.model_copy(update={"population": population})
            plan = replace(plan, options=options, study_id=uuid.uuid4().hex)
            text = _ABOUT + to_yaml(_described(plan))
            write_text(path, f"{text}{_SEAL_OF_STUDY}{fingerprint_of(text.encode())}\n")
            return plan
    there = read_study(plan.folder)
    _check_same(plan, there)
    wanted = plan.options
    how_long = {"trials": wanted.trials, "hours": wanted.hours, "jobs": wanted.jobs}
    return replace(there, options=there.options.model_copy(update=how_long))


def read_study(folder: Path) -> TuningPlan:
    """The study in a folder."""
    path = folder / STUDY_FILE
    if not path.exists():
        raise BadInputError(f"{folder} holds no study: there is no {STUDY_FILE}")
    with reading(path):
        return _study_in(path)


def _study_in(path: Path) -> TuningPlan:
    try:
        found = _StudyFile.model_validate(read_yaml(path))
        _check_seal_of_study(path)
        objectives = {one.name: one for one in map(_objective, found.objectives)}
        return TuningPlan(
            name=found.name,
            folder=path.parent,
            settings=found.settings,
            space=Space.parse(found.search),
            options=parse_options(found.tune),
            objectives=tuple(objectives[name] for name in found.judged_by),
            constraints=tuple(parse_constraint(text, objectives.__getitem__) for text in found.constraints),
            seeds=tuple(found.seeds),
            held_out=found.held_out,
            own_source=found.own_source.model_dump(),
            data={part: found.data[part] for part in DATA} if "data" in found.model_fields_set else {},
            study_id=found.study_id,
        )
    except (BadInputError, ValidationError, KeyError, TypeError) as error:
        why = explain(error) if isinstance(error, ValidationError) else str(error)
        raise DamagedFileError(f"{path} is damaged: it does not describe a study ({quoted(why)})") from error


def _objective(described: dict[str, Any]) -> Objective:
    # Only the former notices what is missing or too much, and only the latter values of other types.
    return TypeAdapter(Objective).validate_python(Objective.from_json(described).to_json())


def _check_seal_of_study(path: Path) -> None:
    text, _, seal = path.read_text(encoding="utf-8").rpartition(f"\n{_SEAL_OF_STUDY}")
    if text and fingerprint_of(f"{text}\n".encode()) != seal.strip():  # studies of earlier versions have no seal
        raise BadInputError("it was changed; put it back as it was, or begin a study of another name (--name)")


def open_study(plan: TuningPlan) -> Any:
    """The study as Optuna has it."""
    if plan.options.storage is not None:
        path = Path(plan.options.storage.removeprefix("sqlite:///"))
        if not path.parent.is_dir():
            raise BadInputError(f"tune.storage is {plan.options.storage}, but there is no folder {path.parent}")
        storage = _sqlite(plan.options.storage)
    else:
        storage = _journal(plan.folder)
    directions = ["maximize" if one.maximize else "minimize" for one in plan.objectives]
    with _locked(plan.folder, "study"):
        try:
            if plan.name in optuna.get_all_study_names(storage):
                study = optuna.load_study(study_name=plan.name, storage=storage)
            else:
                study = optuna.create_study(storage=storage, study_name=plan.name, directions=directions)
            known, has_trials = study.user_attrs.get(_STUDY_ID), bool(study.get_trials(deepcopy=False))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise _damaged(plan, error) from error
        _check_seals(plan, study)
        if known is None and not has_trials:
            if runs := sorted(one for one in plan.folder.glob("trial-*") if one.is_dir()):
                raise DamagedFileError(
                    f"{_place(plan)} is gone or was begun anew: it knows of no trial, but {runs[0]} is one; "
                    "put it back, or begin a study of another name (--name)"
                )
            study.set_user_attr(_STUDY_ID, plan.study_id)
        elif known != plan.study_id:
            raise BadInputError(
                f"{_place(plan)} holds a study called {plan.name!r} already, which is not that of {plan.folder}; "
                "give this one another name (--name) or another storage"
            )
        if [one.name.lower() for one in study.directions] != directions:
            raise DamagedFileError(
                f"{_place(plan)} is damaged: its study does not {' and '.join(directions)} what {STUDY_FILE} says; "
                "put it back, or begin a study of another name (--name)"
            )
        return study


def tell(study: Any, trial: Any, values: Sequence[float]) -> None:
    """Ends a trial with what it came to, sealed: Optuna's files have no checksums."""
    trial.set_user_attr(_SEAL, _seal(trial, values))
    study.tell(trial, list(values))


def _seal(trial: Any, values: Sequence[float]) -> str:
    """What tells the hyperparameters, the values and our attributes of a trial from others."""
    attributes = {name: trial.user_attrs.get(name) for name in _SEALED}
    sealed = [trial.number, trial.params, list(values), attributes]
    return fingerprint_of(json.dumps(sealed, sort_keys=True).encode())


def _check_seals(plan: TuningPlan, study: Any) -> None:
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        seal = trial.user_attrs.get(_SEAL)  # studies of earlier versions have none
        if seal is not None and seal != _seal(trial, trial.values):
            raise DamagedFileError(f"{_place(plan)} is damaged: what trial {trial.number} came to was changed")


@contextmanager
def claiming(plan: TuningPlan) -> Iterator[None]:
    """Only one process at a time decides what it does next."""
    with _locked(plan.folder, "study"):
        yield


def lock_of_trial(plan: TuningPlan, number: int) -> FileLock | None:
    """The lock of a trial in this process's hands; None if another process is at work on it."""
    lock = FileLock(plan.folder / _LOCKS_FOLDER / f"trial-{number:04d}", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _journal(folder: Path) -> Any:
    path, lock = folder / JOURNAL_FILE, FileLock(_lock_path(folder, "journal"), thread_local=False)
    try:
        return optuna.storages.JournalStorage(Journal(path, lock))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DamagedFileError(f"{path} is damaged: it is not a journal of Optuna ({quoted(str(error))})") from error


def _sqlite(address: str) -> Any:
    try:
        return optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 60}})
    except Exception as error:  # whatever the library of databases raises
        reason = str(error).splitlines()[0]
        raise BadInputError(f"tune.storage cannot be opened: {address} ({quoted(reason)})") from error


def _damaged(plan: TuningPlan, error: Exception) -> DamagedFileError:
    return DamagedFileError(f"{_place(plan)} is damaged: it cannot be read as a study of Optuna ({quoted(str(error))})")


def _place(plan: TuningPlan) -> str:
    return plan.options.storage or str(plan.folder / JOURNAL_FILE)


def _lock_path(folder: Path, name: str) -> Path:
    path = folder / _LOCKS_FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    with FileLock(_lock_path(folder, name), thread_local=False):
        yield


def _described(plan: TuningPlan) -> dict[str, Any]:
    measured = {one.name: one for one in (*plan.objectives, *(one.objective for one in plan.constraints))}
    return {
        "name": plan.name,
        "study_id": plan.study_id,
        "settings": plan.settings,
        "search": plan.space.described(),
        "tune": plan.options.model_dump(),
        "held_out": plan.held_out,
        "seeds": list(plan.seeds),
        "judged_by": [one.name for one in plan.objectives],
        "constraints": [str(one) for one in plan.constraints],
        "objectives": [one.to_json() for one in measured.values()],
        "own_source": plan.own_source,
        **({"data": plan.data} if plan.data else {}),
    }


def _check_same(plan: TuningPlan, there: TuningPlan) -> None:
    """Refuses a study of another space, another configuration, or judged by something else."""
    otherwise = "give this one another name (--name), or remove the folder"
    if plan.space != there.space:
        before, now = there.space.described(), plan.space.described()
        key = next((key for key in before | now if before.get(key) != now.get(key)), "the order of hyperparameters")
        raise BadInputError(
            f"{plan.folder} holds a study of another space: {key} is {quoted(before.get(key))} there, not "
            f"{quoted(now.get(key))}; {otherwise}"
        )
    _check_same_settings(plan, there, otherwise)
    before, now = there.options.decisive(), plan.options.decisive()
    if now["population"] is None:  # it was chosen when the study began
        before["population"] = None
    for key in now:
        if now[key] != before[key]:
            raise BadInputError(
                f"{plan.folder} holds a study with tune.{key} = {quoted(before[key])}, not {quoted(now[key])}; "
                f"{otherwise}"
            )
    for what, judged_then, judged_now in (
        ("seeds", list(there.seeds), list(plan.seeds)),
        ("objectives", _judging(there), _judging(plan)),
    ):
        if judged_now != judged_then:
            raise BadInputError(
                f"{plan.folder} holds a study with the {what} {quoted(judged_then)}, not {quoted(judged_now)}; "
                f"{otherwise}"
            )
    own = plan.own_source
    files = {module: Path(path) for module, path in own["files"].items()}
    if changed := OwnSource(files, own["fingerprints"], own["unknown"]).changes_since(there.own_source):
        raise BadInputError(
            f"{plan.folder} holds a study of other source: {some(changed)} changed since, so trials would not be "
            f"comparable; {otherwise}"
        )

    if changed := [DATA[part] for part, before in there.data.items() if before != plan.data[part]]:
        raise BadInputError(
            f"{plan.folder} holds a study of other data: {' and '.join(changed).lower()} changed since, so trials "
            f"would not be comparable; {otherwise}"
        )


def _judging(plan: TuningPlan) -> list[str]:
    return [f"{'most' if one.maximize else 'least'} {one.name}" for one in plan.objectives]


def _check_same_settings(plan: TuningPlan, there: TuningPlan, otherwise: str) -> None:
    # Complete ones, as a setting that has its default may be written down or not; the space is in neither.
    before, now = (flatten_settings(_comparable(one)) for one in (there, plan))
    for key in before | now:
        if before.get(key) != now.get(key):
            raise BadInputError(
                f"{plan.folder} holds a study of another configuration: {key} is {quoted(before.get(key))} there, not "
                f"{quoted(now.get(key))}; {otherwise}"
            )


def _comparable(plan: TuningPlan) -> dict[str, Any]:
    try:
        settings = resolve(plan.run_settings({})).to_dict()
    except BadInputError:  # it may be complete with what is searched alone
        settings = plan.run_settings({})
    return {key: value for key, value in settings.items() if key != "track"}
