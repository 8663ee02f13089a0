"""Making a table: the grid is trained block by block, and every block is stored when it is done.

Beside the file that is to be made lies a folder ``FILE.parts`` until it is; whoever makes the same table again goes on
with what is there, however the last one ended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from fedarena.core.array_archives import read_arrays
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import reading, replacing, write_json
from fedarena.core.words import some
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.lanes.trials import carry_trials
from fedarena.hpo.problems.declared import decisive, settings_digest
from fedarena.hpo.problems.made_of import changed_since
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.tables.elsewhere import TableWork, TrainedCells
from fedarena.hpo.tables.finding import MADE_OF
from fedarena.hpo.tables.recipe import Recipe
from fedarena.hpo.tables.rounding import rounded
from fedarena.hpo.tables.samples import samples_fingerprint
from fedarena.hpo.tables.table import WORK, Table, describe_table, read_table, write_table
from fedarena.hpo.tables.trainers import (
    LanesIfPossible,
    OneByOne,
    Trainer,
    TrialsAsLanes,
    table_scores,
    table_trials,
)
from fedarena.runs.environment import describe_environment
from fedarena.train.hardware import DeviceName

Training = Literal["auto", "lanes", "one_by_one"]
# Called with how many trials of how many are done.
Progress = Callable[[int, int], None]
_SAMPLES = "samples_fingerprint"
_PARTS, _PLAN, _LOCK, _RUNS = ".parts", "plan.json", "lock", "runs"
FloatArray = npt.NDArray[np.float64]


def make_table(
    recipe: Recipe,
    path: Path,
    *,
    training: Training = "auto",
    device: DeviceName = "auto",
    trained: Path | None = None,
    progress: Progress | None = None,
) -> Table:
    """Makes the table, or what is missing of it, and writes it to `path`; one that is there already is read.

    `training` is ``"lanes"``, many trials in one computation, or ``"one_by_one"``; ``"auto"`` is the first where it can
    be done. With `trained`, nothing is trained here: that file has what another machine made of `carry_table`'s.
    """
    if path.exists():
        return _read_made(recipe, path)
    if trained is None:
        return _make_here(recipe, path, training, device, progress)
    problem = _raw_problem(recipe, path)
    means, where = _read_trained(trained, recipe, problem)
    table = _assemble(recipe, problem, means, TrialsAsLanes.name, where)
    write_table(table, path)
    return table


def _read_made(recipe: Recipe, path: Path) -> Table:
    """The table that is there, if it is the one that is asked for."""
    about = describe_table(path)["about"]
    if about.get("recipe_fingerprint") != recipe.fingerprint:
        raise BadInputError(f"{path} is there already and holds another table; remove it, or choose another name")
    try:
        problem = _raw_problem(recipe, path)
    except BadInputError:  # samples are not here; nothing is to be trained, so nobody needs them
        return read_table(path)
    samples = samples_fingerprint(problem.federation)
    if about.get(_SAMPLES, samples) != samples:
        raise BadInputError(
            f"{path} is there already and was made of other samples than those of {recipe.declared.name} are now; "
            "remove it, or choose another name"
        )
    if changed := changed_since(about.get(MADE_OF, {}), problem.made_of):
        raise BadInputError(
            f"{path} is there already, and {some(changed)} changed since; remove it, or choose another name"
        )
    return read_table(path)


def _make_here(recipe: Recipe, path: Path, training: Training, device: DeviceName, progress: Progress | None) -> Table:
    parts = path.with_name(path.name + _PARTS)
    parts.mkdir(parents=True, exist_ok=True)
    lock = FileLock(parts / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInputError(f"{path} is being made by another process") from None
    try:
        problem = _raw_problem(recipe, parts / _RUNS)
        made_for = _check_plan(parts, recipe, problem)
        trainer = _trainer(training, problem, recipe, device)
        means = _train_all(recipe, trainer, parts, made_for, progress)
        table = _assemble(recipe, problem, means, trainer.name, None)
        write_table(table, path)
    finally:
        lock.release()
    shutil.rmtree(parts, ignore_errors=True)
    return table


def carry_table(recipe: Recipe, path: Path) -> int:
    """Writes the trials of a table and their samples to a file, for `train_elsewhere`; tells how many they are."""
    problem = _raw_problem(recipe, path)
    trials = table_trials(problem, recipe, recipe.configurations())
    work = TableWork(
        trials=carry_trials(problem.settings, trials, rounds=recipe.rounds[-1]),
        problem=recipe.declared.name,
        made_for=_made_for(recipe, problem),
        scores=table_scores(problem),
        noted=recipe.rounds,
        bits=recipe.bits,
        seeds=len(recipe.seeds),
    )
    work.write(path)
    return len(trials)


def _trainer(training: Training, problem: RawProblem, recipe: Recipe, device: DeviceName) -> Trainer:
    if training == "one_by_one":
        return OneByOne(problem, recipe)
    return (TrialsAsLanes if training == "lanes" else LanesIfPossible)(problem, recipe, device)


def _raw_problem(recipe: Recipe, runs_folder: Path) -> RawProblem:
    """The problem as training answers it; where nothing is run, the folder is not touched."""
    return RawProblem(recipe.declared, runs_folder, Objective(), SystemModel(), recipe.rounds[-1])


def _made_for(recipe: Recipe, problem: RawProblem) -> str:
    """What tells trials that were carried elsewhere from others."""
    made_of = f" {settings_digest(problem.made_of)}" if problem.made_of else ""
    return f"{recipe.fingerprint} {problem.federation.fingerprint}{made_of}"


def _train_all(recipe: Recipe, trainer: Trainer, parts: Path, made_for: str, progress: Progress | None) -> FloatArray:
    """Means over seeds, ``[configurations, rates, scores, rounds]``; blocks on disk are not trained."""
    found: dict[int, FloatArray] = {}
    per_configuration = len(recipe.rates) * len(recipe.seeds)
    total, configurations = recipe.trials(), recipe.configurations()
    for number, places in enumerate(recipe.blocks()):
        if progress is not None:
            progress(len(found) * per_configuration, total)
        block = parts / f"block-{number:05d}.npz"
        shape = (len(places), len(recipe.rates), len(recipe.seeds), len(trainer.scores), len(recipe.rounds))
        values = _read_block(block, shape, places, made_for)
        if values is None:
            done = len(found) * per_configuration
            told = None if progress is None else lambda trials, done=done: progress(done + trials, total)
            values = trainer.train([configurations[place] for place in places], told)
            assert values.shape == shape
            with replacing(block) as temporary, open(temporary, "wb") as file:
                np.savez(file, values=values, places=places, made_for=made_for)
        found |= dict(zip(places, values, strict=True))
    if progress is not None:
        progress(total, total)
    return np.stack([found[place].mean(1) for place in range(len(configurations))])


def _read_trained(path: Path, recipe: Recipe, problem: RawProblem) -> tuple[FloatArray, dict[str, Any]]:
    """The same means of what was trained elsewhere, and where that was."""
    trained = TrainedCells.read(path, _made_for(recipe, problem))
    cells = len(recipe.configurations()) * len(recipe.rates)
    lacking = sum(cell not in trained.values for cell in range(cells))
    if lacking:
        raise BadInputError(
            f"{path} lacks {lacking:,} of {cells:,} cells of the table; train the rest where it comes from, "
            "with the same file for what is trained"
        )
    values = np.stack([trained.values[cell] for cell in range(cells)]).astype(np.float64)
    shape = (-1, len(recipe.rates), len(table_scores(problem)), len(recipe.rounds))
    if values[0].shape != shape[2:]:
        raise DamagedFileError(f"{path} has other scores or rounds than the table, or is damaged")
    return values.reshape(shape), trained.where


def _assemble(
    recipe: Recipe, problem: RawProblem, means: FloatArray, training: str, where: dict[str, Any] | None
) -> Table:
    """The table of means over seeds, ``[configurations, rates, scores, rounds]``."""
    configurations = recipe.configurations()
    with np.errstate(over="ignore"):
        values = rounded(means, recipe.bits)
    asked_of = {name: np.zeros((len(configurations), len(recipe.rates))) for name in WORK}
    for place, configuration in enumerate(configurations):
        for column, rate in enumerate(recipe.rates):
            asked = problem.round_work(configuration, rate)
            for name in WORK:
                asked_of[name][place, column] = getattr(asked, name)
    # Steps are a mean over clients, which need not be whole.
    work = {name: found.astype(np.int64) if (found % 1 == 0).all() else found for name, found in asked_of.items()}
    environment = describe_environment()
    about = {
        "recipe_fingerprint": recipe.fingerprint,
        "problem_fingerprint": recipe.declared.fingerprint,
        "settings": json.loads(json.dumps(decisive(recipe.declared.settings), default=str)),
        "federation_fingerprint": problem.federation.fingerprint,
        _SAMPLES: samples_fingerprint(problem.federation),
        **({MADE_OF: problem.made_of} if problem.made_of else {}),
        "mantissa_bits": recipe.bits,
        "trained": training,
        "command": environment["command"],
        "versions": environment["versions"],
        "hardware": environment["hardware"],
        **({} if where is None else {"trained_elsewhere": where}),
    }
    return Table(
        problem=recipe.declared.name,
        space=recipe.declared.space,
        grid=recipe.grid,
        rates=recipe.rates,
        rounds=recipe.rounds,
        scores=table_scores(problem),
        values=values,
        present=np.ones(values.shape[:2], dtype=np.bool_),
        work=work,
        seeds=recipe.seeds,
        about=about,
    )


def _check_plan(parts: Path, recipe: Recipe, problem: RawProblem) -> str:
    """Refuses to go on with the parts of another table, or of the same one of other samples or source.

    Returns what tells blocks of this one from others.
    """
    plan = parts / _PLAN
    content: dict[str, Any] = {
        "recipe_fingerprint": recipe.fingerprint,
        _SAMPLES: samples_fingerprint(problem.federation),
        MADE_OF: problem.made_of,
    }
    made_for = settings_digest(content)
    if not plan.exists():
        write_json(plan, content)
        return made_for
    try:
        with reading(plan):
            known = json.loads(plan.read_text())
        recipe_of_parts, samples_of_parts = known["recipe_fingerprint"], known.get(_SAMPLES, content[_SAMPLES])
        changed = changed_since(known.get(MADE_OF, {}), problem.made_of)
    except (ValueError, KeyError, TypeError, AttributeError):
        recipe_of_parts, samples_of_parts, changed = None, None, []
    if recipe_of_parts != recipe.fingerprint:
        raise BadInputError(
            f"{parts} has parts of another table than the one that is asked for; remove it, or choose another name"
        )
    if samples_of_parts != content[_SAMPLES]:
        raise BadInputError(
            f"{parts} has parts that were trained on other samples than those of {recipe.declared.name} are now; "
            "remove it, or choose another name"
        )
    if changed:
        raise BadInputError(
            f"{parts} has parts that were trained before {some(changed)} changed; remove it, or choose another name"
        )
    return made_for


def _read_block(path: Path, shape: tuple[int, ...], places: list[int], made_for: str) -> FloatArray | None:
    """What was trained before; None if it was not, or what is there is damaged: then it is trained again.

    So is a block of other configurations, which is there if another number of trials at once was asked for before, and
    one of another table, which somebody has put there.
    """
    try:
        content = read_arrays(path)
        values: FloatArray = content["values"]
        its_places = content["places"].tolist()
    except (DamagedFileError, KeyError):
        return None
    its_table = str(content.get("made_for", made_for))  # blocks of earlier versions do not say it
    return values if values.shape == shape and its_places == places and its_table == made_for else None
