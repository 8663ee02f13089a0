"""Writing samples whose inputs are loaded one at a time, in memory that does not grow with how much a client has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from fedarena.data.own.parts import Arranged, Samples
from fedarena.data.own.stores import OwnBuild
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

BLOCK_BYTES = 1 << 26  # of inputs that are held in memory; more of one client lie in a temporary file
_SAMPLES_PER_REPORT = 64


def write_samples(
    build: OwnBuild,
    samples: Samples,
    arranged: Arranged,
    x: ColumnSpec,
    load: Callable[[int], AnyArray],
    progress: Callable[[float], None],
) -> None:
    """Writes a classification federation; `load` gives the input of the sample with a number."""
    task = TaskSpec(kind="classification", classes=len(samples.label_names), label_names=samples.label_names)
    build.path.parent.mkdir(parents=True, exist_ok=True)
    sizes = arranged.counts.sum(axis=1)
    starts = np.cumsum(sizes) - sizes
    done = 0
    with build.writer(task=task, columns={"x": x, "y": ColumnSpec(dtype="int64")}) as writer:
        for first, last in _blocks(sizes.tolist(), x.bytes_per_sample):
            rows = arranged.rows[starts[first] : starts[first] + sizes[first:last].sum()]
            with tempfile.TemporaryFile(dir=build.path.parent) as file:
                values = _room(file, len(rows), x)
                for place, row in enumerate(rows.tolist()):
                    values[place] = load(row)
                    if (done + place) % _SAMPLES_PER_REPORT == 0:
                        progress((done + place) / max(len(arranged.rows), 1))
                writer.add_clients(
                    arranged.ids[first:last],
                    counts=arranged.counts[first:last],
                    columns={"x": values, "y": samples.labels[rows]},
                    groups=arranged.groups[first:last],
                )
            done += len(rows)


def _room(file: object, rows: int, x: ColumnSpec) -> AnyArray:
    shape = (rows, *x.shape)
    if rows * x.bytes_per_sample <= BLOCK_BYTES:
        return np.empty(shape, dtype=x.dtype)
    return np.memmap(file, dtype=x.dtype, mode="w+", shape=shape)  # type: ignore[call-overload, no-any-return]


def _blocks(sizes: list[int], bytes_per_sample: int) -> Iterator[tuple[int, int]]:
    """Clients one after the other whose samples fit into a block, or a single one."""
    first, filled = 0, 0
    for client, size in enumerate(sizes):
        if client > first and (filled + size) * bytes_per_sample > BLOCK_BYTES:
            yield first, client
            first, filled = client, 0
        filled += size
    yield first, len(sizes)
