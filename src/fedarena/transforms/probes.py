"""Whether transforms and aggregators of somebody's own treat every client's row by itself, found out by trying.

Which clients are in the same rows is the engine's business: what depends on it would differ from engine to engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.train import Groups, Job, JobArrays, JobContext, Work, map_groups, stack_groups
from fedarena.train.memories import changed_memories, memories_of, memory_refused
from fedarena.train.own_code import refusing_own_draws
from fedarena.transforms.aggregators import Aggregator, Partial
from fedarena.transforms.aggregators.base import ServerStep
from fedarena.transforms.attacks import Attack
from fedarena.transforms.rows import Rows
from fedarena.transforms.transform import Transform

_CLIENTS = 2
_KEPT = "let client_init or server_init give what it is to keep, and __init__ what never changes"


def _rows(update: Groups, change_groups: tuple[str, ...]) -> Rows:
    """Made-up updates of some clients that look like this one."""
    generator = torch.Generator().manual_seed(0)

    def drawn(t: Tensor) -> Tensor:
        numbers = torch.randn((_CLIENTS, *t.shape), generator=generator, dtype=torch.float64)
        return numbers.to(t) if t.is_floating_point() else torch.zeros((_CLIENTS, *t.shape)).to(t)

    amounts = np.arange(3, 3 + _CLIENTS)
    jobs = JobArrays.of([Job(client, 1) for client in range(_CLIENTS)])
    return Rows(map_groups(drawn, update), jobs, Work(amounts, amounts, amounts), amounts.astype(float), change_groups)


def check_transform(transform: Transform, update: Groups, change_groups: tuple[str, ...]) -> None:
    """Refuses a transform whose result for a client depends on the others in the same rows."""
    if not is_own(type(transform)):
        return
    rows, server = _rows(update, change_groups), transform.server_init(update)
    new = transform.client_init(update)

    def transformed(chosen: list[int], by: Transform = transform) -> Groups:
        some = rows.take(np.array(chosen))
        with refusing_own_draws(by, "at_client"):
            return by.at_client(some, stack_groups([new] * len(chosen)) if new else {}, server)[0]

    for place in _remembered(transform, transformed):
        raise memory_refused(transform, "at_client", place, _KEPT)
    together, alone = transformed([0, 1]), transformed([0])
    if not _alike(map_groups(lambda t: t[:1], together), alone):
        raise BadInputError(
            f"{type(transform).__name__}.at_client gives a client another update when others are with it; treat every "
            "row by itself: the first dimension of all tensors is that of clients"
        )


def _remembered(transform: Transform, call: Callable[[list[int], Transform], Groups]) -> Iterator[str]:
    """Where a transform would be another one if another client had been the first, or the same one came again."""
    try:
        copies = [copy.deepcopy(transform) for _ in range(2)]
    except Exception:  # somebody's own may hold anything
        return
    for client, one in enumerate(copies):
        call([client], one)
    first, second = map(memories_of, copies)
    yield from changed_memories(transform, first, second)
    call([0], copies[0])
    yield from changed_memories(transform, first, memories_of(copies[0]))


def check_attack(attack: Attack, update: Groups, change_groups: tuple[str, ...]) -> None:
    """Refuses an attack whose clients see nothing but their own update, and send another one when others are there."""
    if attack.sees != "own" or attack.remembers_downloads or not is_own(type(attack).forge):
        return
    rows = replace(_rows(update, change_groups), stream="attack")

    def sent(chosen: list[int]) -> Groups:
        some = rows.take(np.array(chosen))
        with refusing_own_draws(attack, "forge"):
            return attack.forge(some, some)

    if not _alike(map_groups(lambda t: t[:1], sent([0, 1])), sent([0])):
        raise BadInputError(
            f"{type(attack).__name__}.forge gives a client another update when others are with it; treat every row by "
            'itself, or let the attack say what it sees (sees = "corrupted" or "all")'
        )


def check_aggregator(aggregator: Aggregator, update: Groups, change_groups: tuple[str, ...]) -> None:
    """Refuses an aggregator whose result depends on how updates were divided before they were added up."""
    if not is_own(type(aggregator).add_up) or aggregator.takes_one_update:
        return
    rows = _rows(update, change_groups)
    step = ServerStep(JobContext(1.0, 1, 0, False, torch.tensor(0)), trusted=update)

    def concluded(total: Partial) -> Groups:
        return aggregator.conclude(total, aggregator.server_init(update), step)[0]

    whole = concluded(aggregator.add_up(rows))
    first, second = (aggregator.add_up(rows.take(np.array([client]))) for client in range(_CLIENTS))
    if not _alike(whole, concluded(aggregator.merge(first, second))):
        raise BadInputError(
            f"The aggregator {type(aggregator).__name__} comes to something else when updates are added up in two "
            "parts and merged: let add_up give sums (or override merge), and divide in finish"
        )


def _alike(one: Groups, other: Groups) -> bool:
    if {group: list(tensors) for group, tensors in one.items()} != {g: list(tensors) for g, tensors in other.items()}:
        return False
    return all(
        torch.allclose(t.double(), other[group][name].double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for group, tensors in one.items()
        for name, t in tensors.items()
    )
