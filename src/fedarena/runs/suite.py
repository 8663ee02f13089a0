"""Suites: a matrix of settings and seeds that becomes a set of comparable runs.

A suite file has a `name`, a `base` of settings that all runs share, a `matrix` and `seeds`. Every axis of the matrix is
either a dotted key with a list of values, or a free name with labelled variants, each a set of dotted keys:

    name: example
    base: {federation: digits, rounds: 20}
    matrix:
      local.lr: [0.1, 0.5]
      method:
        fedavg: {algorithm: fedavg}
        strong-prox: {algorithm: fedprox, algorithm.mu: 1.0}
    seeds: [0, 1, 2]

Labels of variants are what tables and reports call the runs, beside the values of other axes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.models.tasks import AUTOMATIC_TASK
from fedarena.runs.config import AUTOMATIC_MODEL, NOT_DECISIVE, RunConfig, check_name, read_settings, resolve
from fedarena.runs.merging import leaves_of, merge
from fedarena.storage.run_data import flatten_settings
from fedarena.storage.run_files import CONFIG_FILE, RunFiles

_INSTEAD = {
    "seed": "use seeds: [0, 1, 2]",
    "name": "they are named by what distinguishes them",
    "label": "they are labelled by the variants of the matrix",
}
_KEYS = ("name", "base", "matrix", "seeds")
SOLVED_PARTS = ("privacy", "secure_aggregation")  # of which options that are left open follow from the whole run
_LEFT_OPEN = ("cohort", "model", "task", *SOLVED_PARTS)  # what every machine chooses alike
_REMEDY = "remove that folder or give the suite another name"
SUITE_FILE = "suite.json"  # what a suite is going to be, for those who look at it before it ends
MOST_RUNS = 10_000  # of a suite; each is checked and kept in memory before the first one starts


@dataclass(frozen=True)
class Suite:
    """Runs that belong together, each with a label that says what is special about it."""

    name: str
    runs: dict[str, RunConfig]  # by name of the run


def builtin_suites() -> dict[str, Path]:
    """The suites that come with FedArena."""
    folder = Path(str(resources.files("fedarena") / "suites"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_suite(source: str, overrides: Mapping[str, Any]) -> Suite:
    """Reads a suite file, or a built-in suite by its name; `overrides` are dotted keys that hold for every run.

    Overriding a key that is an axis of the matrix gives the axis other values.
    """
    builtin = builtin_suites()
    path = builtin[source] if source in builtin else Path(source)
    if not path.exists():
        raise BadInputError(
            f"There is no suite file {source} and no built-in suite of that name; {nearest(source, builtin)}"
        )
    return make_suite({"name": path.stem, **read_settings(path)}, overrides, path)


def make_suite(content: Mapping[str, Any], overrides: Mapping[str, Any], path: Path = Path("suite")) -> Suite:
    """The suite that has this content; `path` says where it is from."""
    for key in content:
        if key not in _KEYS:
            raise BadInputError(f"{path}: a suite has no key {quoted(key)}; {nearest(str(key), _KEYS)}")
    name = check_name(content.get("name"), f"{path}: name")
    base = _mapping(content.get("base"), f"{path}: base")
    overrides = dict(overrides)
    seeds = overrides.pop("seeds", content.get("seeds", [0]))
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(type(seed) is int for seed in seeds)
        or len(set(seeds)) < len(seeds)
    ):
        raise BadInputError(f"{path}: seeds must be a list of different numbers such as [0, 1, 2], not {quoted(seeds)}")
    matrix = _mapping(content.get("matrix"), f"{path}: matrix")
    for key in [key for key in overrides if key in matrix]:  # an axis gets other values
        given = overrides.pop(key)
        matrix[key] = given if isinstance(given, list) else [given]
    axes = [_axis(key, values, path) for key, values in matrix.items()]
    number = math.prod(map(len, axes)) * len(seeds)
    if number > MOST_RUNS:
        raise BadInputError(f"{path}: the matrix and the seeds make {number:,} runs, more than {MOST_RUNS:,}")
    runs: dict[str, RunConfig] = {}
    overridden: dict[str, bool] = {}
    for variants in itertools.product(*axes):
        for seed in seeds:
            run_name = "-".join([*(_file_name(variant.name) for variant in variants), f"seed{seed}"])
            settings = merge(merge({}, base), overrides)
            try:
                settings = merge(settings, *(variant.settings for variant in variants))
            except BadInputError as error:
                raise BadInputError(f"{path}: matrix, for the run {run_name!r}: {error}") from None
            settings, is_overridden = _with_overrides(settings, overrides, variants, f"{path}: the run {run_name!r}")
            for key in _INSTEAD:
                if key in settings:
                    raise BadInputError(f"{path}: {key} cannot be set for the runs of a suite; {_INSTEAD[key]}")
            settings |= {"seed": seed, "name": run_name, "label": _label(variants)}
            if run_name in runs:
                raise BadInputError(f"{path}: two runs would be called {run_name!r}; make the labels differ")
            runs[run_name], overridden[run_name] = resolve(settings), is_overridden
    _check_still_apart(runs, overridden, path)
    return Suite(name, runs)


def _with_overrides(
    settings: Mapping[str, Any], overrides: Mapping[str, Any], variants: Sequence[_Variant], where: str
) -> tuple[dict[str, Any], bool]:
    """Settings with overrides also where variants have set the same, and whether any have.

    A part of another name must not lose the options that variants set of it, so it is only named again where a variant
    has named one, too.
    """
    varied = {path: leaf for variant in variants for path, leaf in _leaves(variant.settings).items()}
    wanted = _leaves(overrides)
    again = {path: leaf for path, leaf in wanted.items() if path in varied or not _is_part_of(varied, path)}
    found = merge(settings, {".".join(path): leaf for path, leaf in again.items()})
    final = _leaves(found)
    for variant in variants:
        for path, leaf in _leaves(variant.settings).items():
            if not variant.named_by_author and (path not in final or final[path] != leaf):
                key = ".".join(path)
                raise BadInputError(
                    f"{where} is called by its {key}, {quoted(leaf)}, which what was set for all runs would replace; "
                    "give the axis of the matrix other values instead"
                )
    return found, any(path not in final or final[path] != leaf for path, leaf in varied.items())


def _leaves(settings: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {path: leaf for key, value in settings.items() for path, leaf in leaves_of(tuple(key.split(".")), value)}


def _is_part_of(paths: Iterable[tuple[str, ...]], part: tuple[str, ...]) -> bool:
    """Whether any of the settings is an option of the part."""
    return any(len(path) > len(part) and path[: len(part)] == part for path in paths)


def _check_still_apart(runs: Mapping[str, RunConfig], overridden: Mapping[str, bool], path: Path) -> None:
    """Refuses overrides of what told runs apart: the same run would be compared with itself under another label."""
    known: dict[str, str] = {}
    for name, config in runs.items():
        other = known.setdefault(config.model_copy(update={"name": None, "label": None}).to_yaml(), name)
        if other != name and (overridden[name] or overridden[other]):
            raise BadInputError(
                f"{path}: {other!r} and {name!r} would be the same run, as what was set for all runs replaces what "
                "their variants set; leave it out"
            )


@dataclass(frozen=True)
class _Variant:
    """One value of an axis."""

    name: str  # in names of runs
    label: str  # in labels of runs
    named_by_author: bool
    settings: dict[str, Any]


def _axis(key: str, values: Any, path: Path) -> list[_Variant]:
    """The variants of one axis of the matrix."""
    if isinstance(values, dict) and values:
        return [
            _Variant(str(label), str(label), True, _mapping(variant, f"{path}: {key}.{label}"))
            for label, variant in values.items()
        ]
    if isinstance(values, list) and values:
        short = key.rpartition(".")[2]
        variants = []
        for value in values:
            if isinstance(value, dict):
                name = "-".join(str(v) if k == "name" else f"{k}{v}" for k, v in value.items())
                label = " ".join(str(v) if k == "name" else f"{k}={v}" for k, v in value.items())
            else:
                name = value if isinstance(value, str) else f"{short}{value}"
                label = value if isinstance(value, str) else f"{short}={value}"
            variants.append(_Variant(name, label, False, {key: value}))
        return variants
    raise BadInputError(f"{path}: matrix.{key} must be a list of values or labelled variants, not {quoted(values)}")


def _label(variants: Sequence[_Variant]) -> str | None:
    """What the author of the suite calls a run; None where all axes have bare values, which name no method."""
    return " ".join(v.label for v in variants) if any(v.named_by_author for v in variants) else None


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", label)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInputError(f"{where} must hold settings, not {quoted(value)}")
    return {str(key): item for key, item in value.items()}


def check_unchanged(folder: Path, config: RunConfig, remedy: str = _REMEDY) -> None:
    """Refuses to mix runs of an older version of the suite with new ones."""
    if not (folder / CONFIG_FILE).exists():
        return
    RunFiles.open(folder).read(CONFIG_FILE)  # which nobody may have changed
    before = flatten_settings(read_settings(folder / CONFIG_FILE))
    now = flatten_settings(config.to_dict())
    if config.model["name"] == AUTOMATIC_MODEL:
        before = {key: value for key, value in before.items() if not key.startswith("model.")}
        now.pop("model.name")
    if config.task["name"] == AUTOMATIC_TASK:  # of which the run names the task, and all of its options
        asked = {f"task.{option}" for option in config.task} - {"task.name"}
        before = {key: value for key, value in before.items() if key in asked or not key.startswith("task.")}
        now.pop("task.name")
    if config.cohort is None:  # the run says how many they are
        for settings in (before, now):
            settings.pop("cohort")
    for part in ("engine", *SOLVED_PARTS):
        for option, value in getattr(config, part).items():
            if value in (None, "auto"):  # the run says what it came to
                for settings in (before, now):
                    settings.pop(f"{part}.{option}", None)
    for key in before | now:
        if key not in NOT_DECISIVE and before.get(key) != now.get(key):
            raise _other_run(folder, key, before.get(key), now.get(key), remedy)


def check_same_choices(folder: Path, complete: RunConfig) -> None:
    """Refuses a run for which something was set that the suite now leaves open, and that comes to something else."""
    before, now = flatten_settings(read_settings(folder / CONFIG_FILE)), flatten_settings(complete.to_dict())
    for key in now:
        is_there = key in before  # the run may be from before there were all options
        if is_there and key.partition(".")[0] in _LEFT_OPEN and not _is_same(before[key], now[key]):
            raise _other_run(folder, key, before[key], now[key])


def _is_same(before: Any, now: Any) -> bool:
    """Whether two values are equal; numbers that were solved for may have been rounded otherwise elsewhere."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-6)
    return bool(before == now)


def _other_run(folder: Path, key: str, before: Any, now: Any, remedy: str = _REMEDY) -> BadInputError:
    return BadInputError(f"{folder} holds a run with {key} = {quoted(before)} instead of {quoted(now)}; {remedy}")
