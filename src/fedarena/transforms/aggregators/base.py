"""The interface of an aggregator: how the updates of many clients become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from fedarena.core.registry import Registry
from fedarena.train import Algorithm, Groups, JobContext
from fedarena.transforms.rows import FloatArray, IntArray, Rows


@dataclass(frozen=True)
class Partial:
    """What some updates come to so far: tensors and numbers by their names, which can be sent anywhere."""

    tensors: Groups
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerStep:
    """What an aggregator is told about the step of the server that it works for."""

    context: JobContext  # the round, the version of the model, and random numbers keyed by these
    trusted: Groups | None = None  # the update that the server trained itself, if it has samples


class Aggregator:
    """Adds up, merges and finishes. Keyword-only constructor arguments are its settings.

    Updates are added up where they were computed, and only what that comes to travels. Partial results are merged in
    an order that only the plan decides, so the result does not depend on who computed them.
    """

    needs_rows = False  # whether partial results hold the update of every single client
    adds_scaled_rows = False  # whether it sees to `Rows.factors`, so that nobody has to multiply before
    adds_products = (
        False  # whether `add_up` can do with `ProductRows` for tensors; not inherited by one of somebody's own
    )
    needs_only_sums = False  # whether `add_up` and `merge` are sums over clients; must be said by whose they are
    takes_one_update = False  # whether a step of the server must be of a single update
    trusted_samples = 0  # training samples that the server has itself, and trains on for every step

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Why this aggregator does not fit an algorithm with such updates (of one client); None: it does."""
        return None

    def shortage(self, updates: int) -> str | None:
        """Why so many updates are too few for a step of the server; None: they are enough."""
        return None

    def server_init(self, update: Groups) -> Groups:
        """What it keeps at the server before the first round; `update` shows what one looks like."""
        return {}

    def factors(self, staleness: IntArray) -> FloatArray:
        """How much of an update is left that began so many steps of the server ago."""
        return np.ones(len(staleness))

    def add_up(self, rows: Rows) -> Partial:
        """What the updates of these clients come to."""
        raise NotImplementedError

    def merge(self, total: Partial, more: Partial) -> Partial:
        """Both together; `total` may be changed and must not be used any more. Here, the sum."""
        for group, tensors in more.tensors.items():
            of_group = total.tensors.setdefault(group, {})
            for name, t in tensors.items():
                of_group[name] = of_group[name].add_(t) if name in of_group else t
        for name, number in more.numbers.items():
            total.numbers[name] = total.numbers.get(name, 0.0) + number
        return total

    def finish(self, total: Partial) -> Groups:
        """The one update; its group ``"cohort"`` has, under ``"clients"``, of how many clients it is.

        A defence also says in the group ``"verdict"`` how much of every client's update it used (see `verdict_of`).
        """
        raise NotImplementedError

    def conclude(self, total: Partial, kept: Groups, step: ServerStep) -> tuple[Groups, Groups]:
        """The one update, and what is kept at the server, for aggregators that `finish` by more than the updates.

        Where there is nothing but a verdict, the server makes no step.
        """
        return self.finish(total), kept

    def move_server(
        self,
        state: Groups,
        update: Groups,
        total: Partial,
        broadcasts: Mapping[int, Groups],
        take: Callable[[Groups, Groups], Groups],
    ) -> Groups:
        """The server's next state; `take` is the algorithm's step, and `broadcasts` what clients have downloaded."""
        return take(state, update)


def cohort_of(clients: float) -> Groups:
    """The group that tells the algorithm how many clients an update is of."""
    return {"cohort": {"clients": torch.tensor(clients, dtype=torch.float64)}}


VERDICT = "verdict"


def verdict_of(clients: IntArray, counted: FloatArray) -> Groups:
    """The group that says how much of each of these clients' updates was used: 1 all, 0 nothing."""
    return {VERDICT: {"clients": torch.as_tensor(clients), "counted": torch.as_tensor(counted, dtype=torch.float64)}}


def named(prefix: str, groups: Groups) -> Groups:
    """The same groups under names that begin with `prefix`."""
    return {prefix + group: tensors for group, tensors in groups.items()}


def unnamed(prefix: str, groups: Groups) -> Groups:
    """The groups whose names begin with `prefix`, without it."""
    return {group.removeprefix(prefix): tensors for group, tensors in groups.items() if group.startswith(prefix)}


AGGREGATORS: Registry[type[Aggregator]] = Registry("aggregator", base=Aggregator)
