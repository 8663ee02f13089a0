"""Whether an algorithm, transforms, an aggregator and an attack fit together, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedarena.core.errors import BadInputError
from fedarena.core.own import check_hooks_are_in_class
from fedarena.core.words import counted
from fedarena.train import Algorithm, Groups
from fedarena.transforms.aggregators import Aggregator
from fedarena.transforms.aggregators.base import VERDICT
from fedarena.transforms.attacks import Attack
from fedarena.transforms.probes import check_aggregator, check_attack, check_transform
from fedarena.transforms.transform import Transform
from fedarena.transforms.wire import PACKED, SENT


@dataclass(frozen=True)
class Parts:
    """What clients' updates come from and go through."""

    algorithm: Algorithm
    transforms: tuple[Transform, ...]
    aggregator: Aggregator
    attack: Attack | None  # of corrupted clients who forge updates


def check_together(parts: Parts, update: Groups, updates_per_step: int | None, cohort: int | None) -> None:
    """Refuses what does not fit; see `UpdatePath.check`."""
    algorithm, aggregator, attack = parts.algorithm, parts.aggregator, parts.attack
    for part in (*parts.transforms, aggregator, attack):
        check_hooks_are_in_class(part)
    check_updates(algorithm, parts.transforms, update)
    for transform in parts.transforms:
        check_transform(transform, update, algorithm.change_groups)
    if obstacle := aggregator.obstacle(algorithm, update):
        raise BadInputError(
            f"The aggregator {_name(aggregator)} does not fit {_name(algorithm)}: {obstacle}; choose another one, such "
            "as mean, or another algorithm"
        )
    check_aggregator(aggregator, update, algorithm.change_groups)
    if attack is not None:
        if obstacle := attack.obstacle(algorithm, update):
            raise BadInputError(
                f"The attack {_name(attack)} does not fit {_name(algorithm)}: {obstacle}; choose another attack, or "
                "another algorithm"
            )
        check_attack(attack, update, algorithm.change_groups)
    if aggregator.takes_one_update and updates_per_step != 1:
        raise BadInputError(
            f"The aggregator {_name(aggregator)} takes one update at a time, which this protocol does not give it; "
            "choose protocol=asynchronous, or another aggregator, such as mean"
        )
    most = updates_per_step or cohort
    if most is not None and (shortage := aggregator.shortage(most)):
        raise BadInputError(
            f"A step of the server gets {counted(most, 'update')} under this protocol and cohort, and the aggregator "
            f"{_name(aggregator)} {shortage}; let more clients take part in a step, or choose another aggregator"
        )


def check_updates(algorithm: Algorithm, transforms: Iterable[Transform], update: Groups) -> None:
    """Refuses updates with which their way to the server can do nothing."""
    transforms = tuple(transforms)
    taken = (VERDICT, *((SENT, PACKED) if transforms else ()))
    if strange := next((group for group in taken if group in update), None):
        raise BadInputError(
            f"{_name(algorithm)} calls a group of its update {strange!r}, which means something else on its way to the "
            "server; choose another name"
        )
    for transform in transforms:
        if obstacle := transform.obstacle(algorithm, update):
            raise BadInputError(
                f"The transform {_name(transform)} does not fit {_name(algorithm)}: {obstacle}; leave it out, or "
                "choose another algorithm"
            )


def _name(part: object) -> str:
    return type(part).__name__
