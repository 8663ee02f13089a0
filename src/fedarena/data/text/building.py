"""Building a federation of somebody's own texts.

The table is read in pieces. Its rows are sorted into buckets by client on disk, and dealt with a bucket at a time, so
memory does not grow with the number of texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.user_warnings import warn_user
from fedarena.data.many_users.buckets import USER, Buckets
from fedarena.data.many_users.clients import ChosenTexts, Published, TextClients
from fedarena.data.many_users.texts import TextIndex
from fedarena.data.own.parts import groups_of, renumbered
from fedarena.data.own.tables import OwnTable
from fedarena.data.registry import StoreBuild
from fedarena.data.sampling import Sampling
from fedarena.data.splits import Split
from fedarena.data.store.schema import PARTS, ColumnSpec, Group, IntArray
from fedarena.data.text.options import TextColumns, TextOptions
from fedarena.data.text.reading import TextReader
from fedarena.data.text.sequences import cut_into_sequences, rows_with_end
from fedarena.data.text.tokenizers import TextTokenizer
from fedarena.data.text.words import SPECIAL, Vocabulary, WordCounts

NEXT_TOKEN_LENGTH = 64
MOST_AUTOMATIC_LENGTH = 256
_COVERED = 0.95  # of the training texts, by a length that nobody gave


def build_texts(
    target: StoreBuild, table: OwnTable, columns: TextColumns, options: TextOptions, tokenizer: TextTokenizer
) -> None:
    """Writes the store of a table's texts."""
    has_labels = columns.label is not None
    division = options.division.division(columns.part is not None)
    reader = TextReader(table, columns, options, tokenizer, lambda done: target.progress(0.1 * done, "Reading labels"))
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
        labels: set[int] = set()
        vocabulary, length = _look(target, clients, options, tokenizer, labels if has_labels else None)
        names = reader.label_names
        number_of = np.arange(len(names))
        if has_labels and columns.label_names is None:
            number_of, names = renumbered(np.array(sorted(labels)), names)
        _write(target, clients, division, vocabulary, length, columns, options, names, number_of, tokenizer.closing)


def _look(
    target: StoreBuild,
    clients: TextClients,
    options: TextOptions,
    tokenizer: TextTokenizer,
    labels: set[int] | None,
) -> tuple[Vocabulary, int]:
    """The vocabulary and the length that follow from the training texts; `labels` are told which ones there are."""
    lengths = [np.zeros(0, dtype=np.int64)]

    def count() -> Iterator[WordCounts]:
        done = 0
        for chosen in clients:
            rows = chosen.training_rows
            lengths.append(chosen.texts.lengths[rows])
            if labels is not None:
                labels.update(np.unique(chosen.texts.columns["label"][chosen.rows]).tolist())
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
    if labels is None:
        return vocabulary, options.length or NEXT_TOKEN_LENGTH
    covering = int(np.quantile(found, _COVERED, method="inverted_cdf"))
    length = options.length or min(max(covering, 1), MOST_AUTOMATIC_LENGTH)
    cut = float((found > length).mean())
    if cut > 1 - _COVERED:
        warn_user(
            f"{cut:.1%} of the training texts have more than {length} tokens; the rest is left out (length={length})"
        )
    return vocabulary, length


def _write(
    target: StoreBuild,
    clients: TextClients,
    division: Split | None,
    vocabulary: Vocabulary,
    length: int,
    columns: TextColumns,
    options: TextOptions,
    label_names: tuple[str, ...],
    number_of: IntArray,
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
                samples = {"x": x, "y": number_of[texts.columns["label"][rows]]}
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
