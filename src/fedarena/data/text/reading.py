"""Reading a table of texts: whose each is, its tokens, its label and its part, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.many_users.buckets import USER, Piece, Position
from fedarena.data.many_users.texts import TEXT
from fedarena.data.own.labels import LabelClasses, as_texts
from fedarena.data.own.parts import part_codes
from fedarena.data.own.tables import OwnTable, without_missing
from fedarena.data.own.who import clients_of
from fedarena.data.store.schema import IntArray
from fedarena.data.text.options import TextColumns, TextOptions
from fedarena.data.text.tokenizers import TextTokenizer


class TextReader:
    """Reads a table for `Buckets`: client, tokens, label and part of every text."""

    def __init__(
        self,
        table: OwnTable,
        columns: TextColumns,
        options: TextOptions,
        tokenizer: TextTokenizer,
        progress: Callable[[float], None],
    ):
        self._table, self._columns, self._options, self._tokenizer = table, columns, options, tokenizer
        self._rows = 0
        self._classes = LabelClasses.named(columns.label_names or ())
        self._made: tuple[tuple[str, ...], IntArray] | None = None
        self._look(progress)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._classes.names

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        used = self._columns.used
        return without_missing(
            self._table.read(list(used.values())), used, self._table.start, self._options.missing == "drop"
        )

    def _look(self, progress: Callable[[float], None]) -> None:
        """Reads all rows once: which labels there are, and, where a partitioner makes clients, everybody's."""
        columns, partition = self._columns, self._options.partition
        labels: set[str] = set()
        kept: dict[str, list[pa.Array]] = {"label": [], "client": []}
        for piece in self._pieces():
            if columns.label is not None:
                texts = as_texts(piece.column(columns.label), f"Column {columns.label!r}")
                labels.update(texts.unique().to_pylist())
                kept["label"].append(texts)
            if columns.client is not None and partition is not None:
                kept["client"].append(as_texts(piece.column(columns.client), f"Column {columns.client!r}"))
            if partition is None:
                kept["label"].clear()
            self._rows += piece.num_rows
            progress(0.0)  # nobody knows how many there are
        if not self._rows:
            raise BadInputError(f"{self._table.start} has no rows.")
        if columns.label is not None and columns.label_names is None:
            self._classes = LabelClasses.of(labels, f"Column {columns.label!r} of {self._table.name}")
        if partition is not None:
            codes = (
                self._classes.codes(pa.concat_arrays(kept["label"]))
                if columns.label is not None
                else np.zeros(self._rows, dtype=np.int64)
            )
            natural = pa.concat_arrays(kept["client"]).to_pylist() if columns.client is not None else None
            self._made = clients_of(natural, codes, partition)

    def read(self, position: Position | None) -> Iterator[Piece]:
        """All rows, some at a time."""
        columns = self._columns
        done = 0
        for piece in self._pieces():
            texts = _plain_texts(piece.column(columns.text), columns.text)
            arrays = {
                USER: self._users(piece, done),
                TEXT: pa.array(self._tokenizer.split(texts, ends=columns.label is None), pa.string()),
            }
            if columns.label is not None:
                labels = as_texts(piece.column(columns.label), f"Column {columns.label!r}")
                arrays["label"] = pa.array(self._classes.codes(labels))
            if columns.part is not None:
                names = as_texts(piece.column(columns.part), f"Column {columns.part!r}").to_pylist()
                arrays["part"] = pa.array(part_codes(names, f"Column {columns.part!r}"))
            for name in columns.attributes:
                arrays[f"attribute {name}"] = as_texts(piece.column(name), f"Column {name!r}")
            done += piece.num_rows
            batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
            yield Piece(batch, {}, done / self._rows)

    def _users(self, piece: pa.RecordBatch, done: int) -> pa.Array:
        if self._made is not None:
            ids, clients = self._made
            return pa.array([ids[client] for client in clients[done : done + piece.num_rows]], pa.string())
        return as_texts(piece.column(self._columns.client), f"Column {self._columns.client!r}")


def _plain_texts(values: pa.Array, column: str) -> list[str]:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise BadInputError(f"Column {column!r} holds {values.type} values instead of texts.")
    texts: list[str] = values.to_pylist()
    return texts
