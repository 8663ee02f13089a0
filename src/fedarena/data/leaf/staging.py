"""All samples of LEAF's files in one table on disk, from which any division of them can be taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.leaf.description import Description
from fedarena.data.leaf.files import LeafFile, check_parts
from fedarena.data.leaf.kinds import Columns, Described, Kind
from fedarena.data.leaf.reading import Head, read_head, read_users
from fedarena.data.registry import Progress
from fedarena.data.store.schema import GROUPS, PARTS, AttributeType, Group, IntArray
from fedarena.data.store.table import TableReader, TableWriter

_BATCH_BYTES = 1 << 24
UNDIVIDED = len(PARTS)  # the place of samples that are in no part yet, after those of the parts

ChooseKind = Callable[[Any, Any], Kind]  # from the first sample


@dataclass
class Users:
    """Everybody in the files, and where in the table their samples are."""

    ids: list[str] = field(default_factory=list)
    hierarchies: list[str] | None = None
    starts: IntArray = field(default_factory=lambda: np.zeros((0, UNDIVIDED + 1), dtype=np.int64))  # [users, parts]
    counts: IntArray = field(default_factory=lambda: np.zeros((0, UNDIVIDED + 1), dtype=np.int64))
    # Of files that were written here.
    description: Description | None = None
    groups: list[Group] = field(default_factory=list)
    attributes: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def attribute_types(self) -> dict[str, AttributeType]:
        """What is known of users beside their samples."""
        if self.description is not None:
            return dict(self.description.attributes)
        return {} if self.hierarchies is None else {"hierarchy": "string"}

    def attributes_of(self, users: Sequence[int]) -> dict[str, list[Any]]:
        """What is known of some users."""
        if self.description is not None:
            return {name: [values[user] for user in users] for name, values in self.attributes.items()}
        return {} if self.hierarchies is None else {"hierarchy": [self.hierarchies[user] for user in users]}


def read_heads(files: Sequence[LeafFile], progress: Progress) -> list[Head]:
    """What all files say about their users."""
    sizes = np.array([file.path.stat().st_size for file in files], dtype=np.float64)
    before = np.concatenate([[0.0], np.cumsum(sizes)])
    heads = []
    for number, file in enumerate(files):

        def of_all(fraction: float, place: int = number) -> None:
            progress((before[place] + fraction * sizes[place]) / max(before[-1], 1), "Looking for users")

        heads.append(read_head(file.path, of_all))
    return heads


def list_users(files: Sequence[LeafFile], heads: Sequence[Head]) -> tuple[Users, list[IntArray]]:
    """Everybody in the files, in order, and for each file the places of its users among them."""
    described = [head.piece.federation for head in heads if head.piece is not None]
    if described:
        if len(described) < len(heads) or any(other != described[0] for other in described):
            raise BadInputError(f"The files in {files[0].path.parent.parent} are not of one federation")
        return _in_order_of_clients(files, heads, described[0])
    check_parts(files)
    users, place_of = Users(), dict[str, int]()
    first_file: list[dict[str, int]] = [{} for _ in range(UNDIVIDED + 1)]
    places = []
    with_hierarchies = any(head.hierarchies is not None for head in heads)
    hierarchies: list[str] = []
    for file_number, (file, head) in enumerate(zip(files, heads, strict=True)):
        seen = first_file[_part_code(file)]
        for number, user in enumerate(head.users):
            if user in seen:
                raise BadInputError(f"User {user!r} is in {files[seen[user]].path} and in {file.path}")
            seen[user] = file_number
            if user not in place_of:
                place_of[user] = len(place_of)
                hierarchies.append("" if head.hierarchies is None else head.hierarchies[number])
        places.append(np.array([place_of[user] for user in head.users], dtype=np.int64))
    users.ids = list(place_of)
    users.hierarchies = hierarchies if with_hierarchies else None
    return users, places


def _in_order_of_clients(
    files: Sequence[LeafFile], heads: Sequence[Head], description: Description
) -> tuple[Users, list[IntArray]]:
    """The clients of a federation that was written here, with the numbers that they had."""
    total = description.clients
    missing = total - len({client for head in heads if head.piece is not None for client in head.piece.clients})
    if missing > 0:
        raise BadInputError(
            f"{missing:,} of {total:,} clients are in none of the files in {files[0].path.parent.parent}; "
            "a file is missing"
        )
    ids: list[str | None] = [None] * total
    users = Users(description=description, groups=["train"] * total)
    users.attributes = {name: [None] * total for name in description.attributes}
    places = []
    for file, head in zip(files, heads, strict=True):
        assert head.piece is not None
        for number, client in enumerate(head.piece.clients):
            if client >= total or ids[client] not in (None, head.users[number]):
                raise BadInputError(f"{file.path}: user {head.users[number]!r} has the number of somebody else")
            ids[client] = head.users[number]
            users.groups[client] = head.piece.groups[number]
            for name, values in head.piece.attributes.items():
                value = values[number]
                users.attributes[name][client] = float(value) if description.attributes[name] == "float64" else value
        places.append(np.array(head.piece.clients, dtype=np.int64))
    users.ids = [id for id in ids if id is not None]
    return users, places


class SampleTable:
    """The samples of all files, row by row."""

    def __init__(self, reader: TableReader):
        self._reader = reader
        self.rows = reader.rows
        self.rows_at_once = reader.rows_per_batch  # so many fit into memory

    def take(self, rows: IntArray) -> Columns:
        """Samples at these rows, as they were taken down."""
        return {name: self._reader.take(name, rows) for name in self._reader.columns}

    def count_values(self, column: str, rows: IntArray) -> IntArray:
        """How often each number occurs in a column of some rows."""
        counts = np.zeros(0, dtype=np.int64)
        for start in range(0, len(rows), self.rows_at_once):
            values = self._reader.take(column, rows[start : start + self.rows_at_once])
            found = np.bincount(values.ravel(), minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
        return counts


def stage_samples(
    files: Sequence[LeafFile],
    heads: Sequence[Head],
    users: Users,
    places: Sequence[IntArray],
    choose: ChooseKind,
    path: Path,
    progress: Progress,
) -> tuple[SampleTable, Kind]:
    """Writes the samples of all files into a table, and into `users` where each has theirs."""
    users.starts, users.counts = (np.zeros((len(users.ids), UNDIVIDED + 1), dtype=np.int64) for _ in range(2))
    kind: Kind | None = None if users.description is None else Described(users.description)
    table: TableWriter | None = None
    total = max(sum(sum(head.num_samples) for head in heads), 1)
    try:
        for file, head, place in zip(files, heads, places, strict=True):
            part = _part_code(file)
            for number, lists in read_users(file.path, head):
                if not lists["y"]:
                    continue
                try:
                    kind = kind or choose(lists["x"][0], lists["y"][0])
                    columns = kind.take_down(lists)
                except BadInputError as error:
                    raise BadInputError(f"{file.path}: user {head.users[number]!r}: {error}") from None
                if table is None:
                    bytes_per_row = sum(spec.bytes_per_sample for spec in kind.columns.values())
                    table = TableWriter(path, dict(kind.columns), max(_BATCH_BYTES // bytes_per_row, 1))
                users.starts[place[number], part] = table.rows
                users.counts[place[number], part] = len(lists["y"])
                table.append(columns, len(lists["y"]))
                progress(table.rows / total, "Reading")
        if table is None or kind is None:
            raise BadInputError(f"There are no samples in {files[0].path}" + (" and the others" if files[1:] else ""))
        _check_complete(users, files)
        return SampleTable(TableReader(path, dict(kind.columns), table.finish())), kind
    finally:
        if table is not None:
            table.abandon()


def _check_complete(users: Users, files: Sequence[LeafFile]) -> None:
    """Whether a federation that was written here has as many samples as it had."""
    if users.description is None:
        return
    codes = np.array([GROUPS.index(group) for group in users.groups])
    for code, group in enumerate(GROUPS):
        found = users.counts[codes == code].sum(axis=0)
        for place, part in enumerate(PARTS):
            wanted = users.description.samples[group][part]
            if found[place] != wanted:
                raise BadInputError(
                    f"The files in {files[0].path.parent.parent} have {found[place]:,} {part} samples of {group} "
                    f"clients, where {wanted:,} were written; a file is missing"
                )


def _part_code(file: LeafFile) -> int:
    return UNDIVIDED if file.part is None else PARTS.index(file.part)
