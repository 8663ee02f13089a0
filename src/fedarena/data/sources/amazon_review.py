"""Amazon Review (Ni, Li and McAuley, 2019): how many stars a reviewer gave, from the words of the review.

The publisher's files have a JSON object for every review, a line each or spread over several (``*.json.gz``, of any
categories; reviewers are the same people in all of them), or are tables without a heading whose columns are
reviewerID,asin,reviewerName,helpful,reviewText,overall,summary,unixReviewTime,reviewTime. In FedScale's maps the second
column, ``data_path``, is the text itself and ``label_name`` the number of stars.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.json_records import json_objects
from fedarena.data.by_client.maps import MapFiles, MapRow, groups_of_maps, map_records
from fedarena.data.by_client.packed import csv_rows
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.texts import Length, TextFiles, VocabularySize, build_labelled_texts, words_of
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

STARS = 5
LABEL_NAMES = ("1 star", *(f"{number} stars" for number in range(2, STARS + 1)))
_JSON = (".json.gz", ".json", ".jsonl", ".jsonl.gz")
_TABLES = (".csv", ".csv.gz")
_COLUMNS = ("reviewerID", "asin", "reviewerName", "helpful", "reviewText", "overall", "summary", "unixReviewTime")


class ReviewFiles(MapFiles):
    """FedScale's maps, or any number of the publisher's files."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        place = self.folder(given)
        if maps := self.maps(given):
            return {f"map of {group}": path for group, path in maps.items()}
        if not place.is_dir():
            return {}
        return {path.name: path for path in sorted(place.iterdir()) if path.name.endswith((*_JSON, *_TABLES))}


FILES = ReviewFiles(
    "amazon_review",
    "Amazon Review",
    {"reviews": RawFile("*.json.gz"), "map": RawFile("client_data_mapping/train.csv")},
    "https://nijianmo.github.io/amazon has the former; FedScale's amazon_review.tar.gz the latter, with test.csv",
    one_is_enough=True,
    tarballs=("amazon_review.tar.gz",),
)


@FEDERATIONS.register("amazon_review")
@cached_source(version=1, reads=FILES)
def amazon_review(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
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
    """Reviews of one to five stars by who wrote them, from the files in `folder`; a client is a reviewer.

    A sample has the first `length` words of a review, as tokens of a `vocabulary` of the most frequent words of the
    training samples. Reviews without words are left out.
    """
    found = FILES.find(folder)
    if maps := FILES.maps(folder):
        files, records = map_records(maps, _of_map)
        texts = TextFiles.of(files, records, groups_of_maps(maps), label=pa.int8())
    else:
        texts = TextFiles.of(list(found.values()), _published, label=pa.int8())
    build_labelled_texts(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        vocabulary,
        length,
        lambda words: words.classification(STARS, LABEL_NAMES),
        lambda chosen: chosen.texts.columns["label"][chosen.rows].astype("int64"),
    )


def _stars(given: Any, where: str) -> int:
    """The class of a review, which is one less than its stars."""
    try:
        stars = float(given)
    except (TypeError, ValueError):
        stars = 0.0
    if stars not in range(1, STARS + 1):
        raise BadInputError(f"{where} has {quoted(given)} stars; there are 1 to {STARS}")
    return int(stars) - 1


def _of_map(row: MapRow) -> tuple[object, ...] | None:
    words = words_of(row.sample)
    return (_stars(row.label_name, row.where), words) if words else None


def _published(path: Path) -> Iterator[Record]:
    for line, reviewer, stars, text, done in _rows(path) if path.name.endswith(_TABLES) else _objects(path):
        where = f"{path}, line {line:,}"
        if not isinstance(reviewer, str) or not reviewer:
            raise BadInputError(f"{where} has no reviewer")
        label = _stars(stars, where)
        if isinstance(text, str) and (words := words_of(text)):
            yield Record(reviewer, (label, words), done)


def _objects(path: Path) -> Iterator[tuple[int, Any, Any, Any, float]]:
    for line, review, done in json_objects(path):
        # The files of 2023 have other names than those of 2014 and 2018.
        reviewer, stars = review.get("reviewerID", review.get("user_id")), review.get("overall", review.get("rating"))
        yield line, reviewer, stars, review.get("reviewText", review.get("text")), done


def _rows(path: Path) -> Iterator[tuple[int, Any, Any, Any, float]]:
    for line, values, done in csv_rows(path):
        if len(values) < len(_COLUMNS):
            raise BadInputError(f"{path}, line {line:,} has {len(values)} columns; it must have {', '.join(_COLUMNS)}")
        if values[0] != _COLUMNS[0]:
            yield line, values[0], values[5], values[4], done
