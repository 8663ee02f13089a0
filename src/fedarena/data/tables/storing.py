"""Where the store of a table goes: a folder that somebody names, or the cache; the same is not written twice."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import as_file_name
from fedarena.data.registry import cache_folder
from fedarena.data.store.federation import MANIFEST_NAME, Federation
from fedarena.data.store.schema import SourceSpec
from fedarena.data.store.writer import FederationWriter, StoreExistsError
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

    if path is None:
        key = json.dumps([name, source.model_dump(mode="json")], sort_keys=True)
        digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        folder = cache_folder() / f"{SOURCE_NAME}-{as_file_name(name)}-{digest}"
        if not folder.exists():
            with suppress(StoreExistsError):  # somebody else wrote the same at the same time
                write(folder)
        try:
            return Federation.open(folder)
        except DamagedFileError as error:
            raise DamagedFileError(f"{error} Remove the folder {folder} to have it built again.") from error
    folder = Path(path).expanduser()
    if not folder.exists():
        write(folder)
    elif not (folder / MANIFEST_NAME).is_file():
        raise StoreExistsError(f"{folder} exists and is no federation; choose another folder.")
    elif not _holds(folder, name, source):
        if not overwrite:
            raise StoreExistsError(f"{folder} holds another federation; choose another folder, or overwrite it.")
        _replace(folder, write)
    return Federation.open(folder)


def _holds(folder: Path, name: str, source: SourceSpec) -> bool:
    """Whether a store is the one to be written."""
    try:
        found = Federation.open(folder)
    except BadInputError:
        return False
    return found.name == name and found.source == source


def _replace(folder: Path, write: Callable[[Path], None]) -> None:
    """Puts a new store in the place of another, which is kept until the new one is complete."""
    beside, former = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.{what}") for what in ("new", "old"))
    try:
        write(beside)
        folder.rename(former)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


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
