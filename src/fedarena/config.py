"""The configuration of a run: what may be set, what is set when nothing is said, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedarena.algorithms import ALGORITHMS
from fedarena.data import FEDERATIONS
from fedarena.errors import BadInputError
from fedarena.models import MODELS
from fedarena.options import explain, resolve_part, with_name
from fedarena.registry import Registry, nearest
from fedarena.train import ENGINES

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]

NAMED_PARTS: dict[str, Registry[Any]] = {
    "federation": FEDERATIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
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


class RunConfig(_Section):
    """The complete configuration of one run. Named parts are ``{"name": ..., **options}``."""

    name: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Positive = 60
    cohort: Positive = 20
    federation: dict[str, Any] = {"name": "chitchat"}
    model: dict[str, Any] = {"name": AUTOMATIC_MODEL}
    algorithm: dict[str, Any] = {"name": "fedavg"}
    local: LocalConfig = LocalConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: dict[str, Any] = {"name": "cohort"}

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
        elsewhere = any(key in ("federation", "federation.name") for key in overrides)
        settings = {} if elsewhere else quickstart_settings()
    return resolve(merge(merge({}, settings), overrides))


def resolve(settings: Mapping[str, Any]) -> RunConfig:
    """Checks nested settings and fills in every default, down to the options of the named parts."""
    settings = dict(settings)
    for key in settings:
        if key not in RunConfig.model_fields:
            raise BadInputError(f"There is no setting {key!r}; {nearest(str(key), RunConfig.model_fields)}")
    for section in ("local", "evaluation"):
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
        else:
            settings[key] = resolve_part(registry, value, key)
    try:
        return RunConfig(**settings)
    except ValidationError as error:
        raise BadInputError(explain(error)) from None


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
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise BadInputError(f"{path} is not valid YAML: {detail}") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{path} must hold settings such as 'rounds: 10', but it holds {value!r:.60}")
    return value


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
    """Applies dotted keys to nested settings. Naming another part drops the options of the former one."""
    merged = dict(settings)

    def names_before_options(item: tuple[str, Any]) -> tuple[int, bool]:
        key = item[0]
        return key.count("."), not key.endswith(".name")

    for dotted, value in sorted(overrides.items(), key=names_before_options):
        *parents, last = dotted.split(".")
        level = merged
        for depth, key in enumerate(parents):
            below = level.get(key)
            if isinstance(below, Mapping):
                level[key] = dict(below)
            elif below is None:
                level[key] = {}
            elif isinstance(below, str) or callable(below):
                level[key] = {"name": below}
            else:
                path = ".".join(parents[: depth + 1])
                raise BadInputError(f"{dotted} cannot be set, because {path} is {below!r}")
            level = level[key]
        if parents and last == "name" and level.get("name") != value:
            level.clear()
        level[last] = value
    return merged
