"""Texts of very many users, from rows in buckets to a federation store, a bucket in memory at a time.

Rows have the columns ``user`` and ``text`` (words separated by spaces), and others. First the rows of each bucket are
put together by user and their words numbered, once and for all; what follows (which users, which samples, which words)
is arithmetic with these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.files import replacing
from fedarena.data.many_users.buckets import USER, Buckets
from fedarena.data.store.schema import AnyArray, IntArray
from fedarena.data.store.stretches import rows_of
from fedarena.data.text.words import Vocabulary, WordCounts

TEXT = "text"

# What is known of users, from their rows (sorted by user) and how many rows each has.
Describe = Callable[[pa.Table, IntArray], Mapping[str, pa.Array]]


@dataclass(frozen=True)
class UserTexts:
    """The texts of some users, user by user, in the order of their rows."""

    users: pa.Array
    counts: IntArray  # texts of each user
    attributes: Mapping[str, pa.Array]  # of each user
    columns: Mapping[str, AnyArray]  # of each text
    lengths: IntArray  # words of each text
    codes: AnyArray  # of each word, its place in `words`
    words: pa.Array

    @classmethod
    def group(cls, rows: pa.Table, describe: Describe) -> UserTexts:
        """Puts rows together by user, in the order in which users first appear."""
        users = rows.column(USER).combine_chunks().dictionary_encode()
        of_row = users.indices.to_numpy()
        counts = np.bincount(of_row, minlength=len(users.dictionary))
        rows = rows.take(pa.array(np.argsort(of_row, kind="stable"))).combine_chunks()
        attributes = describe(rows, counts)
        columns = {
            name: rows.column(name).to_numpy()
            for name in rows.column_names
            if name not in (USER, TEXT) and not pa.types.is_string(rows.schema.field(name).type)
        }
        texts = rows.column(TEXT).combine_chunks()
        lengths = np.where(pc.binary_length(texts).to_numpy() == 0, 0, pc.count_substring(texts, " ").to_numpy() + 1)
        # An empty text would be split into one empty word.
        words = pc.list_flatten(pc.split_pattern(texts.filter(pa.array(lengths > 0)), " ")).dictionary_encode()
        return cls(
            users.dictionary,
            counts,
            attributes,
            columns,
            lengths.astype(np.int64),
            words.indices.to_numpy(),
            words.dictionary,
        )

    def save(self, path: Path) -> None:
        """Writes everything to an Arrow file, which appears complete or not at all."""
        offsets = _offsets(self.counts)
        numbered = pa.DictionaryArray.from_arrays(pa.array(self.codes, pa.int32()), self.words)
        texts = pa.ListArray.from_arrays(_offsets(self.lengths), numbered)
        arrays = {
            USER: self.users,
            **{f"attribute:{name}": values for name, values in self.attributes.items()},
            **{
                f"column:{name}": pa.ListArray.from_arrays(offsets, pa.array(values))
                for name, values in self.columns.items()
            },
            TEXT: pa.ListArray.from_arrays(offsets, texts),
        }
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        with (
            replacing(path) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)

    @classmethod
    def load(cls, path: Path) -> UserTexts:
        """Reads what `save` wrote."""
        with pa.OSFile(str(path), "rb") as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        texts = batch.column(TEXT)
        words = texts.values.values
        return cls(
            batch.column(USER),
            np.diff(texts.offsets.to_numpy()).astype(np.int64),
            _with_prefix(batch, "attribute:"),
            {name: lists.values.to_numpy() for name, lists in _with_prefix(batch, "column:").items()},
            np.diff(texts.values.offsets.to_numpy()).astype(np.int64),
            words.indices.to_numpy(),
            words.dictionary,
        )

    def words_at(self, texts: IntArray) -> AnyArray:
        """The codes of the words of some texts, one text after the other."""
        starts = np.cumsum(self.lengths) - self.lengths
        codes: AnyArray = self.codes[rows_of(starts[texts], self.lengths[texts])]
        return codes

    def count_words(self, texts: IntArray) -> WordCounts:
        """How often each word occurs in some of the texts."""
        return WordCounts(self.words, np.bincount(self.words_at(texts), minlength=len(self.words)))

    def tokens_at(self, texts: IntArray, vocabulary: Vocabulary) -> AnyArray:
        """The tokens of some texts, one text after the other."""
        tokens: AnyArray = vocabulary.tokens_of(self.words)[self.words_at(texts)]
        return tokens


class TextIndex:
    """The texts of all users in a work folder, grouped by user."""

    def __init__(self, folder: Path, buckets: Buckets, describe: Describe = lambda rows, counts: {}):
        self._folder, self._buckets, self._describe = folder, buckets, describe

    def build(self, progress: Callable[[float], None]) -> None:
        """Groups the buckets that have not been grouped yet."""
        for bucket in range(self._buckets.count):
            if not self._path(bucket).exists() and (rows := self._buckets.rows(bucket)) is not None:
                UserTexts.group(rows, self._describe).save(self._path(bucket))
            progress((bucket + 1) / self._buckets.count)

    def sizes(self) -> IntArray:
        """How many texts each user has."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(texts.counts for texts in self)])

    def __iter__(self) -> Iterator[UserTexts]:
        for bucket in range(self._buckets.count):
            if self._path(bucket).exists():
                yield UserTexts.load(self._path(bucket))

    def _path(self, bucket: int) -> Path:
        return self._folder / f"texts-{bucket:03d}.arrow"


def _offsets(counts: IntArray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


def _with_prefix(batch: pa.RecordBatch, prefix: str) -> dict[str, pa.Array]:
    return {name[len(prefix) :]: batch.column(name) for name in batch.schema.names if name.startswith(prefix)}
