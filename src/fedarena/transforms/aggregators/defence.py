"""What defences share: aggregators that are to stand corrupted clients, and say how much they used of whose update."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted
from fedarena.train import COVERAGE, Algorithm, Groups, map_groups
from fedarena.transforms.aggregators.base import Aggregator, Partial, ServerStep, cohort_of, verdict_of
from fedarena.transforms.aggregators.collected import Collected, Columns, collect_rows, merge_rows
from fedarena.transforms.aggregators.mean import check_exponent, shrinking
from fedarena.transforms.rows import FloatArray, IntArray, Rows

_LEAST_UPDATES = 3  # among two, nobody can tell who is right
_ROWS_AT_ONCE = 64


class Defence(Aggregator):
    """Sees the update of every client at once. One of your own overrides `weigh`, or `defend`.

    A change of the model that began τ steps of the server ago is shrunk to ``(1 + τ)^-staleness_exponent`` before
    anything else. Clients count equally, whatever their numbers of samples, unless a defence says otherwise. For a step
    with too few updates (see `shortage`) there is only a verdict that nothing was used, and the model stays as it is.
    """

    needs_rows = True

    @property
    def weighs_whole_updates(self) -> bool:
        """Whether the one update is a mean of whole ones by some weights, so that all that clients send adds up."""
        return type(self).defend is Defence.defend

    def __init__(self, *, staleness_exponent: float = 0.5):
        check_exponent(staleness_exponent)
        self.staleness_exponent = staleness_exponent

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """There must be updates, all of the same coordinates."""
        if not any(update.get(group) for group in algorithm.change_groups):
            return "its clients send no update"
        if COVERAGE in update:
            return "some of its clients train only a part of the model, so their updates cannot be compared"
        return None

    def shortage(self, updates: int) -> str | None:
        """It takes a few to compare."""
        return None if updates >= _LEAST_UPDATES else f"needs at least {_LEAST_UPDATES}"

    def factors(self, staleness: IntArray) -> FloatArray:
        """They get smaller with age."""
        return shrinking(staleness, self.staleness_exponent)

    def weigh(self, updates: Collected) -> FloatArray:
        """How much every client counts, 0 or more: the update is the mean with these weights."""
        raise NotImplementedError

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The one update, how much of every client's was used (from 0 to 1), and what is kept at the server."""
        weights = np.asarray(self.weigh(updates), dtype=np.float64)
        if weights.shape != (len(updates),) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise BadInputError(
                f"{type(self).__name__}.weigh must give a number from 0 on for each of {len(updates)} clients, not "
                f"{weights!r:.80}"
            )
        most = weights.max()
        if not most > 0:
            return nothing(updates), np.zeros(len(updates)), kept
        return updates.weighted_mean(weights), weights / most, kept

    def add_up(self, rows: Rows) -> Partial:
        """The rows, shrunk by their age."""
        factors = self.factors(rows.jobs.staleness)
        if (factors != 1).any():
            rows = replace(rows, update=rows.update | scaled(rows.changes, factors))
        return collect_rows(rows)

    def merge(self, total: Partial, more: Partial) -> Partial:
        """The rows of both."""
        return merge_rows(total, more)

    def conclude(self, total: Partial, kept: Groups, step: ServerStep) -> tuple[Groups, Groups]:
        """What the defence makes of the updates, and its verdict."""
        updates = Collected.of(total)
        if self.shortage(len(updates)):
            return verdict_of(updates.clients, np.zeros(len(updates))), kept
        update, used, kept = self.defend(updates, kept, step)
        return update | cohort_of(float(len(updates))) | verdict_of(updates.clients, used), kept


def scaled(groups: Groups, factors: FloatArray) -> Groups:
    """Rows of clients, each times its factor."""

    def times(t: Tensor) -> Tensor:
        return t * torch.as_tensor(factors, dtype=t.dtype, device=t.device).view(-1, *[1] * (t.dim() - 1))

    return map_groups(times, groups)


def nothing(updates: Collected) -> Groups:
    """An update that changes nothing."""
    example: Groups = {}
    for group, name, parts in updates.tensors():
        example.setdefault(group, {})[name] = torch.zeros_like(parts[0][0])
    return example


def sends_more(algorithm: Algorithm, update: Groups) -> str | None:
    """An obstacle for defences that have nothing to say about what else clients send than a change of the model."""
    others = [group for group in update if group not in (*algorithm.change_groups, COVERAGE)]
    if not others:
        return None
    return f"its clients also send {', '.join(others)}, about which this defence has nothing to say"


def combine_columns(
    updates: Collected, combine: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Groups, FloatArray]:
    """One update, made coordinate by coordinate, and in what share of the coordinates each client's value was used.

    `combine` gets columns of all clients, ``[clients, columns]``, and gives a number for each column, and how many of
    every client's values it used.
    """

    def work(some: Columns) -> tuple[Tensor, FloatArray]:
        values, used = combine(some.rows())
        return values, used.double().cpu().numpy()

    update, found = updates.combined(work)
    changes = [(some.last - some.first, used) for some, used in found if some.is_change]
    counts = np.sum([used for _, used in changes], axis=0)
    return update, counts / sum(width for width, _ in changes)


def sorted_columns(rows: Tensor) -> Tensor:
    """``[columns, clients]``: the values of every column in ascending order."""
    if rows.device.type != "cpu":
        return rows.T.sort(dim=1).values
    values = np.array(rows.numpy().T, order="C", copy=True)  # NumPy sorts several times as fast as torch
    values.sort(axis=1)
    return torch.from_numpy(values)


def count_between(rows: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """How many of every client's values are within the bounds of their columns; a few clients at a time, for memory."""
    return torch.cat([((some >= least) & (some <= most)).sum(1) for some in torch.split(rows, _ROWS_AT_ONCE)])


def check_share(share: float) -> None:
    """The share of clients to be prepared for must leave a majority."""
    if not 0 <= share < 0.5:
        raise BadInputError(f"aggregator.share must be at least 0 and below 0.5, not {share}")


def corrupted_among(share: float, updates: int) -> int:
    """The number of corrupted clients among so many if they are this share, rounded up."""
    return math.ceil(round(share * updates, 6))


def too_few(updates: int, needed: int, formula: str, corrupted: int) -> str | None:
    """Says how many updates a rule needs for so many corrupted clients among them."""
    if updates >= needed:
        return None
    return f"needs at least {formula} = {needed} to stand f = {counted(corrupted, 'corrupted client')} among them"
