"""Reading run folders, finished or not, and naming what distinguishes them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import as_people_sort
from fedarena.core.yaml_files import parse_yaml
from fedarena.storage.checkpoint import read_state, read_table
from fedarena.storage.recorder import is_being_written
from fedarena.storage.run_files import (
    ATTRIBUTES_FILE,
    CONFIG_FILE,
    CONTENT_FINGERPRINT,
    ENVIRONMENT_FILE,
    FLEET_FILE,
    PREDICTIONS_FILE,
    STATE_FILE,
    SUMMARY_FILE,
    RunFiles,
    read_parquet,
)
from fedarena.storage.tables import SOME_TABLES, TABLES, table_schemas

# What is no difference between methods: who a run is, and how many clients were computed at once.
_NEVER_IN_LABELS = frozenset(
    {"name", "label", "seed", "track", "engine.lanes", "engine.workers", "engine.threads"}
    | {"engine.address", "engine.cores", "engine.sample_bytes"}
)
# A label that tells more differences than this is longer than anybody reads: the runs' names say it better.
_MOST_DIFFERENCES = 3
_NO_PART = ("", "none")  # what a run has not
_LONGEST_NUMBER = 8  # characters that somebody would write
_SEED_AT_END = re.compile(r"[-_. ]*seed[-_= ]?\d+$")
DATA = {"federation": "The federation", "fleet": "The fleet", "weights": "The file of weights"}  # with fingerprints


@dataclass(frozen=True)
class RunData:
    """One run as it lies on disk. Runs of the same setting with different seeds share a label."""

    path: Path
    name: str
    label: str
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    status: str  # finished, diverged, interrupted, failed or running
    rounds: pa.Table
    clients: pa.Table
    timings: pa.Table
    jobs: pa.Table  # a row per job of a client that ended, in virtual time
    fleet: dict[str, Any] | None = None  # statistics of the clients' phones, if the run has a fleet
    attributes: pa.Table | None = None  # what is known about every evaluated client, if anything is
    # A row per class and evaluated round; no row where no metric tells of classes.
    classes: pa.Table = field(default_factory=lambda: table_schemas(())["classes"].empty_table())

    @property
    def evaluated_part(self) -> str:
        """The part of clients' samples that models were scored on; earlier versions called the setting `split`."""
        evaluation = self.config.get("evaluation", {})
        return str(evaluation.get("part", evaluation.get("split", "test")))

    @property
    def warnings(self) -> list[str]:
        """What the user was told about the run when it began, as far as it has ended."""
        return list(self.summary.get("warnings", ()))

    @property
    def federation_name(self) -> str:
        """What the federation calls itself; runs of earlier versions tell only where it came from."""
        federation = self.config.get("federation", {})
        source = str(federation.get("name", "an unnamed federation"))
        place = Path(str(federation["path"])).name if source == "store" and federation.get("path") else source
        return str(self.environment.get("federation") or place)

    def data_fingerprint(self, part: str) -> str | None:
        """What tells the federation, the fleet or the weights from others; runs of earlier versions do not tell.

        A federation that was built again from the same samples is the same.
        """
        found = self.environment.get(f"{part}_fingerprint")
        if part == "federation":
            found = self.environment.get(CONTENT_FINGERPRINT, found)
        return None if found is None else str(found)

    @property
    def federation_notes(self) -> tuple[str, ...]:
        """What was done to the federation's samples, in sentences; runs of earlier versions do not tell."""
        return tuple(map(str, self.environment.get("federation_notes", ())))


def load_run(folder: Path) -> RunData:
    """Reads a run folder; a run that was killed is read up to its last committed round.

    Whatever is not what the run wrote is refused by name; only runs of earlier versions are not protected.
    """
    files = RunFiles.open(folder)
    try:
        return _load(files)
    except DamagedFileError:
        now = RunFiles.open(folder)
        if now == files:
            raise
        return _load(now)  # a process has begun or ended to write the run meanwhile


def read_predictions(folder: Path) -> pa.Table:
    """What the last model of a run answered for every sample."""
    files = RunFiles.open(folder)
    if PREDICTIONS_FILE not in files:
        raise BadInputError(
            f"The run {folder} has no predictions: they are kept with evaluation.predictions=true when a run finishes"
        )
    return read_parquet(files, PREDICTIONS_FILE)


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    files = RunFiles.open(folder)
    return files.is_closed and _parse(files, SUMMARY_FILE, json.loads, {"status": str})["status"] == "finished"


def _load(files: RunFiles) -> RunData:
    folder = files.folder
    config = _parse(files, CONFIG_FILE, _parse_config, {"name": str, "algorithm": dict, "rounds": int})
    environment = _parse(files, ENVIRONMENT_FILE, json.loads, {"seed": int})
    if files.is_closed:
        summary = _parse(files, SUMMARY_FILE, json.loads, {"status": str})
    else:
        summary = {key: environment[key] for key in ("metrics", "primary_metric") if key in environment}
        summary["status"] = "running" if is_being_written(folder) else "interrupted"
    if summary["status"] == "finished":
        names = {table: f"{table}.parquet" for table in TABLES}
        there = {table: name for table, name in names.items() if table not in SOME_TABLES or name in files}
        found = {table: read_parquet(files, name) for table, name in there.items()}
    else:
        state = read_state(folder)
        if state is None:
            raise NothingRecordedError(f"The run {folder} has no finished round yet")
        found = {table: read_table(folder, table, state) for table in state.tables}
        summary.setdefault("rounds_done", state.round)
        summary.setdefault("rounds", config["rounds"])
    return RunData(
        path=folder,
        name=config["name"],
        label=_method(config),
        config=config,
        environment=environment,
        summary=summary,
        status=summary["status"],
        fleet=_parse(files, FLEET_FILE, json.loads, {"name": str}) if FLEET_FILE in files else None,
        attributes=read_parquet(files, ATTRIBUTES_FILE) if ATTRIBUTES_FILE in files else None,
        **{table: _complete(found.get(table), schema) for table, schema in table_schemas(()).items()},
    )


def _complete(table: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """A table in which columns that a run of an earlier version does not have are there and empty."""
    if table is None:
        return schema.empty_table()
    for column in schema:
        if column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), column.type))
    return table


class NothingRecordedError(BadInputError):
    """A run that was stopped before its first round was recorded."""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths`; a folder of runs or of suites stands for all in it."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise BadInputError(f"There is no run folder {path}")
        if (path / CONFIG_FILE).exists():
            found.append(path)
            continue
        # One that has lost its settings is found by its checkpoint: whoever reads it says so.
        marks = [(depth, mark) for depth in ("[!.]*", "[!.]*/[!.]*") for mark in (CONFIG_FILE, STATE_FILE)]
        found_inside = {p.parents[mark.count("/")] for depth, mark in marks for p in path.glob(f"{depth}/{mark}")}
        inside = sorted(found_inside, key=lambda found: as_people_sort(str(found)))
        if not inside:
            raise BadInputError(f"{path} is not a run folder and holds none: there is no {CONFIG_FILE}")
        found += inside
    return list(dict.fromkeys(found))


def load_runs(paths: Iterable[Path], skipped: Callable[[str], None] | None = None) -> list[RunData]:
    """Reads several runs and labels them by the settings in which they differ.

    Runs without a finished round are left out, and `skipped` is told so; one that is asked for alone is an error.
    """
    runs: list[RunData] = []
    empty: list[NothingRecordedError] = []
    for path in find_runs(paths):
        try:
            runs.append(load_run(path))
        except NothingRecordedError as error:
            empty.append(error)
    if not runs and empty:
        raise empty[0]
    if skipped is not None:
        for reason in empty:
            skipped(str(reason))
    return label_runs(runs)


def label_runs(runs: Sequence[RunData]) -> list[RunData]:
    """Gives every run the label that its settings or its suite give it, or else its algorithm; and whatever else sets
    it apart from others that are called the same.

    Options of a part count among runs with the same part: where protocols differ, their names say so, and not also
    options that only one of them has. Runs that differ in a lot are called by their names instead. Where somebody's own
    source, or the data, was another one, or some are forks, names are added: what is called the same is not the same
    method.
    """
    runs = _with_known_content(runs)
    flat = [flatten_settings(with_named_transforms(run.config)) for run in runs]
    stores = {settings.get("federation.path"): run.federation_name for run, settings in zip(runs, flat, strict=True)}
    called = stores if len(set(stores.values())) == len(stores) else {}  # a store by its name, if no other has it
    for settings in flat:
        if "federation.path" in settings:
            settings["federation.path"] = called.get(settings["federation.path"], settings["federation.path"])
    differences = settings_apart(flat, [_method(run.config) for run in runs])
    labels = [" ".join([_method(run.config), *found]) for run, found in zip(runs, differences, strict=True)]
    unlike = {
        _method(run.config) for run, found in zip(runs, differences, strict=True) if len(found) > _MOST_DIFFERENCES
    }
    first = dict(zip(reversed(labels), reversed(runs), strict=True))  # the first run of a label names it
    for with_folder in (False, True):
        names = {
            label: f"{run.path.parent.name}/{_without_seed(run)}" if with_folder else _without_seed(run)
            for label, run in first.items()
            if _method(run.config) in unlike
        }
        short = [names.get(label, label) for label in labels]
        if len(set(short)) == len(first):  # they tell the runs apart
            labels = short
            break
    labels = _told_by_origin(runs, labels)
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _told_by_origin(runs: Sequence[RunData], labels: Sequence[str]) -> list[str]:
    """The labels, with the names of runs added where runs of one label are not of the same origin."""
    sources = [_origin(run) for run in runs]
    told = list(labels)
    for label in dict.fromkeys(labels):
        rows = [row for row, other in enumerate(labels) if other == label]
        first = {sources[row]: runs[row] for row in reversed(rows)}  # the first run of a version names it
        if len(first) == 1:
            continue
        for name_of in (
            _without_seed,
            lambda run: f"{run.path.parent.name}/{_without_seed(run)}",
            lambda run: str(run.path),
        ):
            names = {source: name_of(run) for source, run in first.items()}
            if len(set(names.values())) == len(names):
                break
        for row in rows:
            told[row] = f"{label} ({names[sources[row]]})"
    return told


def _with_known_content(runs: Sequence[RunData]) -> list[RunData]:
    """The runs; those of earlier versions get from others of the same store what tells its content from others."""
    known = {
        run.environment.get("federation_fingerprint"): content
        for run in runs
        if (content := run.environment.get(CONTENT_FINGERPRINT)) is not None
    }
    return [
        replace(run, environment={CONTENT_FINGERPRINT: known[store], **run.environment})
        if (store := run.environment.get("federation_fingerprint")) in known
        else run
        for run in runs
    ]


def _origin(run: RunData) -> str:
    """What tells versions of somebody's own source and of the data apart, and forks from runs from scratch."""
    source = (run.environment.get("own_source") or {}).get("fingerprints") or {}
    fork = run.environment.get("forked_from") or {}
    parent = _SEED_AT_END.sub("", str(fork.get("run", "")))  # forks of several seeds of a method are one method
    return json.dumps(
        [source, [run.data_fingerprint(part) for part in DATA], parent, fork.get("round")], sort_keys=True
    )


def _without_seed(run: RunData) -> str:
    return _SEED_AT_END.sub("", run.name) or run.name


def with_named_transforms(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with transforms by their names instead of in a list, so that single options can differ."""
    transforms = config.get("transforms") or []
    named: dict[str, Any] = {}
    for one in transforms:
        name = str(one["name"])
        number = sum(name == known.partition("#")[0] for known in named)
        named[f"{name}#{number + 1}" if number else name] = {key: one[key] for key in one if key != "name"}
    return {**config, "transforms": {"name": "+".join(str(one["name"]) for one in transforms), **named}}


def settings_apart(flat: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """For each of some flat settings, in words, what sets it apart from others of its kind.

    Options of a part count among settings with the same part.
    """
    groups: dict[tuple[Any, ...], dict[str, None]] = {}  # values of a setting among those that are alike otherwise
    for settings, kind in zip(flat, kinds, strict=True):
        for key in _all_keys(flat):
            groups.setdefault(_alike(kind, settings, key), {})[repr(settings.get(key))] = None
    names, numbers = _part_names(flat), _short_numbers(flat)
    return [
        tuple(
            _difference(key, numbers.get((key, repr(value)), value), names)
            for key, value in settings.items()
            if key not in _NEVER_IN_LABELS and len(groups[_alike(kind, settings, key)]) > 1
            if not (key.endswith(".name") and value in _NO_PART)
        )
        for settings, kind in zip(flat, kinds, strict=True)
    ]


def _part_names(flat: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """What to call parts, by key and name: classes of somebody's own without where they lie, if that tells them apart,
    and what parts of different kinds are called with its kind.
    """
    parts = {(key, str(value)) for settings in flat for key, value in settings.items() if key.endswith(".name")}
    classes = {path: path.rpartition(":")[2] for _, name in parts for path in name.split("+") if ":" in path}
    taken, kinds = Counter(classes.values()), Counter(name for _, name in parts)
    found = {}
    for key, name in parts:
        short = "+".join(classes[path] if taken[classes.get(path, "")] == 1 else path for path in name.split("+"))
        found[key, name] = short if kinds[name] == 1 else f"{key.split('.')[-2]}={short}"
    return found


def _short_numbers(flat: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Texts for long numbers, which somebody computed, by key and value: four digits where these tell them apart."""
    values: dict[str, dict[str, str]] = {}
    for settings in flat:
        for key, value in settings.items():
            is_long = isinstance(value, float) and len(repr(value)) > _LONGEST_NUMBER
            values.setdefault(key, {})[repr(value)] = f"{value:.4g}" if is_long else repr(value)
    return {
        (key, value): text
        for key, texts in values.items()
        if len(set(texts.values())) == len(texts)
        for value, text in texts.items()
        if text != value
    }


def _difference(key: str, value: Any, names: Mapping[tuple[str, str], str]) -> str:
    """A setting in which a run differs: names of parts and of stores speak for themselves."""
    if key.endswith(".name"):
        return names[key, str(value)]
    return f"{value}" if key == "federation.path" else f"{_short(key)}={value}"


def _short(key: str) -> str:
    """The end of a key, which tells enough; but a federation's seed is not that of a run."""
    *owners, last = key.split(".")
    return f"{owners[-1]}.{last}" if last == "seed" else last


def _all_keys(flat: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(key for settings in flat for key in settings)


def _alike(kind: str, settings: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """What runs must share for a setting to tell them apart: their kind, and the parts that the setting belongs to."""
    parts = key.split(".")[:-1]
    owners = (".".join([*parts[: depth + 1], "name"]) for depth in range(len(parts)))
    return (kind, key, *(repr(settings.get(owner)) for owner in owners if owner != key))


def _method(config: dict[str, Any]) -> str:
    """What a run is called where nothing else distinguishes it: as its user or its suite call it, or by its algorithm,
    and pooled training if it is that; of a class of the user's own, by the name of the class.
    """
    if config.get("label"):
        return str(config["label"])
    training = config.get("training", "natural")
    algorithm = str(config["algorithm"]["name"]).rpartition(":")[2]
    return algorithm + ("" if training == "natural" else f" {training}")


def flatten_settings(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _parse(files: RunFiles, name: str, parse: Callable[[str], Any], needed: dict[str, type]) -> dict[str, Any]:
    """What a file of a run holds, which must have these keys with values of these types."""
    path, data = files.folder / name, files.read(name)
    try:
        value = parse(data.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    except BadInputError as error:
        raise DamagedFileError(str(error)) from None
    for key, kind in needed.items():
        if not isinstance(value, dict) or not isinstance(value.get(key), kind):
            raise DamagedFileError(f"{path} is damaged: it has no {key!r}, or not what that should be")
    return dict(value)


def _parse_config(text: str) -> Any:
    config = parse_yaml(text, CONFIG_FILE)
    if isinstance(config, dict) and isinstance(config.get("algorithm"), dict) and "name" not in config["algorithm"]:
        raise BadInputError(f"{CONFIG_FILE} is damaged: its algorithm has no name")
    return config
