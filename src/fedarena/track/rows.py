"""Rows of a run's tables after those already read, while the run goes on and after it.

Only what the run committed is read, and of a table that is still growing only the new bytes, so that following a run
costs what is new.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading
from fedarena.storage.checkpoint import TableState, read_state, table_log_path
from fedarena.storage.run_files import SUMMARY_FILE, RunFiles, read_parquet

_PREFIX_BYTES = 8  # of a message in an Arrow stream: a mark, and the length of what follows


class RowReader:
    """Reads the tables of one run piece by piece; every call gives the rows that were committed since the last."""

    def __init__(self, folder: Path, tables: Sequence[str], after: int = -1):
        """Rows of rounds up to `after` are left out."""
        self.folder, self.last_round = folder, after
        self._tails = {table: _Tail(table_log_path(folder, table)) for table in tables}
        self._run_id: str | None = None

    def read(self) -> dict[str, pa.Table]:
        """New rows of every table; none at all where nothing was committed since."""
        files = RunFiles.open(self.folder)
        if self._run_id is not None and files.run_id != self._run_id:
            raise DamagedFileError(f"{self.folder} is another run than before")
        self._run_id = files.run_id
        try:
            found = self._read(files)
        except DamagedFileError:
            now = RunFiles.open(self.folder)
            if now == files:
                raise
            found = self._read(now)  # a process has begun or ended to write the run meanwhile
        last = max((pc.max(table["round"]).as_py() for table in found.values() if len(table)), default=-1)
        fresh = {name: table.filter(pc.greater(table["round"], self.last_round)) for name, table in found.items()}
        self.last_round = max(self.last_round, last)
        return fresh

    def _read(self, files: RunFiles) -> dict[str, pa.Table]:
        return self._read_finished(files) if _has_finished(files) else self._read_growing()

    def _read_growing(self) -> dict[str, pa.Table]:
        state = read_state(self.folder)
        if state is None:
            return {}
        tails = {table: copy.copy(tail) for table, tail in self._tails.items() if table in state.tables}
        found = {table: tail.read(state.tables[table]) for table, tail in tails.items()}
        self._tails |= tails  # only if all could be read
        return found

    def _read_finished(self, files: RunFiles) -> dict[str, pa.Table]:
        names = {table: f"{table}.parquet" for table in self._tails}
        return {table: read_parquet(files, name) for table, name in names.items() if name in files}


class _Tail:
    """A growing table, of which every byte is read once."""

    def __init__(self, path: Path):
        self._path = path
        self._header = b""  # the schema, with which every stream of rows begins
        self._read_bytes = self._crc32 = 0

    def read(self, committed: TableState) -> pa.Table:
        with reading(self._path), open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            data = file.read(max(0, committed.bytes - self._read_bytes))
        crc32 = zlib.crc32(data, self._crc32)
        if self._read_bytes + len(data) != committed.bytes or crc32 != committed.crc32:
            raise DamagedFileError(f"The checkpoint {self._path} is damaged: its content does not match its checksum")
        if not self._header:
            length = _PREFIX_BYTES + int.from_bytes(data[4:_PREFIX_BYTES], "little")
            self._header, data = data[:length], data[length:]
        self._read_bytes, self._crc32 = committed.bytes, crc32
        return pa.ipc.open_stream(self._header + data).read_all()


def _has_finished(files: RunFiles) -> bool:
    return read_summary(files).get("status") == "finished"


def read_summary(files: RunFiles) -> dict[str, Any]:
    """What a run says about its end; nothing while it goes on or where it was killed."""
    if not files.is_closed:
        return {}
    try:
        summary = json.loads(files.read(SUMMARY_FILE))
    except ValueError as error:
        raise DamagedFileError(f"{files.folder / SUMMARY_FILE} cannot be read: {error}") from None
    return summary if isinstance(summary, dict) else {}
