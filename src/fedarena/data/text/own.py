"""Somebody's own texts as a federation: a table with a column of texts, and one of clients.

The table is read in pieces. Its rows are sorted into buckets by client on disk, and dealt with a bucket at a time, so
memory does not grow with the number of texts.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.files import write_bytes
from fedarena.core.outside_text import quoted
from fedarena.data.many_users.buckets import USER, Buckets, Piece, Position
from fedarena.data.many_users.clients import ChosenTexts, Published, TextClients
from fedarena.data.many_users.texts import TEXT, TextIndex
from fedarena.data.own.labels import LabelClasses, as_texts
from fedarena.data.own.parts import DivisionOptions, Missing, groups_of, part_codes
from fedarena.data.own.stores import OwnBuild, StorePlace, build_once, name_of
from fedarena.data.own.tables import OwnTable, TextForm, without_missing
from fedarena.data.own.who import Partition, clients_of
from fedarena.data.registry import Progress
from fedarena.data.sampling import Sampling
from fedarena.data.splits import Split, SplitKind
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import PARTS, ColumnSpec, Group, IntArray
from fedarena.data.text.sequences import cut_into_sequences, rows_with_end
from fedarena.data.text.tokenizers import TextTokenizer, TokenizerFile, tokenizer_of
from fedarena.data.text.words import SPECIAL, Vocabulary, WordCounts

SOURCE = "texts"
TOKENIZER_FILE = "tokenizer.json"
NEXT_TOKEN_LENGTH = 64
MOST_AUTOMATIC_LENGTH = 256
_COVERED = 0.95  # of the training texts, by a length that nobody gave
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True)
class TextOptions:
    """What becomes of texts and of their clients."""

    tokenizer: str
    vocabulary: int
    length: int | None
    join: bool
    missing: Missing
    partition: Partition | None
    minimum_samples: int
    division: DivisionOptions

    def __post_init__(self) -> None:
        for option, value, least in (
            ("vocabulary", self.vocabulary, len(SPECIAL) + 1),
            ("length", 1 if self.length is None else self.length, 1),
            ("minimum_samples", self.minimum_samples, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_TOKENS:
                raise BadInputError(f"{option} must be a number from {least} to {_MOST_TOKENS:,}, not {quoted(value)}.")
        if self.missing not in ("refuse", "drop"):
            raise BadInputError(f"missing must be 'refuse' or 'drop', not {quoted(self.missing)}.")

    @property
    def recorded(self) -> dict[str, Any]:
        """What a store notes of them."""
        own = {name: value for name, value in vars(self).items() if name != "division"}
        return {**own, **vars(self.division)}


@dataclass(frozen=True)
class TextColumns:
    """Which column of a table is what. Without one of labels, the next token is predicted."""

    text: str
    client: str | None = None
    label: str | None = None
    part: str | None = None
    attributes: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None  # where classes have an order of their own

    @property
    def used(self) -> dict[str, str]:
        """The columns by what they are for."""
        known = {"client": self.client, "text": self.text, "label": self.label, "part": self.part}
        found = {what: column for what, column in known.items() if column is not None}
        return {**found, **{f"attribute {name}": name for name in self.attributes}}


def from_texts(
    table: Any,
    *,
    text: str,
    client: str | None = None,
    label: str | None = None,
    tokenizer: Literal["words", "characters", "bytes"] | str | Path = "words",
    vocabulary: int = 10_000,
    length: int | None = None,
    join: bool = True,
    part: str | None = None,
    attributes: Sequence[str] = (),
    partition: Partition | None = None,
    missing: Missing = "refuse",
    minimum_samples: int = 1,
    split: SplitKind | None = None,
    train_fraction: float | None = None,
    validation_fraction: float | None = None,
    split_seed: int | None = None,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str = "utf8",
    quotes: bool = True,
    name: str | None = None,
    path: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Federation:
    """A federation of texts, from a table (a CSV, Parquet or JSON lines file, a DataFrame, an Arrow table).

    `client`, `text`, `label`, `part` (train, validation or test) and `attributes` of clients are columns. With a
    `label` a text is a sample, and of longer ones the first `length` tokens count (by default as many as 95 of 100
    training texts need, at most 256). Without one the next token is predicted (`length` 64): a client's texts in
    their order, earlier ones for training; they are joined unless `join` is false.

    `tokenizer` is words, characters, bytes, or a file of Hugging Face's tokenizers. The `vocabulary` of words and
    characters has padding, unknown and the most frequent tokens of the training texts. It is kept in the store.

    Without `client`, a `partition` makes clients. The store is kept in the cache, or written to the folder `path`,
    where `overwrite` lets it replace another one. It is built again when the table changes.

    >>> said = {"speaker": list("aabb"), "utterance": ["so good", "too bad", "good", "bad"], "mood": list("+-+-")}
    >>> from_texts(said, client="speaker", text="utterance", label="mood").task.label_names
    ('+', '-')
    """
    division = DivisionOptions(split, train_fraction, validation_fraction, split_seed)
    options = TextOptions(str(tokenizer), vocabulary, length, join, missing, partition, minimum_samples, division)
    read = OwnTable(table, TextForm(columns, delimiter, encoding, quotes))
    used = TextColumns(text, client, label, part, tuple(attributes))
    return texts_to_federation(read, used, options, tokenizer, name, StorePlace(path, overwrite, progress))


def texts_to_federation(
    table: OwnTable,
    columns: TextColumns,
    options: TextOptions,
    tokenizer: str | Path,
    name: str | None,
    place: StorePlace,
) -> Federation:
    """The federation of a table's texts, which is written unless the cache has it."""
    for what, column in columns.used.items():
        table.require(what, column)
    if columns.client is None and options.partition is None:
        raise BadInputError(f"Say which column of {table.name} has the clients: client=…, or make some: partition=….")
    if columns.client is None and columns.attributes:
        raise BadInputError("attributes are known of natural clients; say which column has them: client=….")
    maker = tokenizer_of(tokenizer)
    content = maker.content if isinstance(maker, TokenizerFile) else None
    state = [
        *table.state(list(columns.used.values())),
        None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest(),
    ]

    def build(target: OwnBuild) -> None:
        _build(target, table, columns, options, maker)

    recorded = {"table": str(table.path or "in memory"), **columns.used, **options.recorded}
    federation = build_once(SOURCE, recorded, state, name_of(table.path, name, "texts"), place, build)
    if content is not None and not (federation.path / TOKENIZER_FILE).exists():
        write_bytes(federation.path / TOKENIZER_FILE, content)
    return federation


def _build(
    target: OwnBuild, table: OwnTable, columns: TextColumns, options: TextOptions, tokenizer: TextTokenizer
) -> None:
    has_labels = columns.label is not None
    division = options.division.division(columns.part is not None)
    reader = _Reader(table, columns, options, tokenizer, lambda done: target.progress(0.1 * done, "Reading labels"))
    target.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.path.name}.", dir=target.path.parent) as folder:
        buckets = Buckets(Path(folder), table.size_bytes * tokenizer.expansion)
        buckets.fill(reader.read, lambda done: target.progress(0.1 + 0.4 * done, "Reading texts"))
        index = TextIndex(Path(folder), buckets, lambda rows, counts: _attributes(rows, counts, columns.attributes))
        index.build(lambda done: target.progress(0.5 + 0.2 * done, "Grouping by client"))
        clients = TextClients(
            index,
            Sampling(minimum_samples=options.minimum_samples),
            Published("part") if division is None else division,
            order="shuffled" if has_labels else "in_order",
        )
        vocabulary, length = _look(target, clients, options, tokenizer, has_labels)
        _write(target, clients, division, vocabulary, length, columns, options, reader.label_names, tokenizer.closing)


def _look(
    target: OwnBuild,
    clients: TextClients,
    options: TextOptions,
    tokenizer: TextTokenizer,
    has_labels: bool,
) -> tuple[Vocabulary, int]:
    """The vocabulary and the length that follow from the training texts."""
    lengths = [np.zeros(0, dtype=np.int64)]

    def count() -> Iterator[WordCounts]:
        done = 0
        for chosen in clients:
            rows = chosen.training_rows
            lengths.append(chosen.texts.lengths[rows])
            if tokenizer.counts_tokens:
                yield chosen.texts.count_words(rows)
            done += len(chosen.users)
            target.progress(0.7 + 0.1 * done / clients.number, "Counting tokens")

    vocabulary = tokenizer.vocabulary(WordCounts.total(count()), options.vocabulary)
    found = np.concatenate(lengths)
    if not len(found):
        raise BadInputError("No text is for training; say so with another part, or train_fraction.")
    if len(vocabulary.names) <= len(SPECIAL):
        raise BadInputError("The training texts are empty: there is no token in any of them.")
    if not has_labels:
        return vocabulary, options.length or NEXT_TOKEN_LENGTH
    covering = int(np.quantile(found, _COVERED, method="inverted_cdf"))
    length = options.length or min(max(covering, 1), MOST_AUTOMATIC_LENGTH)
    cut = float((found > length).mean())
    if cut > 1 - _COVERED:
        warnings.warn(
            f"{cut:.1%} of the training texts have more than {length} tokens; the rest is left out (length={length})",
            stacklevel=2,
        )
    return vocabulary, length


def _write(
    target: OwnBuild,
    clients: TextClients,
    division: Split | None,
    vocabulary: Vocabulary,
    length: int,
    columns: TextColumns,
    options: TextOptions,
    label_names: tuple[str, ...],
    closing: int | None,
) -> None:
    if columns.label is None:
        task = vocabulary.next_token()
        stored = {"tokens": ColumnSpec(dtype=vocabulary.dtype, shape=(length + 1,))}
    else:
        task = vocabulary.classification(len(label_names), label_names)
        stored = {"x": ColumnSpec(dtype=vocabulary.dtype, shape=(length,)), "y": ColumnSpec(dtype="int64")}
    done = 0
    with target.writer(task=task, columns=stored, attributes=dict.fromkeys(columns.attributes, "string")) as writer:
        for chosen in clients:
            texts, rows, counts = chosen.texts, chosen.rows, chosen.counts
            tokens, lengths = texts.tokens_at(rows, vocabulary), texts.lengths[rows]
            groups: list[Group] = chosen.groups if division is not None else groups_of(counts)
            if columns.label is None:
                values, counts = _sequences(chosen, tokens, lengths, length, vocabulary.padding, options.join)
                samples = {"tokens": values}
            else:
                x = rows_with_end(tokens, lengths, length, vocabulary.padding, closing)
                samples = {"x": x, "y": texts.columns["label"][rows].astype(np.int64)}
            attributes = {name: chosen.attribute(name) for name in columns.attributes}
            writer.add_clients(chosen.ids, counts=counts, columns=samples, groups=groups, attributes=attributes)
            done += len(chosen.users)
            target.progress(0.8 + 0.2 * done / clients.number, "Writing")


def _sequences(
    chosen: ChosenTexts, tokens: Any, lengths: IntArray, length: int, padding: int, join: bool
) -> tuple[Any, IntArray]:
    """Next-token samples of some clients, and how many each has in each part."""
    if not join:
        sequences, counts = cut_into_sequences(tokens, lengths, length, padding)
        return sequences, chosen.add_up(counts)
    joined = chosen.add_up(lengths)  # tokens of each client and part, which come one after the other
    sequences, counts = cut_into_sequences(tokens, joined.ravel(), length, padding)
    return sequences, counts.reshape(-1, len(PARTS))


def _attributes(rows: pa.Table, counts: IntArray, names: tuple[str, ...]) -> dict[str, pa.Array]:
    """What is known of clients, from rows that are sorted by client; it must be the same in all rows of one."""
    first = np.cumsum(counts) - counts
    found = {}
    for name in names:
        values = rows.column(f"attribute {name}").combine_chunks()
        of_client = values.take(pa.array(first))
        same = pc.equal(values, of_client.take(pa.array(np.repeat(np.arange(len(counts)), counts))))
        differing = pc.index(same, False).as_py()
        if differing >= 0:
            client = rows.column(USER)[differing].as_py()
            raise BadInputError(
                f"attributes: {name!r} differs between texts of the client {client!r}, so it is not known of clients."
            )
        found[name] = of_client
    return found


class _Reader:
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
