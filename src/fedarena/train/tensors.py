"""Named groups of named tensors: the form of everything that travels between server and clients.

A server's state, what it broadcasts, what a client keeps and its update are all ``{"params": {"0.weight": ...}, ...}``:
the group says what the tensors are for, the name which parameter they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.models import Tensors

Groups = dict[str, Tensors]

# Begins the names of groups that a client keeps for a transform, beside those of the algorithm.
TRANSFORM_GROUP = "transform:"


def of_algorithm(state: Groups | None) -> Groups | None:
    """What a client keeps for the algorithm alone; None if it is new."""
    if state is None:
        return None
    return {group: tensors for group, tensors in state.items() if not group.startswith(TRANSFORM_GROUP)}


# More than that, a GPU takes from usual memory only when it has done all that it was told before.
_BYTES_TAKEN_AT_ONCE = 1 << 20
# Torch cannot gather rows of these; larger types hold the same numbers.
_LARGER: dict[str, type[np.generic]] = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


def column_tensor(values: npt.NDArray[Any]) -> Tensor:
    """A column of a federation as a tensor that torch can compute with."""
    larger = _LARGER.get(values.dtype.name)
    if larger is not None:
        exceeds = values.dtype.itemsize == 8 and values.size and int(values.max()) > np.iinfo(np.int64).max
        values = values.astype(np.float64 if exceeds else larger)
    return torch.from_numpy(np.ascontiguousarray(values))


def moved(t: Tensor) -> Tensor:
    """Other numbers of the same form."""
    steps = torch.arange(1, t.numel() + 1, device=t.device).view(t.shape)
    if t.dtype == torch.bool:
        return ~t
    return t.detach() + (torch.sin(steps.to(t)) / 8 if t.is_floating_point() else 1)


def sent_to(device: torch.device, array: npt.NDArray[Any]) -> Tensor:
    """An array as a tensor on a device, without waiting for what a GPU does: it is copied before this returns."""
    on_host = torch.from_numpy(array)
    if device.type != "cuda":
        return on_host.to(device)
    if array.nbytes > _BYTES_TAKEN_AT_ONCE:
        on_host = on_host.pin_memory()
    return on_host.to(device, non_blocking=True)


def count_bytes(groups: Groups) -> int:
    """Size of the raw numbers, as they would be sent."""
    return sum(t.numel() * t.element_size() for tensors in groups.values() for t in tensors.values())


def map_groups(function: Callable[[Tensor], Tensor], groups: Groups) -> Groups:
    """The same groups with `function` applied to every tensor."""
    return {group: {name: function(t) for name, t in tensors.items()} for group, tensors in groups.items()}


def stack_groups(each: Sequence[Groups]) -> Groups:
    """Groups of the same names as rows of one."""
    return {
        group: {name: torch.stack([groups[group][name] for groups in each]) for name in tensors}
        for group, tensors in each[0].items()
    }


def take_row(groups: Groups, row: int) -> Groups:
    """One client's part of stacked groups, as tensors of its own."""
    return map_groups(lambda t: t[row].clone(), groups)


def finite_rows(groups: Groups, rows: int) -> npt.NDArray[np.bool_]:
    """For stacked groups: which rows have no number that is NaN or infinite."""
    tensors = [t.reshape(rows, -1) for tensors in groups.values() for t in tensors.values()]
    if not tensors:
        return np.ones(rows, dtype=np.bool_)
    finite = torch.stack([torch.isfinite(t).all(1) for t in tensors]).all(0)
    return finite.cpu().numpy()


def all_tensors(groups: Groups) -> list[Tensor]:
    """The tensors of all groups."""
    return [t for tensors in groups.values() for t in tensors.values()]


def is_finite(groups: Groups) -> bool:
    """Whether no number is NaN or infinite."""
    tensors = all_tensors(groups)
    if not tensors:
        return True
    finite = all(bool(torch.isfinite(sums).all()) for sums in sums_by_device(tensors))
    return finite or all(bool(torch.isfinite(t).all()) for t in tensors)


def sums_by_device(tensors: list[Tensor]) -> list[Tensor]:
    """Numbers that are finite only if all of the tensors' are, by one pass over memory; they may overflow though."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for t in tensors:
        by_device.setdefault(t.device, []).append(t)
    return [
        # On a GPU it is the number of operations that takes time, and there is one for the squares of all.
        torch.stack(torch._foreach_norm(some, 2))
        if device.type == "cuda" and len({t.dtype for t in some}) == 1 and some[0].is_floating_point()
        else torch.stack([t.sum().double() for t in some])
        for device, some in by_device.items()
    ]


def flatten_groups(groups: Groups) -> Tensors:
    """One flat mapping with ``group/name`` keys, for files."""
    return {f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()}


def unflatten_groups(flat: Mapping[str, Tensor], groups: Iterable[str] = ()) -> Groups:
    """The inverse of `flatten_groups`; `groups` names those that exist even when they hold nothing."""
    result: Groups = {group: {} for group in groups}
    for key, tensor in flat.items():
        group, _, name = key.partition("/")
        result.setdefault(group, {})[name] = tensor
    return result


def innermost_channels(values: Tensor) -> Tensor:
    """Images or kernels ``[lanes, …, channels, height, width]`` with the channels innermost in memory.

    Nothing else changes; but pooling is much faster on a CPU that way, and convolutions on a GPU.
    """
    if values.dim() != 5:
        return values
    return values.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
