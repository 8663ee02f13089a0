"""Somebody's own texts as a federation: a table with a column of texts, and one of clients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedarena.core.errors import BadInputError
from fedarena.core.files import write_bytes
from fedarena.core.outside_text import quoted
from fedarena.data.own.parts import DivisionOptions, Missing
from fedarena.data.own.stores import StorePlace, build_once, name_of
from fedarena.data.own.tables import OwnTable, TextForm
from fedarena.data.own.who import Partition
from fedarena.data.registry import Progress, StoreBuild
from fedarena.data.splits import SplitKind
from fedarena.data.store.federation import Federation
from fedarena.data.text.building import build_texts
from fedarena.data.text.options import TextColumns, TextOptions
from fedarena.data.text.tokenizers import TokenizerFile, tokenizer_of

SOURCE = "texts"
TOKENIZER_FILE = "tokenizer.json"


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
    line_breaks: bool = False,
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
    if isinstance(attributes, str):
        raise BadInputError(f"attributes must be a list of columns, not {quoted(attributes)}.")
    division = DivisionOptions(split, train_fraction, validation_fraction, split_seed)
    options = TextOptions(str(tokenizer), vocabulary, length, join, missing, partition, minimum_samples, division)
    read = OwnTable(table, TextForm(columns, delimiter, encoding, quotes, line_breaks))
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

    def build(target: StoreBuild) -> None:
        build_texts(target, table, columns, options, maker)

    recorded = {"table": str(table.path or "in memory"), **columns.used, **options.recorded}
    federation = build_once(SOURCE, recorded, state, name_of(table.path, name, "texts"), place, build)
    if content is not None and not (federation.path / TOKENIZER_FILE).exists():
        write_bytes(federation.path / TOKENIZER_FILE, content)
    return federation
