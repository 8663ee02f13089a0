"""The tables of a run that goes on: append-only Arrow streams, of which a commit says how many bytes count."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from fedarena.storage.checkpoint import TableState, parse_table, table_log_path

_MOST_MADE_BYTES = 1 << 24  # of rows of a table that are made, but not written


class GrowingTables:
    """Tables to which rows are added. They are written when somebody reads them, or wants them to be durable."""

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]):
        self._folder, self.schemas = folder, schemas
        self.states = {table: TableState(bytes=0, crc32=0) for table in schemas}
        self._made: dict[str, list[bytes]] = {table: [] for table in schemas}  # rows that are not written yet
        self._written = dict.fromkeys(schemas, 0)  # bytes that are

    def begin(self) -> None:
        """Makes tables without rows."""
        for table, schema in self.schemas.items():
            header = schema.serialize().to_pybytes()
            table_log_path(self._folder, table).write_bytes(header)
            self.states[table] = TableState(bytes=len(header), crc32=zlib.crc32(header))
            self._written[table] = len(header)

    def go_back_to(self, states: Mapping[str, TableState]) -> None:
        """Forgets rows that do not count."""
        for table in self.schemas:
            with open(table_log_path(self._folder, table), "rb+") as file:
                file.truncate(states[table].bytes)
        self.states = dict(states)
        self.replaced({table: states[table] for table in self.schemas})

    def replaced(self, states: Mapping[str, TableState]) -> None:
        """Somebody has written these tables anew."""
        self.states |= states
        for table, state in states.items():
            self._made[table], self._written[table] = [], state.bytes

    def append(self, table: str, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        data, before = batch.serialize().to_pybytes(), self.states[table]
        self._made[table].append(data)
        self.states[table] = TableState(bytes=before.bytes + len(data), crc32=zlib.crc32(data, before.crc32))
        if self.states[table].bytes - self._written[table] > _MOST_MADE_BYTES:
            self._write(table)

    def sync(self) -> None:
        """Makes all rows durable."""
        for table in self.schemas:
            self._write(table, durably=True)

    def read(self, table: str) -> pa.Table:
        """All rows of a table."""
        self._write(table)
        with open(table_log_path(self._folder, table), "rb") as file:
            return parse_table(file.read(self.states[table].bytes))

    def _write(self, table: str, durably: bool = False) -> None:
        if not self._made[table] and not durably:
            return
        with open(table_log_path(self._folder, table), "rb+") as file:
            file.seek(self._written[table])  # a failed write may have left a piece behind
            file.write(b"".join(self._made[table]))
            file.truncate()
            if durably:
                file.flush()
                os.fsync(file.fileno())
        self._made[table], self._written[table] = [], self.states[table].bytes
