"""The configuration of a run: what may be set, what is set when nothing is said, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedarena.algorithms import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.core.options import explain, part_path, resolve_part, with_name
from fedarena.core.registry import Registry, nearest
from fedarena.data import FEDERATIONS
from fedarena.fleet import FLEETS
from fedarena.models import MODELS, TASKS
from fedarena.models.tasks import AUTOMATIC_TASK
from fedarena.simulate import PROTOCOLS, SELECTORS
from fedarena.simulate.memories import DEFAULT_RAM_BYTES
from fedarena.train import ENGINES

Positive = Annotated[int, Field(ge=1, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]

NAMED_PARTS: dict[str, Registry[Any]] = {
    "federation": FEDERATIONS,
    "model": MODELS,
    "task": TASKS,
    "algorithm": ALGORITHMS,
    "fleet": FLEETS,
    "protocol": PROTOCOLS,
    "selector": SELECTORS,
    "engine": ENGINES,
}
AUTOMATIC_MODEL = "auto"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class LocalConfig(_Section):
    """How a client trains. `steps`, when given, replaces `epochs`."""

    epochs: Positive | None = 1
    steps: Positive | None = None
    batch_size: Positive = 16
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: PositiveFloat = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegativeFloat = 0.0

    @model_validator(mode="before")
    @classmethod
    def _steps_or_epochs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("steps") is not None:
            if values.get("epochs") is not None:
                raise ValueError("give epochs or steps, not both")
            return {**values, "epochs": None}
        return values

    @model_validator(mode="after")
    def _some_work(self) -> LocalConfig:
        if self.epochs is None and self.steps is None:
            raise ValueError("give epochs or steps")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum is for the optimizer sgd, not for {self.optimizer}")
        return self


class EvaluationConfig(_Section):
    """When and on whom the model is scored."""

    every: Positive = 5  # rounds
    split: Literal["test", "validation", "train"] = "test"
    max_clients: Positive | None = None  # score a fixed random subset of the clients
    training_set: bool = False  # score it on the training samples of training clients as well


class ClockConfig(_Section):
    """What holds for virtual time whatever the protocol."""

    leaving: Literal["abort", "pause"] = "abort"  # what a phone that leaves does with its job
    overhead_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0  # what the server takes before every round
    crash_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the jobs that fail at a random moment
    start_hour: Annotated[float, Field(ge=0, le=1e6)] = 0.0  # of virtual time, counted from a midnight
    hours: PositiveFloat | None = None  # of virtual time, after which no further round begins
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0  # of clients' numbers of samples with phones' speeds
    model_bytes: Positive | None = None  # as if the model had this size; all else that is sent scales with it


class RunConfig(_Section):
    """The complete configuration of one run. Named parts are ``{"name": ..., **options}``."""

    name: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    rounds: Positive = 60
    cohort: Positive = 20
    training: Literal["natural", "iid", "centralized"] = "natural"  # who holds the training samples
    federation: dict[str, Any] = {"name": "chitchat"}
    model: dict[str, Any] = {"name": AUTOMATIC_MODEL}
    task: dict[str, Any] = {"name": AUTOMATIC_TASK}  # whose options may be given without naming it
    weights: Annotated[str, Field(min_length=1)] | None = None  # a file or a run folder that the model starts from
    algorithm: dict[str, Any] = {"name": "fedavg"}
    local: LocalConfig = LocalConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    fleet: dict[str, Any] = {"name": "ideal"}
    protocol: dict[str, Any] = {"name": "ideal"}
    selector: dict[str, Any] = {"name": "uniform"}
    clock: ClockConfig = ClockConfig()
    engine: dict[str, Any] = {"name": "cohort"}
    memories_ram_bytes: Annotated[int, Field(ge=0, strict=True)] = DEFAULT_RAM_BYTES  # the others are on disk

    @model_validator(mode="before")
    @classmethod
    def _centralized_is_a_cohort_of_one(cls, values: Any) -> Any:
        if values.get("training") != "centralized":
            return values
        default = cls.model_fields["cohort"].default
        if values.get("cohort", default) not in (1, default):
            raise ValueError(f"training=centralized has a single cohort of 1, not {values['cohort']}; leave cohort out")
        return {**values, "cohort": 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The configuration as a file that `fedarena run` accepts."""
        return to_yaml(self.to_dict())


def to_yaml(value: Any) -> str:
    """YAML in the order given."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def quickstart_settings() -> dict[str, Any]:
    """The settings of the built-in quickstart, chosen for its federation."""
    with resources.as_file(resources.files("fedarena") / "suites" / "quickstart.yaml") as path:
        base: dict[str, Any] = read_settings(path)["base"]
    return base


def resolve_settings(settings: Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration of settings (dotted keys allowed) with overrides.

    With no settings, and unless the overrides name another federation, they start from the built-in quickstart.
    """
    if settings is None:
        settings = merge({}, quickstart_settings())
        quickstart, wanted = settings["federation"]["name"], merge(settings, overrides)
        if wanted["federation"].get("name", quickstart) != quickstart:
            settings = {}
        elif wanted.get("training") == "centralized":  # where there are no phones
            settings = {key: value for key, value in settings.items() if key not in ("fleet", "protocol", "clock")}
    return resolve(merge(merge({}, settings), overrides))


def resolve(settings: Mapping[str, Any]) -> RunConfig:
    """Checks nested settings and fills in every default, down to the options of the named parts."""
    settings = dict(settings)
    for key in settings:
        if key not in RunConfig.model_fields:
            raise BadInputError(f"There is no setting {key!r}; {nearest(str(key), RunConfig.model_fields)}")
    for section in ("local", "evaluation", "clock"):
        fields = RunConfig.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        given = settings.get(section)
        for key in given if isinstance(given, Mapping) else ():
            if key not in fields:
                raise BadInputError(f"There is no setting '{section}.{key}'; {nearest(str(key), fields)}")
    for key, registry in NAMED_PARTS.items():
        default = RunConfig.model_fields[key].default
        value = with_name(settings.get(key, default), default)
        if key == "model" and value in (AUTOMATIC_MODEL, default):
            settings[key] = default
        elif key == "model" and isinstance(value, Mapping) and value["name"] == AUTOMATIC_MODEL:
            raise BadInputError(f"To set options of the model ({', '.join(value)}), name it: model=…")
        elif key == "task" and _is_automatic(value):
            settings[key] = _with_paths({"name": AUTOMATIC_TASK} if isinstance(value, str) else value)
        elif key == "task":
            settings[key] = resolve_part(registry, _with_paths(value), key)
        else:
            settings[key] = resolve_part(registry, value, key)
    if isinstance(settings.get("weights"), (str, Path)):
        settings["weights"] = str(Path(settings["weights"]).expanduser().absolute())
    if settings.get("name") is not None:
        check_name(settings["name"], "name")
    try:
        return RunConfig(**settings)
    except ValidationError as error:
        raise BadInputError(explain(error)) from None


def _is_automatic(task: Any) -> bool:
    return task == AUTOMATIC_TASK or (isinstance(task, Mapping) and task.get("name") == AUTOMATIC_TASK)


def _with_paths(task: Any) -> Any:
    """A task whose metrics, if they are classes, are given by where they are found."""
    if not isinstance(task, Mapping) or not isinstance(task.get("metrics"), (list, tuple)):
        return task
    return {**task, "metrics": [part_path(m) if callable(m) else m for m in task["metrics"]]}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInputError(f"There is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read as a text file: {error}") from None
    try:
        value = yaml.safe_load(text)
        _check_keys(value, path)
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise BadInputError(f"{path} is not valid YAML: {detail}") from None
    except RecursionError:
        raise BadInputError(f"{path} is nested too deeply") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{path} must hold settings such as 'rounds: 10', but it holds {value!r:.60}")
    return value


def _check_keys(value: Any, path: Path) -> None:
    for key, item in value.items() if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise BadInputError(f"{path} has the key {key!r}, but keys must be names")
        _check_keys(item, path)


def check_name(name: Any, what: str) -> str:
    """Names of runs and suites become folders: one path component of printable characters."""
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= 100
        or not name.isprintable()
        or name[0] in ". "
        or any(character in name for character in "/\\")
    ):
        raise BadInputError(
            f"{what} must be 1 to 100 printable characters, without slashes and not beginning with a dot, "
            f"not {name!r:.120}"
        )
    return name


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """``["local.lr=0.1", "algorithm=fedprox"]`` as a mapping of dotted keys to values (read as YAML)."""
    overrides: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise BadInputError(f"{argument!r} is not a setting; write it as key=value, for example local.lr=0.1")
        try:
            overrides[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            overrides[key] = text
    return overrides


def merge(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with overrides, whose keys may be dotted; mappings are merged.

    Naming another part drops the options of the former one, and giving epochs replaces steps and the other way round.
    """
    together: dict[str, Any] = {}
    for dotted, value in sorted(
        overrides.items(), key=lambda item: (str(item[0]).count("."), item[0].endswith(".name"))
    ):
        nested = value
        for key in reversed(dotted.split(".")[1:]):
            nested = {key: nested}
        together = _merge(together, {dotted.partition(".")[0]: nested}, replace_work=False)
    return _merge(settings, together, replace_work=True)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any], replace_work: bool, path: str = "") -> dict[str, Any]:
    merged = dict(old)
    if replace_work and path == "local.":
        for given, replaced in (("steps", "epochs"), ("epochs", "steps")):
            if new.get(given) is not None and replaced not in new:
                merged.pop(replaced, None)
    for key, value in new.items():
        before, after = merged.get(key), value
        if _is_name(after) and (isinstance(before, Mapping) or path + key in NAMED_PARTS):
            after = {"name": after}
        if not isinstance(after, Mapping):
            merged[key] = after
            continue
        if _is_name(before):
            before = {"name": before}
        if before is not None and not isinstance(before, Mapping):
            inside = next(iter(after), "")
            raise BadInputError(f"{path}{key}.{inside} cannot be set, because {path}{key} is {before!r}")
        before = before or {}
        if "name" in after and "name" in before and after["name"] != before["name"]:
            before = {}
        merged[key] = _merge(before, after, replace_work, f"{path}{key}.")
    return merged


def _is_name(value: Any) -> bool:
    return isinstance(value, str) or callable(value)
