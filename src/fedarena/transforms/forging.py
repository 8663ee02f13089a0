"""What corrupted clients send instead of their updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups, Shard, map_groups, stack_groups
from fedarena.train.own_code import refusing_own_draws
from fedarena.train.tensors import TRANSFORM_GROUP
from fedarena.transforms.aggregators.base import named, unnamed
from fedarena.transforms.attacks import Attack
from fedarena.transforms.rows import Rows, check_rows
from fedarena.transforms.transform import Transform

_MEMORY = f"{TRANSFORM_GROUP}attack:"  # begins the names of what corrupted clients keep for their attack


def forged(
    attack: Attack, rows: Rows, transforms: Sequence[Transform], server: Sequence[Groups], shard: Shard | None = None
) -> Rows:
    """The rows with what corrupted clients among them send instead.

    If they see updates of others, these are among `rows`. What the server can make sure of, it does. `shard` has what
    clients downloaded and keep, for attacks that ask for it.
    """
    corrupted = np.flatnonzero(rows.jobs.corrupted)
    theirs = replace(rows.take(corrupted), stream="attack")
    if attack.remembers_downloads and shard is not None:
        theirs = _with_downloads(theirs, shard)
    with refusing_own_draws(attack, "forge"):
        update = attack.forge(theirs, rows if attack.sees == "all" else theirs)
    check_rows(update, theirs, f"{type(attack).__name__}.forge")
    for transform, state in zip(transforms, server, strict=True):
        if transform.enforced:
            update, _ = transform.at_client(replace(theirs, update=update), {}, state)
    places = torch.as_tensor(corrupted)

    def replaced(t: Tensor, new: Tensor) -> Tensor:
        return t.index_copy(0, places.to(t.device), new.to(t))

    together = {
        group: {name: replaced(t, update[group][name]) for name, t in tensors.items()}
        for group, tensors in rows.update.items()
    }
    return replace(rows, update=together)


def remembered(rows: Rows, shard: Shard) -> Groups:
    """What the corrupted clients of these rows, and only such, keep for their next job: what they downloaded now."""
    downloaded = _downloads(rows, shard)
    versions = torch.as_tensor(rows.jobs.versions.copy())
    return named(_MEMORY, {"params": downloaded, "steps": {"version": versions}})


def _with_downloads(rows: Rows, shard: Shard) -> Rows:
    """The same clients with the models that they downloaded now and the last time; the same in their first job.

    ``memory["steps"]["since"]`` is how many steps the server made in between.
    """
    now = _downloads(rows, shard)
    versions = rows.jobs.versions
    kept = [unnamed(_MEMORY, shard.states.get(client) or {}) for client in rows.jobs.clients.tolist()]
    before = stack_groups(
        [
            {"params": {name: state["params"][name].to(t) if state else t[row] for name, t in now.items()}}
            for row, state in enumerate(kept)
        ]
    )
    since = [int(v) - int(state["steps"]["version"]) if state else 0 for v, state in zip(versions, kept, strict=True)]
    return replace(rows, downloaded=now, memory=before | {"steps": {"since": torch.tensor(since)}})


def _downloads(rows: Rows, shard: Shard) -> dict[str, Tensor]:
    each = [{"params": shard.broadcasts[version]["params"]} for version in rows.jobs.versions.tolist()]
    return map_groups(torch.Tensor.detach, stack_groups(each))["params"]
