"""What clients send when they are done: their updates after transforms, and what they keep themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import NotFiniteError
from fedarena.train import Groups, JobResults, Shard, finite_rows, map_groups, stack_groups
from fedarena.train.late import Numbers
from fedarena.train.product_rows import finite_clients
from fedarena.train.validation import Validated
from fedarena.transforms.aggregators.base import unnamed
from fedarena.transforms.rows import BoolArray, IntArray, Rows


@dataclass(frozen=True)
class Sent:
    """What some clients send, a row each, and what is left with them."""

    result: JobResults  # of their training
    rows: Rows  # after transforms
    diverged: BoolArray  # who learned nothing that is finite, where that is allowed
    client_states: list[tuple[IntArray, Groups]]  # what some of them keep, a row each
    uploaded_bytes: IntArray | None  # by every client, where that depends on what it learned
    observed: dict[str, float | Tensor]  # what transforms note about these clients, see `Transform.observe`


@dataclass(frozen=True)
class Done:
    """What is remembered of clients whose updates are added up: all but the updates."""

    clients: IntArray
    losses: Numbers
    steps: int
    validated: Validated | None


def kept_rows(shard: Shard, rows: Rows, name: str, new: Groups) -> Groups:
    """What the clients of some rows keep for a transform."""
    if not new:
        return {}
    found = [shard.states.get(client) for client in rows.jobs.clients.tolist()]
    each = [new if state is None else unnamed(name, state) or new for state in found]
    device = next(iter(next(iter(new.values())).values())).device
    return map_groups(lambda t: t.to(device), stack_groups([map_groups(lambda t: t.to(device), one) for one in each]))


def some_clients(rows: Rows, state: Groups, positions: IntArray) -> tuple[Rows, Groups]:
    """Some of the clients, and what they keep."""
    return rows.take(positions), map_groups(lambda t: t[positions], state)


def diverged_clients(result: JobResults) -> BoolArray:
    """Whose training came to nothing finite, where a policy lets clients try hyperparameters that may be too bold.

    Elsewhere nobody is passed over: what is not finite ends the run.
    """
    nobody = np.zeros(len(result.clients), dtype=np.bool_)
    if result.jobs.decisions is None or result.validated is None:
        return nobody
    judged = result.validated
    found = ~np.isfinite(result.losses) | ~finite_rows(result.update, len(result.clients))
    return found | ((judged.samples > 0) & ~np.isfinite(judged.after))


def as_if_nothing_was_learned(result: JobResults, diverged: BoolArray) -> JobResults:
    """Updates of zero of those who diverged, whose losses are infinite to those who judge, and else unknown."""
    assert result.validated is not None
    judged = result.validated
    rows = torch.from_numpy(diverged)

    def cleared(t: Tensor) -> Tensor:
        return t.masked_fill(rows.to(t.device).view(-1, *[1] * (t.dim() - 1)), 0)

    return replace(
        result,
        update=map_groups(cleared, result.update),
        losses=np.where(diverged, np.nan, result.losses),
        validated=replace(judged, after=np.where(diverged & (judged.samples > 0), np.inf, judged.after)),
    )


def refuse_what_is_not_finite(result: JobResults, transformed: Rows) -> None:
    """Says whose loss or update is not finite, before or after transforms."""
    clients = result.clients
    finite = np.isfinite(result.losses) & finite_clients(result.update, len(clients))
    what = "An update is not finite"
    if finite.all():
        finite = finite_clients(transformed.update, len(clients))
        what = "An update is not finite after its transforms"
    if not finite.all():
        first = int(np.argmin(finite))
        loss = result.losses[first]
        raise NotFiniteError(what if np.isfinite(loss) else f"The training loss became {loss}", int(clients[first]))
