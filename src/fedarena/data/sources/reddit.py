"""Reddit: comments of December 2017, each user a client (Caldas et al., "LEAF", 2018), from LEAF's preprocessed files.

A file has some users, and of each the comments as sequences of words: ``<BOS>``, the words, ``<EOS>``, filled up with
``<PAD>`` to a multiple of ten. LEAF divided everybody's comments by time: 60 % for training, 20 % for validation and
20 % for testing, in files of their own. The task is to predict the next word.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.many_users.buckets import Buckets
from fedarena.data.many_users.clients import Published, TextClients
from fedarena.data.many_users.comments import CommentReader
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.many_users.texts import TextIndex
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction, split_anew
from fedarena.data.store.schema import PARTS, ColumnSpec, Part
from fedarena.data.text.sequences import cut_into_sequences
from fedarena.data.text.words import Vocabulary

FOLDERS: dict[str, Part] = {"train": "train", "val": "validation", "test": "test"}
_ARCHIVES = ("reddit_leaf", "new_small_data")  # the folders in LEAF's two archives, the complete and the small one


class RedditFiles(RawFiles):
    """Three folders with any number of files, or three files."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All files, the first of each folder under the folder's name."""
        place = self.folder(given)
        for folder in (place, *(place / name for name in _ARCHIVES)):
            parts = {part: sorted((folder / part).glob("*.json")) for part in FOLDERS}
            for part, files in parts.items():
                if not files and (single := folder / f"{part}_data.json").is_file():
                    files.append(single)
            if any(parts.values()):
                return {
                    (f"{part}/{path.name}" if number else part): path
                    for part, files in parts.items()
                    for number, path in enumerate(files)
                }
        return {}


FILES = RedditFiles(
    "reddit",
    "LEAF's Reddit",
    {part: RawFile(part) for part in FOLDERS},
    "folders with LEAF's files reddit_*.json, or the files train_data.json, val_data.json and test_data.json of its "
    "small version; https://github.com/TalwalkarLab/leaf/tree/master/data/reddit says where to get them",
)


@FEDERATIONS.register("reddit")
@cached_source(version=2, reads=FILES)
def reddit(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: Annotated[int, Field(ge=3, le=1_000_000)] = 10_000,
    sequence_length: Annotated[int, Field(ge=1, le=10_000)] = 10,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Comments on Reddit, from LEAF's files in `folder`; a client is a user, and the task is to predict the next word.

    A comment becomes one sample or more, of ``sequence_length + 1`` words; `minimum_samples` and `fraction` count
    comments, as LEAF does. The `vocabulary` has padding, unknown and the most frequent words of the training samples.
    The attribute ``subreddit`` is where the user wrote most comments. With ``split="within_client"`` the earlier
    comments are for training and the later ones for testing; fractions are 0.8 and 0 unless they are given.
    """
    division = split_anew(split, train_fraction, validation_fraction, split_seed) or Published("part")
    found = FILES.find(folder)
    _check_numbers(found)
    reader = CommentReader({path: PARTS.index(FOLDERS[key.partition("/")[0]]) for key, path in found.items()})
    with work_folder(build) as work:
        buckets = Buckets(work, reader.total_bytes)
        buckets.fill(reader.read, lambda done: build.progress(0.65 * done, "Reading comments"))
        index = TextIndex(work, buckets, reader.describe)
        index.build(lambda done: build.progress(0.65 + 0.2 * done, "Grouping by user"))
        sampling = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed)
        clients = TextClients(index, sampling, division, order="in_order")
        counts = clients.training_words(lambda done: build.progress(0.85 + 0.05 * done, "Counting words"))
        _write(build, clients, Vocabulary.of(counts, vocabulary), sequence_length)


def _check_numbers(found: dict[str, Path]) -> None:
    """Every file of LEAF's complete version has a number, and the same users are in all three of a number."""
    numbers: dict[str, dict[str, Path]] = {part: {} for part in FOLDERS}
    for key, path in found.items():
        part = key.partition("/")[0]
        if numbered := re.fullmatch(rf"(reddit_\d+)_{part}\.json", path.name):
            numbers[part][numbered[1]] = path
    for name in sorted(set().union(*numbers.values())):
        lacking = [part for part in FOLDERS if name not in numbers[part]]
        if lacking:
            there = next(of_part[name] for of_part in numbers.values() if name in of_part)
            missing = there.parent.parent / lacking[0] / f"{name}_{lacking[0]}.json"
            raise BadInputError(f"{missing} is missing, and {there} has the same users' other comments; get it, too")


def _write(build: StoreBuild, clients: TextClients, words: Vocabulary, sequence_length: int) -> None:
    columns = {"tokens": ColumnSpec(dtype=words.dtype, shape=(sequence_length + 1,))}
    done = 0
    with build.writer(task=words.next_token(), columns=columns, attributes={"subreddit": "string"}) as writer:
        for chosen in clients:
            tokens = chosen.texts.tokens_at(chosen.rows, words)
            sequences, counts = cut_into_sequences(tokens, chosen.texts.lengths[chosen.rows], sequence_length)
            writer.add_clients(
                chosen.ids,
                counts=chosen.add_up(counts),
                columns={"tokens": sequences},
                groups=chosen.groups,
                attributes={"subreddit": chosen.attribute("subreddit")},
            )
            done += len(chosen.users)
            build.progress(0.9 + 0.1 * done / clients.number, "Writing")
