"""Options of named parts, read from their signatures.

A part (a federation source, a model, an algorithm, …) declares its options once, as keyword-only parameters with types
and defaults; one that needs nothing else may do without the ``*``. Here they become pydantic models, so that a
configuration can be checked, completed and printed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from fedarena.core.errors import BadInputError
from fedarena.core.limits import MOST
from fedarena.core.outside_text import harmless, quoted
from fedarena.core.registry import Choice, FileName, Registry, nearest

_MOST_PATH_BYTES, _MOST_NAME_BYTES = 4096, 255  # what file systems allow


def _absolute(path: str) -> str:
    try:
        full = Path(path).expanduser().absolute()
        if not path or "\0" in path or len(bytes(full)) > _MOST_PATH_BYTES:
            raise ValueError
        if max((len(name.encode()) for name in full.parts), default=0) > _MOST_NAME_BYTES:
            raise ValueError
    except (ValueError, RuntimeError):  # the latter about a user who has no home
        raise ValueError(f"{quoted(path)} cannot be the name of a file or folder") from None
    return str(full)


# An option that names a file or folder. It is resolved at once, because a run may be resumed from another folder.
PathOption = Annotated[str, AfterValidator(_absolute)]


def resolve_part(registry: Registry[Any], value: Any, where: str) -> dict[str, Any]:
    """A complete ``{"name": ..., **options}`` from a name or a mapping with a name; every default is filled in."""
    if callable(value) or isinstance(value, str | os.PathLike):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise BadInputError(f"{where} must be a name or a mapping with a name, not {quoted(value)}")
    options = dict(value)
    name = by_path(options.pop("name"))
    if isinstance(name, os.PathLike):
        name = os.fsdecode(name)
    if not isinstance(name, str):
        made = "; give the class, or a function that makes it" if callable(name) else ""
        raise BadInputError(f"{where}.name must be a name, not {quoted(name)}{made}")
    options = {**registry.stands_for(name), **options}
    name = options.pop("name")
    part = registry.get(name)
    return {"name": name, **resolve_options(part, options, where, f"{registry.kind} {name!r}")}


def part_path(part: Any) -> str:
    """The name under which a class or a function is found that is not registered."""
    return f"{part.__module__}:{part.__qualname__}"


def by_path(value: Any) -> Any:
    """What a file would have: the path of a class or a function, and anything else as it is."""
    return part_path(value) if callable(value) and hasattr(value, "__qualname__") else value


def parts_in(registry: Registry[Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The part that complete settings name, and those that its options name, each with its name."""
    part = registry.get(settings["name"])
    yield settings["name"], part
    yield from parts_among(part, settings)


def parts_among(part: Callable[..., Any], options: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The parts that complete options of a part name, each with its name."""
    _, choices = _options_model(part)
    for key, choice in choices.items():
        if isinstance(options.get(key), Mapping):
            yield from parts_in(choice.registry, options[key])


def with_name(value: Any, default: Any) -> Any:
    """Options given without another name than that of the default part are beside its own."""
    if not isinstance(default, Mapping):
        return value
    given = value if isinstance(value, Mapping) else {"name": value}
    return {**default, **given} if given.get("name", default["name"]) == default["name"] else value


def resolve_options(part: Callable[..., Any], options: dict[str, Any], where: str, what: str) -> dict[str, Any]:
    """Checks the options of a part and adds the defaults of those not given."""
    try:
        model, choices = _options_model(part)
    except Exception as error:  # somebody's own part may have annotations of any kind
        reason = harmless(" ".join(str(error).split()))
        raise BadInputError(f"{where}: the options of the {what} cannot be read: {reason:.200}") from error
    unknown = [str(key) for key in options if key not in model.model_fields]
    if unknown:
        key = quoted(unknown[0])
        help_ = _how_to_declare(part, unknown[0]) or nearest(unknown[0], model.model_fields)
        raise BadInputError(f"{where}.{key.strip(chr(39))}: the {what} has no option {key}; {help_}")
    nested = {
        key: resolve_part(choice.registry, with_name(options[key], model.model_fields[key].default), f"{where}.{key}")
        for key, choice in choices.items()
        if key in options
    }
    try:
        complete = model(**{**options, **nested})
    except ValidationError as error:
        raise BadInputError(explain(error, where)) from None
    resolved: dict[str, Any] = {}
    for key in model.model_fields:  # plain lists and numbers, as in a file
        try:
            resolved |= complete.model_dump(mode="json", include={key})
        except PydanticSerializationError:
            raise BadInputError(
                f"{where}.{key} of the {what} is {getattr(complete, key)!r:.60}, which no configuration can hold; let "
                "the option be a number, a text, true, false, or a list of such, and make of it what you need"
            ) from None
    refuse_booleans(options, resolved, where)
    _check_countable(resolved, where)
    for key, choice in choices.items():
        resolved[key] = resolve_part(choice.registry, resolved[key], f"{where}.{key}")
    return resolved


def _how_to_declare(part: Callable[..., Any], name: str) -> str:
    """What makes an option of what somebody's own part takes, but does not declare as one; empty if it takes no such.

    Nobody can tell whether a constructor hands on what comes behind two stars, so that is no option by itself.
    """
    parameters = inspect.signature(part).parameters
    if name in parameters:
        return "put a * before it in the signature"
    others = next((one.name for one in parameters.values() if one.kind is one.VAR_KEYWORD), None)
    for kind in part.__mro__[1:] if others and isinstance(part, type) else ():
        constructor = vars(kind).get("__init__")
        declared = inspect.signature(constructor).parameters.get(name) if inspect.isfunction(constructor) else None
        if declared is not None:
            default = "" if declared.default is declared.empty else f"={declared.default!r:.40}"
            return (
                f"options of {kind.__name__} that come behind **{others} are none of it until its constructor names "
                f"them (*, {name}{default}, **{others}) and hands them on ({name}={name}, **{others})"
            )
    return ""


def option_names(part: Callable[..., Any]) -> list[str]:
    """The options that a part has."""
    return list(_options_model(part)[0].model_fields)


def _options(part: Callable[..., Any]) -> list[inspect.Parameter]:
    """Keyword-only parameters; and others with defaults, if the part needs nothing that is not an option.

    Where something is handed to a part, what comes behind that might be meant for who calls it, too.
    """
    parameters = list(inspect.signature(part).parameters.values())
    named = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    have_defaults = all(one.default is not one.empty for one in named)
    return [one for one in parameters if one.kind is one.KEYWORD_ONLY or (have_defaults and one in named)]


@lru_cache(maxsize=256)
def _options_model(part: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, Choice]]:
    """The pydantic model of a part's options, and those of them that are named parts themselves."""
    hints = get_type_hints(part.__init__ if inspect.isclass(part) else part, include_extras=True)
    fields: dict[str, Any] = {}
    choices: dict[str, Choice] = {}
    for parameter in _options(part):
        required = parameter.default is parameter.empty
        annotation = hints.get(parameter.name, Any)
        for mark in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
            if isinstance(mark, Choice):
                choices[parameter.name] = mark
            elif isinstance(mark, FileName):
                annotation = PathOption | None
        fields[parameter.name] = (annotation, Field() if required else parameter.default)
    model = create_model("Options", __config__=ConfigDict(allow_inf_nan=False), **fields)
    return model, choices


def refuse_booleans(given: Any, resolved: Any, where: str = "") -> None:
    """Refuses true and false where a number came of them: pydantic takes them for 1 and 0, and nobody means that."""
    if isinstance(given, bool) and not isinstance(resolved, bool):
        raise BadInputError(f"{where} must not be {str(given).lower()}")
    if isinstance(given, Mapping) and isinstance(resolved, Mapping):
        for key, value in given.items():
            if key in resolved:
                refuse_booleans(value, resolved[key], f"{where}.{key}" if where else str(key))
    elif isinstance(given, list | tuple) and isinstance(resolved, list | tuple):
        for number, (value, made) in enumerate(zip(given, resolved, strict=False)):
            refuse_booleans(value, made, f"{where}.{number}")


def _check_countable(value: Any, where: str) -> None:
    """Refuses whole numbers, also inside of lists and mappings, that 64 bits do not hold."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_countable(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_countable(item, f"{where}.{number}")
    elif isinstance(value, int) and not -MOST <= value <= MOST:
        raise BadInputError(f"{where} is {quoted(value)}, but whole numbers are at most {MOST}")


def check_holdable(value: Any, dtype: str, where: str) -> None:
    """Refuses numbers, also inside of lists and mappings, that would be infinite or 0 in the engine's precision."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_holdable(item, dtype, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_holdable(item, dtype, f"{where}.{number}")
    elif isinstance(value, int | float) and value:
        limits = np.finfo(dtype)
        least, most = float(limits.tiny), float(limits.max)
        if not least <= abs(value) <= most:
            is_what = "close to 0" if abs(value) < least else "large"
            raise BadInputError(
                f"{where} is {quoted(value)}, too {is_what} to compute with in {dtype}, the engine's precision; "
                f"choose a number from {least:.2g} to {most:.2g}"
            )


def explain(error: ValidationError, where: str = "") -> str:
    """The first problem pydantic found, as one sentence with the dotted key, the reason and the value given."""
    try:
        problem = error.errors(include_url=False, include_context=False)[0]
    except ValueError:  # pydantic cannot write down numbers with thousands of digits
        return f"{where}: " * bool(where) + "a number has too many digits"
    parts = [where] if where else []
    key = ".".join(parts + [str(part) for part in problem["loc"] if not _is_type(part)])
    reason = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "value_error":
        return f"{key}: {reason}" if key else reason
    if problem["type"] in ("tuple_type", "list_type") and isinstance(problem["input"], str | int | float):
        value = quoted(problem["input"])
        return f"{key} must be a list, such as [{value}], not {value}"
    return f"{key}: {reason[0].lower()}{reason[1:]}, not {quoted(problem['input'])}"


def _is_type(part: int | str) -> bool:
    """Whether a part of a place is only the type that was tried, out of several that are allowed."""
    return isinstance(part, str) and (
        part in ("float", "int", "str", "bool") or "[" in part or part.startswith("constrained-")
    )
