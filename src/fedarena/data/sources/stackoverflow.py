"""Stack Overflow as TensorFlow Federated gives it out: posts by 342,477 users; predict the next word, or the tags.

``stackoverflow_train.h5`` and ``stackoverflow_test.h5`` have a group for every user with ``tokens`` (words separated by
spaces), ``title`` and ``tags`` (with bars between). FedScale's tarball has the same with two vocabularies,
``vocab_tokens.txt`` and ``vocab_tags.txt``, which are pickled lists despite their names; they are read without running
anything. FedScale predicts the first known tag from the words; `labels` says whether it is that one, or all. A user who
is in both files is another client in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.hdf5_examples import hdf5_clients
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import (
    Length,
    TextFiles,
    VocabularySize,
    build_labelled_texts,
    build_next_words,
    known_words,
    words_of,
)
from fedarena.data.by_client.vocabularies import read_vocabulary
from fedarena.data.many_users.clients import ChosenTexts, PublishedGroups
from fedarena.data.many_users.posts import labels_of_bits, tag_bits, tag_columns
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import GROUPS, AnyArray

_WORDS, _TAGS = "vocab_tokens.txt", "vocab_tags.txt"


class ExampleFiles(RawFiles):
    """The file of every group that is there, and vocabularies."""

    def groups(self, given: str | None) -> dict[Path, int]:
        """Every file of examples with the place of its group."""
        place = self.folder(given)
        names = {"stackoverflow_train.h5": 0, "stackoverflow_held_out.h5": 1, "stackoverflow_test.h5": 2}
        return {place / name: code for name, code in names.items() if (place / name).is_file()}

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        place = self.folder(given)
        lists = {name: place / name for name in (_WORDS, _TAGS) if (place / name).is_file()}
        examples = {path.name: path for path in self.groups(given)}
        return {**examples, **lists} if examples else {}


FILES = ExampleFiles(
    "stackoverflow",
    "Stack Overflow",
    {"train": RawFile("stackoverflow_train.h5"), "test": RawFile("stackoverflow_test.h5")},
    "with vocab_tokens.txt and vocab_tags.txt if there are any; TensorFlow Federated's stackoverflow.tar.bz2 and "
    "FedScale's stackoverflow.tar.gz have them",
    one_is_enough=True,
    tarballs=("stackoverflow.tar.gz",),
)


@FEDERATIONS.register("stackoverflow")
@cached_source(version=1, reads=FILES)
def stackoverflow(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    labels: Literal["first_tag", "tags", "next_word"] = "first_tag",
    tags: Annotated[int, Field(ge=2, le=10_000)] = 500,
    vocabulary: VocabularySize = 10_000,
    length: Length = 100,
    sequence_length: Length = 20,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Questions and answers by who wrote them, from the HDF5 files in `folder`; a client is a user of one file.

    With ``labels=first_tag`` the class of a post is the first of the `tags` that it has, as in FedScale; ``tags`` are
    all of them. Both have the first `length` words of tokens and title. ``next_word`` cuts tokens into samples of
    ``sequence_length + 1`` words. Posts with no known tag, or no words, are left out. Tags and the `vocabulary` are the
    first of the lists in the folder, or else the most frequent of training.
    """
    found = FILES.find(folder)
    groups = FILES.groups(folder)
    words: Any = vocabulary
    if _WORDS in found:
        words = known_words(read_vocabulary(found[_WORDS]), vocabulary)
    files = {code: path for path, code in groups.items()}
    published = PublishedGroups(lambda group, line: f"client {line:,} of {files[group]}", len(files))
    chosen = choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed)
    if labels == "next_word":
        build_next_words(
            build,
            TextFiles.of(list(groups), lambda path: _texts(path, groups[path]), published),
            chosen,
            words,
            sequence_length,
        )
        return
    known = _known_tags(found.get(_TAGS), list(groups), tags)
    bits = {name: pa.int64() for name in tag_columns(len(known))}
    build_labelled_texts(
        build,
        TextFiles.of(
            list(groups), lambda path: _tagged(path, groups[path], known), published, first=pa.int32(), **bits
        ),
        chosen,
        words,
        length,
        lambda vocabulary: (
            vocabulary.multi_label(known) if labels == "tags" else vocabulary.classification(len(known), known)
        ),
        lambda texts: _labels(texts, len(known), labels == "tags"),
    )


def _labels(chosen: ChosenTexts, tags: int, all_of_them: bool) -> AnyArray:
    if not all_of_them:
        return chosen.texts.columns["first"][chosen.rows].astype(np.int64)
    return labels_of_bits([chosen.texts.columns[name][chosen.rows] for name in tag_columns(tags)], tags)


def _name(client: str, group: int) -> str:
    return f"{GROUPS[group]}-{client}"


def _texts(path: Path, group: int) -> Iterator[Record]:
    for one in hdf5_clients(path, "stackoverflow", ("tokens",)):
        for words in filter(None, map(words_of, one.lists["tokens"])):
            yield Record(_name(one.client, group), (group, one.number, words), one.done)


def _tagged(path: Path, group: int, known: Sequence[str]) -> Iterator[Record]:
    places = {tag: place for place, tag in enumerate(known)}
    for one in hdf5_clients(path, "stackoverflow", ("tokens", "title", "tags")):
        for tokens, title, tags in zip(*one.lists.values(), strict=True):
            of_post = [tag for tag in tags.split("|") if tag in places]
            words = words_of(f"{tokens} {title}")
            if of_post and words:
                bits = tag_bits([" ".join(of_post)], known)[0].tolist()
                yield Record(_name(one.client, group), (group, one.number, places[of_post[0]], *bits, words), one.done)


def _known_tags(path: Path | None, files: Sequence[Path], number: int) -> tuple[str, ...]:
    """The first tags of the list, or else the most frequent of the first file."""
    if path is not None:
        known = read_vocabulary(path)
    else:
        counts: Counter[str] = Counter()
        for one in hdf5_clients(files[0], "stackoverflow", ("tags",)):
            counts.update(tag for tags in one.lists["tags"] for tag in tags.split("|") if tag)
        known = sorted(counts, key=lambda tag: (-counts[tag], tag))
    if len(known) < number:
        raise BadInputError(
            f"{path or files[0]} has {len(known):,} different tags; federation.tags must not be above, unlike "
            f"{number:,}"
        )
    return tuple(known[:number])
