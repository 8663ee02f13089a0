"""The federation store: samples of many clients on disk, opened in constant time, gathered by client.

A store is a folder. ``samples.arrow`` has one row per sample, sorted by client and, within a client, by part
(train, validation, test). ``clients.arrow`` has one row per client, which says where its samples start and
how many each part has. Beside each lies a file with the checksums of its blocks. ``federation.json`` describes both and
is written last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import reading
from fedarena.core.registry import nearest
from fedarena.core.words import counted
from fedarena.data.store.block_checksums import checksums_of, checksums_path
from fedarena.data.store.pictures import StoredPictures
from fedarena.data.store.schema import (
    FORMAT,
    FORMAT_VERSION,
    GROUPS,
    PARTS,
    AnyArray,
    ColumnSpec,
    Group,
    IntArray,
    Manifest,
    Part,
    SourceSpec,
    TaskSpec,
)
from fedarena.data.store.stretches import rows_of
from fedarena.data.store.table import STRING, Column, TableReader

MANIFEST_NAME = "federation.json"
SAMPLES_NAME = "samples.arrow"
CLIENTS_NAME = "clients.arrow"

# Attributes are stored under this prefix, so that none can collide with the columns every client has.
ATTRIBUTE_PREFIX = "attribute:"
_KEPT_CLIENTS = 1 << 14  # of whom all that is known but samples stays in memory: reading it takes as long as a round


def client_columns(attributes: dict[str, Any]) -> dict[str, Column]:
    """The columns of ``clients.arrow`` for a federation with these attributes."""
    columns: dict[str, Column] = {
        "id": STRING,
        "start": ColumnSpec(dtype="int64"),
        **{part: ColumnSpec(dtype="int64") for part in PARTS},
        "group": ColumnSpec(dtype="int8"),
    }
    for name, kind in attributes.items():
        columns[ATTRIBUTE_PREFIX + name] = STRING if kind == "string" else ColumnSpec(dtype=kind)
    return columns


@dataclass(frozen=True)
class ClientSamples:
    """Samples of some clients, one after the other: client i has the rows ``offsets[i]:offsets[i + 1]``."""

    columns: dict[str, AnyArray]
    offsets: IntArray


@dataclass(frozen=True)
class EncodedSamples:
    """The files of some clients' samples: client i has those at ``offsets[i]:offsets[i + 1]``."""

    files: list[bytes]
    offsets: IntArray


class Federation:
    """A dataset split into clients, read from a store on disk.

    Clients are numbered from 0. Each belongs to a *group* (train, validation or test clients), and each of
    its samples to a *part*. Training uses part ``train`` of group ``train``; testing uses part ``test`` of
    all clients.
    """

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        self.fingerprint: str = manifest.fingerprint
        self.content_fingerprint: str = manifest.content_fingerprint  # the same if samples were built again
        self._clients_by_group: dict[str, IntArray] = {}
        self._ids: list[str] | None = None  # of all clients, if they are few
        self._kept_numbers: dict[str, IntArray] = {}  # of the clients' columns, likewise
        self._samples = TableReader(path / SAMPLES_NAME, dict(manifest.columns), manifest.files[SAMPLES_NAME])
        self._clients = TableReader(
            path / CLIENTS_NAME, client_columns(dict(manifest.attributes)), manifest.files[CLIENTS_NAME]
        )
        self._pictures = StoredPictures(self._samples, self._clients, self.name, self.fingerprint)

    @classmethod
    def open(cls, path: Path | str) -> Federation:
        """Opens the store in the folder `path` without reading its samples."""
        folder = Path(path)
        return cls(folder, _read_manifest(folder))

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.manifest.name

    @property
    def task(self) -> TaskSpec:
        """What is to be learned from the samples."""
        return self.manifest.task

    @property
    def source(self) -> SourceSpec:
        """Where the samples come from."""
        return self.manifest.source

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the samples before they were stored, in sentences."""
        return self.manifest.notes

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """The type and shape of every column."""
        return dict(self.manifest.columns)

    @property
    def num_clients(self) -> int:
        """How many clients there are, of all groups."""
        return self._clients.rows

    @property
    def num_samples(self) -> int:
        """How many samples there are, of all clients and parts."""
        return self._samples.rows

    @property
    def label_counts(self) -> IntArray:
        """How often each label occurs in the training samples (part train of group train)."""
        return np.array(self.manifest.label_counts, dtype=np.int64)

    @property
    def memory_bytes(self) -> int | None:
        """What all samples would take in memory; None if they are decoded when they are read."""
        columns = self.manifest.columns.values()
        if any(spec.encoding is not None for spec in columns):
            return None
        return self.num_samples * sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in columns)

    def clients(self, group: Group | Literal["all"] = "all") -> IntArray:
        """The indexes of the clients of a group, ascending."""
        if group not in self._clients_by_group:
            if group == "all":
                indexes = np.arange(self.num_clients, dtype=np.int64)
            else:
                code = GROUPS.index(_known("group", group, GROUPS))
                indexes = np.flatnonzero(self._clients.take("group", self.clients("all")) == code)
            indexes.flags.writeable = False
            self._clients_by_group[group] = indexes
        return self._clients_by_group[group]

    def counts(self, clients: Sequence[int] | IntArray, part: Part | Literal["all"] = "all") -> IntArray:
        """How many samples each of `clients` has in a part."""
        return self._locate(clients, part)[1]

    def samples(
        self,
        clients: Sequence[int] | IntArray,
        part: Part | Literal["all"] = "all",
        columns: Sequence[str] | None = None,
    ) -> ClientSamples:
        """The samples of `clients`, in their order; a client may be asked for more than once.

        Encoded columns are decoded, by several threads.
        """
        for column in columns or ():
            _known("column", column, self.manifest.columns)
        starts, counts = self._locate(clients, part)
        sample_rows = rows_of(starts, counts)
        names = self.manifest.columns if columns is None else columns
        return ClientSamples({name: self._take(name, sample_rows) for name in names}, _offsets(counts))

    def encoded(
        self, clients: Sequence[int] | IntArray, part: Part | Literal["all"] = "all", column: str = "x"
    ) -> EncodedSamples:
        """The samples of `clients` in an encoded column as the files they were, without decoding them."""
        if self.manifest.columns[_known("column", column, self.manifest.columns)].encoding is None:
            raise BadInputError(f"Column {column!r} of {self.name} is not encoded: it holds numbers, not files.")
        starts, counts = self._locate(clients, part)
        views = self._samples.take_encoded(column, rows_of(starts, counts))
        return EncodedSamples([bytes(view) for view in views], _offsets(counts))

    def samples_at(
        self, clients: Sequence[int] | IntArray, positions: IntArray, part: Part | Literal["all"] = "all"
    ) -> dict[str, AnyArray]:
        """Single samples: of each client, which may occur often, the one at its position (from 0) in the part."""
        starts, counts = self._locate(clients, part)
        if ((positions < 0) | (positions >= counts)).any():
            raise BadInputError(f"A sample was asked for that a client of {self.name} does not have.")
        return {name: self._take(name, starts + positions) for name in self.manifest.columns}

    def client_ids(self, clients: Sequence[int] | IntArray) -> list[str]:
        """The ids the clients have in the original data."""
        rows = self._client_rows(clients)
        if self.num_clients > _KEPT_CLIENTS:
            return self._clients.take_strings("id", rows)
        if self._ids is None:
            self._ids = self._clients.take_strings("id", self.clients("all"))
        return [self._ids[row] for row in rows.tolist()]

    def attributes(self, clients: Sequence[int] | IntArray) -> dict[str, AnyArray | list[str]]:
        """What else is known about the clients, such as the play of a role or the subreddit of an author."""
        rows = self._client_rows(clients)
        return {
            name: self._clients.take_strings(ATTRIBUTE_PREFIX + name, rows)
            if kind == "string"
            else self._clients.take(ATTRIBUTE_PREFIX + name, rows)
            for name, kind in self.manifest.attributes.items()
        }

    def verify(self) -> None:
        """Reads every byte and decodes every picture; raises `DamagedFileError` where one is not what was written."""
        self.verify_bytes()
        self._pictures.check()

    def verify_bytes(self) -> None:
        """The same without decoding pictures.

        A store from before blocks had checksums gets some, if its folder can be written to.
        """
        _read_manifest(self.path)
        for name, spec in self.manifest.files.items():
            file = self.path / name
            if not file.is_file():
                raise DamagedFileError(f"{file} is missing.")
            with reading(file):
                found = checksums_of(file)
            if found.crc32 != spec.crc32:
                if name == SAMPLES_NAME:
                    self._pictures.check()  # which says whose picture is damaged, if it is one
                raise DamagedFileError(f"{file} is damaged: its checksum is not the one of what was written.")
            if not checksums_path(file).exists():
                with suppress(OSError):
                    found.write(file)

    def _take(self, column: str, rows: IntArray) -> AnyArray:
        """The values of a column of samples at `rows`, decoded if they have to be."""
        if self.manifest.columns[column].encoding is None:
            return self._samples.take(column, rows)
        return self._pictures.take(column, rows)

    def _locate(self, clients: Sequence[int] | IntArray, part: str) -> tuple[IntArray, IntArray]:
        """Where a part of each client starts in the samples, and how many there are."""
        rows = self._client_rows(clients)
        first, last = (0, len(PARTS)) if part == "all" else _span(_known("part", part, PARTS))
        starts = self._numbers("start", rows)
        for earlier in PARTS[:first]:
            starts += self._numbers(earlier, rows)
        counts = np.zeros(len(rows), dtype=np.int64)
        for wanted in PARTS[first:last]:
            counts += self._numbers(wanted, rows)
        if (starts < 0).any() or (counts < 0).any() or (starts > self.num_samples - counts).any():
            raise DamagedFileError(f"{self._clients.path} is damaged: it points to samples that do not exist.")
        return starts, counts

    def _numbers(self, column: str, rows: IntArray) -> IntArray:
        """A column of the clients at `rows`, as an array of its own."""
        if self.num_clients > _KEPT_CLIENTS:
            return self._clients.take(column, rows)
        if column not in self._kept_numbers:
            self._kept_numbers[column] = self._clients.take(column, self.clients("all"))
        return self._kept_numbers[column][rows]

    def _client_rows(self, clients: Sequence[int] | IntArray) -> IntArray:
        rows = np.asarray(clients, dtype=np.int64)
        if rows.ndim != 1:
            raise BadInputError(f"Clients are a list of indexes, not an array of {rows.ndim} dimensions.")
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.num_clients:
            wrong = int(rows[(rows < 0) | (rows >= self.num_clients)][0])
            raise BadInputError(f"There is no client {wrong} in {self.name}; valid: 0 to {self.num_clients - 1}.")
        return rows

    def __repr__(self) -> str:
        return f"<Federation {self.name}: {counted(self.num_clients, 'client')}, {counted(self.num_samples, 'sample')}>"


def _offsets(counts: IntArray) -> IntArray:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _span(part: Part) -> tuple[int, int]:
    position = PARTS.index(part)
    return position, position + 1


def _known(kind: str, name: str, names: Any) -> Any:
    if name not in names:
        raise BadInputError(f"There is no {kind} called {name!r}; {nearest(name, names)}")
    return name


def _read_manifest(folder: Path) -> Manifest:
    """The checked manifest of the store in `folder`."""
    path = folder / MANIFEST_NAME
    if folder.is_file():
        raise BadInputError(
            f"{folder} is a file, and a federation is a folder; fedarena data import makes one of a table "
            "(fedarena.from_table in Python), import-text and import-images of texts and pictures"
        )
    if not folder.is_dir():
        raise BadInputError(f"There is no federation at {folder}: a store is a folder with a {MANIFEST_NAME}.")
    try:
        with reading(path):
            content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if (folder / SAMPLES_NAME).exists() or (folder / CLIENTS_NAME).exists():
            raise DamagedFileError(f"{path} is missing, so the store in {folder} is incomplete.") from None
        raise BadInputError(f"{folder} is not a federation: it has no {MANIFEST_NAME}.") from None
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not valid JSON: {error}.") from error
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadInputError(f"{path} does not describe a federation: its format is not {FORMAT!r}.")
    if content.get("version") != FORMAT_VERSION:
        raise BadInputError(
            f"{path} has format version {content.get('version')!r}; only {FORMAT_VERSION} can be read here."
        )
    fingerprint = content.pop("fingerprint", None)
    try:
        manifest = Manifest.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(key) for key in first["loc"])
        raise DamagedFileError(f"{path} is damaged at {where!r}: {first['msg']}.") from error
    if set(manifest.files) != {SAMPLES_NAME, CLIENTS_NAME}:
        raise DamagedFileError(f"{path} must list the files {SAMPLES_NAME} and {CLIENTS_NAME}.")
    if manifest.fingerprint != fingerprint:
        raise DamagedFileError(f"{path} was changed after it was written: its fingerprint does not match.")
    return manifest
