"""Whether transforms and aggregators of somebody's own treat every client's row by itself, found out by trying.

Which clients are in the same rows is the engine's business: what depends on it would differ from engine to engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import itemgetter

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

# Clients that differ much: what depends on a mean, a median or an outlier shows, also in parts of all clients.
_LENGTHS = (1.0, 100.0, 0.5, 2.0, 0.01)  # of their updates
_SAMPLES = (3, 5, 1, 500, 4)
_CLIENTS = len(_LENGTHS)
_PARTS = (([0], [1], [2], [3], [4]), ([0], [1, 2, 3, 4]), ([0, 1, 2], [3, 4]))  # in which updates may be added up
_ROUNDING = 1e-3  # of a tensor's length
_KEPT = "let client_init or server_init give what it is to keep, and __init__ what never changes"


def _rows(update: Groups, change_groups: tuple[str, ...]) -> Rows:
    """Made-up updates of some clients that look like this one."""
    generator = torch.Generator().manual_seed(0)

    def drawn(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return torch.zeros((_CLIENTS, *t.shape)).to(t)
        each = (torch.randn(t.shape, generator=generator, dtype=torch.float64) for _ in _LENGTHS)
        return torch.stack([(length * row).to(t) for length, row in zip(_LENGTHS, each, strict=True)])

    amounts = np.array(_SAMPLES)
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
    if _differs_in_company(transformed):
        raise BadInputError(
            f"{type(transform).__name__}.at_client gives a client another update when others are with it; treat every "
            "row by itself: the first dimension of all tensors is that of clients"
        )


def _differs_in_company(rows_of: Callable[[list[int]], Groups]) -> bool:
    """Whether a client has another row when others are there."""
    together = rows_of(list(range(_CLIENTS)))
    return any(
        not _alike(map_groups(itemgetter(slice(client, client + 1)), together), rows_of([client]))
        for client in range(2)  # an ordinary one, and the one that sends most
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

    if _differs_in_company(sent):
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
    merged = (
        reduce(aggregator.merge, [aggregator.add_up(rows.take(np.array(one))) for one in all_]) for all_ in _PARTS
    )
    if not all(_alike(whole, concluded(total)) for total in merged):
        raise BadInputError(
            f"The aggregator {type(aggregator).__name__} comes to something else when updates are added up in several "
            "parts and merged: let add_up give sums (or override merge), and divide in finish"
        )


def _alike(one: Groups, other: Groups) -> bool:
    if {group: list(tensors) for group, tensors in one.items()} != {g: list(tensors) for g, tensors in other.items()}:
        return False
    return all(
        _same_but_for_rounding(t.double(), other[group][name].double())
        for group, tensors in one.items()
        for name, t in tensors.items()
    )


def _same_but_for_rounding(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not torch.equal(one.isfinite(), other.isfinite()):
        return False
    first, second = (torch.where(t.isfinite(), t, 0.0) for t in (one, other))
    return bool((first - second).norm() <= _ROUNDING * first.norm() + 1e-6)
