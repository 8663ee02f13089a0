"""Sentiment140: tweets that are negative or positive, each user a client (Caldas et al., "LEAF", 2018).

The data is that of Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision" (2009):
1,600,000 tweets labelled by their emoticons, and 498 labelled by hand. As in LEAF, both files are taken together, and
the neutral ones among the 498 count as negative (its code calls everything negative that is not positive).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from fedarena.core.options import PathOption
from fedarena.data.many_users.buckets import Buckets, Piece, Position
from fedarena.data.many_users.clients import TextClients
from fedarena.data.many_users.resumable import work_folder
from fedarena.data.many_users.texts import TextIndex
from fedarena.data.many_users.tweets import NEUTRAL, POSITIVE, TweetFile
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples, Sampling
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec
from fedarena.data.text.sequences import padded_in_front
from fedarena.data.text.words import SPLITTERS, Tokenizer, Vocabulary

TABLES = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
_UNPACKED = "trainingandtestdata"


class Sent140Files(RawFiles):
    """The archive, or the two tables that are in it."""

    def found(self, given: str | None) -> dict[str, Path]:
        """The archive; without it the tables, one of them in its place."""
        place = self.folder(given)
        for folder in (place, place / _UNPACKED):
            tables = [folder / name for name in TABLES]
            if not (place / self.files["archive"].name).exists() and all(table.is_file() for table in tables):
                return {"archive": tables[0], "test": tables[1]}
        return super().found(given)


FILES = Sent140Files(
    "sent140",
    "Sentiment140",
    {
        "archive": RawFile(
            "trainingandtestdata.zip",
            "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
            "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
        )
    },
    f"or what is in it, {' and '.join(TABLES)}; http://help.sentiment140.com/for-students says where to get it",
)


@FEDERATIONS.register("sent140")
@cached_source(version=1, reads=FILES)
def sent140(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: Annotated[int, Field(ge=3, le=1_000_000)] = 10_000,
    length: Annotated[int, Field(ge=1, le=140)] = 40,
    tokenizer: Tokenizer = "words",
    neutral: Literal["negative", "left_out"] = "negative",
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.9,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
    verify: bool = True,
) -> None:
    """Tweets that are negative or positive, from the published files in `folder`; a client is a user.

    A sample has the first `length` words of a tweet (of two thousand tweets, one has more than 40), as tokens of a
    `vocabulary`: padding, unknown, and the most frequent words of the training samples. With ``tokenizer="leaf"`` words
    are found as in LEAF's code.
    """
    division = Split(split, train_fraction, validation_fraction, split_seed)
    found = FILES.find(folder)
    if verify:
        FILES.check(found, lambda done: build.progress(0.05 * done, "Checking"))
    path = found["archive"].parent if "test" in found else found["archive"]
    reader = _Reader(path, tokenizer, neutral)
    with work_folder(build) as work:
        buckets = Buckets(work, reader.total_bytes)
        buckets.fill(reader.read, lambda done: build.progress(0.05 + 0.55 * done, "Reading tweets"))
        index = TextIndex(work, buckets)
        index.build(lambda done: build.progress(0.6 + 0.2 * done, "Grouping by user"))
        sampling = Sampling(fraction=fraction, minimum_samples=minimum_samples, seed=sampling_seed)
        clients = TextClients(index, sampling, division)
        counts = clients.training_words(lambda done: build.progress(0.8 + 0.1 * done, "Counting words"))
        _write(build, clients, Vocabulary.of(counts, vocabulary), length)


def _write(build: StoreBuild, clients: TextClients, words: Vocabulary, length: int) -> None:
    task = words.classification(2, ("negative", "positive"))
    columns = {"x": ColumnSpec(dtype=words.dtype, shape=(length,)), "y": ColumnSpec(dtype="int64")}
    done = 0
    with build.writer(task=task, columns=columns) as writer:
        for chosen in clients:
            texts, rows = chosen.texts, chosen.rows
            x = padded_in_front(texts.tokens_at(rows, words), texts.lengths[rows], length)
            y = texts.columns["label"][rows].astype("int64")
            writer.add_clients(chosen.ids, counts=chosen.counts, columns={"x": x, "y": y}, groups=chosen.groups)
            done += len(chosen.users)
            build.progress(0.9 + 0.1 * done / clients.number, "Writing")


class _Reader:
    """Reads the two tables, one after the other, from anywhere."""

    def __init__(self, path: Path, tokenizer: Tokenizer, neutral: str):
        self._tables = [TweetFile(path, name) for name in TABLES]
        self._split, self._neutral = SPLITTERS[tokenizer], neutral
        self._sizes = [table.size_bytes() for table in self._tables]
        self.total_bytes = sum(self._sizes)

    def read(self, position: Position | None) -> Iterator[Piece]:
        at = position or {"table": 0, "byte": 0, "line": 0}
        for number in range(at["table"], len(self._tables)):
            here = at if number == at["table"] else {"byte": 0, "line": 0}
            for tweets in self._tables[number].read(here["byte"], here["line"]):
                done = sum(self._sizes[:number]) + tweets.next_byte
                next_position = {"table": number, "byte": tweets.next_byte, "line": tweets.next_line}
                yield Piece(self._rows(tweets.rows), next_position, done / self.total_bytes)

    def _rows(self, tweets: pa.RecordBatch) -> pa.RecordBatch:
        if self._neutral == "left_out":
            tweets = tweets.filter(pc.not_equal(tweets.column("polarity"), NEUTRAL))
        texts = tweets.column("text").to_pylist()
        words = pa.array(self._split(texts) if texts else [], pa.string())
        labels = pc.equal(tweets.column("polarity"), POSITIVE).cast(pa.int8())
        return pa.RecordBatch.from_arrays([tweets.column("user"), words, labels], names=["user", "text", "label"])
