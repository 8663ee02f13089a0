"""Random federations as plain Python dictionaries, which say what the store must give back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
from fedarena.data.store.schema import DTYPES, GROUPS, PARTS

INTEGERS = sorted(name for name in DTYPES if not name.startswith("float"))
SHAPES = [(), (1,), (5,), (2, 3), (1, 2, 2)]


@dataclass
class PlainClient:
    id: str
    group: str
    parts: dict[str, dict[str, np.ndarray]]
    attributes: dict[str, Any]

    def rows(self, part: str, column: str) -> np.ndarray:
        if part == "all":
            return np.concatenate([self.parts[name][column] for name in PARTS])
        return self.parts[part][column]


@dataclass
class PlainFederation:
    task: TaskSpec
    columns: dict[str, ColumnSpec]
    attributes: dict[str, str]
    clients: list[PlainClient]
    batches: dict[str, int] = field(default_factory=dict)

    def writer(self, path: Path) -> FederationWriter:
        return FederationWriter(
            path, name="plain", task=self.task, columns=self.columns, attributes=self.attributes, **self.batches
        )

    def write(self, path: Path) -> None:
        with self.writer(path) as writer:
            for client in self.clients:
                writer.add_client(client.id, group=client.group, attributes=client.attributes, **client.parts)

    def write_in_bulk(self, path: Path, pieces: int) -> None:
        with self.writer(path) as writer:
            for positions in np.array_split(np.arange(len(self.clients)), pieces):
                clients = [self.clients[position] for position in positions]
                if not clients:
                    continue
                label = self.task.label_column
                writer.add_clients(
                    [client.id for client in clients],
                    counts=np.array([[len(client.parts[part][label]) for part in PARTS] for client in clients]),
                    columns={
                        name: np.concatenate([client.rows("all", name) for client in clients]) for name in self.columns
                    },
                    groups=[client.group for client in clients],
                    attributes={name: [client.attributes[name] for client in clients] for name in self.attributes},
                )

    def label_counts(self) -> list[int]:
        """Counted one label at a time."""
        counts = [0] * self.task.classes
        for client in self.clients:
            if client.group != "train":
                continue
            for row in client.parts["train"][self.task.label_column]:
                if self.task.kind == "classification":
                    counts[int(row)] += 1
                elif self.task.kind == "multi_label":
                    for label, value in enumerate(row):
                        counts[label] += int(value)
                else:
                    for token in row[1:]:
                        if int(token) != self.task.padding:
                            counts[int(token)] += 1
        return counts


def _values(random: np.random.Generator, spec: ColumnSpec, count: int, limit: int | None) -> np.ndarray:
    shape = (count, *spec.shape)
    if limit is not None:
        return random.integers(0, limit, size=shape).astype(spec.dtype)
    if spec.dtype.startswith("float"):
        return random.standard_normal(shape).astype(spec.dtype)
    bounds = np.iinfo(spec.dtype)
    return random.integers(bounds.min, bounds.max, size=shape, dtype=spec.dtype, endpoint=True)


@st.composite
def plain_federations(draw: st.DrawFn) -> PlainFederation:
    classes = draw(st.integers(2, 6))
    kind = draw(st.sampled_from(["classification", "multi_label", "next_token"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    label_dtype = draw(st.sampled_from(INTEGERS))
    if kind == "next_token":
        task = TaskSpec(kind=kind, classes=classes, padding=draw(st.sampled_from([None, 0])), unknown=1)
        columns = {"tokens": ColumnSpec(dtype=label_dtype, shape=(draw(st.integers(2, 5)),))}
    else:
        task = TaskSpec(kind=kind, classes=classes)
        label_shape = (classes,) if kind == "multi_label" else ()
        columns = {
            "x": ColumnSpec(dtype=draw(st.sampled_from(sorted(DTYPES))), shape=draw(st.sampled_from(SHAPES))),
            "y": ColumnSpec(dtype=label_dtype, shape=label_shape),
        }
    names = draw(st.lists(st.text(max_size=6), min_size=1, max_size=8, unique=True))
    limits = {task.label_column: 2 if kind == "multi_label" else classes}
    clients = [
        PlainClient(
            id=name,
            group=draw(st.sampled_from(GROUPS)),
            parts={
                part: {column: _values(random, spec, count, limits.get(column)) for column, spec in columns.items()}
                for part, count in zip(PARTS, draw(st.tuples(*[st.integers(0, 4)] * 3)), strict=True)
            },
            attributes={"place": name[::-1], "age": int(random.integers(100)), "weight": float(random.random())},
        )
        for name in names
    ]
    batches = {"rows_per_batch": draw(st.integers(1, 7)), "clients_per_batch": draw(st.integers(1, 4))}
    attributes = {"place": "string", "age": "int64", "weight": "float64"}
    return PlainFederation(task, columns, attributes, clients, batches)
