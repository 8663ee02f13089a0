"""Texts by client: next words, or a class of each, in tokens of a vocabulary of the most frequent words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.data.by_client.building import GROUP_COLUMNS
from fedarena.data.by_client.clients import Choices
from fedarena.data.by_client.rows import Record, RecordReader, Records
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.many_users.clients import ChosenTexts, PublishedGroups, TextClients
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.many_users.texts import TEXT, TextIndex
from fedarena.data.registry import StoreBuild
from fedarena.data.splits import SampleOrder
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec
from fedarena.data.text.sequences import cut_into_sequences, padded_in_front
from fedarena.data.text.words import SPECIAL, Vocabulary, split_messages

VocabularySize = Annotated[int, Field(ge=3, le=1_000_000)]
Length = Annotated[int, Field(ge=1, le=10_000)]
_READING, _GROUPED, _COUNTED = 0.6, 0.8, 0.9  # of the work


@dataclass(frozen=True)
class TextFiles:
    """Files of texts and their records: further columns of numbers, and at last the words of a text."""

    files: Sequence[Path]
    records: Records
    columns: dict[str, pa.DataType]  # that are in front of the text; `GROUP_COLUMNS` first if groups were published
    published: PublishedGroups | None = None

    @classmethod
    def of(
        cls,
        files: Sequence[Path],
        records: Records,
        published: PublishedGroups | None = None,
        **columns: pa.DataType,
    ) -> TextFiles:
        """The same, where it goes without saying that groups have their columns."""
        return cls(files, records, {**(GROUP_COLUMNS if published else {}), **columns}, published)


@dataclass(frozen=True)
class TextForm:
    """What becomes of texts: a task and columns, which depend on the vocabulary, and how samples are made."""

    task: Callable[[Vocabulary], TaskSpec]
    columns: Callable[[Vocabulary], dict[str, ColumnSpec]]
    samples: Callable[[ChosenTexts, Vocabulary], tuple[dict[str, AnyArray], IntArray]]  # and counts of parts
    change: Callable[[Vocabulary], Vocabulary] = lambda words: words
    order: SampleOrder = "shuffled"


def words_of(text: str) -> str:
    """The words of a text, separated by spaces."""
    return split_messages([text.replace("\n", " ")])[0]


def known_words(words: Sequence[str], size: int) -> Vocabulary:
    """A vocabulary that came with the texts, or the beginning of it."""
    own = [word for word in dict.fromkeys(words) if word not in SPECIAL]
    return Vocabulary((*SPECIAL, *own[: size - len(SPECIAL)]))


def build_next_words(
    build: StoreBuild,
    texts: TextFiles,
    choices: Choices,
    vocabulary: int | Vocabulary,
    sequence_length: int,
) -> None:
    """Predicting the next word: a text becomes one sample or more, of ``sequence_length + 1`` words.

    After a single word nothing can be predicted, so such texts are left out.
    """

    def of_several_words(path: Path) -> Iterator[Record]:
        return (record for record in texts.records(path) if " " in record.values[-1])

    def samples(chosen: ChosenTexts, words: Vocabulary) -> tuple[dict[str, AnyArray], IntArray]:
        tokens = chosen.texts.tokens_at(chosen.rows, words)
        sequences, counts = cut_into_sequences(tokens, chosen.texts.lengths[chosen.rows], sequence_length)
        return {"tokens": sequences}, chosen.add_up(counts)

    def columns(words: Vocabulary) -> dict[str, ColumnSpec]:
        return {"tokens": ColumnSpec(dtype=words.dtype, shape=(sequence_length + 1,))}

    longer = replace(texts, records=of_several_words)
    form = TextForm(Vocabulary.next_token, columns, samples, order="in_order")
    build_texts(build, longer, choices, vocabulary, form)


def build_labelled_texts(
    build: StoreBuild,
    texts: TextFiles,
    choices: Choices,
    vocabulary: int | Vocabulary,
    length: int,
    task: Callable[[Vocabulary], TaskSpec],
    labels: Callable[[ChosenTexts], AnyArray],
) -> None:
    """Telling something from the first `length` words of texts; `labels` gives what is right of chosen ones."""

    def samples(chosen: ChosenTexts, words: Vocabulary) -> tuple[dict[str, AnyArray], IntArray]:
        tokens = chosen.texts.tokens_at(chosen.rows, words)
        x = padded_in_front(tokens, chosen.texts.lengths[chosen.rows], length)
        return {"x": x, "y": labels(chosen)}, chosen.counts

    def columns(words: Vocabulary) -> dict[str, ColumnSpec]:
        spec = task(words)
        label = ColumnSpec(dtype="int64")
        if spec.kind == "multi_label":
            label = ColumnSpec(dtype="uint8", shape=(spec.classes,))
        return {"x": ColumnSpec(dtype=words.dtype, shape=(length,)), "y": label}

    build_texts(build, texts, choices, vocabulary, TextForm(task, columns, samples))


def build_texts(
    build: StoreBuild, texts: TextFiles, choices: Choices, vocabulary: int | Vocabulary, form: TextForm
) -> None:
    """Reads files, sorts their texts by client on disk, and writes samples; a `vocabulary` may be its size alone."""
    reader = RecordReader(texts.files, texts.records, {**texts.columns, TEXT: pa.string()})
    division = choices.division(texts.published)
    with work_folder(build) as work:
        buckets = Buckets(work, reader.total_bytes)
        buckets.fill(reader.read, lambda done: build.progress(_READING * done, "Reading texts"))
        index = TextIndex(work, buckets)
        index.build(lambda done: build.progress(_READING + (_GROUPED - _READING) * done, "Grouping by client"))
        if not any(True for _ in index):
            raise BadInputError(f"{texts.files[0]} has no texts")
        clients = TextClients(index, choices.sampling, division, form.order)
        words = vocabulary
        if isinstance(words, int):
            counts = clients.training_words(
                lambda done: build.progress(_GROUPED + (_COUNTED - _GROUPED) * done, "Counting words")
            )
            words = Vocabulary.of(counts, words)
        words = form.change(words)
        done = 0
        with build.writer(task=form.task(words), columns=form.columns(words)) as writer:
            for chosen in clients:
                made, counts_of_parts = form.samples(chosen, words)
                writer.add_clients(chosen.ids, counts=counts_of_parts, columns=made, groups=chosen.groups)
                done += len(chosen.users)
                build.progress(_COUNTED + (1 - _COUNTED) * done / clients.number, "Writing")
