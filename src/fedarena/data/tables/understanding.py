"""What a table means under some options: clients, inputs, labels, and sentences about what was done to values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.words import some
from fedarena.data.class_labels import as_number
from fedarena.data.divided_clients import DividedClients
from fedarena.data.registry import assign_clients
from fedarena.data.store.schema import PARTS, AttributeType, IntArray
from fedarena.data.tables.division import divide
from fedarena.data.tables.features import (
    MOST_CATEGORIES,
    CategoryFeature,
    Feature,
    FeatureTable,
    Indicator,
    NumberFeature,
    Training,
)
from fedarena.data.tables.labels import Labels, read_labels
from fedarena.data.tables.number_form import NumberForm
from fedarena.data.tables.options import TableOptions
from fedarena.data.tables.raw_table import RawTable
from fedarena.data.tables.values import (
    ALL_COLUMNS,
    NOTHING,
    Floats,
    Marks,
    MissingMarks,
    Numbers,
    Values,
    Where,
    Words,
    alike,
    read_names,
    read_values,
)

_RANK_GROUPS = 10  # numbers to predict are to a partitioner as many classes, of equal size
_FEWEST_IDS = 20  # of fewer samples, whole numbers may well differ
# Amounts with a sign of currency, percent or thousands, dates but those that are refused, and times; but no addresses
# of computers, no versions such as 1.10.0 and no lists of numbers.
_DISGUISED = re.compile(
    r"[-+\u2212]?[$€£¥]?[ \u00a0]?(?:\d+|\d{1,3}(?:['_ \u00a0,.]\d{3})+)?(?:[.,]\d+|(?<=\d))[ \u00a0]?[%€$£¥]?"
    r"|\d{4}([-/.])\d{1,2}\1\d{1,2}"
    r"|\d{1,2}([-/.])\d{1,2}\2(?:\d{2}|\d{4})"
    r"|\d{1,2}:\d{2}(?::\d{2})?"
)
_NORMALIZED = {
    "global": "Numbers are normalized by the mean and standard deviation of all training samples.",
    "per_client": "Numbers are normalized by the mean and standard deviation of each client's own training samples, "
    "those of clients without any by those of all.",
    "none": "Numbers are not normalized.",
}

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # what Arrow calls an index without a name
_NO_NAME = re.compile(r"\s*|Unnamed: \d+")  # an index in a CSV file, and what pandas calls it when it reads that
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_FEWEST_TEXTS = 10  # of so few that differ, categories may well be called by several words


@dataclass(frozen=True)
class UnderstoodTable:
    """Everything that a store holds of a table."""

    clients: DividedClients
    inputs: FeatureTable
    labels: Labels
    attributes: dict[str, tuple[AttributeType, list[Any]]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Input:
    """A column of the table, or one place of the lists that it holds."""

    name: str
    column: str
    values: Values


def understand(
    table: RawTable, options: TableOptions, numbers: NumberForm, progress: Callable[[float], None]
) -> UnderstoodTable:
    """Looks at every column, and learns from training samples what there is to learn about them."""
    marks = MissingMarks(options.na_values, list(table.columns), numbers)
    owners = _owners(table, options, marks)

    def where(row: int) -> str:
        if owners is None or owners.codes[row] == NOTHING:
            return table.where(row)
        return f"{table.where(row)} (client {quoted(owners.words[owners.codes[row]])})"

    labels = read_labels(table, options.label, options.task, options.label_separator, marks, where)
    inputs = list(_read_inputs(table, options, marks, where, progress))
    rows, notes = _kept_rows(owners, labels, inputs, options, where)
    labels = labels.only_of(rows)
    divided = divide(table, owners or _made_owners(labels, rows, options), rows, options, where)
    training = _training(divided, table.num_rows)
    if len(training.rows) == 0:
        raise BadInputError("No sample is for training; the table must be divided in another way.")
    features = FeatureTable(list(_features(inputs, options, training, where)), options.categories, where)
    notes = [
        *table.notes,
        *_index_notes(table, options),
        *_spelling_notes(table, options),
        *_empty_notes(table, options),
        *notes,
        *_notes(inputs, options, rows),
    ]
    return UnderstoodTable(
        divided,
        features,
        labels,
        {name: _attribute(table, name, divided, marks.of(name)) for name in options.attributes},
        (*notes, *features.notes, *labels.notes(training.rows)),
    )


def _owners(table: RawTable, options: TableOptions, marks: MissingMarks) -> Words | None:
    """Whose every row is; None if a partitioner decides that."""
    if options.client is not None:
        ids = table.column(options.client, "client")
        return read_names(options.client, ids, "client", marks.of(options.client))
    if options.partition is not None:
        return None
    if len(table.pieces) == 1:
        raise BadInputError(
            "Say which column names the client of a sample (client), or how to make clients (partition); "
            f"the table has: {', '.join(table.columns)}."
        )
    sizes = [rows for _, rows in table.pieces]
    return Words(np.repeat(np.arange(len(sizes)), sizes), table.piece_names)


def _empty_notes(table: RawTable, options: TableOptions) -> list[str]:
    """A sentence about tables that would each be a client if they had a row."""
    if options.client is not None or options.partition is not None:
        return []
    empty = [quoted(name) for name, (_, rows) in zip(table.piece_names, table.pieces, strict=True) if rows == 0]
    return [f"Tables without a row are no clients: {some(empty)}."] if empty else []


def _made_owners(labels: Labels, rows: IntArray, options: TableOptions) -> Words:
    """Clients by a partitioner, which looks at labels."""
    assert options.partition is not None
    y = labels.y[rows]
    if labels.kind == "classification":
        classes = y
    elif labels.kind == "multi_label":
        classes = y.argmax(axis=1)
    else:
        first = y if y.ndim == 1 else y[:, 0]
        classes = np.empty(len(rows), dtype=np.int64)
        classes[np.argsort(first, kind="stable")] = np.arange(len(rows)) * _RANK_GROUPS // len(rows)
    clients = assign_clients(options.partition, classes)
    codes = np.full(len(labels.y), NOTHING, dtype=np.int64)
    codes[rows] = clients
    return Words(codes, tuple(f"client-{number:04d}" for number in range(int(clients.max()) + 1)))


def _input_columns(table: RawTable, options: TableOptions) -> list[str]:
    """The columns that are inputs, in the order of the table."""
    used: dict[str, tuple[str | None, ...]] = {
        "client": (options.client,),
        "label": options.label,
        "part": (options.part,),
        "group": (options.group,),
        "attributes": options.attributes,
    }
    for option in ("drop", "features", "categorical", "missing"):
        named = getattr(options, option)
        for name in named or ():
            if option == "missing" and name == ALL_COLUMNS:
                continue
            table.require(name, option)
            taken = next((other for other, names in used.items() if name in names), None)
            if taken is not None and option in ("features", "categorical"):
                raise BadInputError(f"{option} names {quoted(name)}, which is no input, because {taken} names it.")
    others = {name for names in used.values() for name in names} | set(options.drop)
    wanted = set(table.columns if options.features is None else options.features)
    chosen = [name for name in table.columns if name in wanted and name not in others]
    if options.features is None:
        chosen = [name for name in chosen if not _PANDAS_INDEX.fullmatch(name)]
        if (unnamed := next((name for name in chosen if _NO_NAME.fullmatch(name)), None)) is not None:
            raise BadInputError(
                f"A column has no name ({quoted(unnamed)}), as the index has that pandas writes into files; leave it "
                f"out (drop: {quoted(unnamed)}), or list the columns that are inputs with features."
            )
    if not chosen:
        raise BadInputError("There is no column left that could be an input.")
    if strange := set(options.categorical) - set(chosen):
        raise BadInputError(f"categorical names {quoted(min(strange))}, which is no input.")
    return chosen


def _index_notes(table: RawTable, options: TableOptions) -> list[str]:
    used = {options.client, options.part, options.group, *options.label, *options.attributes, *options.drop}
    return [
        f"{name} is left out: it is the index of a data frame."
        for name in table.columns
        if options.features is None and name not in used and _PANDAS_INDEX.fullmatch(name)
    ]


def _spelling_notes(table: RawTable, options: TableOptions) -> list[str]:
    """What names of clients or labels were taken for the same, and which look the same and were not."""
    notes = []
    for name in dict.fromkeys([options.client, *options.label]):
        array = table.columns.get(name) if name is not None else None
        if array is None:
            continue
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if not any(is_text(kind) for is_text in _TEXTS):
            continue
        distinct = pc.unique(array.cast(pa.large_string())).to_pylist()
        trimmed = Counter(text.strip() for text in distinct if text is not None and text.strip())
        if several := [text for text, count in trimmed.items() if count > 1]:
            notes.append(f"Of {name}, values that differ only in blanks at their ends are one: {quoted(several[0])}.")
        if (told := alike(trimmed)) is not None:
            notes.append(f"Of {name}, {told}.")
    return notes


def _read_inputs(
    table: RawTable, options: TableOptions, marks: MissingMarks, where: Where, progress: Callable[[float], None]
) -> Iterator[_Input]:
    columns = _input_columns(table, options)
    for number, column in enumerate(columns):
        progress(number / len(columns))
        array = table.column(column, "features")
        is_wanted = column in options.categorical
        is_category = is_wanted or pa.types.is_dictionary(array.type)
        words_by = None if is_category else f"name {quoted(column)} among categorical"
        for name, part in _flat(column, array):
            values = read_values(name, part, marks.of(column), where, words_by, as_text=is_category)
            if is_category and isinstance(values, Numbers):
                values = values.as_words()
            _check_categories(name, values, is_wanted)
            yield _Input(name, column, values)


def _flat(name: str, array: pa.ChunkedArray) -> list[tuple[str, pa.ChunkedArray]]:
    """A column, or if it holds lists of equal length, one for each of their places."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return [(name, array)]
    whole = array.combine_chunks()
    lengths = pc.unique(pc.list_value_length(whole)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise BadInputError(f"Column {quoted(name)} holds lists of unequal lengths; leave it out with drop.")
    return [(f"{name}[{place}]", pa.chunked_array([pc.list_element(whole, place)])) for place in range(lengths[0])]


def _check_categories(name: str, values: Values, is_wanted: bool) -> None:
    """Refuses words nearly all of which differ."""
    if isinstance(values, Words) and len(values.words) > MOST_CATEGORIES and not is_wanted:
        raise BadInputError(
            f"Column {quoted(name)} holds {len(values.words):,} different words, too many for categories; leave it out "
            "with drop, or name it in categorical if each is to be an input."
        )
    if isinstance(values, Words) and not is_wanted and len(values.words) > _FEWEST_TEXTS:
        several_words = sum(" " in word.strip() for word in values.words)
        if 2 * len(values.words) > len(values.codes) and 2 * several_words > len(values.words):
            raise BadInputError(
                f"Column {quoted(name)} holds texts, such as {quoted(values.words[0])}; to learn from them, use "
                "from_texts (fedarena data import-text), or leave it out with drop."
            )


def _kept_rows(
    owners: Words | None, labels: Labels, inputs: Sequence[_Input], options: TableOptions, where: Where
) -> tuple[IntArray, list[str]]:
    """The rows that become samples: all, but for those that lack something and are to be dropped for it."""
    kept = np.ones(len(labels.missing), dtype=bool)
    notes = []
    lacking = [] if owners is None or options.client is None else [(options.client, options.client, owners.missing)]
    lacking.append((labels.column, labels.column, labels.missing))
    needed = len(lacking)
    lacking += [(found.name, found.column, found.values.missing) for found in inputs]
    for number, (name, column, absent) in enumerate(lacking):
        if not absent.any():
            continue
        treatment = options.treatment(column)
        if treatment == "drop":
            notes.append(f"Samples without {name} are left out ({int((absent & kept).sum()):,}).")
            kept &= ~absent
        elif treatment == "refuse" or number < needed:
            rows = np.flatnonzero(absent)
            more = f", nor in {len(rows) - 1:,} other rows" if len(rows) > 1 else ""
            choices = "drop" if number < needed else "drop, mean, median or zero"
            raise BadInputError(
                f"Column {quoted(name)} has no value in {where(int(rows[0]))}{more}; say what is done about missing "
                f"values (missing: {choices})."
            )
    if not kept.any():
        raise BadInputError("Every row lacks a value, so that none is left when those are dropped.")
    return np.flatnonzero(kept), notes


def _training(divided: DividedClients, num_rows: int) -> Training:
    clients = np.zeros(num_rows, dtype=np.int64)
    clients[divided.rows] = np.repeat(np.arange(len(divided.ids)), divided.counts.sum(axis=1))
    parts = np.repeat(np.tile(np.arange(len(PARTS)), len(divided.ids)), divided.counts.ravel())
    own_rows = divided.rows[parts == PARTS.index("train")]
    return Training(divided.training_rows(), own_rows, clients, len(divided.ids))


def _features(inputs: Sequence[_Input], options: TableOptions, training: Training, where: Where) -> Iterator[Feature]:
    for found in inputs:
        treatment, values = options.treatment(found.column), found.values
        if isinstance(values, Numbers):
            yield NumberFeature(found.name, values, treatment, options.normalize, training, where)
        else:
            yield CategoryFeature(found.name, values, treatment, training)
        if options.indicators and values.missing[training.rows].any():
            yield Indicator(found.name, values.missing)


def _notes(inputs: Sequence[_Input], options: TableOptions, rows: IntArray) -> list[str]:
    """What was done to values, in sentences."""
    has_numbers = any(isinstance(found.values, Numbers) and not found.values.are_booleans for found in inputs)
    notes = [_NORMALIZED[options.normalize]] if has_numbers else []
    replaced: dict[str, list[str]] = {}
    for found in inputs:
        if absent := int(found.values.missing[rows].sum()):
            treatment = options.treatment(found.column)
            if isinstance(found.values, Words):
                became = "no category" if treatment == "zero" else "the most frequent category of training samples"
            else:
                became = "zero" if treatment == "zero" else f"the {treatment} of training samples"
            replaced.setdefault(became, []).append(f"{found.name} ({absent:,})")
    notes += [
        f"{found.name} has another whole number in every sample; if it only counts them, leave it out with drop."
        for found in inputs
        if isinstance(found.values, Numbers) and _counts_samples(found.values.values[rows])
    ]
    notes += [
        note for found in inputs if isinstance(found.values, Numbers) and (note := _merged(found.name, found.values))
    ]
    notes += [
        note
        for found in inputs
        if found.column not in options.categorical and (note := _disguised(found.name, found.values, "categories"))
    ]
    return notes + [f"Missing values became {what}: {', '.join(names)}." for what, names in replaced.items()]


def _merged(name: str, numbers: Numbers) -> str | None:
    """A sentence about whole numbers that no floating-point number tells apart."""
    if numbers.exact is None:
        return None
    different, left = len(numbers.exact.words), len(np.unique(numbers.values[~numbers.missing]))
    if left == different:
        return None
    return (
        f"{name} holds {different:,} different whole numbers, of which {left:,} are left as inputs, because some are "
        "beyond 2^53; name it among categorical if they are codes, or subtract what they have in common."
    )


def _disguised(name: str, values: Values, became: str) -> str | None:
    """A sentence about words of which most look like numbers or dates that nobody could read as such."""
    if not isinstance(values, Words):
        return None
    found = [word for word in values.words if as_number(word) is None and _DISGUISED.fullmatch(word.strip(" '\""))]
    if 2 * len(found) <= len(values.words):
        return None
    return (
        f"{name} holds texts such as {found[0]}, which look like numbers, dates or times and became "
        f"{len(values.words):,} {became}; make numbers of them first if they are meant as such."
    )


def _counts_samples(numbers: Floats) -> bool:
    """Whether a column may be an id of samples."""
    are_whole = len(numbers) >= _FEWEST_IDS and bool((numbers == np.floor(numbers)).all())
    return are_whole and len(np.unique(numbers)) == len(numbers)


def _attribute(table: RawTable, name: str, clients: DividedClients, marks: Marks) -> tuple[AttributeType, list[Any]]:
    """What a column says about every client, which must be the same in all its rows."""
    array = table.column(name, "attributes")
    names = read_names(name, array, "attributes", marks)
    sizes = clients.counts.sum(axis=1)
    owner, starts = np.repeat(np.arange(len(sizes)), sizes), np.cumsum(sizes) - sizes
    codes = names.codes[clients.rows]
    differs = np.flatnonzero(codes != codes[starts][owner])
    if len(differs):
        raise BadInputError(
            f"attributes: column {quoted(name)} says different things about client "
            f"{quoted(clients.ids[owner[differs[0]]])}; an attribute is the same in all samples of a client."
        )
    values = read_values(name, array, marks, table.where, None)
    if isinstance(values, Words) or values.are_booleans or values.missing.any() or values.exact is not None:
        return "string", [names.words[code] if code != NOTHING else "" for code in codes[starts]]
    numbers = values.values[clients.rows[starts]]
    if (numbers == np.floor(numbers)).all() and np.abs(numbers).max() <= 2**53:
        return "int64", numbers.astype(np.int64).tolist()
    return "float64", numbers.tolist()
