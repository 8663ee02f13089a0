"""Comments on Reddit by who wrote them: Pushshift's dumps and tables, or FedScale's folders; predict the next word.

`reddit` is LEAF's choice of comments, in its own form. Here are all comments of some files: a JSON object in each line
(Pushshift's ``RC_2017-11.bz2``), a table with the columns author_fullname or author and body, FedScale's folders train
and test with a text for every user, or the JSON of its script, ``user_data`` with lists ``x`` of texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.json_records import json_objects
from fedarena.data.by_client.packed import opened, table_rows
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.text_folders import TextFolders, texts_of_folders
from fedarena.data.by_client.texts import (
    Length,
    TextFiles,
    VocabularySize,
    build_next_words,
    known_words,
    words_of,
)
from fedarena.data.by_client.vocabularies import read_vocabulary
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import GROUPS

_TABLES = (".csv", ".csv.gz", ".csv.xz")
_DUMPS = (".bz2", ".xz", ".jsonl", ".jsonl.gz", ".json.gz")
_GONE = ("", "[deleted]", "[removed]")
_VOCABULARY = "reddit_vocab.pkl"


class CommentFiles(TextFolders):
    """FedScale's folders, or any number of tables and dumps."""

    def folders(self, given: str | None) -> dict[Path, int]:
        """Folders of texts; those of JSON are something else."""
        return {} if self.json_files(given) else super().folders(given)

    def json_files(self, given: str | None) -> dict[Path, int]:
        """The files of FedScale's script, and the number of their group."""
        place = self.folder(given)
        found = {(name, code): sorted((place / name).glob("*.json")) for name, code in (("train", 0), ("test", 2))}
        return {path: code for (_, code), paths in found.items() for path in paths}

    def found(self, given: str | None) -> dict[str, Path]:
        """All files."""
        place = self.folder(given)
        if files := self.json_files(given):
            return {f"{path.parent.name}/{path.name}": path for path in files}
        known = super().found(given)
        if known or not place.is_dir():
            return known
        return {path.name: path for path in sorted(place.iterdir()) if path.name.endswith((*_TABLES, *_DUMPS))}


FILES = CommentFiles(
    "reddit_comments",
    "comments on Reddit",
    {"comments": RawFile("RC_*.bz2"), "table": RawFile("*.csv")},
    "or folders train and test with a file for every user, as in FedScale's reddit.tar.gz",
    one_is_enough=True,
    tarballs=("reddit.tar.gz",),
)


@FEDERATIONS.register("reddit_comments")
@cached_source(version=1, reads=FILES)
def reddit_comments(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: VocabularySize = 10_000,
    sequence_length: Length = 20,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Comments on Reddit, of which the next word is to be predicted, from files in `folder`; a client is a user.

    A comment becomes one sample or more, of ``sequence_length + 1`` words; `minimum_samples` counts comments. If
    FedScale's pickled reddit_vocab.pkl is there, its first words are the `vocabulary`, otherwise the most frequent
    words of the training samples. What was deleted is left out.
    """
    found = FILES.find(folder)
    words: Any = vocabulary
    if (path := FILES.folder(folder) / _VOCABULARY).is_file():
        words = known_words(read_vocabulary(path), vocabulary)
    if of_script := FILES.json_files(folder):
        groups = PublishedGroups(
            lambda group, line: f"user {line:,} of the files of {GROUPS[group]}", len(set(of_script.values()))
        )
        texts = TextFiles.of(list(of_script), lambda path: _user_data(path, of_script[path]), groups)
    elif folders := FILES.folders(folder):
        texts = texts_of_folders(folders)
    else:
        texts = TextFiles.of(list(found.values()), lambda path: _table(path) if _is_table(path) else _dump(path))
    build_next_words(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        words,
        sequence_length,
    )


def _is_table(path: Path) -> bool:
    return path.name.endswith(_TABLES)


def _comment(user: str, body: str, done: float) -> Iterator[Record]:
    if user not in _GONE and body not in _GONE and (words := words_of(body)):
        yield Record(user, (words,), done)


def _table(path: Path) -> Iterator[Record]:
    heading, rows = table_rows(path)
    user, body = heading.place("author_fullname", "author"), heading.place("body")
    for row in rows:
        yield from _comment(row.values[user], row.values[body], row.done)


def _dump(path: Path) -> Iterator[Record]:
    for line, comment, done in json_objects(path):
        user, body = comment.get("author"), comment.get("body")
        if not isinstance(user, str) or not isinstance(body, str):
            raise BadInputError(f"{path}, line {line:,} must have an author and a body, both texts")
        yield from _comment(user, body, done)


def _user_data(path: Path, group: int) -> Iterator[Record]:
    import ijson

    with opened(path) as source:
        try:
            for number, (user, data) in enumerate(ijson.kvitems(source.file, "user_data"), 1):
                texts = data.get("x") if isinstance(data, dict) else None
                if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                    raise BadInputError(f"{path}: user {quoted(user)} must have a list x of texts")
                for words in filter(None, map(words_of, texts)):
                    yield Record(user, (group, number, words), source.fraction())
        except (ijson.JSONError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"{path} is damaged: it is no complete JSON ({error})") from None
