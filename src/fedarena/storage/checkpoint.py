"""The form of a checkpoint on disk, and reading it back.

``checkpoint/state.json`` names the last committed round, the file with the server's tensors, the log of the clients'
memories, and how many bytes of that log and of each growing table belong to it. Replacing that one small file is the
commit; whatever was appended after it does not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError, field_validator
from torch import Tensor

from fedarena.core.errors import DamagedFileError
from fedarena.metrics import PERSONAL, TRAINING_SET, summary_names
from fedarena.metrics.metric import PART
from fedarena.simulate import Clock, Jobs, LogEnd, Memories, MemoryLog, Snapshot
from fedarena.simulate.jobs import no_jobs
from fedarena.train import Groups, flatten_groups, unflatten_groups

# Groups beside those of the server's state.
_RUNNING = "clock:running"
_BROADCAST = "clock:broadcast:"
FORMAT = 5
TABLES = ("rounds", "clients", "timings", "jobs")
_NEWER_TABLES = frozenset({"jobs"})  # which runs of earlier versions do not have


def table_schemas(metrics: Sequence[str]) -> dict[str, pa.Schema]:
    """Columns of the tables of a run with these metrics, among them those of personal models if clients have such.

    Parts of metrics, whose names have a dot, are told of every client alone.
    """
    personal = any(metric.startswith(PERSONAL) for metric in metrics)
    whole = [metric for metric in metrics if PART not in metric]
    rounds = [
        ("round", pa.int32()),
        ("clients", pa.int64()),
        ("samples", pa.int64()),
        ("steps", pa.int64()),
        ("train_loss", pa.float64()),
        ("bytes_down", pa.int64()),
        ("bytes_up", pa.int64()),
        ("flops", pa.float64()),
        ("invited", pa.int64()),
        ("failed", pa.int64()),
        ("end_seconds", pa.float64()),
        ("wasted_seconds", pa.float64()),
        ("wasted_bytes", pa.int64()),
        ("joules", pa.float64()),
        ("staleness", pa.float64()),
        ("succeeded", pa.bool_()),
        ("eval_clients", pa.int64()),
        ("eval_samples", pa.int64()),
        *((name, pa.float64()) for metric in whole for name in summary_names(metric)),
        *((TRAINING_SET + metric, pa.float64()) for metric in whole if not metric.startswith(PERSONAL)),
    ]
    clients = [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("samples", pa.int64()),
        ("predictions", pa.int64()),  # of which a sample may hold several; they weigh the means
        *((metric, pa.float64()) for metric in metrics),
    ]
    if personal:  # on how many clients and samples, which may be fewer than for the global model
        rounds += [(f"{PERSONAL}clients", pa.int64()), (f"{PERSONAL}samples", pa.int64())]
        clients += [(f"{PERSONAL}samples", pa.int64()), (f"{PERSONAL}predictions", pa.int64())]
    # Virtual time is part of the result.
    jobs = [
        ("round", pa.int32()),
        ("job", pa.int64()),
        ("client", pa.string()),
        ("index", pa.int64()),
        ("start_version", pa.int32()),
        ("staleness", pa.int32()),
        ("begin_seconds", pa.float64()),
        ("downloaded_seconds", pa.float64()),
        ("trained_seconds", pa.float64()),
        ("uploaded_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("worked_seconds", pa.float64()),
        ("outcome", pa.string()),
        ("share", pa.float64()),
        ("samples", pa.int64()),
        ("loss", pa.float64()),
        ("weight", pa.float64()),
        ("bytes_down", pa.int64()),
        ("bytes_up", pa.int64()),
        ("flops", pa.float64()),
        ("joules", pa.float64()),
    ]
    # Real times are kept apart: everything else is the same in every repetition of a run.
    timings = [
        ("round", pa.int32()),
        ("train_seconds", pa.float64()),
        ("evaluate_seconds", pa.float64()),
        ("clients_per_second", pa.float64()),
    ]
    return {
        "rounds": pa.schema(rounds),
        "clients": pa.schema(clients),
        "timings": pa.schema(timings),
        "jobs": pa.schema(jobs),
    }


def table_log_path(folder: Path, table: str) -> Path:
    """Where a table grows while the run goes on."""
    return folder / "checkpoint" / f"{table}.arrows"


def memory_log_path(folder: Path, round: int) -> Path:
    """Where the memories go that are kept from this round on."""
    return folder / "checkpoint" / f"memories-{round}.log"


def state_path(folder: Path) -> Path:
    """The file whose replacement is the commit."""
    return folder / "checkpoint" / "state.json"


class TableState(BaseModel):
    """How much of a growing table is committed."""

    bytes: Annotated[int, Field(ge=0, strict=True)]
    crc32: Annotated[int, Field(ge=0, strict=True)]


class TensorState(TableState):
    """The file with the tensors of the last commit, and what is in it, in order (files sort by name)."""

    file: str
    groups: list[str]
    keys: list[str]


class MemoryState(TableState):
    """The log of the clients' memories, and how much of it is committed; there is no file as long as it is empty."""

    file: str


class ClockState(BaseModel):
    """Where a run stands in virtual time; the jobs that are running are among the tensors."""

    time: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    version: Annotated[int, Field(ge=0, strict=True)] = 0
    next_job: Annotated[int, Field(ge=0, strict=True)] = 0


class CommitState(BaseModel):
    """The content of ``state.json``."""

    format: Literal[2, 3, 4, 5]  # runs of former ones lack parts of the clock and can be read, but not resumed
    round: Annotated[int, Field(ge=0, strict=True)]
    clock: ClockState = ClockState()
    tensors: TensorState
    memories: MemoryState
    tables: dict[str, TableState]

    @field_validator("tables")
    @classmethod
    def _all_tables(cls, tables: dict[str, TableState]) -> dict[str, TableState]:
        if set(tables) | _NEWER_TABLES != set(TABLES):
            raise ValueError(f"must be of {', '.join(TABLES)}")
        return tables


def read_state(folder: Path) -> CommitState | None:
    """What the last commit says, or None where there was none yet."""
    path = state_path(folder)
    if not path.exists():
        return None
    try:
        return CommitState.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise DamagedFileError(f"The checkpoint {path} is damaged: {where} {problem['msg']}") from None


def read_snapshot(folder: Path, state: CommitState, memories: Memories) -> Snapshot:
    """The last commit with the memories that belong to it."""
    path = folder / "checkpoint" / state.tensors.file
    found = safetensors.torch.load(_read_checked(path, state.tensors))
    ordered = {key: found[key] for key in state.tensors.keys}
    groups = unflatten_groups(ordered, state.tensors.groups)
    running = Jobs(**{name: t.numpy() for name, t in groups.pop(_RUNNING).items()}) if _RUNNING in groups else no_jobs()
    broadcasts: dict[int, Groups] = {}
    for key in [key for key in groups if key.startswith(_BROADCAST)]:
        version, _, group = key.removeprefix(_BROADCAST).partition(":")
        broadcasts.setdefault(int(version), {})[group] = groups.pop(key)
    clock = Clock(state.clock.time, state.clock.version, state.clock.next_job, running)
    return Snapshot(state.round, groups, memories, clock, broadcasts)


def snapshot_groups(snapshot: Snapshot) -> Groups:
    """All tensors of a snapshot: the server's state, the jobs that are running, and what these began with."""
    groups = dict(snapshot.state)
    running = snapshot.clock.running
    if len(running):
        groups[_RUNNING] = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in vars(running).items()}
    for version, broadcast in snapshot.broadcasts.items():
        groups |= {f"{_BROADCAST}{version}:{group}": tensors for group, tensors in broadcast.items()}
    return groups


def open_memories(folder: Path, state: CommitState) -> MemoryLog:
    """The log of the memories up to the last commit."""
    committed = state.memories
    return MemoryLog.open(folder / "checkpoint" / committed.file, LogEnd(committed.bytes, committed.crc32))


def read_table(folder: Path, table: str, state: CommitState) -> pa.Table:
    """The committed part of a table that is still growing."""
    path = table_log_path(folder, table)
    data = _read_checked(path, state.tables[table])
    return parse_table(data)


def parse_table(data: bytes) -> pa.Table:
    """The rows of a growing table."""
    return pa.ipc.open_stream(data).read_all().combine_chunks()


def _read_checked(path: Path, expected: TableState) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(expected.bytes)
    except OSError as error:
        raise DamagedFileError(f"The checkpoint {path} cannot be read: {error.strerror}") from None
    if len(data) != expected.bytes or zlib.crc32(data) != expected.crc32:
        raise DamagedFileError(f"The checkpoint {path} is damaged: its content does not match its checksum")
    return data


def named_tensors(groups: Groups) -> dict[str, Tensor]:
    """The tensors of groups under names that say what they are."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for key, t in flatten_groups(groups).items():
        storage = t.untyped_storage().data_ptr()
        tensors[key] = t.clone().contiguous() if storage in seen else t.contiguous()  # files share no memory
        seen.add(storage)
    return tensors
