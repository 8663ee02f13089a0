"""From rows in buckets to a federation, for all sources whose samples have owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedarena.data.by_client.clients import Choices, RowClients, look_through
from fedarena.data.by_client.rows import GROUP, LINE, RecordReader, Records
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.registry import StoreBuild
from fedarena.data.splits import SampleOrder
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec
from fedarena.data.store.writer import Values

BYTES_AT_ONCE = 1 << 23  # of samples that are made ready to be written: more would not stay in caches, nor be re-used
GROUP_COLUMNS: dict[str, pa.DataType] = {GROUP: pa.int8(), LINE: pa.int64()}
_READING, _LOOKING = 0.5, 0.6  # of the work

Samples = Callable[[pa.Table], Mapping[str, Values]]


@dataclass(frozen=True)
class Form:
    """What a federation's samples are, and how they are made of rows."""

    task: TaskSpec
    columns: Mapping[str, ColumnSpec]
    samples: Samples
    notes: Sequence[str] = ()


def build_from_rows(
    build: StoreBuild,
    files: Sequence[Path],
    records: Records,
    row_columns: Mapping[str, pa.DataType],
    choices: Choices,
    form: Form | Callable[[Buckets], Form],
    published: PublishedGroups | None = None,
    order: SampleOrder = "shuffled",
) -> None:
    """Reads files, sorts their rows by client on disk, and writes a sample for every row.

    Rows of published groups begin with `GROUP_COLUMNS`. What samples are may depend on all rows: then `form` is a
    function of them.
    """
    reader = RecordReader(files, records, dict(row_columns))
    division = choices.division(published)
    with work_folder(build) as work:
        buckets = Buckets(work, reader.total_bytes)
        buckets.fill(reader.read, lambda done: build.progress(_READING * done, "Reading"))
        build.progress(_READING, "Grouping by client")
        clients = RowClients(buckets, choices.sampling, division, order, files[0])
        made = form if isinstance(form, Form) else form(buckets)
        build.progress(_LOOKING, "Writing")
        write_clients(build, clients, made)


def write_clients(build: StoreBuild, clients: RowClients, form: Form) -> None:
    """Writes all clients, some at a time."""
    bytes_per_row = sum(column.bytes_per_sample for column in form.columns.values())
    done = 0
    with build.writer(task=form.task, columns=form.columns, notes=form.notes) as writer:
        for chosen in clients.pieces(max(BYTES_AT_ONCE // max(bytes_per_row, 1), 1)):
            writer.add_clients(
                chosen.ids, counts=chosen.counts, columns=form.samples(chosen.rows), groups=chosen.groups
            )
            done += len(chosen.ids)
            build.progress(_LOOKING + (1 - _LOOKING) * done / clients.number, "Writing")


def numbers(rows: pa.Table, name: str, dtype: str) -> AnyArray:
    """A column of numbers."""
    values: AnyArray = rows.column(name).to_numpy().astype(dtype)
    return values


def vectors(rows: pa.Table, name: str, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    """A column of arrays that were put into rows as their bytes."""
    content = b"".join(rows.column(name).to_pylist())
    return np.frombuffer(content, dtype).reshape(len(rows), *shape)


def distinct(buckets: Buckets, *names: str) -> dict[str, list[str]]:
    """All values of some columns of texts, sorted."""
    found: dict[str, set[str]] = {name: set() for name in names}

    def look(rows: pa.Table) -> None:
        for name in names:
            found[name].update(rows.column(name).combine_chunks().unique().to_pylist())

    look_through(buckets, look)
    return {name: sorted(values) for name, values in found.items()}
