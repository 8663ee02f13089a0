"""Writing a federation store as a stream of clients, so that it appears complete or not at all."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import numpy as np

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import write_json
from fedarena.core.folders import FolderExistsError, NewFolder
from fedarena.data.raw.images import need_pillow
from fedarena.data.store.encoding import EncodedRows, check_encoded
from fedarena.data.store.federation import ATTRIBUTE_PREFIX, CLIENTS_NAME, MANIFEST_NAME, SAMPLES_NAME, client_columns
from fedarena.data.store.labels import count_labels
from fedarena.data.store.schema import (
    FORMAT_VERSION,
    GROUPS,
    PARTS,
    UNLABELLED,
    AnyArray,
    AttributeType,
    ColumnSpec,
    FileSpec,
    Group,
    IntArray,
    Manifest,
    SourceSpec,
    TaskSpec,
)
from fedarena.data.store.table import TableReader, TableWriter

BATCH_BYTES = 1 << 24
CLIENTS_PER_BATCH = 1 << 16
_LEAST_BYTES_OF_A_FILE = 1 << 12  # as batches are planned: pictures of a few pixels are small, their files are not
# The samples of a column: an array, or the files of an encoded column.
Values = AnyArray | Sequence[bytes]
_NO_SAMPLES: Mapping[str, Any] = {}


class StoreExistsError(BadInputError):
    """There already is something under the name the store was to get."""


class FederationWriter:
    """Writes a store; use it as a context manager.

    Clients go to a temporary folder beside `path`. When the block ends, everything is made durable and the
    folder gets its name; when the block raises, the temporary folder is removed. Memory does not grow with
    the number of samples.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "tiny"
    >>> task = TaskSpec(kind="classification", classes=3)
    >>> columns = {"x": ColumnSpec(dtype="float32", shape=(2,)), "y": ColumnSpec(dtype="int64")}
    >>> with FederationWriter(folder, name="tiny", task=task, columns=columns) as writer:
    ...     writer.add_client("ann", train={"x": np.zeros((4, 2), np.float32), "y": np.array([0, 1, 2, 2])})

    The samples of an encoded column are a list with the `bytes` of each file, or `EncodedRows`, which know their names.
    Each file is looked at: one that is not complete, or of another kind or size, is refused.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        name: str,
        task: TaskSpec,
        columns: Mapping[str, ColumnSpec],
        source: SourceSpec | None = None,
        attributes: Mapping[str, AttributeType] | None = None,
        notes: Sequence[str] = (),
        rows_per_batch: int | None = None,
        clients_per_batch: int = CLIENTS_PER_BATCH,
    ):
        self.path = Path(path)
        self._name = name
        self._task = task
        self._columns = dict(columns)
        self._source = source or SourceSpec(name="custom")
        self._attributes = dict(attributes or {})
        self._notes = tuple(notes)
        task.check_columns(self._columns)
        if any(column.encoding for column in self._columns.values()):
            need_pillow(name)
        for attribute, kind in self._attributes.items():
            if kind not in get_args(AttributeType):
                raise BadInputError(
                    f"Attribute {attribute!r} cannot be of type {kind!r}; valid: {', '.join(get_args(AttributeType))}."
                )
        if self.path.exists():
            raise StoreExistsError(f"{self.path} already exists; remove it or choose another folder.")

        # Which samples and clients went where: [group, part] and [group].
        self._sample_counts = np.zeros((len(GROUPS), len(PARTS)), dtype=np.int64)
        self._client_counts = np.zeros(len(GROUPS), dtype=np.int64)
        self._label_counts = np.zeros(task.bins, dtype=np.int64)
        # Eight bytes per client instead of its id: what looks like a duplicate is confirmed from the written
        # file.
        self._id_hashes = array("q")
        self._failed = False

        self._folder: NewFolder | None = None
        bytes_per_row = sum(
            max(column.bytes_per_sample, _LEAST_BYTES_OF_A_FILE) if column.encoding else column.bytes_per_sample
            for column in self._columns.values()
        )
        with self._reporting_failure():
            self._folder = NewFolder(self.path)
            self._temporary = self._folder.temporary
            self._samples = TableWriter(
                self._temporary / SAMPLES_NAME, self._columns, rows_per_batch or max(BATCH_BYTES // bytes_per_row, 1)
            )
            self._clients = TableWriter(
                self._temporary / CLIENTS_NAME, client_columns(self._attributes), clients_per_batch
            )

    def add_client(
        self,
        id: str,
        *,
        train: Mapping[str, Values] = _NO_SAMPLES,
        validation: Mapping[str, Values] = _NO_SAMPLES,
        test: Mapping[str, Values] = _NO_SAMPLES,
        group: Group = "train",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds one client. A part is a dictionary with one array (or list of files) per column, or empty."""
        parts = {"train": train, "validation": validation, "test": test}
        pieces: dict[str, list[Values]] = {name: [] for name in self._columns}
        counts = np.zeros((1, len(PARTS)), dtype=np.int64)
        for position, (part, values) in enumerate(parts.items()):
            if values:
                where = f"part {part!r} of client {id!r}"
                counts[0, position] = self._check_columns(values, where)
                for name in self._columns:
                    pieces[name].append(values[name])
        joined = {name: _joined(spec, pieces[name]) for name, spec in self._columns.items()}
        self.add_clients(
            [id],
            counts=counts,
            columns=joined,
            groups=group,
            attributes={name: [value] for name, value in (attributes or {}).items()},
        )

    def add_clients(
        self,
        ids: Sequence[str],
        *,
        counts: IntArray,
        columns: Mapping[str, Values],
        groups: Group | Sequence[Group] = "train",
        attributes: Mapping[str, Sequence[Any] | AnyArray] | None = None,
    ) -> None:
        """Adds many clients at once.

        `counts` has a row per client with its numbers of train, validation and test samples; `columns` has
        the samples of all these clients in that order.
        """
        counts = np.asarray(counts, dtype=np.int64)
        if counts.shape != (len(ids), len(PARTS)) or (counts < 0).any():
            raise BadInputError(
                f"counts must have a row of {len(PARTS)} numbers >= 0 for each of {len(ids)} clients; "
                f"its shape is {list(counts.shape)} and its smallest number {counts.min(initial=0)}."
            )
        where = f"client {ids[0]!r}" if len(ids) == 1 else f"these {len(ids)} clients"
        rows = self._check_columns(columns, where)
        if rows != counts.sum():
            raise BadInputError(f"counts add up to {counts.sum()} samples, but the columns have {rows}.")
        group_codes = _group_codes(groups, len(ids))
        attribute_values = self._check_attributes(attributes or {}, len(ids), where)
        _check_strings(ids, "A client id")
        self._check_finite(columns, ids, counts)
        self._check_files(columns, ids, counts)
        if self._task.tokens is not None:
            _check_codes(np.asarray(columns["x"]), self._task.tokens, "x", "tokens")
        for name, values in (self._task.inputs or {}).items():
            if values is not None:
                _check_codes(np.asarray(columns[name]), values, name, "codes")
        self._count_labels(np.asarray(columns[self._task.label_column]), counts, group_codes)

        totals = counts.sum(axis=1)
        client_values: dict[str, Any] = {
            "id": ids,
            "start": self._samples.rows + np.cumsum(totals) - totals,
            **{part: counts[:, position] for position, part in enumerate(PARTS)},
            "group": group_codes,
            **{ATTRIBUTE_PREFIX + name: values for name, values in attribute_values.items()},
        }
        with self._reporting_failure():
            self._samples.append(columns, rows)
            self._clients.append(client_values, len(ids))
        np.add.at(self._sample_counts, group_codes, counts)
        self._client_counts += np.bincount(group_codes, minlength=len(GROUPS))
        self._id_hashes.extend(map(hash, ids))

    def _check_columns(self, values: Mapping[str, Values], where: str) -> int:
        """The number of samples, after a check that every column is there with the right type and shape."""
        if set(values) != set(self._columns):
            raise BadInputError(f"The columns of {where} are {_listed(values)}; they must be {_listed(self._columns)}.")
        lengths = {}
        for name, spec in self._columns.items():
            if spec.encoding is not None:
                lengths[name] = _number_of_files(values[name], name, where, spec)
                continue
            if np.ma.is_masked(values[name]):
                raise BadInputError(
                    f"Column {name!r} of {where} has masked values, which are missing; fill them in, or leave their "
                    "samples out."
                )
            found = np.asarray(values[name])
            if found.dtype != np.dtype(spec.dtype) or found.ndim == 0 or found.shape[1:] != spec.shape:
                raise BadInputError(
                    f"Column {name!r} of {where} is {found.dtype} of shape {list(found.shape)}; it must be "
                    f"{spec.dtype} of shape [{', '.join(['samples', *map(str, spec.shape)])}]."
                )
            lengths[name] = len(found)
        if len(set(lengths.values())) > 1:
            raise BadInputError(f"The columns of {where} have unequal numbers of samples: {lengths}.")
        return next(iter(lengths.values()))

    def _check_finite(self, values: Mapping[str, Values], ids: Sequence[str], counts: IntArray) -> None:
        """Raises if a column holds something that no model can be trained on, and says whose it is."""
        for name, spec in self._columns.items():
            if np.dtype(spec.dtype).kind != "f":
                continue
            found = np.asarray(values[name])
            if np.isfinite(found).all():
                continue
            row, *place = (int(index) for index in np.argwhere(~np.isfinite(found))[0])
            client, sample = _whose(row, ids, counts)
            raise BadInputError(
                f"Column {name!r} of client {client!r} holds {found[row, *place]} in {sample}"
                f"{_place(spec, place)}, which is no number to learn from; what is missing must be filled in, or its "
                "sample left out, before it is stored."
            )

    def _check_files(self, values: Mapping[str, Values], ids: Sequence[str], counts: IntArray) -> None:
        """Raises if a file of an encoded column is not what the column holds, and says which one it is."""
        for name, spec in self._columns.items():
            if spec.encoding is None:
                continue
            files = values[name]
            if isinstance(files, EncodedRows) and files.checked:
                continue
            for row, content in enumerate(files):
                try:
                    check_encoded(content, spec, "It")
                except BadInputError as error:
                    client, sample = _whose(row, ids, counts)
                    where = f"Column {name!r} of client {client!r}, {sample},"
                    where = files.names[row] if isinstance(files, EncodedRows) else where
                    raise type(error)(f"{where} {str(error).removeprefix('It ')}") from None

    def _check_attributes(
        self, given: Mapping[str, Sequence[Any] | AnyArray], clients: int, where: str
    ) -> dict[str, Sequence[str] | AnyArray]:
        """The values of every attribute, after a check that there is one of the right type for every client."""
        if set(given) != set(self._attributes):
            raise BadInputError(
                f"The attributes of {where} are {_listed(given)}; they must be {_listed(self._attributes)}."
            )
        for name, values in given.items():
            if len(values) != clients:
                raise BadInputError(f"Attribute {name!r} has {len(values)} values for {clients} clients.")
        return {name: _attribute_values(name, kind, given[name]) for name, kind in self._attributes.items()}

    def _count_labels(self, labels: AnyArray, counts: IntArray, group_codes: AnyArray) -> None:
        if labels.size == 0:
            return
        if self._task.predicts_numbers:
            _check_numbers(labels, self._task)
        else:
            limit = 2 if self._task.kind == "multi_label" else self._task.classes
            present = labels[labels != UNLABELLED] if self._task.kind == "node_classification" else labels
            _check_codes(present, limit, self._task.label_column, "labels")
        is_training = np.zeros_like(counts, dtype=bool)
        is_training[group_codes == GROUPS.index("train"), PARTS.index("train")] = True
        training = labels[np.repeat(is_training.ravel(), counts.ravel())]
        self._label_counts += count_labels(self._task, training, np.array([0, len(training)]))[0]

    def __enter__(self) -> FederationWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._samples.abandon()
            self._clients.abandon()
            self._discard()

    def _finish(self) -> None:
        if self._failed:
            raise RunFailedError(f"The federation {self.path} was not written, because writing failed before.")
        if len(self._id_hashes) == 0:
            raise BadInputError(f"The federation {self.path} has no clients; add at least one.")
        with self._reporting_failure():
            files = {SAMPLES_NAME: self._samples.finish(), CLIENTS_NAME: self._clients.finish()}
            self._check_ids_differ(files[CLIENTS_NAME])
            manifest = self._manifest(files)
            content = {"fingerprint": manifest.fingerprint, **manifest.model_dump(mode="json")}
            write_json(self._temporary / MANIFEST_NAME, content)
            assert self._folder is not None
            try:
                self._folder.publish()
            except FolderExistsError as error:
                raise StoreExistsError(str(error)) from None

    def _discard(self) -> None:
        if self._folder is not None:
            self._folder.discard()

    @contextmanager
    def _reporting_failure(self) -> Iterator[None]:
        """Turns an error of the operating system, such as a full disk, into a sentence, and spoils the store."""
        try:
            yield
        except OSError as error:
            self._failed = True
            self._discard()
            raise RunFailedError(f"Cannot write the federation {self.path}: {error.strerror or error}.") from error

    def _check_ids_differ(self, clients_file: FileSpec) -> None:
        hashes = np.frombuffer(self._id_hashes, dtype=np.int64)
        order = np.argsort(hashes, kind="stable")
        same_as_next = hashes[order][:-1] == hashes[order][1:]
        suspects = np.sort(order[np.append(same_as_next, False) | np.append(False, same_as_next)])
        if len(suspects) == 0:
            return
        table = TableReader(self._temporary / CLIENTS_NAME, client_columns(self._attributes), clients_file)
        seen: set[str] = set()
        for id in table.take_strings("id", suspects):
            if id in seen:
                raise BadInputError(f"Client {id!r} was added twice to the federation {self.path}.")
            seen.add(id)

    def _manifest(self, files: dict[str, FileSpec]) -> Manifest:
        return Manifest(
            version=FORMAT_VERSION,
            name=self._name,
            task=self._task,
            columns=self._columns,
            attributes=self._attributes,
            clients=dict(zip(GROUPS, self._client_counts.tolist(), strict=True)),
            samples={
                group: dict(zip(PARTS, row, strict=True))
                for group, row in zip(GROUPS, self._sample_counts.tolist(), strict=True)
            },
            label_counts=self._label_counts.tolist(),
            source=self._source,
            files=files,
            notes=self._notes,
        )


def _joined(spec: ColumnSpec, pieces: Sequence[Values]) -> Values:
    """The samples of all parts of a client."""
    if spec.encoding is None:
        return np.concatenate(pieces) if pieces else np.empty((0, *spec.shape), dtype=spec.dtype)
    contents = [content for piece in pieces for content in piece]
    names = [name for piece in pieces if isinstance(piece, EncodedRows) for name in piece.names]
    return EncodedRows(contents, names) if len(names) == len(contents) else contents


def _number_of_files(values: Any, column: str, where: str, spec: ColumnSpec) -> int:
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return len(values)
    raise BadInputError(
        f"Column {column!r} of {where} is {type(values).__name__}; it must be a list with the bytes of each "
        f"{spec.encoding} file."
    )


def _whose(row: int, ids: Sequence[str], counts: IntArray) -> tuple[str, str]:
    """The client of a row, and which of its samples that is."""
    client, part = divmod(int(np.searchsorted(np.cumsum(counts), row, side="right")), len(PARTS))
    sample = row - int(counts.ravel()[: client * len(PARTS) + part].sum())
    return ids[client], f"{PARTS[part]} sample {sample}"


def _place(spec: ColumnSpec, place: Sequence[int]) -> str:
    """Where in a sample a value is, in words."""
    if not place:
        return ""
    return f" at {list(place)}" if spec.names is None else f" as {spec.names[place[0]]!r}"


def _check_codes(values: AnyArray, limit: int, column: str, what: str) -> None:
    if values.size == 0:
        return
    smallest, largest = int(values.min()), int(values.max())
    if smallest < 0 or largest >= limit:
        wrong = smallest if smallest < 0 else largest
        raise BadInputError(f"Column {column!r} holds {wrong}, but only 0 to {limit - 1} are valid {what}.")


def _check_numbers(values: AnyArray, task: TaskSpec) -> None:
    """On a scale of ratings there is nothing beyond its ends."""
    column = task.label_column
    if task.kind == "rating" and task.value_range is not None:
        low, high = task.value_range
        if values.min() < low or values.max() > high:
            wrong = values.min() if values.min() < low else values.max()
            raise BadInputError(f"Column {column!r} holds {wrong}, but only {low:g} to {high:g} are valid ratings.")


def _group_codes(groups: str | Sequence[str], clients: int) -> AnyArray:
    names = [groups] if isinstance(groups, str) else groups
    if not isinstance(groups, str) and len(names) != clients:
        raise BadInputError(f"groups has {len(names)} entries for {clients} clients.")
    wrong = set(names) - set(GROUPS)
    if wrong:
        raise BadInputError(f"There is no group called {min(wrong)!r}; valid: {', '.join(GROUPS)}.")
    codes = np.array([GROUPS.index(name) for name in names], dtype=np.int8)
    return np.full(clients, codes[0]) if isinstance(groups, str) else codes


def _attribute_values(name: str, kind: AttributeType, values: Sequence[Any] | AnyArray) -> Sequence[str] | AnyArray:
    if kind == "string":
        _check_strings(values, f"Attribute {name!r}")
        return values
    numbers = np.asarray(values)
    if len(numbers) and (numbers.ndim != 1 or not np.can_cast(numbers.dtype, kind, "same_kind")):
        raise BadInputError(f"Attribute {name!r} must be of type {kind}, not {values[0]!r}.")
    return numbers


def _check_strings(values: Sequence[Any] | AnyArray, what: str) -> None:
    """Raises unless all values are text that can be stored."""
    for value in values:
        if not isinstance(value, str):
            raise BadInputError(f"{what} must be a string, not {value!r}.")
    try:
        "".join(values).encode()
    except UnicodeEncodeError as error:
        raise BadInputError(f"{what} must be valid Unicode, unlike {error.object[error.start]!r}.") from error


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
