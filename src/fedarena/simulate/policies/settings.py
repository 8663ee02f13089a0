"""Which settings may differ from job to job, and what values they may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.core.space import Hyperparameter, Space
from fedarena.train import Algorithm, LocalTraining

WHOLE = ("local.steps", "local.epochs", "local.batch_size")
# Least and largest values; the largest of a share that must be below 1 is the number before it.
_BELOW_ONE = math.nextafter(1.0, 0.0)
_LIMITS = {
    "local.lr": (math.ulp(0.0), math.inf),
    "local.weight_decay": (0.0, math.inf),
    "local.momentum": (0.0, _BELOW_ONE),
    "local.steps": (1, math.inf),
    "local.epochs": (1, math.inf),
    "local.batch_size": (1, math.inf),
    "model.dropout": (0.0, _BELOW_ONE),
}
_USUAL_FACTOR = 10.0  # how far the learning rate may go from that of the run, if nothing else is said


def usual_space(local: LocalTraining) -> Space:
    """What is decided on unless the user says: the learning rate, around that of the run."""
    ends = {"from": local.lr / _USUAL_FACTOR, "to": local.lr * _USUAL_FACTOR}
    return Space.parse({"local.lr": {**ends, "log": True}})


def joined_names(search: Mapping[str, Any]) -> dict[str, Any]:
    """``{"local": {"lr": …}}`` as ``{"local.lr": …}``, which is what ``policy.search.local.lr=…`` comes to."""
    joined: dict[str, Any] = {}
    for name, given in search.items():
        if isinstance(given, Mapping) and not {"from", "to"} & set(given):
            joined |= {f"{name}.{inner}": value for inner, value in joined_names(given).items()}
        else:
            joined[name] = given
    return joined


def check_space(space: Space, algorithm: Algorithm, local: LocalTraining) -> None:
    """Refuses settings that cannot differ from job to job, and values that they cannot have."""
    possible = {**_LIMITS, **{f"algorithm.{name}": (0.0, math.inf) for name in algorithm.client_options}}
    for one in space:
        if one.name not in possible:
            raise BadInputError(
                f"policy.search: {quoted(one.name)} cannot differ from client to client; {nearest(one.name, possible)}"
            )
        least, most = possible[one.name]
        for value in _ends(one):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadInputError(f"policy.search: {one.name} must be numbers, not {quoted(value)}")
            if not least <= value <= most:
                raise BadInputError(f"policy.search: {one.name} cannot be {value:g}")
        if one.name in WHOLE and not all(float(value).is_integer() for value in _ends(one)):
            raise BadInputError(f"policy.search: {one.name} must be whole numbers")
        if one.name in WHOLE and one.kind == "float":
            raise BadInputError(f"policy.search: {one.name} must go from a whole number to another, such as 1 to 4")
    if "local.steps" in space.names and "local.epochs" in space.names:
        raise BadInputError("policy.search: give local.steps or local.epochs, not both")
    if "local.momentum" in space.names and local.optimizer != "sgd":
        raise BadInputError(f"policy.search: local.momentum is for local.optimizer=sgd, not for {local.optimizer}")
    partial = algorithm.partial_work
    if partial is not None and (changing := [name for name in WHOLE if name in space.names]):
        raise BadInputError(
            f"policy.search: with {type(algorithm).__name__}, clients that would be late do less, so how much there is "
            f"to do cannot differ from job to job as well; leave out {changing[0]}, or choose another algorithm"
        )


def _ends(one: Hyperparameter) -> tuple[Any, ...]:
    return one.choices if one.kind == "choice" else (one.low, one.high)
