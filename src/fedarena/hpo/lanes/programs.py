"""Steps of many trials, recorded once and from then on run without Python; see `fedarena.train.program`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train.graphs import in_place, separate_updates
from fedarena.train.program import TRACING, record
from fedarena.train.scripts import Script

# A pure function (changed, given, batch) → changed: what is replaced by what the function returns and what else lies in
# the same place in every call are trees of tensors, what is handed in anew is some tensors by name, in a fixed order.
Function = Callable[[Any, Any, Tensors], Any]
Bound = Callable[[Tensors], None]


class NotLanesError(Exception):
    """A function of somebody's own, or a model, cannot be computed for many trials at once."""


class Programs:
    """Programs by what they do and the form of what they do it to, shared by all blocks of trials."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Callable[..., None]] = {}

    def bind(self, name: Hashable, function: Function, changed: Any, given: Any, batch: Tensors) -> Bound:
        """A program that changes `changed` in place, for batches like the one given.

        Functions of the same `name` do the same, except for the forms of tensors and what they are called.
        """
        placed = pytree.tree_leaves((changed, given))
        tensors = [*placed, *batch.values()]
        structure = pytree.tree_structure((changed, given, batch))
        form = (name, str(structure), *((t.shape, t.stride(), t.dtype) for t in tensors))
        with TRACING:
            if form not in self._made:
                self._made[form] = _make(function, structure, tensors, len(pytree.tree_leaves(changed)))
        program = self._made[form]
        return lambda batch: program(*placed, *batch.values())


def _make(function: Function, structure: Any, tensors: list[Tensor], changed: int) -> Callable[..., None]:
    def flat(tensors: list[Tensor]) -> list[Tensor]:
        before, given, batch = pytree.tree_unflatten(tensors, structure)
        after = function(before, given, batch)
        assert pytree.tree_structure(after) == pytree.tree_structure(before)
        return pytree.tree_leaves(after)

    with torch.no_grad():
        try:
            recorded = record(flat, tensors)
        except BadInputError:
            raise
        except Exception as error:  # whatever a layer or a hook may raise when it is given many trials
            reason = str(error).strip().partition("\n")[0].partition(". ")[0]
            raise NotLanesError(f"{type(error).__name__}: {reason}") from error
        pure, updates = separate_updates(recorded, changed)
        if tensors[0].device.type == "cuda":
            return in_place(pure, updates)
        return Script(pure, updates, tensors)
