"""The form of a checkpoint on disk, and reading it back.

``checkpoint/state.json`` names the last committed round, the file with its tensors, and how many bytes of each growing
table belong to it. Replacing that one small file is the commit; whatever was appended after it does not count.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import safetensors.torch
from torch import Tensor

from fedarena.errors import DamagedFileError
from fedarena.metrics import summary_names
from fedarena.simulate import Snapshot
from fedarena.train import Groups, flatten_groups, unflatten_groups

TABLES = ("rounds", "clients", "timings")


def table_schemas(metrics: Sequence[str]) -> dict[str, pa.Schema]:
    """Columns of the tables of a run whose task has these metrics."""
    rounds = [
        ("round", pa.int32()),
        ("clients", pa.int64()),
        ("samples", pa.int64()),
        ("steps", pa.int64()),
        ("train_loss", pa.float64()),
        ("bytes_down", pa.int64()),
        ("bytes_up", pa.int64()),
        ("flops", pa.float64()),
        ("eval_clients", pa.int64()),
        ("eval_samples", pa.int64()),
        *((name, pa.float64()) for metric in metrics for name in summary_names(metric)),
    ]
    clients = [("round", pa.int32()), ("client", pa.string()), ("samples", pa.int64())]
    # Times are kept apart: everything else is the same in every repetition of a run.
    timings = [
        ("round", pa.int32()),
        ("train_seconds", pa.float64()),
        ("evaluate_seconds", pa.float64()),
        ("clients_per_second", pa.float64()),
    ]
    return {
        "rounds": pa.schema(rounds),
        "clients": pa.schema([*clients, *((metric, pa.float64()) for metric in metrics)]),
        "timings": pa.schema(timings),
    }


def table_log_path(folder: Path, table: str) -> Path:
    """Where a table grows while the run goes on."""
    return folder / "checkpoint" / f"{table}.arrows"


def state_path(folder: Path) -> Path:
    """The file whose replacement is the commit."""
    return folder / "checkpoint" / "state.json"


def read_state(folder: Path) -> dict[str, Any] | None:
    """What the last commit says, or None where there was none yet."""
    path = state_path(folder)
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = state["round"], state["tensors"]["file"], [state["tables"][table] for table in TABLES]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"The checkpoint {path} is damaged: {error!r}") from None
    for table in TABLES:
        log = table_log_path(folder, table)
        if not log.exists() or log.stat().st_size < state["tables"][table]:
            raise DamagedFileError(f"The checkpoint of round {state['round']} is damaged: {log} is incomplete")
    return state


def read_snapshot(folder: Path, state: dict[str, Any]) -> Snapshot:
    """The tensors of the last commit."""
    path = folder / "checkpoint" / state["tensors"]["file"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"The checkpoint {path} cannot be read: {error.strerror}") from None
    if len(data) != state["tensors"]["bytes"] or zlib.crc32(data) != state["tensors"]["crc32"]:
        raise DamagedFileError(f"The checkpoint {path} is damaged: its content does not match its checksum")
    parts = unflatten_groups(safetensors.torch.load(data))
    memories: dict[int, Groups] = {}
    for key, tensor in parts.get("memory", {}).items():
        client, group, name = key.split("/", 2)
        memories.setdefault(int(client), {}).setdefault(group, {})[name] = tensor
    return Snapshot(state["round"], unflatten_groups(parts["state"]), memories)


def snapshot_tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    """The tensors of a snapshot under names that say what they are."""
    state = {f"state/{key}": t for key, t in flatten_groups(snapshot.state).items()}
    memory = {
        f"memory/{client}/{key}": t
        for client, groups in snapshot.memories.items()
        for key, t in flatten_groups(groups).items()
    }
    return {key: t.contiguous() for key, t in (state | memory).items()}


def read_table_log(path: Path, length: int) -> pa.Table:
    """The first `length` bytes of a table that is still growing."""
    with open(path, "rb") as file:
        return pa.ipc.open_stream(file.read(length)).read_all().combine_chunks()
