"""The form of a checkpoint on disk, and reading it back.

``checkpoint/state.json`` names the run, its last committed round, the file with the server's tensors, the log of the
clients' states, and how many bytes of that log and of each growing table belong to it. Replacing that one small file
is the commit; whatever was appended after it does not count. It carries a checksum of itself and those of the others,
so a checkpoint that was changed, or is another run's, is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import safetensors
import safetensors.torch
import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from fedarena.core.errors import DamagedFileError
from fedarena.core.sealed_json import seal_json, unseal_json
from fedarena.models import Tensors
from fedarena.simulate import ClientStateLog, ClientStates, Clock, Jobs, LogEnd, Snapshot
from fedarena.simulate.client_states.log import damaged_checkpoint, read_checked
from fedarena.simulate.jobs import no_jobs
from fedarena.storage.run_files import STATE_FILE, RunFiles
from fedarena.storage.tables import SOME_TABLES, TABLES
from fedarena.train import Groups, flatten_groups, unflatten_groups

# Groups beside those of the server's state.
_RUNNING = "clock:running"
_BROADCAST = "clock:broadcast:"
_TRANSFORM = "transform:"
_AGGREGATOR = "aggregator:"
_DOWNLOAD = "download:"
FORMAT = 7


def table_log_path(folder: Path, table: str) -> Path:
    """Where a table grows while the run goes on."""
    return folder / "checkpoint" / f"{table}.arrows"


def client_state_log_path(folder: Path, round: int) -> Path:
    """Where the clients' states go that are kept from this round on."""
    return folder / "checkpoint" / f"client_states-{round}.log"


def state_path(folder: Path) -> Path:
    """The file whose replacement is the commit."""
    return folder / STATE_FILE


class TableState(BaseModel):
    """How much of a growing table is committed."""

    bytes: Annotated[int, Field(ge=0, strict=True)]
    crc32: Annotated[int, Field(ge=0, strict=True)]


class TensorState(TableState):
    """The file with the tensors of the last commit, and what is in it, in order (files sort by name)."""

    file: str
    groups: list[str]
    keys: list[str]


class BestModelState(TableState):
    """The file with the parameters of the best model so far, and the round after which it was evaluated."""

    file: str
    round: Annotated[int, Field(ge=0, strict=True)]


class ClientStateLogState(TableState):
    """The log of the clients' states, and how much of it is committed; there is no file as long as it is empty."""

    file: str


class ClockState(BaseModel):
    """Where a run stands in virtual time; the jobs that are running are among the tensors."""

    time: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    version: Annotated[int, Field(ge=0, strict=True)] = 0
    next_job: Annotated[int, Field(ge=0, strict=True)] = 0


class CommitState(BaseModel):
    """The content of ``state.json``."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[2, 3, 4, 5, 6, 7]  # runs of former ones lack something and can be read, but not resumed
    run_id: str | None = None  # of the run whose checkpoint it is
    round: Annotated[int, Field(ge=0, strict=True)]
    clock: ClockState = ClockState()
    transforms: Annotated[int, Field(ge=0, strict=True)] = 0  # how many keep something at the server
    tensors: TensorState
    client_states: ClientStateLogState = Field(validation_alias=AliasChoices("client_states", "memories"))
    tables: dict[str, TableState]
    best: BestModelState | None = None  # in runs that keep it

    @field_validator("tables")
    @classmethod
    def _all_tables(cls, tables: dict[str, TableState]) -> dict[str, TableState]:
        if set(tables) | SOME_TABLES != set(TABLES):
            raise ValueError(f"must be of {', '.join(TABLES)}")
        return tables


def state_bytes(state: CommitState) -> bytes:
    """The content of ``state.json`` for a commit."""
    return seal_json(state.model_dump(mode="json"))


def read_state(folder: Path) -> CommitState | None:
    """What the last commit says, or None where there was none yet."""
    files, path = RunFiles.open(folder), state_path(folder)
    if STATE_FILE not in files and not path.exists():
        return None
    data = files.read(STATE_FILE)
    content = unseal_json(data)
    if content is None and files.run_id is None:
        content = _unsealed(data)
    if content is None:
        raise damaged_checkpoint(path)
    try:
        state = CommitState.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise DamagedFileError(f"The checkpoint {path} is damaged: {where} {problem['msg']}") from None
    if state.run_id != files.run_id:
        raise DamagedFileError(f"The checkpoint {path} belongs to another run than {folder}")
    return state


def _unsealed(data: bytes) -> Any:
    """The content of a state that an earlier version wrote, without a checksum."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_snapshot(folder: Path, state: CommitState, client_states: ClientStates) -> Snapshot:
    """The last commit with the clients' states that belong to it."""
    path = folder / "checkpoint" / state.tensors.file
    try:
        found = safetensors.torch.load(read_checked(path, state.tensors.bytes, state.tensors.crc32))
        ordered = {key: found[key] for key in state.tensors.keys}
        groups = unflatten_groups(ordered, state.tensors.groups)
        running = groups.pop(_RUNNING, None)
        columns = {name: t.numpy() for name, t in (running or {}).items()}
        if running is not None:  # an earlier version did not write in which rounds they began
            columns.setdefault("rounds", columns["versions"] + 1)
        jobs = no_jobs() if running is None else Jobs(**columns)
        broadcasts: dict[int, Groups] = {}
        for key in [key for key in groups if key.startswith(_BROADCAST)]:
            version, _, group = key.removeprefix(_BROADCAST).partition(":")
            broadcasts.setdefault(int(version), {})[group] = groups.pop(key)
        transforms: dict[int, Groups] = {number: {} for number in range(state.transforms)}
        for key in [key for key in groups if key.startswith(_TRANSFORM)]:
            number, _, group = key.removeprefix(_TRANSFORM).partition(":")
            transforms[int(number)][group] = groups.pop(key)
        of_aggregator, downloads = (_taken(groups, prefix) for prefix in (_AGGREGATOR, _DOWNLOAD))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"The checkpoint {path} does not hold what {STATE_FILE} says: {error}") from None
    clock = Clock(state.clock.time, state.clock.version, state.clock.next_job, jobs)
    kept = tuple(transforms.values())
    return Snapshot(state.round, groups, client_states, clock, broadcasts, kept, of_aggregator, downloads)


def _taken(groups: Groups, prefix: str) -> Groups:
    """Takes out the groups whose names begin with `prefix`, without it."""
    names = [name for name in groups if name.startswith(prefix)]
    return {name.removeprefix(prefix): groups.pop(name) for name in names}


def read_best(folder: Path, best: BestModelState) -> Tensors:
    """The parameters of the best model."""
    path = folder / "checkpoint" / best.file
    try:
        return safetensors.torch.load(read_checked(path, best.bytes, best.crc32))
    except safetensors.SafetensorError as error:
        raise DamagedFileError(f"The checkpoint {path} cannot be read: {error}") from None


def check_fits(path: Path, state: Groups, fresh: Groups) -> None:
    """Refuses a state of the server that is not for the model and the algorithm, which would begin with `fresh`."""
    missing = [group for group in fresh if group not in state]
    if missing:
        raise DamagedFileError(f"The checkpoint {path} is of another algorithm: it has no {', '.join(missing)}")
    found, expected = (_forms(groups.get("params", {})) for groups in (state, fresh))
    for name in expected | found:
        if found.get(name) != expected.get(name):
            forms = f"{found.get(name, 'nothing')} there and {expected.get(name, 'nothing')} here"
            raise DamagedFileError(f"The checkpoint {path} is of another model: {name!r} is {forms}")


def _forms(tensors: Tensors) -> dict[str, str]:
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors.items()}


def snapshot_groups(snapshot: Snapshot) -> Groups:
    """All tensors of a snapshot: the server's state, the jobs that are running, and what these began with."""
    groups = dict(snapshot.state)
    running = snapshot.clock.running
    if len(running):
        known = {name: values for name, values in vars(running).items() if values is not None}
        groups[_RUNNING] = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in known.items()}
    for version, broadcast in snapshot.broadcasts.items():
        groups |= {f"{_BROADCAST}{version}:{group}": tensors for group, tensors in broadcast.items()}
    for number, kept in enumerate(snapshot.transform_states):
        groups |= {f"{_TRANSFORM}{number}:{group}": tensors for group, tensors in kept.items()}
    groups |= {_AGGREGATOR + group: tensors for group, tensors in snapshot.aggregator_state.items()}
    return groups | {_DOWNLOAD + group: tensors for group, tensors in snapshot.download_state.items()}


def open_client_states(folder: Path, state: CommitState) -> ClientStateLog:
    """The log of the clients' states up to the last commit."""
    committed = state.client_states
    return ClientStateLog.open(folder / "checkpoint" / committed.file, LogEnd(committed.bytes, committed.crc32))


def read_table(folder: Path, table: str, state: CommitState) -> pa.Table:
    """The committed part of a table that is still growing."""
    path = table_log_path(folder, table)
    expected = state.tables[table]
    return parse_table(read_checked(path, expected.bytes, expected.crc32))


def parse_table(data: bytes) -> pa.Table:
    """The rows of a growing table."""
    return pa.ipc.open_stream(data).read_all().combine_chunks()


def replaced_tables(tables: Mapping[str, pa.Table]) -> tuple[dict[str, TableState], dict[str, bytes]]:
    """What a commit says of growing tables with these rows in place of theirs, and the files to write."""
    logs = {table: stream_bytes(rows) for table, rows in tables.items()}
    states = {table: TableState(bytes=len(data), crc32=zlib.crc32(data)) for table, data in logs.items()}
    return states, {table_log_path(Path(), table).as_posix(): data for table, data in logs.items()}


def stream_bytes(table: pa.Table) -> bytes:
    """A growing table with these rows, to which more can be appended."""
    batches = table.combine_chunks().to_batches()
    return b"".join([table.schema.serialize().to_pybytes(), *(batch.serialize().to_pybytes() for batch in batches)])


def named_tensors(groups: Groups) -> dict[str, Tensor]:
    """The tensors of groups under names that say what they are."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for key, t in flatten_groups(groups).items():
        storage = t.untyped_storage().data_ptr()
        tensors[key] = t.clone().contiguous() if storage in seen else t.contiguous()  # files share no memory
        seen.add(storage)
    return tensors
