"""Writing a run folder so that a crash at any moment loses no finished round.

While a run goes on, its tables grow as append-only Arrow streams beside the checkpoint (see
`fedarena.storage.checkpoint`); when it ends, they become Parquet files.
"""

from __future__ import annotations

import itertools
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa
import safetensors.torch

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import json_text, replacing, write_bytes
from fedarena.core.folders import new_folder, remove_abandoned
from fedarena.core.interrupts import deferring_interrupts
from fedarena.models import Tensors
from fedarena.simulate import ClientStateLog, ClientStates, Feedback, RoundOutcome, Snapshot
from fedarena.storage.changes import change_files
from fedarena.storage.checkpoint import (
    FORMAT,
    BestModelState,
    ClientStateLogState,
    ClockState,
    CommitState,
    TensorState,
    check_fits,
    client_state_log_path,
    named_tensors,
    open_client_states,
    read_best,
    read_snapshot,
    read_state,
    read_table,
    replaced_tables,
    snapshot_groups,
    state_bytes,
    state_path,
    table_log_path,
)
from fedarena.storage.growing_tables import GrowingTables
from fedarena.storage.job_table import JobTable
from fedarena.storage.round_rows import FinishedRound, are_many, batch_of_classes, batch_of_scores, rows_of_rounds
from fedarena.storage.run_files import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    MANIFEST_FILE,
    PREDICTIONS_FILE,
    STATE_FILE,
    SUMMARY_FILE,
    RunFiles,
    parquet_bytes,
    write_first_files,
)
from fedarena.storage.tables import TABLES, batch_of_rows, table_schemas, unevaluated
from fedarena.train import Groups, flatten_groups

LOCK_FILE = "lock"
# Whoever only looks whether a run is being written has its lock for less than this.
_LOCK_SECONDS = 0.2
# A commit may take this share of the time since the last one; short rounds are then committed several at a time.
_COMMIT_SHARE = 0.02


class Recorder:
    """Writes one run's folder. Use `create` for a new run and `reopen` to go on with an old one."""

    def __init__(
        self,
        files: RunFiles,
        metrics: Sequence[str],
        client_states_ram_bytes: int,
        more_columns: Mapping[str, Sequence[str]] | None = None,
    ):
        self.folder = folder = files.folder
        self._files = files
        self.client_states_ram_bytes = client_states_ram_bytes  # the others are read from the folder
        self._checkpoint = folder / "checkpoint"
        schemas = table_schemas(metrics, more_columns)
        if not (more_columns or {}).get("classes"):
            del schemas["classes"]  # nothing is told of classes
        self._tables = GrowingTables(folder, schemas)
        self._client_state_log = ClientStateLog(client_state_log_path(folder, 0))
        self._waiting: list[FinishedRound] = []  # that have no rows yet
        self._latest: Snapshot | None = None
        self._best: BestModelState | None = None
        self._committed_round: int | None = None
        self._committed_at = 0.0
        self._commit_seconds = 0.0
        self.writable = True  # until the disk refuses
        self._lock = filelock.FileLock(self._checkpoint / LOCK_FILE, timeout=_LOCK_SECONDS)

    @classmethod
    def create(
        cls,
        folder: Path,
        config_yaml: str,
        environment: dict[str, Any],
        metrics: Sequence[str],
        client_states_ram_bytes: int,
        fleet: dict[str, Any] | None = None,
        attributes: pa.Table | None = None,
        constants: Tensors | None = None,
        more_columns: Mapping[str, Sequence[str]] | None = None,
    ) -> Recorder:
        """Makes the folder of a new run; it must not exist.

        `fleet` describes the clients' phones, `attributes` has a row of what is known about each client to evaluate,
        `constants` is what of the model is not trained, and `more_columns` are those that few runs have, by table.
        """
        check_new(folder)
        table_schemas(metrics, more_columns)  # which refuses names that cannot be those of columns
        with new_folder(folder, "the run folder") as temporary:
            write_first_files(temporary, config_yaml, environment, fleet, attributes, constants)
        recorder = cls(RunFiles.open(folder), metrics, client_states_ram_bytes, more_columns)
        recorder._acquire()
        with recorder._explaining_disk_errors():
            recorder._tables.begin()
        return recorder

    def fork(
        self,
        folder: Path,
        config_yaml: str,
        environment: dict[str, Any],
        fleet: dict[str, Any] | None = None,
        attributes: pa.Table | None = None,
        constants: Tensors | None = None,
    ) -> None:
        """Makes the folder of another run, to be reopened: it goes on after the last finished round of this one."""
        check_new(folder)
        self.commit()
        committed = read_state(self.folder)
        assert committed is not None, "there is a round to go on from"
        logs = [table_log_path(self.folder, table) for table in committed.tables]
        kept_best = [committed.best.file] if committed.best else []
        states = [committed.client_states.file, *self._client_state_log.part_files]
        names = [committed.tensors.file, *states, *kept_best]
        copied = [*logs, *(self._checkpoint / name for name in names)]
        with new_folder(folder, "the run folder") as temporary:
            files = write_first_files(temporary, config_yaml, environment, fleet, attributes, constants)
            for path in copied:
                if path.exists():  # there is no log of clients' states as long as it is empty
                    shutil.copyfile(path, temporary / "checkpoint" / path.name)
            write_bytes(state_path(temporary), state_bytes(committed.model_copy(update={"run_id": files.run_id})))

    @classmethod
    def reopen(
        cls,
        folder: Path,
        metrics: Sequence[str],
        client_states_ram_bytes: int,
        fresh: Groups | None = None,
        more_columns: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[Recorder, Snapshot | None]:
        """Continues an interrupted run after its last committed round (None: before the first).

        `fresh` is the state that the server would begin with, to which that of the commit must be alike.
        """
        recorder = cls(RunFiles.open(folder), metrics, client_states_ram_bytes, more_columns)
        recorder._acquire()
        remove_abandoned(folder.parent)
        try:
            return recorder, recorder._go_back_to_commit(fresh)
        except BaseException:
            recorder.release()
            raise

    @classmethod
    def change(
        cls, folder: Path, config_yaml: str, environment: dict[str, Any], without_evaluation: int | None = None
    ) -> None:
        """Gives a run other settings, under which what it recorded holds.

        `without_evaluation` is a round that would not be evaluated with them; if it is the last one, it never was.
        """
        files = RunFiles.open(folder)
        recorder = cls(files, (), 0)
        recorder._acquire()
        try:
            committed = read_state(folder)
            contents = {CONFIG_FILE: config_yaml.encode(), ENVIRONMENT_FILE: json_text(environment).encode()}
            contents[MANIFEST_FILE] = files.beginning_with(contents)
            if committed is not None:
                changed = {}
                if committed.round == without_evaluation:
                    of_scores = {"rounds", "clients", "classes"}.intersection(committed.tables)
                    changed = unevaluated({table: read_table(folder, table, committed) for table in of_scores})
                states, logs = replaced_tables(changed)
                state = committed.model_copy(update={"tables": committed.tables | states})
                contents |= {STATE_FILE: state_bytes(state), **logs}
            with recorder._explaining_disk_errors():
                change_files(folder, contents)
        finally:
            recorder.release()

    def record(self, outcome: RoundOutcome, client_ids: Sequence[str]) -> None:
        """Appends a finished round. It is durable at once, or with a later one if rounds are very short.

        Rows are made of several rounds at once, which costs little more than those of one.
        """
        with deferring_interrupts(), self._explaining_disk_errors():
            outcome.snapshot.client_states.keep_in(self._client_state_log, self.client_states_ram_bytes)
            outcome.snapshot.client_states.settle()
            self._waiting.append(FinishedRound(outcome, client_ids))
            since = time.monotonic() - self._committed_at
            if self._commit_seconds <= _COMMIT_SHARE * since:
                self._append_waiting()
                self._commit()
            elif are_many(self._waiting):
                self._append_waiting()

    def catch_up(self) -> None:
        """Makes the rows of all finished rounds."""
        with deferring_interrupts(), self._explaining_disk_errors():
            self._append_waiting()

    def _append_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._append_rounds(waiting)
        except Exception:  # of one of them; those before it are worth keeping
            if len(waiting) == 1:
                raise
            for finished in waiting:
                self._append_rounds([finished])

    def _append_rounds(self, finished: Sequence[FinishedRound]) -> None:
        """Rows of these rounds, all or none of them."""
        for table, batch in rows_of_rounds(finished, self._tables.schemas):
            self._tables.append(table, batch)
        self._latest = finished[-1].snapshot

    def record_scores(self, outcome: RoundOutcome, client_ids: Sequence[str]) -> None:
        """Adds scores to the last finished round, which was recorded without any; they are durable at once."""
        self.commit()
        committed = read_state(self.folder)
        assert committed is not None, "there is a round that has no scores"
        with deferring_interrupts(), self._explaining_disk_errors():
            changed = {}
            new = {"rounds": outcome.row, "timings": {"evaluate_seconds": outcome.evaluate_seconds}}
            for name, columns in new.items():
                table = self._tables.read(name)
                last = table.slice(len(table) - 1).to_pylist()[0]
                batch = batch_of_rows(name, self._tables.schemas[name], [last | columns])
                changed[name] = pa.Table.from_batches([*table.slice(0, len(table) - 1).to_batches(), batch])
            scored = batch_of_scores(FinishedRound(outcome, client_ids), self._tables.schemas)
            clients = [*self._tables.read("clients").to_batches(), scored]
            changed["clients"] = pa.Table.from_batches(clients)
            if outcome.classes:
                of_classes = batch_of_classes(FinishedRound(outcome, client_ids), self._tables.schemas)
                classes = [*self._tables.read("classes").to_batches(), of_classes]
                changed["classes"] = pa.Table.from_batches(classes)
            states, logs = replaced_tables(changed)
            state = committed.model_copy(update={"tables": committed.tables | states, "best": self._best})
            change_files(self.folder, {STATE_FILE: state_bytes(state), **logs})
            self._tables.replaced(states)
            self._remove_old_best()

    @property
    def best_round(self) -> int | None:
        """The round of the best model so far, if it is kept."""
        return None if self._best is None else self._best.round

    def keep_best(self, model: Tensors, round: int) -> None:
        """Keeps a model as the best so far. It counts from the next commit on."""
        content = safetensors.torch.save({name: t.contiguous().clone() for name, t in model.items()})
        with deferring_interrupts(), self._explaining_disk_errors():
            path = self._checkpoint / f"best-{round}.safetensors"
            write_bytes(path, content)
            self._best = BestModelState(file=path.name, round=round, bytes=len(content), crc32=zlib.crc32(content))

    def complete_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the table of rounds with all columns; what it does not mention is None."""
        return {name: row.get(name) for name in self._tables.schemas["rounds"].names}

    def commit(self) -> None:
        """Makes sure that the last finished round is on disk."""
        with deferring_interrupts(), self._explaining_disk_errors():
            self._append_waiting()
            if self._latest is not None and self._committed_round != self._latest.round:
                self._commit()

    def close(self, summary: dict[str, Any], predictions: pa.Table | None = None) -> None:
        """Commits the last finished round, writes the tables as Parquet, the summary, and last of all the manifest."""
        self.commit()
        with deferring_interrupts(), self._explaining_disk_errors():
            for table in self._tables.schemas:
                self._files.write(f"{table}.parquet", parquet_bytes(self._tables.read(table)))
            if predictions is not None:
                self._files.write(PREDICTIONS_FILE, parquet_bytes(predictions))
            self._files.write(SUMMARY_FILE, json_text(summary).encode())
            if self._committed_round is not None:
                self._files.include(STATE_FILE, state_path(self.folder).read_bytes())
            self._files.write_manifest()

    def read_tables(self) -> dict[str, pa.Table]:
        """The tables so far, including rounds that are not committed yet."""
        self.catch_up()
        return {table: self._tables.read(table) for table in self._tables.schemas}

    def feedback(self) -> Iterator[tuple[int, Feedback]]:
        """What the selector was told after every committed round."""
        self.catch_up()
        if self._latest is None:
            return
        jobs = JobTable.from_table(self._tables.read("jobs"))
        seconds = jobs.end_seconds - jobs.begin_seconds
        held = np.where(np.isfinite(jobs.downloaded_seconds), jobs.start_version, -1)
        columns: tuple[Any, ...] = (jobs.index, jobs.used, jobs.loss, seconds, jobs.samples, held)
        bounds = np.searchsorted(jobs.round, np.arange(1, self._latest.round + 2))
        for round, (begin, end) in enumerate(itertools.pairwise(bounds.tolist()), start=1):
            yield round, Feedback(*(column[begin:end] for column in columns))

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

    def _go_back_to_commit(self, fresh: Groups | None) -> Snapshot | None:
        committed = read_state(self.folder)
        self._committed_round = None if committed is None else committed.round
        with self._explaining_disk_errors():
            if committed is None:
                self._files.reopen()
                self._remove_old("client_states-*")
                self._remove_old_best()
                self._remove_temporary_files()
                self._tables.begin()
                return None
            self._client_state_log = open_client_states(self.folder, committed)
            states = ClientStates()
            states.keep_in(self._client_state_log, self.client_states_ram_bytes)
            snapshot = read_snapshot(self.folder, committed, states)
            if fresh is not None:
                check_fits(self._checkpoint / committed.tensors.file, snapshot.state, fresh)
            for table, schema in self._tables.schemas.items():
                if table not in committed.tables or read_table(self.folder, table, committed).schema != schema:
                    raise BadInputError(
                        f"The run {self.folder} was begun by another version of FedArena, whose table of {table} has "
                        "other columns; it can be read, but not go on"
                    )
            if committed.best is not None:
                read_best(self.folder, committed.best)
            # Nothing is changed before everything is found to be as it should.
            self._files.reopen()
            self._tables.go_back_to(committed.tables)
            self._client_state_log.cut()
            self._remove_old_states()
            self._best = committed.best
            self._remove_old_best()
            self._remove_temporary_files()
        self._latest = snapshot
        return snapshot

    def _remove_temporary_files(self) -> None:
        """Removes what a killed process was about to rename; whoever holds the run's lock is the only writer."""
        names = (MANIFEST_FILE, SUMMARY_FILE, PREDICTIONS_FILE, *(f"{table}.parquet" for table in TABLES))
        for left_over in [
            *self._checkpoint.glob(".*.tmp"),
            *(path for name in names for path in self.folder.glob(f".{name}.*.tmp")),
        ]:
            left_over.unlink()

    def _commit(self) -> None:
        assert self._latest is not None
        began = time.monotonic()
        self._tables.sync()
        if self._client_state_log.is_mostly_outdated:
            path = client_state_log_path(self.folder, self._latest.round)
            self._client_state_log = self._latest.client_states.compact_log(path)
        self._client_state_log.sync()
        groups, clock = snapshot_groups(self._latest), self._latest.clock
        tensors = safetensors.torch.save(named_tensors(groups))
        file_name = f"round-{self._latest.round}.safetensors"
        with replacing(self._checkpoint / file_name) as temporary:
            temporary.write_bytes(tensors)
        log_file, log_end = self._client_state_log.path.name, self._client_state_log.settled
        state = CommitState(
            format=FORMAT,
            run_id=self._files.run_id,
            round=self._latest.round,
            transforms=len(self._latest.transform_states),
            clock=ClockState(time=clock.time, version=clock.version, next_job=clock.next_job),
            tensors=TensorState(
                file=file_name,
                bytes=len(tensors),
                crc32=zlib.crc32(tensors),
                groups=list(groups),
                keys=list(flatten_groups(groups)),
            ),
            client_states=ClientStateLogState(file=log_file, bytes=log_end.bytes, crc32=log_end.crc32),
            tables=self._tables.states,
            best=self._best,
        )
        write_bytes(state_path(self.folder), state_bytes(state))
        self._remove_old("round-*.safetensors", file_name)
        self._remove_old_states()
        self._remove_old_best()
        self._committed_round = self._latest.round
        self._committed_at = time.monotonic()
        self._commit_seconds = self._committed_at - began

    def _remove_old(self, pattern: str, *kept: str) -> None:
        for old in self._checkpoint.glob(pattern):
            if old.name not in kept:
                old.unlink()

    def _remove_old_states(self) -> None:
        """Removes logs of clients' states that were written anew, and parts that no longer count or never did."""
        self._remove_old("client_states-*", self._client_state_log.path.name, *self._client_state_log.part_files)

    def _remove_old_best(self) -> None:
        self._remove_old("best-*.safetensors", *([self._best.file] if self._best else []))

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
