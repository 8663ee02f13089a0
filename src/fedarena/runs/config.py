"""The configuration of a run: what may be set, what is set when nothing is said, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from fedarena.core.errors import BadInputError
from fedarena.core.limits import Limits
from fedarena.core.options import (
    PathOption,
    check_holdable,
    explain,
    option_names,
    part_path,
    refuse_booleans,
    resolve_part,
    with_name,
)
from fedarena.core.outside_text import harmless_lines, quoted
from fedarena.core.registry import Registry
from fedarena.core.yaml_files import NotYamlError, parse_yaml, read_yaml
from fedarena.models.tasks import AUTOMATIC_TASK
from fedarena.runs.deployed import DeployOptions
from fedarena.runs.hints import misplaced_option, not_a_setting, several_values, unknown_setting
from fedarena.runs.merging import check_set_once, leaves_of, merge
from fedarena.runs.parts import LISTED_PARTS, NAMED_PARTS, usual_aggregator
from fedarena.simulate import ClockOptions
from fedarena.simulate.client_states import DEFAULT_RAM_BYTES
from fedarena.train import LocalTraining

Positive = Annotated[int, Limits(least=1)]
NotNegative = Annotated[int, Limits(least=0)]

AUTOMATIC = AUTOMATIC_MODEL = "auto"
# Settings that change nothing about what a run computes.
NOT_DECISIVE = frozenset({"label", "track"})
USUAL_COHORT = 20
# Parts whose options say nothing before a name is given.
_NONE_BY_DEFAULT = (
    "augmentation",
    "adaptation",
    "download",
    "privacy",
    "attack",
    "policy",
    "edges",
    "secure_aggregation",
)
# Options that protocols had before aggregators were parts of their own.
_MOVED_TO_AGGREGATOR = {
    "rescale": "aggregator.rescale",
    "merging": "aggregator.merging",
    "mixing": "aggregator.share",
    "staleness_exponent": "aggregator.staleness_exponent",
}


# Parts whose numbers an engine computes with, in its own precision.
_COMPUTED_WITH = ("local", "model", "algorithm")


def _steps_or_epochs(values: Any) -> Any:
    if isinstance(values, dict) and values.get("steps") is not None:
        if values.get("epochs") is not None:
            raise ValueError("give epochs or steps, not both")
        return {**values, "epochs": None}
    return values


def _some_work(local: LocalTraining) -> LocalTraining:
    if local.epochs is None and local.steps is None:
        raise ValueError("give epochs or steps")
    if local.momentum and local.optimizer != "sgd":
        raise ValueError(f"momentum is for the optimizer sgd, not for {local.optimizer}")
    return local


@dataclass(frozen=True)
class EvaluationConfig:
    """When and on whom the model is scored."""

    every: Positive = 5  # rounds
    part: Literal["test", "validation", "train"] = "test"
    max_clients: Positive | None = None  # score a fixed random subset of the clients
    training_set: bool = False  # score it on the training samples of training clients as well
    predictions: bool = False  # keep what the last model answers for every sample


# Settings that belong together without being a named part.
SECTIONS: dict[str, Any] = {
    "local": LocalTraining,
    "evaluation": EvaluationConfig,
    "clock": ClockOptions,
    "deploy": DeployOptions,
}


class RunConfig(BaseModel):
    """The complete configuration of one run. Named parts are ``{"name": ..., **options}``.

    Sections such as `local` are declared by those who work with them; here is only what must hold between settings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    name: str | None = None
    label: str | None = None  # what tables and reports call it; seeds of one setting share a label
    seed: NotNegative = 0
    rounds: Positive = 60
    horizon: Positive | None = None  # rounds that schedules are made for; as many as the run has, if not given
    cohort: Positive | None = None  # as many as is usual, or all where they are fewer; a complete one says how many
    training: Literal["natural", "iid", "centralized"] = "natural"  # who holds the training samples
    federation: dict[str, Any] = {"name": "chitchat"}
    model: dict[str, Any] = {"name": AUTOMATIC_MODEL}
    task: dict[str, Any] = {"name": AUTOMATIC_TASK}  # whose options may be given without naming it
    augmentation: dict[str, Any] = {"name": "none"}  # what samples go through before the model sees them
    adaptation: dict[str, Any] = {"name": "all"}  # what of the model is trained, and thus sent
    weights: PathOption | None = None  # a file or a run folder that the model starts from
    algorithm: dict[str, Any] = {"name": "fedavg"}
    local: Annotated[LocalTraining, BeforeValidator(_steps_or_epochs), AfterValidator(_some_work)] = LocalTraining()
    evaluation: EvaluationConfig = EvaluationConfig()
    fleet: dict[str, Any] = {"name": "ideal"}
    protocol: dict[str, Any] = {"name": "ideal"}
    selector: dict[str, Any] = {"name": "uniform"}
    transforms: list[dict[str, Any]] = []  # steps that updates go through on their way, in this order
    aggregator: dict[str, Any] = {"name": AUTOMATIC}  # how updates become one; by default, as the protocol needs it
    attack: dict[str, Any] = {"name": "none"}  # what clients do that an adversary has in its hands
    privacy: dict[str, Any] = {"name": "none"}  # the mechanism of differential privacy
    download: dict[str, Any] = {"name": "none"}  # how what clients download is compressed
    policy: dict[str, Any] = {"name": "none"}  # what decides with which hyperparameters every client trains
    edges: dict[str, Any] = {"name": "none"}  # servers between clients and the server, which add up updates
    secure_aggregation: dict[str, Any] = {"name": "none"}  # how the server gets sums of updates, and no single one
    client_lr_schedule: dict[str, Any] = {"name": "constant"}
    server_lr_schedule: dict[str, Any] = {"name": "constant"}
    callbacks: list[dict[str, Any]] = []  # what looks at the run after every round, and may end it
    keep: Literal["last", "best"] = "last"  # which models; the last one always, the best by the leading metric as well
    track: list[dict[str, Any]] = []  # where else the numbers are shown; no part of what makes a run this run
    clock: ClockOptions = ClockOptions()
    deploy: DeployOptions = DeployOptions()
    engine: dict[str, Any] = {"name": "cohort"}
    client_states_ram_bytes: NotNegative = DEFAULT_RAM_BYTES  # the others are on disk

    @model_validator(mode="before")
    @classmethod
    def _centralized_is_a_cohort_of_one(cls, values: Any) -> Any:
        if values.get("training") != "centralized":
            return values
        if values.get("cohort") not in (1, None, USUAL_COHORT):
            cohort = quoted(values["cohort"])
            raise ValueError(f"training=centralized has a single cohort of 1, not {cohort}; leave cohort out")
        return {**values, "cohort": 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The configuration as a file that `fedarena run` accepts."""
        return to_yaml(self.to_dict())


def to_yaml(value: Any) -> str:
    """YAML in the order given, which a terminal can show without harm and without changing it."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text if harmless_lines(text) == text else yaml.safe_dump(value, sort_keys=False)


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
            raise BadInputError(unknown_setting(str(key), RunConfig.model_fields))
    for section, declared in SECTIONS.items():
        names = [field.name for field in fields(declared)]
        given = settings.get(section, {})
        if not isinstance(given, (Mapping, declared)):
            raise BadInputError(f"{section} must hold settings such as {section}.{names[0]}, not {quoted(given)}")
        for key in given if isinstance(given, Mapping) else ():
            if key not in names:
                raise BadInputError(unknown_setting(str(key), names, section))
    for key, registry in NAMED_PARTS.items():
        default = RunConfig.model_fields[key].default
        value = with_name(settings.get(key, default), default)
        if key == "model" and value in (AUTOMATIC_MODEL, default):
            settings[key] = default
        elif key == "model" and isinstance(value, Mapping) and value["name"] == AUTOMATIC_MODEL:
            options = quoted(", ".join(option for option in value if option != "name"))
            raise BadInputError(f"To set options of the model ({options}), name it: model=…")
        elif key in _NONE_BY_DEFAULT and isinstance(value, Mapping) and len(value) > 1 and value == value | default:
            options = quoted(", ".join(option for option in value if option != "name"))
            raise BadInputError(
                f"To set options of {key} ({options}), name it: {key}={_names_with(registry, set(value) - {'name'})}"
            )
        elif key == "aggregator" and value in (AUTOMATIC, None):
            settings[key] = resolve_part(registry, usual_aggregator(settings["protocol"]), key)
        elif key == "aggregator" and isinstance(value, Mapping) and value.get("name") == AUTOMATIC:
            settings[key] = resolve_part(registry, {**value, "name": usual_aggregator(settings["protocol"])}, key)
        elif key == "task" and _is_automatic(value):
            settings[key] = _with_paths({"name": AUTOMATIC_TASK} if isinstance(value, str) else value)
        elif key == "task":
            settings[key] = resolve_part(registry, _with_paths(value), key)
        else:
            if key == "protocol":
                _check_moved(value)
            try:
                settings[key] = resolve_part(registry, value, key)
            except BadInputError as error:
                raise BadInputError(f"{error}{misplaced_option(key, value, str(error))}") from error
    for key, registry in LISTED_PARTS.items():
        settings[key] = _resolve_each(registry, settings.get(key), key)
    if isinstance(settings.get("weights"), Path):
        settings["weights"] = str(settings["weights"])
    if (sentence := several_values(settings)) is not None:
        raise BadInputError(sentence)
    if settings.get("name") is not None:
        check_name(settings["name"], "name")
    if settings.get("label") is not None:
        check_label(settings["label"])
    try:
        config = RunConfig(**settings)
    except ValidationError as error:
        raise BadInputError(explain(error)) from None
    complete = config.to_dict()
    refuse_booleans(settings, complete)
    dtype = "float64" if config.engine.get("dtype") == "float64" else "float32"
    for part in _COMPUTED_WITH:
        check_holdable(complete[part], dtype, part)
    return config


def _names_with(registry: Registry[Any], options: set[Any]) -> str:
    """The parts that have such options, or else one that does something."""
    names = [name for name in registry.names() if name not in ("none", "all")]
    fitting = [name for name in names if options <= set(option_names(registry.get(name)))] or names[:1]
    *others, last = fitting or ["…"]
    return f"{', '.join(others)} or {last}" if others else last


def _check_moved(protocol: Any) -> None:
    for option in protocol if isinstance(protocol, Mapping) else ():
        if option in _MOVED_TO_AGGREGATOR:
            raise BadInputError(f"protocol.{option} is not an option of protocols; set {_MOVED_TO_AGGREGATOR[option]}")


def _resolve_each(registry: Registry[Any], value: Any, where: str) -> list[dict[str, Any]]:
    """A list of named parts; one alone may stand for a list."""
    if value is None:
        return []
    each = value if isinstance(value, list) else [value]
    return [resolve_part(registry, one, f"{where}[{place}]") for place, one in enumerate(each)]


def _is_automatic(task: Any) -> bool:
    return task == AUTOMATIC_TASK or (isinstance(task, Mapping) and task.get("name") == AUTOMATIC_TASK)


def _with_paths(task: Any) -> Any:
    """A task whose metrics, if they are classes, are given by where they are found."""
    if not isinstance(task, Mapping) or not isinstance(task.get("metrics"), (list, tuple)):
        return task
    return {**task, "metrics": [part_path(m) if callable(m) else m for m in task["metrics"]]}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise BadInputError(f"{path} must hold settings such as 'rounds: 10', but it holds {quoted(value)}")
    check_set_once(*({str(key): setting} for key, setting in value.items()))
    return value


def read_run_file(name: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of the file that `fedarena run` was given, before `others`; it may be something else by mistake."""
    path = Path(name)
    if not path.exists():
        if name.partition(".")[0] in RunConfig.model_fields:
            raise BadInputError(not_a_setting([name, *others], 0, RunConfig.model_fields))
        if (resources.files("fedarena") / "suites" / f"{name}.yaml").is_file():
            raise BadInputError(f"There is no file {name}, but a suite of that name; write: fedarena suite {name}")
        for key in ("federation", "algorithm", "model", "fleet"):
            if name in NAMED_PARTS[key].names():
                raise BadInputError(f"There is no file {name}, but a {key} of that name; write {key}={name}")
    if path.is_dir() and (path / "config.yaml").is_file():
        raise BadInputError(f"{name} is a run; go on with it (fedarena resume {name}), or name {path / 'config.yaml'}")
    content = read_settings(path)
    if set(content) & {"base", "matrix", "seeds"}:
        raise BadInputError(f"{name} is a suite, which has a base or a matrix; write: fedarena suite {name}")
    return content


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
            f"not {quoted(name)}"
        )
    return name


def check_label(label: Any) -> str:
    """Labels are shown and nothing else: any printable text that fits a row of a table."""
    if not isinstance(label, str) or not label.strip() or not label.isprintable() or len(label) > 100:
        raise BadInputError(f"label must be 1 to 100 printable characters, not {quoted(label)}")
    return label


_MARKS_OF_YAML = ("", *"'\"|>!&*")  # with which a single value begins that is not written plainly


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """``["local.lr=0.1", "algorithm=fedprox"]`` as dotted keys with values (read as YAML); the last counts."""
    overrides: dict[str, Any] = {}
    arguments = list(arguments)
    for place, argument in enumerate(arguments):
        key, equals, text = argument.partition("=")
        if not equals or not key:
            raise BadInputError(not_a_setting(arguments, place, RunConfig.model_fields))
        try:
            argument.encode()
            value = parse_yaml(text, f"The setting {quoted(key)}")
            is_plain = not isinstance(value, list | dict) and text.strip()[:1] not in _MARKS_OF_YAML
            if is_plain and (isinstance(value, str) or "#" in text):
                value = text.strip()  # which has no comments: a folder may be called "runs #2"
        except NotYamlError:
            value = text
        except UnicodeEncodeError:
            raise BadInputError(f"The setting {quoted(argument)} is not UTF-8") from None
        overrides.pop(key, None)
        overrides = {**_not_in(dict(leaves_of(tuple(key.split(".")), value)), overrides), key: value}
    return overrides


def _not_in(
    later: Mapping[tuple[str, ...], Any], settings: Mapping[str, Any], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What later settings leave of earlier ones; a part that gets another name loses its options."""
    kept: dict[str, Any] = {}
    for key, value in settings.items():
        place = (*path, key) if path else tuple(key.split("."))
        if isinstance(value, Mapping):
            if "name" not in value or later.get(place, value["name"]) == value["name"]:
                kept[key] = _not_in(later, value, place)
        elif not any(one in later for one, _ in leaves_of(place, value)):
            kept[key] = value
    return kept
