"""What corrupted clients send instead of their updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups
from fedarena.transforms.attacks import Attack
from fedarena.transforms.rows import Rows
from fedarena.transforms.transform import Transform


def forged(attack: Attack, rows: Rows, transforms: Sequence[Transform], server: Sequence[Groups]) -> Rows:
    """The rows with what corrupted clients among them send instead.

    If they see updates of others, these are among `rows`. What the server can make sure of, it does.
    """
    corrupted = np.flatnonzero(rows.jobs.corrupted)
    theirs = replace(rows.take(corrupted), stream="attack")
    update = attack.forge(theirs, rows if attack.sees == "all" else theirs)
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
