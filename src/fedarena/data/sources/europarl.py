"""Europarl (Koehn, 2005): speeches in the European Parliament and their translations; a client is a speaker.

The publisher's files, ``txt/en/ep-00-01-17.txt`` and the same in other languages, have marks of chapters, speakers and
paragraphs; what a speaker said in both languages is put together line by line where both have as many lines, and left
out where they do not. FedScale's tarball has maps, en/en.csv and fr/fr.csv: the second column of a map is taken for
the number of a row of both, counted from 0. Both languages have one vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.maps import MapFiles, MapRow, groups_of_maps, map_records
from fedarena.data.by_client.packed import csv_rows, lines, whole_number
from fedarena.data.by_client.parallel import build_translations, pair
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import Length, TextFiles, VocabularySize, words_of
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

Language = Literal["bg", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hu", "it", "lt", "lv", "nl", "pl", "pt"]
_CHAPTER = re.compile(r"<CHAPTER ID=\"?([^\s>\"]+)")
_SPEAKER = re.compile(r"<SPEAKER ID=\"?([^\s>\"]+)\"?(?:[^>]*?NAME=\"([^\"]*)\")?")
_ENGLISH = "en"


class Parliament(MapFiles):
    """FedScale's maps, or the publisher's folder of every language."""

    def found(self, given: str | None) -> dict[str, Path]:
        """The maps and tables, or the folder of English."""
        if maps := self.maps(given):
            return {f"map of {group}": path for group, path in maps.items()}
        places = [self.folder(given) / inside / _ENGLISH for inside in ("txt", ".")]
        return next(({_ENGLISH: place} for place in places if place.is_dir()), {})


FILES = Parliament(
    "europarl",
    "Europarl",
    {"text": RawFile("europarl.tgz", unpacked="txt"), "map": RawFile("client_data_mapping/train.csv")},
    "unpacked: https://www.statmt.org/europarl has the former, FedScale's europarl.tar.gz the latter, with en/en.csv "
    "and fr/fr.csv",
    one_is_enough=True,
    tarballs=("europarl.tar.gz",),
)


@FEDERATIONS.register("europarl")
@cached_source(version=1, reads=FILES)
def europarl(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    language: Language = "fr",
    vocabulary: VocabularySize = 10_000,
    length: Length = 32,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Sentences of speeches, to be translated from English into `language`, from `folder`; a client is a speaker.

    Of both there are at most `length` words, of a `vocabulary` of the most frequent words of both languages.
    """
    found = FILES.find(folder)
    if maps := FILES.maps(folder):
        root = FILES.root(folder)
        english, other = (_column(root / name / f"{name}.csv") for name in (_ENGLISH, language))
        if len(english) != len(other):
            raise BadInputError(
                f"{root} has {len(english):,} sentences in {_ENGLISH}/{_ENGLISH}.csv and {len(other):,} in "
                f"{language}/{language}.csv; each must have its translation"
            )

        def sentences(row: MapRow) -> tuple[object, ...]:
            place = whole_number(row.sample, "the number of a sentence", row.where)
            if place >= len(english):
                raise BadInputError(f"{row.where} names sentence {place:,}; there are {len(english):,}, from 0")
            return (pair(words_of(english[place].as_py()), words_of(other[place].as_py())),)

        texts = TextFiles.of(*map_records(maps, sentences), groups_of_maps(maps))
    else:
        place = found[_ENGLISH]
        translated = place.parent / language
        if not translated.is_dir():
            raise BadInputError(f"{place.parent} has no folder {language} beside {_ENGLISH}")
        both = [path for path in sorted(place.glob("*.txt")) if (translated / path.name).is_file()]
        if not both:
            raise BadInputError(f"{place} and {translated} have no .txt files of the same name")
        texts = TextFiles.of(both, lambda path: _pairs(path, translated / path.name))
    build_translations(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        vocabulary,
        length,
    )


def _column(path: Path) -> pa.Array:
    """The last column of a table, without its heading."""
    if not path.is_file():
        raise BadInputError(f"{path.parent.parent} lacks {path.parent.name}/{path.name}, the sentences of the maps")
    rows = csv_rows(path)
    next(rows, None)
    return pa.array((values[-1] for _, values, _ in rows), pa.string())


def _pairs(path: Path, translated: Path) -> Iterator[Record]:
    others = {turn: said for turn, _, said in _turns(translated)}
    for turn, speaker, said in _turns(path):
        other = others.get(turn, [])
        if speaker and len(said) == len(other):
            for english, foreign in zip(said, other, strict=True):
                yield Record(speaker, (pair(words_of(english), words_of(foreign)),), 1.0)


def _turns(path: Path) -> Iterator[tuple[tuple[str, str], str, list[str]]]:
    """Chapter and number of every speech, the speaker's name, and the lines of what was said."""
    chapter, turn, speaker, said = "", "", "", list[str]()
    for _, line, _ in lines(path):
        if line.startswith("<"):
            found = _SPEAKER.match(line) or _CHAPTER.match(line)
            if found is None:
                continue  # <P>
            if said:
                yield (chapter, turn), speaker, said
            said = []
            if found.re is _CHAPTER:
                chapter, turn, speaker = found[1], "", ""
            else:
                turn, speaker = found[1], (found[2] or "").strip()
        elif line.strip():
            said.append(line)
    if said:
        yield (chapter, turn), speaker, said
