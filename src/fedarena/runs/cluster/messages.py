"""What travels between the driver of a run and its workers: arrays, numbers and text by their names.

Ray shares arrays among all workers of a machine without copying them, as long as they are NumPy's. What arrives cannot
be written to and keeps its place in Ray's store, so everything is copied that somebody keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.metrics.totals import MetricStates, RankedSamples
from fedarena.runs.cluster.shared_states import pack_places, unpack_places
from fedarena.train import Groups, JobArrays, Shard, map_groups
from fedarena.train.shards import StateFile
from fedarena.train.validation import Validated
from fedarena.transforms import Partial, ShardResult

Message = dict[str, Any]
PackedGroups = dict[str, dict[str, Any]]


def pack_tensor(t: Tensor) -> Any:
    """A tensor as an array; with what NumPy does not know about it, if there is something."""
    array = t.detach().cpu()
    is_plain = t.device.type == "cpu" and t.dtype != torch.bfloat16
    if t.dtype == torch.bfloat16:
        array = array.view(torch.int16)
    return array.numpy() if is_plain else (array.numpy(), t.device.type, str(t.dtype).removeprefix("torch."))


def _own(values: Any) -> Any:
    """Arrays (also those of a mapping, or None) in memory of one's own, which can be written to."""
    if isinstance(values, Mapping):
        return {name: _own(one) for name, one in values.items()}
    return np.array(values) if isinstance(values, np.ndarray) else values


def unpack_tensor(packed: Any) -> Tensor:
    """The tensor again, in memory of its own."""
    if not isinstance(packed, tuple):
        return torch.from_numpy(np.array(packed))
    array, device, dtype = packed
    t = torch.from_numpy(np.array(array))
    if dtype == "bfloat16":
        t = t.view(torch.bfloat16)
    return t.to(device)


def pack_groups(groups: Groups) -> PackedGroups:
    """Groups of tensors as arrays."""
    return {group: {name: pack_tensor(t) for name, t in tensors.items()} for group, tensors in groups.items()}


def unpack_groups(packed: PackedGroups) -> Groups:
    """The groups again."""
    return {group: {name: unpack_tensor(t) for name, t in tensors.items()} for group, tensors in packed.items()}


def pack_states(states: Mapping[int, Groups], clients: Sequence[int]) -> list[tuple[list[int], PackedGroups]]:
    """What some clients keep, as few large arrays: those who keep the same kinds of tensors have a row each."""
    alike: dict[Any, list[tuple[int, Groups]]] = {}
    for client in clients:
        state = states.get(client)
        if state is not None:
            form = tuple(
                (group, name, t.shape, t.dtype) for group, tensors in state.items() for name, t in tensors.items()
            )
            alike.setdefault((tuple(state), form), []).append((client, state))
    packed = []
    for some in alike.values():
        rows = {
            group: {name: torch.stack([state[group][name] for _, state in some]) for name in tensors}
            for group, tensors in some[0][1].items()
        }
        packed.append(([client for client, _ in some], pack_groups(rows)))
    return packed


def unpack_states(packed: list[tuple[list[int], PackedGroups]]) -> dict[int, Groups]:
    """What every one of them keeps."""
    states: dict[int, Groups] = {}
    for clients, rows in packed:
        unpacked = unpack_groups(rows)
        for place, client in enumerate(clients):
            states[client] = map_groups(lambda t, place=place: t[place], unpacked)  # type: ignore[misc]
    return states


def pack_kept(states: Mapping[int, Groups], clients: Sequence[int], reads_files: bool) -> Message:
    """What some clients keep: itself, and for a worker that reads the driver's files, where it lies there."""
    places = pack_places(states, clients) if reads_files else None
    placed = set() if places is None else set(places["clients"])
    return {"rows": pack_states(states, [client for client in clients if client not in placed]), "places": places}


def unpack_kept(message: Message) -> dict[int, Groups]:
    """What every one of them keeps, from wherever it is."""
    places = message["places"]
    return unpack_states(message["rows"]) | ({} if places is None else unpack_places(places))


def pack_shard(shard: Shard, reads_files: bool = False) -> Message:
    """A shard without what was broadcast, which is sent once to all; see `pack_kept`."""
    return {
        "jobs": vars(shard.jobs),
        "states": pack_kept(shard.states, shard.jobs.clients.tolist(), reads_files),
        "batch_width": shard.batch_width,
        "start_losses": shard.start_losses,
    }


def unpack_shard(message: Message, broadcasts: Mapping[int, Groups]) -> Shard:
    """The shard again."""
    jobs = JobArrays(**_own(message["jobs"]))
    states = unpack_kept(message["states"])
    return Shard(jobs, broadcasts, states, message["batch_width"], _own(message["start_losses"]))


def pack_result(result: ShardResult) -> Message:
    """What is left of a shard."""
    return {
        **vars(result),
        "losses": np.asarray(result.losses),
        "partials": {step: (pack_groups(one.tensors), one.numbers) for step, one in result.partials.items()},
        "client_states": [(clients, pack_groups(kept)) for clients, kept in result.client_states],
        "observed": {
            name: (pack_tensor(value),) if isinstance(value, Tensor) else value
            for name, value in result.observed.items()
        },
        "validated": None if result.validated is None else vars(result.validated),
        "state_file": None if result.state_file is None else tuple(result.state_file),
    }


def unpack_result(message: Message) -> ShardResult:
    """It again; nothing of it stays in Ray's store, since rounds are kept until they are written."""
    arrays = {name: _own(message[name]) for name in ("clients", "losses", "uploaded_bytes", "steps")}
    return ShardResult(
        **arrays,
        partials={step: Partial(unpack_groups(t), dict(numbers)) for step, (t, numbers) in message["partials"].items()},
        client_states=[(_own(clients), unpack_groups(kept)) for clients, kept in message["client_states"]],
        observed={
            name: unpack_tensor(value[0]) if isinstance(value, tuple) else value
            for name, value in message["observed"].items()
        },
        validated=None if message["validated"] is None else Validated(**_own(message["validated"])),
        state_file=None if message["state_file"] is None else StateFile(*message["state_file"]),
    )


def pack_measured(states: MetricStates) -> Message:
    """States of metrics."""
    return {**vars(states), "ranked": None if states.ranked is None else vars(states.ranked)}


def unpack_measured(message: Message) -> MetricStates:
    """They again, as arrays of one's own: a table of all clients would keep Ray's store full."""
    ranked = message["ranked"]
    copied = {name: _own(message[name]) for name in ("positions", "counts", "states")}
    return MetricStates(**copied, ranked=None if ranked is None else RankedSamples(**_own(ranked)))
