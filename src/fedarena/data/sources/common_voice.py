"""Common Voice (Ardila et al., 2020): sentences that volunteers read aloud; a client is a speaker.

The publisher's archive has tables such as validated.tsv (client_id, path, sentence, …) and a folder clips with the
recordings as MP3. FedScale's tarball has train.csv and test.csv with the path of a recording, that of its transcript
and the number of a client, and labels.json, the list of characters. Without recordings, the next character of
sentences is predicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.audio import SampleRate
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.packed import PACKINGS, csv_rows, table_rows
from fedarena.data.by_client.transcripts import Characters, Inputs, Seconds, SpeechForm, Utterance, build_speech
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import GROUPS

_FEDSCALE = {"train.csv": 0, "val.csv": 1, "test.csv": 2}  # places of groups
_LABELS = "labels.json"


class SentenceFiles(RawFiles):
    """FedScale's tables, or the publisher's of sentences that were validated."""

    def tables(self, given: str | None) -> dict[Path, int]:
        """FedScale's, with the places of their groups."""
        place = self.folder(given)
        return {place / name: code for name, code in _FEDSCALE.items() if (place / name).is_file()}

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        place = self.folder(given)
        if tables := self.tables(given):
            labels = {_LABELS: place / _LABELS} if (place / _LABELS).is_file() else {}
            return {**{path.name: path for path in tables}, **labels}
        names = [f"validated*.tsv{ending}" for ending in ("", *PACKINGS)]
        return {path.name: path for name in names for path in sorted(place.glob(name))}


FILES = SentenceFiles(
    "common_voice",
    "Common Voice",
    {"sentences": RawFile("validated.tsv")},
    "and the folder clips beside it; https://commonvoice.mozilla.org has them; or train.csv and test.csv of FedScale's "
    "common_voice.tar.gz",
    one_is_enough=True,
    tarballs=("common_voice.tar.gz", "common-voice.tar.gz"),
)


@FEDERATIONS.register("common_voice")
@cached_source(version=1, reads=FILES)
def common_voice(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    inputs: Inputs = "audio",
    sample_rate: SampleRate = 16_000,
    seconds: Seconds = 10.0,
    length: Characters = 100,
    alphabet: Characters = 40,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Sentences that are read aloud and are to be written down, from the files in `folder`; a client is a speaker.

    Recordings of more than so many `seconds` and transcripts of more than `length` characters are left out. The
    `alphabet` has so many characters, the most frequent ones, or those of FedScale's labels.json; others are not
    written down. With ``inputs=text`` recordings are not needed, and the next character is to be predicted.
    """
    found = FILES.find(folder)
    place, tables = FILES.folder(folder), FILES.tables(folder)
    published = None
    if tables:
        names = {code: path for path, code in tables.items()}
        published = PublishedGroups(lambda group, line: f"line {line:,} of {names[group]}", len(names))
    characters: Any = _characters(found[_LABELS]) if _LABELS in found else alphabet
    build_speech(
        build,
        [path for name, path in found.items() if name != _LABELS],
        (lambda path: _of_fedscale(path, tables[path])) if tables else (lambda path: _published(path, place)),
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        SpeechForm(sample_rate, seconds, length, characters),
        inputs,
        published,
    )


def _characters(path: Path) -> list[str]:
    """The characters of labels.json, of which the first, an underscore, stands for none."""
    try:
        listed = json.loads(read_bytes(path))
    except ValueError:
        raise DamagedFileError(f"{path} is damaged: it is no JSON") from None
    if not isinstance(listed, list) or not all(isinstance(one, str) and len(one) == 1 for one in listed):
        raise BadInputError(f"{path} must be a list of characters")
    return sorted({character.lower() for character in listed} - {"_"})


def _published(path: Path, place: Path) -> Iterator[Utterance]:
    heading, rows = table_rows(path, "\t", quotes=False)
    speaker, clip, sentence = (heading.place(name) for name in ("client_id", "path", "sentence"))
    for row in rows:
        where = f"{path}, line {row.line:,}"
        if not row.values[speaker]:
            raise BadInputError(f"{where} has no client_id")
        recording = _inside(place / "clips", row.values[clip], where)
        yield Utterance(row.values[speaker], row.values[sentence], recording, where, 0, row.line, row.done)


def _of_fedscale(path: Path, group: int) -> Iterator[Utterance]:
    rows = csv_rows(path)
    next(rows, None)
    for line, values, done in rows:
        where = f"{path}, line {line:,}"
        if len(values) != 3:
            raise BadInputError(f"{where} has {len(values)} values; it must have a recording, a transcript, a client")
        recording, transcript = (_inside(path.parent, value, where) for value in values[:2])
        if not transcript.is_file():
            raise BadInputError(f"{where} names the transcript {quoted(values[1])}, but there is no file {transcript}")
        text = transcript.read_bytes().decode("utf-8", "replace")
        yield Utterance(f"{GROUPS[group]}-{values[2]}", text, recording, where, group, line, done)


def _inside(folder: Path, name: str, where: str) -> Path:
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise BadInputError(f"{where} names {quoted(name)}, which is not inside of {folder}")
    return folder / name
