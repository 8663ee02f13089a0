"""A table that is understood, as a store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedarena.data.own.stores import StorePlace, open_or_write
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import SourceSpec
from fedarena.data.store.writer import FederationWriter
from fedarena.data.tables.options import TableOptions
from fedarena.data.tables.understanding import UnderstoodTable

SOURCE_NAME, SOURCE_VERSION = "table", 1
_PIECE_BYTES = 1 << 24


def store_table(
    table: UnderstoodTable,
    options: TableOptions,
    name: str,
    path: Path | str | None,
    overwrite: bool,
    progress: Callable[[float], None],
) -> Federation:
    """Writes a table, unless it is there already, and opens it."""
    content = _digest(table, name, lambda done: progress(0.4 * done))
    source = SourceSpec(name=SOURCE_NAME, version=SOURCE_VERSION, options={**options.to_json(), "content": content})

    def write(folder: Path) -> None:
        _write(table, name, source, folder, lambda done: progress(0.4 + 0.6 * done))

    return open_or_write(name, source, StorePlace(path, overwrite), write)


def _write(
    table: UnderstoodTable, name: str, source: SourceSpec, folder: Path, progress: Callable[[float], None]
) -> None:
    clients, inputs, labels = table.clients, table.inputs, table.labels
    with FederationWriter(
        folder,
        name=name,
        task=labels.task(clients.training_rows(), inputs.inputs),
        columns={**inputs.columns, "y": labels.spec},
        source=source,
        attributes={attribute: kind for attribute, (kind, _) in table.attributes.items()},
        notes=table.notes,
    ) as writer:
        write_samples(table, writer, progress)


def write_samples(table: UnderstoodTable, writer: FederationWriter, progress: Callable[[float], None]) -> None:
    """All clients of a table with their samples."""
    clients, inputs, labels = table.clients, table.inputs, table.labels
    for some, rows in clients.pieces(max(_PIECE_BYTES // inputs.bytes_per_sample, 1)):
        writer.add_clients(
            clients.ids[some],
            counts=clients.counts[some],
            columns={**inputs.take(rows), "y": labels.y[rows]},
            groups=clients.groups[some],
            attributes={attribute: values[some] for attribute, (_, values) in table.attributes.items()},
        )
        progress(some.stop / len(clients.ids))


def _digest(table: UnderstoodTable, name: str, progress: Callable[[float], None]) -> str:
    """A hash of all samples, whose they are, and what they are called."""
    clients, inputs, labels = table.clients, table.inputs, table.labels
    names = [spec.names for spec in inputs.columns.values()]
    facts = [name, clients.ids, clients.groups, names, labels.kind, labels.names, table.attributes, table.notes]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(clients.counts).tobytes())
    rows_at_once = max(_PIECE_BYTES // inputs.bytes_per_sample, 1)
    for start in range(0, len(clients.rows), rows_at_once):
        rows = clients.rows[start : start + rows_at_once]
        for values in (*inputs.take(rows).values(), labels.y[rows]):
            digest.update(np.ascontiguousarray(values).tobytes())
        progress(start / len(clients.rows))
    return digest.hexdigest()
