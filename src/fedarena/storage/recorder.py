"""Writing a run folder so that a crash at any moment loses no finished round.

While a run goes on, its tables grow as append-only Arrow streams beside the checkpoint (see
`fedarena.storage.checkpoint`); when it ends, they become Parquet files.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import replacing, write_json, write_text
from fedarena.core.interrupts import deferring_interrupts
from fedarena.metrics import PERSONAL
from fedarena.simulate import Feedback, Memories, MemoryLog, Outcome, RoundOutcome, Snapshot
from fedarena.storage.checkpoint import (
    FORMAT,
    TABLES,
    ClockState,
    CommitState,
    MemoryState,
    TableState,
    TensorState,
    memory_log_path,
    named_tensors,
    open_memories,
    parse_table,
    read_snapshot,
    read_state,
    read_table,
    snapshot_groups,
    state_path,
    table_log_path,
    table_schemas,
)
from fedarena.train import ClientScores, flatten_groups

CONFIG_FILE = "config.yaml"
FLEET_FILE = "fleet.json"
ATTRIBUTES_FILE = "attributes.parquet"
LOCK_FILE = "lock"
# A commit may take this share of the time since the last one; short rounds are then committed several at a time.
_COMMIT_SHARE = 0.05


class Recorder:
    """Writes one run's folder. Use `create` for a new run and `reopen` to go on with an old one."""

    def __init__(self, folder: Path, metrics: Sequence[str], memories_ram_bytes: int):
        self.folder = folder
        self.memories_ram_bytes = memories_ram_bytes  # of clients' memories; the others are read from the folder
        self._checkpoint = folder / "checkpoint"
        self._schemas = table_schemas(metrics)
        self._tables = {table: TableState(bytes=0, crc32=0) for table in TABLES}
        self._memory_log = MemoryLog(memory_log_path(folder, 0))
        self._latest: Snapshot | None = None
        self._committed_round: int | None = None
        self._committed_at = 0.0
        self._commit_seconds = 0.0
        self.writable = True  # until the disk refuses
        self._lock = filelock.FileLock(self._checkpoint / LOCK_FILE, timeout=0)

    @classmethod
    def create(
        cls,
        folder: Path,
        config_yaml: str,
        environment: dict[str, Any],
        metrics: Sequence[str],
        memories_ram_bytes: int,
        fleet: dict[str, Any] | None = None,
        attributes: pa.Table | None = None,
    ) -> Recorder:
        """Makes the folder of a new run; it must not exist.

        `fleet` describes the clients' phones, `attributes` has a row of what is known about each client to evaluate.
        """
        check_new(folder)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            (temporary / "checkpoint").mkdir(parents=True)
            write_text(temporary / CONFIG_FILE, config_yaml)
            write_json(temporary / "environment.json", environment)
            if fleet is not None:
                write_json(temporary / FLEET_FILE, fleet)
            if attributes is not None:
                pq.write_table(attributes, temporary / ATTRIBUTES_FILE)
            temporary.rename(folder)  # complete or absent, never a folder without its configuration
        except OSError as error:
            raise RunFailedError(f"Cannot create the run folder {folder}: {error.strerror}") from error
        recorder = cls(folder, metrics, memories_ram_bytes)
        recorder._acquire()
        with recorder._explaining_disk_errors():
            recorder._start_tables()
        return recorder

    @classmethod
    def reopen(cls, folder: Path, metrics: Sequence[str], memories_ram_bytes: int) -> tuple[Recorder, Snapshot | None]:
        """Continues an interrupted run after its last committed round (None: before the first)."""
        recorder = cls(folder, metrics, memories_ram_bytes)
        recorder._acquire()
        try:
            return recorder, recorder._go_back_to_commit()
        except BaseException:
            recorder.release()
            raise

    def record(self, outcome: RoundOutcome, client_ids: Sequence[str]) -> None:
        """Appends a finished round. It is durable at once, or with a later one if rounds are very short."""
        with deferring_interrupts(), self._explaining_disk_errors():
            self._append("rounds", [outcome.row])
            round = outcome.snapshot.round
            if outcome.scores is not None:
                scores = outcome.scores
                columns = {
                    "round": np.full(len(scores.clients), round),
                    "client": list(client_ids),
                    "samples": scores.samples,
                    "predictions": scores.counts,
                    **{name: _reached(values) for name, values in scores.columns().items()},
                    **_personal_columns(scores, outcome.personal_scores),
                }
                self._append_batch("clients", pa.record_batch(columns, schema=self._schemas["clients"]))
            if outcome.jobs:
                jobs = {name: _reached(values) for name, values in outcome.jobs.items()}
                self._append_batch("jobs", pa.record_batch(jobs, schema=self._schemas["jobs"]))
            clients = outcome.row.get("clients", 0)
            timing = {
                "round": round,
                "train_seconds": outcome.train_seconds,
                "evaluate_seconds": outcome.evaluate_seconds,
                "clients_per_second": clients / outcome.train_seconds if clients else None,
            }
            self._append("timings", [timing])
            outcome.snapshot.memories.keep_in(self._memory_log, self.memories_ram_bytes)
            outcome.snapshot.memories.settle()
            self._latest = outcome.snapshot
            since = time.monotonic() - self._committed_at
            if self._commit_seconds <= _COMMIT_SHARE * since:
                self._commit()

    def close(self, summary: dict[str, Any]) -> None:
        """Commits the last finished round, writes the tables as Parquet and the summary."""
        with deferring_interrupts(), self._explaining_disk_errors():
            if self._latest is not None and self._committed_round != self._latest.round:
                self._commit()
            for table in TABLES:
                with replacing(self.folder / f"{table}.parquet") as temporary:
                    pq.write_table(self._read_table(table), temporary)
            write_json(self.folder / "summary.json", summary)

    def read_tables(self) -> dict[str, pa.Table]:
        """The tables so far, including rounds that are not committed yet."""
        return {table: self._read_table(table) for table in TABLES}

    def feedback(self) -> Iterator[tuple[int, Feedback]]:
        """What the selector was told after every committed round."""
        if self._latest is None:
            return
        jobs = self._read_table("jobs")
        columns = {
            name: jobs[name].to_numpy() for name in ("round", "index", "samples", "begin_seconds", "end_seconds")
        }
        used = jobs["outcome"].to_numpy(zero_copy_only=False) == Outcome.USED.label
        losses = jobs["loss"].to_numpy(zero_copy_only=False)
        bounds = np.searchsorted(columns["round"], np.arange(1, self._latest.round + 2))
        for round, (begin, end) in enumerate(itertools.pairwise(bounds.tolist()), start=1):
            rows = slice(begin, end)
            seconds = columns["end_seconds"][rows] - columns["begin_seconds"][rows]
            yield round, Feedback(columns["index"][rows], used[rows], losses[rows], seconds, columns["samples"][rows])

    def log(self, message: str) -> None:
        """Adds a line to ``log.txt``."""
        with self._explaining_disk_errors(), open(self.folder / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {message}\n")

    def release(self) -> None:
        """Lets other processes write this run."""
        self._lock.release()

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise BadInputError(f"The run {self.folder} is being written by another process") from None
        except OSError as error:
            raise RunFailedError(f"Cannot write to the run folder {self.folder}: {error.strerror}") from error

    def _go_back_to_commit(self) -> Snapshot | None:
        committed = read_state(self.folder)
        with self._explaining_disk_errors():
            (self.folder / "summary.json").unlink(missing_ok=True)  # it tells how the run ended before
            if committed is None:
                self._remove_old("memories-*.log", keep=None)
                self._start_tables()
                return None
            self._memory_log = open_memories(self.folder, committed)
            memories = Memories()
            memories.keep_in(self._memory_log, self.memories_ram_bytes)
            snapshot = read_snapshot(self.folder, committed, memories)
            for table in TABLES:
                read_table(self.folder, table, committed)
                with open(table_log_path(self.folder, table), "rb+") as file:
                    file.truncate(committed.tables[table].bytes)
            self._tables = dict(committed.tables)
            self._memory_log.cut()
            self._remove_old("memories-*.log", keep=committed.memories.file)
        self._latest, self._committed_round = snapshot, snapshot.round
        return snapshot

    def _start_tables(self) -> None:
        for table, schema in self._schemas.items():
            header = schema.serialize().to_pybytes()
            table_log_path(self.folder, table).write_bytes(header)
            self._tables[table] = TableState(bytes=len(header), crc32=zlib.crc32(header))

    def _append(self, table: str, rows: list[dict[str, Any]]) -> None:
        self._append_batch(table, pa.RecordBatch.from_pylist(rows, schema=self._schemas[table]))

    def _append_batch(self, table: str, batch: pa.RecordBatch) -> None:
        data = batch.serialize()
        before = self._tables[table]
        with open(table_log_path(self.folder, table), "rb+") as file:
            file.seek(before.bytes)  # a failed append may have left a piece behind
            file.write(data)
            file.truncate()
        self._tables[table] = TableState(bytes=before.bytes + data.size, crc32=zlib.crc32(data, before.crc32))

    def _commit(self) -> None:
        assert self._latest is not None
        began = time.monotonic()
        for table in TABLES:
            with open(table_log_path(self.folder, table), "rb") as file:
                os.fsync(file.fileno())
        if self._memory_log.is_mostly_outdated:
            path = memory_log_path(self.folder, self._latest.round)
            self._memory_log = self._latest.memories.compact_log(path)
        self._memory_log.sync()
        groups, clock = snapshot_groups(self._latest), self._latest.clock
        tensors = safetensors.torch.save(named_tensors(groups))
        file_name = f"round-{self._latest.round}.safetensors"
        with replacing(self._checkpoint / file_name) as temporary:
            temporary.write_bytes(tensors)
        memories_file, memories_end = self._memory_log.path.name, self._memory_log.settled
        state = CommitState(
            format=FORMAT,
            round=self._latest.round,
            clock=ClockState(time=clock.time, version=clock.version, next_job=clock.next_job),
            tensors=TensorState(
                file=file_name,
                bytes=len(tensors),
                crc32=zlib.crc32(tensors),
                groups=list(groups),
                keys=list(flatten_groups(groups)),
            ),
            memories=MemoryState(file=memories_file, bytes=memories_end.bytes, crc32=memories_end.crc32),
            tables=self._tables,
        )
        write_json(state_path(self.folder), state.model_dump())
        self._remove_old("round-*.safetensors", keep=file_name)
        self._remove_old("memories-*.log", keep=memories_file)
        self._committed_round = self._latest.round
        self._committed_at = time.monotonic()
        self._commit_seconds = self._committed_at - began

    def _remove_old(self, pattern: str, keep: str | None) -> None:
        for old in self._checkpoint.glob(pattern):
            if old.name != keep:
                old.unlink()

    def _read_table(self, table: str) -> pa.Table:
        with open(table_log_path(self.folder, table), "rb") as file:
            return parse_table(file.read(self._tables[table].bytes))

    @contextmanager
    def _explaining_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.writable = False
            safe = "no round" if self._committed_round is None else f"all rounds up to {self._committed_round}"
            raise RunFailedError(
                f"Cannot write {error.filename or self.folder}: {error.strerror}. "
                f"On disk: {safe}; when the cause is mended, go on with: fedarena resume {self.folder}"
            ) from error


def _personal_columns(scores: ClientScores, personal: ClientScores | None) -> dict[str, Any]:
    """Columns about clients with their own models; empty for a client that has nothing left to be scored on."""
    if personal is None:
        return {}
    place = np.searchsorted(personal.clients, scores.clients).clip(max=len(personal.clients) - 1)
    missing = personal.clients[place] != scores.clients
    sizes = {"samples": personal.samples, "predictions": personal.counts}
    columns = {**sizes, **personal.columns()}
    return {PERSONAL + name: pa.array(v[place], mask=missing | ~np.isfinite(v[place])) for name, v in columns.items()}


def _reached(values: Any) -> Any:
    """A column in which infinite and undefined numbers, for what never happened, are missing."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return pa.array(values, mask=~np.isfinite(values))
    return values


def check_new(folder: Path) -> None:
    """Refuses to write into a folder that exists."""
    if folder.exists():
        raise BadInputError(
            f"The run folder {folder} exists; go on with it (fedarena resume {folder}), "
            "choose another name (name=…), or remove it"
        )


def is_being_written(folder: Path) -> bool:
    """Whether a process is at work on a run."""
    lock = filelock.FileLock(folder / "checkpoint" / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False
