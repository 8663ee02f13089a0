"""What people say and how it is written down: recordings with transcripts, or, without recordings, the texts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.data.by_client.audio import fixed_length, waveform
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, vectors
from fedarena.data.by_client.clients import Choices, look_through
from fedarena.data.by_client.rows import Record
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.registry import StoreBuild
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec
from fedarena.data.text.characters import codes_of

Characters = Annotated[int, Field(ge=2, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=600)]
Inputs = Literal["audio", "text"]
_BLANK, _PADDING, _UNKNOWN = "<none>", "<padding>", "<unknown>"


@dataclass(frozen=True)
class Utterance:
    """A sentence that somebody says."""

    speaker: str
    text: str
    path: Path | None  # of the recording, if it is to be read
    where: str  # for sentences
    group: int  # place of the group, if groups were published
    line: int
    done: float  # of the file


@dataclass(frozen=True)
class SpeechForm:
    """What samples are: how long recordings and transcripts are, and how many different characters count."""

    sample_rate: int
    seconds: float
    characters: int  # of a transcript, at most
    alphabet: int | Sequence[str]  # so many characters, the most frequent ones, or these

    @property
    def samples(self) -> int:
        """Of a recording."""
        return round(self.sample_rate * self.seconds)


def build_speech(
    build: StoreBuild,
    files: Sequence[Path],
    utterances: Callable[[Path], Iterator[Utterance]],
    choices: Choices,
    form: SpeechForm,
    inputs: Inputs,
    published: PublishedGroups | None = None,
) -> None:
    """Writing down what is said, or, of texts alone, predicting the next character.

    Recordings that are longer than the form's, and transcripts that are, are left out: half of what is said cannot be
    written down.
    """

    def records(path: Path) -> Iterator[Record]:
        for said in utterances(path):
            text = " ".join(said.text.lower().split())
            if not text or len(text) > form.characters or (inputs == "text" and len(text) < 2):
                continue
            values: tuple[object, ...] = (text,)
            if inputs == "audio":
                assert said.path is not None
                heard = waveform(_content(said.path, said.where), form.sample_rate, str(said.path))
                if len(heard) > form.samples:
                    continue
                values = (fixed_length(heard, form.samples).astype("<i2").tobytes(), text)
            yield Record(said.speaker, values if published is None else (said.group, said.line, *values), said.done)

    columns = {"text": pa.string()} if inputs == "text" else {"x": pa.binary(), "text": pa.string()}
    build_from_rows(
        build,
        files,
        records,
        columns if published is None else {**GROUP_COLUMNS, **columns},
        choices,
        lambda buckets: _form(buckets, form, inputs),
        published,
        order="in_order",
    )


def _content(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadInputError(f"{where} names a recording, but there is no file {path}") from None


def _form(buckets: Buckets, form: SpeechForm, inputs: Inputs) -> Form:
    alphabet = form.alphabet
    if isinstance(alphabet, int):
        counts: Counter[str] = Counter()
        look_through(buckets, lambda rows: counts.update("".join(rows.column("text").to_pylist())))
        alphabet = sorted(counts, key=lambda character: (-counts[character], character))[:alphabet]
    begin = (_BLANK,) if inputs == "audio" else (_PADDING, _UNKNOWN)
    names = (*begin, *sorted(alphabet))
    known = np.array([ord(character) for character in names[len(begin) :]], dtype=np.uint32)

    def characters(rows: pa.Table, length: int) -> AnyArray:
        """Transcripts as rows of equal length with zeros behind; other characters are unknown, or not written down."""
        table = np.zeros((len(rows), length), dtype=np.int16)
        for row, text in enumerate(rows.column("text").to_pylist()):
            codes = codes_of(text)
            places = np.searchsorted(known, codes).clip(max=len(known) - 1)
            is_known = known[places] == codes
            tokens = np.where(is_known, places + len(begin), 1)
            if inputs == "audio":
                tokens = tokens[is_known]
            table[row, : len(tokens)] = tokens
        return table

    if inputs == "text":
        task = TaskSpec(kind="next_token", classes=len(names), padding=0, unknown=1, label_names=names)
        shape = {"tokens": ColumnSpec(dtype="int16", shape=(max(form.characters, 2),))}
        return Form(task, shape, lambda rows: {"tokens": characters(rows, max(form.characters, 2))})
    task = TaskSpec(kind="transcription", classes=len(names), label_names=names, sample_rate=form.sample_rate)
    return Form(
        task,
        {
            "x": ColumnSpec(dtype="int16", shape=(form.samples,)),
            "y": ColumnSpec(dtype="int16", shape=(form.characters,)),
        },
        lambda rows: {"x": vectors(rows, "x", "<i2", (form.samples,)), "y": characters(rows, form.characters)},
    )
