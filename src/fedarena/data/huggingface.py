"""Datasets of Hugging Face's library `datasets` as federations: pictures, texts or numbers, with a label or without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.rounding import changed_by_rounding
from fedarena.core.user_warnings import warn_user
from fedarena.data.images.forms import Channels, Fit, Layout, Wanted
from fedarena.data.images.own import PictureOptions, PictureRows, samples_of, write_pictures
from fedarena.data.own.huggingface_rows import SPLIT, HuggingFacePictures, HuggingFaceTable
from fedarena.data.own.labels import as_texts
from fedarena.data.own.parts import DivisionOptions, Missing, arrange, with_classes_of
from fedarena.data.own.stores import StorePlace, build_once, name_of
from fedarena.data.own.tables import without_missing
from fedarena.data.own.who import Partition
from fedarena.data.own.writing import write_samples
from fedarena.data.registry import Progress, StoreBuild
from fedarena.data.splits import SplitKind
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import AnyArray, ColumnSpec
from fedarena.data.text.options import TextColumns, TextOptions
from fedarena.data.text.own import texts_to_federation

# An index without a name says how rows were sorted, which may well be by label; the last two come by way of a CSV file.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_ROW = "the number of a row"


def from_hf(
    dataset: Any,
    *,
    client: str | None = None,
    partition: Partition | None = None,
    label: str | None = None,
    image: str | None = None,
    text: str | None = None,
    features: Sequence[str] | str | None = None,
    part: str | None = None,
    splits: Literal["parts", "groups"] = "parts",
    attributes: Sequence[str] = (),
    size: int | tuple[int, int] | None = None,
    fit: Fit = "stretch",
    channels: Channels | None = None,
    layout: Layout | None = None,
    tokenizer: str | Path = "words",
    vocabulary: int = 10_000,
    length: int | None = None,
    join: bool = True,
    missing: Missing = "refuse",
    minimum_samples: int = 1,
    split: SplitKind | None = None,
    train_fraction: float | None = None,
    validation_fraction: float | None = None,
    split_seed: int | None = None,
    name: str | None = None,
    path: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Federation:
    """A federation from a `datasets.Dataset` or `DatasetDict`.

    `client` is the column of natural clients, or `partition` a partitioner (Flower's among them). The samples are a
    column of pictures (`image`), of texts (`text`; without a `label` the next token is predicted) or of numbers
    (`features`, one or several); if only one of these fits the columns, it need not be said. Names of classes are kept.

    The splits of a DatasetDict become the parts train, validation and test of its clients; with ``splits="groups"``
    everybody is a client of one split alone, whose id begins with its name. The other options are those of
    `from_images` and `from_texts`.
    """
    if splits not in ("parts", "groups"):
        raise BadInputError(f"splits must be 'parts' or 'groups', not {quoted(splits)}.")
    if splits == "groups" and client is None:
        raise BadInputError("splits='groups' is about natural clients; say which column has them: client=….")
    if isinstance(attributes, str):
        raise BadInputError(f"attributes must be a list of columns, not {quoted(attributes)}.")
    table = HuggingFaceTable(
        dataset, label, client if splits == "groups" else None, named={client, part, *attributes} - {label}
    )
    if part is None and table.has_parts:
        part = SPLIT
    elif part is not None and table.has_parts:
        raise BadInputError("part is given, but the splits of the DatasetDict say it; leave one of them out.")
    if client is None and partition is None:
        raise BadInputError(
            f"Say which column of the dataset has the clients: client=…, or make some: partition=…; "
            f"it has {', '.join(table.own_columns)}."
        )
    for what, column in (("client", client), ("label", label), ("image", image), ("text", text)):
        if column is not None:
            table.require(what, column)
    division = DivisionOptions(split, train_fraction, validation_fraction, split_seed)
    place = StorePlace(path, overwrite, progress)
    kind, inputs = _inputs(table, image, text, features, {client, label, part, *attributes}, label is not None)
    if kind == "text":
        columns = TextColumns(inputs[0], client, label, part, tuple(attributes), table.label_names)
        options = TextOptions(str(tokenizer), vocabulary, length, join, missing, partition, minimum_samples, division)
        return texts_to_federation(table, columns, options, tokenizer, name or "texts", place)
    if label is None:
        known = [column for column in table.own_columns if table.class_names_of(column)]
        hint = f", such as {known[0]!r}" if known else ""
        raise BadInputError(f"Say which column of the dataset has the labels: label=…{hint}.")
    if attributes:
        raise BadInputError("attributes are only read with texts; leave them out.")
    used = {"client": client, "label": label, "part": part}
    rows = _PictureOrNumberRows(table, {what: c for what, c in used.items() if c is not None}, inputs, missing)
    picture_options = PictureOptions(Wanted.checked(size, channels, layout, fit), division, partition, minimum_samples)
    options_of_rows = {"data": "a Hugging Face dataset", **rows.used, "inputs": list(inputs), "missing": missing}
    state = table.state([*rows.used.values(), *inputs])
    if kind == "image":
        pictures = HuggingFacePictures(table, inputs[0], rows.kept)
        found = PictureRows(pictures, rows.columns, state, "the dataset", options_of_rows, table.label_names)
        return write_pictures(found, picture_options, name_of(None, name, "images"), place)
    return _write_numbers(rows, picture_options, options_of_rows, state, name_of(None, name, "features"), place)


class _PictureOrNumberRows:
    """What is known of every sample as columns of texts, and which rows of the dataset they are."""

    def __init__(self, table: HuggingFaceTable, used: dict[str, str], inputs: Sequence[str], missing: Missing):
        self.table, self.used, self.inputs, self.missing = table, used, inputs, missing
        parts: dict[str, list[pa.Array]] = {what: [] for what in used}
        kept = [np.zeros(0, dtype=np.int64)]
        for whole in without_missing(self._numbered(), used, table.start, missing == "drop"):
            kept.append(whole.column(_ROW).to_numpy())
            for what, column in used.items():
                parts[what].append(as_texts(whole.column(column), f"Column {column!r}"))
        self.kept = np.concatenate(kept).tolist()
        if not self.kept:
            raise BadInputError("The dataset has no rows.")
        self.columns = {what: pa.concat_arrays(pieces) for what, pieces in parts.items()}

    def _numbered(self) -> Iterator[pa.RecordBatch]:
        first = 0
        for piece in self.table.read(list(self.used.values())):
            yield piece.append_column(_ROW, pa.array(np.arange(first, first + piece.num_rows)))
            first += piece.num_rows


def _write_numbers(
    rows: _PictureOrNumberRows,
    options: PictureOptions,
    recorded: Mapping[str, Any],
    state: list[Any],
    name: str,
    place: StorePlace,
) -> Federation:
    def build(target: StoreBuild) -> None:
        x = _numbers(rows.table, rows.inputs)[rows.kept]
        unknown = np.argwhere(~np.isfinite(x.reshape(len(x), -1)))
        if len(unknown):
            column = rows.inputs[unknown[0, 1]] if len(rows.inputs) > 1 else rows.inputs[0]
            raise BadInputError(
                f"Column {column!r} of the dataset has no number in row {rows.kept[unknown[0, 0]] + 1}; fill it in or "
                "leave out the row."
            )
        samples = samples_of(rows.columns, options.partition, "the dataset", rows.table.label_names)
        division = options.division.division(samples.parts is not None)
        arranged = arrange(samples, division, options.minimum_samples, "shuffled")
        if rows.table.label_names is None:
            samples = with_classes_of(samples, arranged.rows)
        column = ColumnSpec(dtype="float32", shape=x.shape[1:])
        write_samples(target, samples, arranged, column, x.__getitem__, lambda done: target.progress(done, "Writing"))

    options_recorded = {**recorded, **options.recorded}
    return build_once("features", options_recorded, state, name, place, build)


def _numbers(table: HuggingFaceTable, columns: Sequence[str]) -> AnyArray:
    """One row of numbers for every row of the dataset: several columns beside each other, or one of lists."""
    pieces = []
    rounded: set[str] = set()
    precise: dict[str, list[AnyArray]] = {}  # with more digits than are stored, some of which are lost
    for piece in table.read(columns):
        values = [_numbers_of(piece.column(column), column) for column in columns]
        if len(columns) > 1 and any(one.ndim > 1 for one in values):
            lists = columns[[one.ndim > 1 for one in values].index(True)]
            raise BadInputError(f"features: column {lists!r} holds lists, so it must be the only one.")
        as_stored = [one.astype(np.float32) for one in values]
        for column, one, stored in zip(columns, values, as_stored, strict=True):
            kind = _innermost(piece.column(column).type)
            if pa.types.is_integer(kind) and (np.isfinite(one) & (stored != one)).any():
                rounded.add(column)
            elif pa.types.is_float64(kind) or pa.types.is_decimal(kind):
                precise.setdefault(column, []).append(one)
        pieces.append(as_stored[0] if as_stored[0].ndim > 1 else np.stack(as_stored, axis=1))
    if len({piece.shape[1:] for piece in pieces}) > 1:
        raise BadInputError(f"Column {columns[0]!r} holds lists of unequal lengths.")
    for column in columns:
        if column in rounded:
            warn_user(
                f"Column {column!r} holds whole numbers above 2^24, which are rounded to numbers of 32 bits; if they "
                "are ids, leave the column out of features"
            )
    for column, parts in precise.items():
        if changed := changed_by_rounding(np.concatenate(parts)):
            warn_user(
                f"Column {column!r} holds numbers that differ by less than 32 bits can tell: {changed[0]!r} becomes "
                f"{changed[1]!r}; subtract what they have in common"
            )
    return np.concatenate(pieces)


def _numbers_of(values: pa.Array, column: str) -> AnyArray:
    """Numbers, or lists of as many numbers in every row; not a number where there is none."""
    kind = _innermost(values.type)
    if not (_is_number(kind) or pa.types.is_decimal(kind)):
        raise BadInputError(f"features: column {column!r} holds {values.type} values instead of numbers.")
    if not pa.types.is_nested(values.type):
        numbers: AnyArray = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers
    try:
        return np.array(values.to_pylist(), dtype=np.float64)
    except (ValueError, TypeError):
        raise BadInputError(f"Column {column!r} holds lists of unequal lengths or without numbers.") from None


def _innermost(kind: pa.DataType) -> pa.DataType:
    """What lists, or lists of lists, hold in the end."""
    while any(is_list(kind) for is_list in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)):
        kind = kind.value_type
    return kind


def _inputs(
    table: HuggingFaceTable,
    image: str | None,
    text: str | None,
    features: Sequence[str] | str | None,
    taken: set[str | None],
    has_label: bool,
) -> tuple[Literal["image", "text", "features"], list[str]]:
    """What samples consist of: what was said, or the only thing that it can be."""
    given = [name for name, value in (("image", image), ("text", text), ("features", features)) if value is not None]
    if len(given) > 1:
        raise BadInputError(f"Samples are pictures, texts or numbers, but both {given[0]} and {given[1]} are given.")
    if image is not None:
        return "image", [image]
    if text is not None:
        return "text", [text]
    if features is not None:
        chosen = [features] if isinstance(features, str) else list(features)
        for column in chosen:
            table.require("features", column)
        return "features", chosen
    free = [column for column in table.own_columns if column not in taken and not _PANDAS_INDEX.fullmatch(column)]
    pictures = [column for column in free if table.is_picture(column)]
    if len(pictures) == 1:
        return "image", pictures
    texts = [column for column in free if _is_text(table.type_of(column))]
    numbers = [column for column in free if _is_number(table.type_of(column)) and not table.class_names_of(column)]
    if not pictures and len(texts) == 1 and has_label:
        return "text", texts
    if not pictures and not texts and numbers:
        left_out = [column for column in table.own_columns if _PANDAS_INDEX.fullmatch(column) and column not in taken]
        if left_out:
            warn_user(f"Column {left_out[0]!r} is the index of a pandas table and no input; features=[…] can name it")
        return "features", numbers
    raise BadInputError(
        "Say what samples consist of: image=…, text=… or features=[…], and label=… where they have one; "
        "the dataset has the columns "
        f"{', '.join(table.own_columns)}."
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
