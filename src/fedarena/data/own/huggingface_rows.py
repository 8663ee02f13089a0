"""The rows of Hugging Face datasets: as a table that is read in pieces, and their pictures one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.data.images.pictures import Pictures
from fedarena.data.own.labels import as_texts
from fedarena.data.own.parts import part_code
from fedarena.data.own.tables import OwnTable
from fedarena.data.registry import state_of
from fedarena.data.store.schema import PARTS, AnyArray

SPLIT = "the split of a DatasetDict"  # the column that says which split a row is from
_ROWS_PER_PIECE = 1 << 12
_NO_LABEL = -1  # in columns of classes


class HuggingFaceTable(OwnTable):
    """The rows of a dataset, split by split, as a table; classes are numbers, of which -1 is a missing label."""

    def __init__(
        self, dataset: Any, label: str | None, client_by_split: str | None = None, named: Collection[str | None] = ()
    ):
        self.path = None
        self._splits = _splits_of(dataset)
        if any(rows.format["type"] == "custom" for _, rows in self._splits):
            raise BadInputError(
                "The dataset has a transform (with_transform), which changes rows when they are read; apply it once "
                "with map, or take it off with reset_format: samples are taken as they are stored."
            )
        self._features: Mapping[str, Any] = self._splits[0][1].features
        self._label, self._client_by_split = label, client_by_split
        self._named = named  # columns in which names stand for classes
        self._stored: dict[int, Any] = {}
        self.has_parts = self._splits[0][0] is not None
        self.own_columns = list(self._features)
        self.columns = [*self.own_columns, *([SPLIT] if self.has_parts else [])]
        self.label_names = None if label is None else self.class_names_of(label)

    @property
    def name(self) -> str:
        """What it is called within sentences."""
        return "the dataset"

    @property
    def start(self) -> str:
        """What it is called where a sentence begins."""
        return "The dataset"

    @property
    def size_bytes(self) -> int:
        """About how much there is to read."""
        return sum(int(rows.dataset_size or rows.data.nbytes) for _, rows in self._splits)

    def class_names_of(self, column: str) -> tuple[str, ...] | None:
        """The names of the classes in a column, if it says them."""
        names = getattr(self._features.get(column), "names", None)
        return tuple(names) if isinstance(names, list) else None

    def is_picture(self, column: str) -> bool:
        """Whether a column holds pictures."""
        return type(self._features[column]).__name__ == "Image"

    def type_of(self, column: str) -> pa.DataType:
        """The Arrow type of a column."""
        return self._splits[0][1].features.arrow_schema.field(column).type

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns, some rows at a time, of one split after the other."""
        own = [column for column in dict.fromkeys(columns) if column != SPLIT]
        for split, rows in self._splits:
            for piece in rows.select_columns(own).with_format("arrow").iter(_ROWS_PER_PIECE):
                for batch in piece.combine_chunks().to_batches():
                    arrays = {column: self._values(batch.column(column), column, split) for column in own}
                    if SPLIT in columns:
                        arrays[SPLIT] = pa.array([split] * batch.num_rows, pa.string())
                    yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _values(self, values: pa.Array, column: str, split: str | None) -> pa.Array:
        names = self.class_names_of(column)
        if column == self._label and names is not None:
            return pc.if_else(pc.equal(values, _NO_LABEL), None, values)
        if column in self._named and names is not None:
            values = pa.array(names, pa.string()).take(pc.if_else(pc.equal(values, _NO_LABEL), None, values))
        if column == self._client_by_split:
            return pc.binary_join_element_wise(split, as_texts(values, f"Column {column!r}"), "/")
        if isinstance(values, pa.ExtensionArray):
            return values.storage
        return values

    def picture(self, column: str, row: int) -> Any:
        """One picture: the bytes of its file, its path, or an array."""
        for _, rows in self._splits:
            if row < len(rows):
                return self._undecoded(rows, column)[row][column]
            row -= len(rows)
        raise IndexError(row)

    def _undecoded(self, rows: Any, column: str) -> Any:
        """A split whose pictures stay as they are stored: bytes or paths."""
        from datasets import Image

        if id(rows) not in self._stored:
            stored = rows.select_columns([column])
            self._stored[id(rows)] = (
                stored.cast_column(column, Image(decode=False)) if self.is_picture(column) else stored
            )
        return self._stored[id(rows)]

    def state(self, columns: Sequence[str]) -> list[Any]:
        """What changes when the dataset does; also names of classes, and pictures that it only names."""
        found = super().state(columns)
        if self.label_names is not None:
            found.append(self.label_names)
        for column in columns:
            if column in self._features and self.is_picture(column):
                for piece in self.read([column]):
                    paths = [one["path"] for one in piece.column(column).to_pylist() if one and one["bytes"] is None]
                    found += [state_of(Path(file)) for file in paths if Path(file).exists()]
        return found


class HuggingFacePictures(Pictures):
    """The pictures in a column of a dataset."""

    def __init__(self, table: HuggingFaceTable, column: str, rows: Sequence[int]):
        self._table, self._column, self._rows = table, column, rows

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, index: int) -> str:
        """Words for error messages."""
        return f"{self._column!r} of row {self._rows[index] + 1}"

    def source(self, index: int) -> AnyArray | bytes | Path:
        """An array, or a file or its content."""
        found = self._table.picture(self._column, self._rows[index])
        if isinstance(found, Mapping):
            content = found.get("bytes")
            return content if content is not None else Path(found["path"])
        if found is None:
            raise BadInputError(f"{self.where(index)} is missing.")
        values = np.asarray(found)
        # Lists of whole numbers are 64 bits wide for no reason.
        fits = np.issubdtype(values.dtype, np.integer) and values.size and values.min() >= 0 and values.max() <= 255
        return values.astype(np.uint8) if fits else values


def _splits_of(dataset: Any) -> list[tuple[str | None, Any]]:
    """The datasets of a DatasetDict with their names, or the only one without a name."""
    try:
        from datasets import Dataset, DatasetDict
    except ImportError:
        raise BadInputError("from_hf needs Hugging Face's datasets: pip install 'fedarena[huggingface]'") from None
    if isinstance(dataset, Dataset):
        return [(None, dataset)]
    if not isinstance(dataset, DatasetDict):
        raise BadInputError(
            f"from_hf takes a Dataset or a DatasetDict of Hugging Face's datasets, not a {type(dataset).__name__}"
            + ("; load it without streaming." if "Iterable" in type(dataset).__name__ else ".")
        )
    if not dataset:
        raise BadInputError("The DatasetDict is empty.")
    first = next(iter(dataset.values())).features
    found: list[tuple[str | None, Any]] = []
    for name, rows in dataset.items():
        if rows.features != first:
            raise BadInputError(f"The splits of the DatasetDict have different columns: {name!r} and the first.")
        part = PARTS[part_code(name, f"The split {name!r} (leave it out of the DatasetDict, or rename it)")]
        found.append((part, rows))
    return found
