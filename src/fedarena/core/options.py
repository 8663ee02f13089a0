"""Options of named parts, read from their signatures.

A part (a federation source, a model, an algorithm, …) declares its options once, as keyword-only parameters with types
and defaults. Here they become pydantic models, so that a configuration can be checked, completed and printed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Choice, Registry, nearest


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


# An option that names a file or folder. It is resolved at once, because a run may be resumed from another folder.
PathOption = Annotated[str, AfterValidator(_absolute)]


def resolve_part(registry: Registry[Any], value: Any, where: str) -> dict[str, Any]:
    """A complete ``{"name": ..., **options}`` from a name or a mapping with a name; every default is filled in."""
    if callable(value) or isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise BadInputError(f"{where} must be a name or a mapping with a name, not {value!r}")
    options = dict(value)
    name = options.pop("name")
    if callable(name):
        name = part_path(name)
    if not isinstance(name, str):
        raise BadInputError(f"{where}.name must be a name, not {name!r}")
    part = registry.get(name)
    return {"name": name, **resolve_options(part, options, where, f"{registry.kind} {name!r}")}


def part_path(part: Any) -> str:
    """The name under which a class or a function is found that is not registered."""
    return f"{part.__module__}:{part.__qualname__}"


def with_name(value: Any, default: Any) -> Any:
    """Options given without a name belong to the default part."""
    if isinstance(value, Mapping) and "name" not in value and isinstance(default, Mapping):
        return {"name": default["name"], **value}
    return value


def resolve_options(part: Callable[..., Any], options: dict[str, Any], where: str, what: str) -> dict[str, Any]:
    """Checks the options of a part and adds the defaults of those not given."""
    model, choices = _options_model(part)
    unknown = [key for key in options if key not in model.model_fields]
    if unknown:
        raise BadInputError(
            f"{where}.{unknown[0]}: the {what} has no option {unknown[0]!r}; " + nearest(unknown[0], model.model_fields)
        )
    for key, value in options.items():
        annotation = model.model_fields[key].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise BadInputError(f"{where}.{key} must not be {str(value).lower()}")
    nested = {
        key: resolve_part(choice.registry, with_name(options[key], model.model_fields[key].default), f"{where}.{key}")
        for key, choice in choices.items()
        if key in options
    }
    try:
        resolved = model(**{**options, **nested}).model_dump(mode="json")  # plain lists and numbers, as in a file
    except ValidationError as error:
        raise BadInputError(explain(error, where)) from None
    for key, choice in choices.items():
        resolved[key] = resolve_part(choice.registry, resolved[key], f"{where}.{key}")
    return resolved


@lru_cache(maxsize=256)
def _options_model(part: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, Choice]]:
    """The pydantic model of a part's keyword-only parameters, and those of them that are named parts themselves."""
    hints = get_type_hints(part.__init__ if inspect.isclass(part) else part, include_extras=True)
    fields: dict[str, Any] = {}
    choices: dict[str, Choice] = {}
    for parameter in inspect.signature(part).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        required = parameter.default is parameter.empty
        annotation = hints.get(parameter.name, Any)
        for mark in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
            if isinstance(mark, Choice):
                choices[parameter.name] = mark
        fields[parameter.name] = (annotation, Field() if required else parameter.default)
    model = create_model("Options", __config__=ConfigDict(allow_inf_nan=False), **fields)
    return model, choices


def explain(error: ValidationError, where: str = "") -> str:
    """The first problem pydantic found, as one sentence with the dotted key, the reason and the value given."""
    problem = error.errors()[0]
    parts = [where] if where else []
    key = ".".join(parts + [str(part) for part in problem["loc"] if not _is_type(part)])
    reason = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    return f"{key}: {reason[0].lower()}{reason[1:]}, not {problem['input']!r}"


def _is_type(part: int | str) -> bool:
    """Whether a part of a place is only the type that was tried, out of several that are allowed."""
    return isinstance(part, str) and (
        part in ("float", "int", "str", "bool") or "[" in part or part.startswith("constrained-")
    )
