"""Writing samples whose inputs are loaded one at a time, in memory that does not grow with how much a client has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, overload

import numpy as np

from fedarena.data.own.parts import Arranged, Samples
from fedarena.data.registry import StoreBuild
from fedarena.data.store.encoding import EncodedRows
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

BLOCK_BYTES = 1 << 26  # of inputs that are held in memory; more of one client lie in a temporary file
_SAMPLES_PER_REPORT = 64


def write_samples(
    build: StoreBuild,
    samples: Samples,
    arranged: Arranged,
    x: ColumnSpec,
    load: Callable[[int], AnyArray | bytes],
    progress: Callable[[float], None],
    where: Callable[[int], str] = str,
    notes: Sequence[str] = (),
) -> None:
    """Writes a classification federation; `load` gives the input of the sample with a number.

    That is an array, or the bytes of a file if `x` is encoded; `where` names the sample in sentences, and `notes` say
    what was done to samples.
    """
    task = TaskSpec(kind="classification", classes=len(samples.label_names), label_names=samples.label_names)
    build.path.parent.mkdir(parents=True, exist_ok=True)
    sizes = arranged.counts.sum(axis=1)
    starts = np.cumsum(sizes) - sizes
    done = 0
    with build.writer(task=task, columns={"x": x, "y": ColumnSpec(dtype="int64")}, notes=notes) as writer:
        for first, last in _blocks(sizes.tolist(), x.bytes_per_sample):
            rows = arranged.rows[starts[first] : starts[first] + sizes[first:last].sum()]
            with tempfile.TemporaryFile(dir=build.path.parent) as file:
                values = _room(file, len(rows), x)
                for place, row in enumerate(rows.tolist()):
                    values[place] = load(row)
                    if (done + place) % _SAMPLES_PER_REPORT == 0:
                        progress((done + place) / max(len(arranged.rows), 1))
                if isinstance(values, _Files):
                    values = EncodedRows(values, [where(row) for row in rows.tolist()])
                writer.add_clients(
                    arranged.ids[first:last],
                    counts=arranged.counts[first:last],
                    columns={"x": values, "y": samples.labels[rows]},
                    groups=arranged.groups[first:last],
                )
            done += len(rows)


def _room(file: IO[bytes], rows: int, x: ColumnSpec) -> Any:
    if x.encoding is not None:
        return _Files(file, rows)
    shape = (rows, *x.shape)
    if rows * x.bytes_per_sample <= BLOCK_BYTES:
        return np.empty(shape, dtype=x.dtype)
    return np.memmap(file, dtype=x.dtype, mode="w+", shape=shape)


class _Files(Sequence[bytes]):
    """Files of any length, one behind the other in a temporary file; each is put in once, in its turn."""

    def __init__(self, file: IO[bytes], count: int):
        self._file, self._ends = file, np.zeros(count + 1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __setitem__(self, place: int, content: bytes) -> None:
        self._file.write(content)
        self._ends[place + 1] = self._ends[place] + len(content)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if place >= len(self):
            raise IndexError(place)
        self._file.seek(self._ends[place])
        return self._file.read(self._ends[place + 1] - self._ends[place])


def _blocks(sizes: list[int], bytes_per_sample: int) -> Iterator[tuple[int, int]]:
    """Clients one after the other whose samples fit into a block, or a single one."""
    first, filled = 0, 0
    for client, size in enumerate(sizes):
        if client > first and (filled + size) * bytes_per_sample > BLOCK_BYTES:
            yield first, client
            first, filled = client, 0
        filled += size
    yield first, len(sizes)
